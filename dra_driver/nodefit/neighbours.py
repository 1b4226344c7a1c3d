"""The pods that are on nodes, or expected there, as far as other pods have terms about them.

What was asked about is kept and follows each pod that comes or goes, so that a question costs work in
proportion to the nodes with pods that matter to it, not to all pods.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.nodefit.terms import PodSelector, Term, terms_of

__all__ = ["LabelValues", "Neighbour", "Neighbours", "NodePods", "Standing", "Tally", "neighbour_of"]

LabelValues = Mapping[str, str]
"""Node → value of one label."""

# Each may name every node with a pod.
_MOST_WATCHED: Final = 64
# Different terms about pods of one namespace: everybody may name any namespace in terms.
_MOST_HELD: Final = 2_048
_EVERYWHERE: Final = ""


class Standing(NamedTuple):
    """What of a pod decides how it counts.

    Attributes:
        priority: ``spec.priority``.
        bound: kube-scheduler has bound it; else it is expected on the node.
        ending: it is being deleted.
    """

    priority: int
    bound: bool
    ending: bool


class Neighbour(NamedTuple):
    """A pod, as others see it.

    Attributes:
        namespace: its own.
        labels: its own.
        anti: terms of its required anti-affinity, which hold against pods that come later.
        standing: how it counts.
    """

    namespace: str
    labels: Mapping[str, str]
    anti: tuple[Term, ...]
    standing: Standing


def neighbour_of(pod: Pod) -> Neighbour:
    """Return a pod as others see it."""
    meta = pod.metadata
    standing = Standing(pod.spec.priority, bool(pod.spec.node_name), meta.deletion_timestamp is not None)
    affinity = pod.spec.affinity
    has_terms = affinity is not None and affinity.pod_anti_affinity is not None
    anti = tuple(dict.fromkeys(terms_of(pod).anti)) if has_terms else ()
    return Neighbour(meta.namespace, meta.labels or {}, anti, standing)


class Tally(NamedTuple):
    """How many pods are in a domain.

    Attributes:
        expected: all, those that are not bound yet as well.
        bound: those that kube-scheduler has bound.
    """

    expected: int
    bound: int


_NOBODY: Final = Tally(0, 0)


class NodePods:
    """The pods of some kind on each node.

    Attributes:
        nodes: name → standing → number.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Counter[Standing]] = {}
        # By label, and whether pods that are being deleted are left out.
        self._tallies: dict[tuple[str, bool], tuple[LabelValues, dict[str, Tally]]] = {}

    def add(self, node: str, standing: Standing) -> None:
        """Count a pod."""
        self.nodes.setdefault(node, Counter())[standing] += 1
        self._follow(node, standing, 1)

    def remove(self, node: str, standing: Standing) -> None:
        """Stop counting a pod."""
        there = self.nodes[node]
        there[standing] -= 1
        if not there[standing]:
            del there[standing]
            if not there:
                del self.nodes[node]
        self._follow(node, standing, -1)

    def _follow(self, node: str, standing: Standing, number: int) -> None:
        for (_, live), (values, counts) in self._tallies.items():
            if not (live and standing.ending):
                _count(counts, values.get(node), standing, number)

    def below(self, node: str, priority: int) -> Tally:
        """Return how many pods of lower priority are on a node."""
        found = [(s, n) for s, n in self.nodes.get(node, {}).items() if s.priority < priority]
        return Tally(sum(n for _, n in found), sum(n for s, n in found if s.bound))

    def tally(self, key: str, values: LabelValues, *, live: bool = False) -> Mapping[str, Tally]:
        """Return the number of pods for each value of a label.

        Args:
            key: of the label.
            values: of nodes; as long as this is the same object, the answer follows each pod.
            live: whether pods that are being deleted are left out.
        """
        known = self._tallies.get((key, live))
        if known is not None and known[0] is values:
            return known[1]
        found: dict[str, Tally] = {}
        for node, there in self.nodes.items():
            for standing, number in there.items():
                if not (live and standing.ending):
                    _count(found, values.get(node), standing, number)
        self._tallies[key, live] = (values, found)
        return found


def _count(counts: dict[str, Tally], value: str | None, standing: Standing, number: int) -> None:
    if value is None:
        return
    before = counts.get(value, _NOBODY)
    now = Tally(before.expected + number, before.bound + number * standing.bound)
    if now == _NOBODY:
        del counts[value]
    else:
        counts[value] = now


_Selection = tuple[PodSelector, ...]


class Neighbours:
    """All pods that count on nodes, found by what others require of them.

    Attributes:
        version: another number whenever something has changed about pods that were asked for.
    """

    def __init__(self) -> None:
        self.version = 0
        # Namespace → pod → its node, and those of its terms that are counted.
        self._pods: dict[str, dict[Uid, tuple[str, Neighbour, tuple[Term, ...]]]] = {}
        # Selectors that must all hold → the pods for which they do.
        self._watched: OrderedDict[_Selection, NodePods] = OrderedDict()
        # Terms of anti-affinity → the pods that have them; the terms about pods of a namespace.
        self._holders: dict[Term, NodePods] = {}
        self._about: dict[str, dict[Term, None]] = {}

    def add(self, uid: Uid, node: str, pod: Neighbour) -> None:
        """Count a pod on a node."""
        counted = tuple(term for term in pod.anti if term in self._holders or self._learn(term))
        self._pods.setdefault(pod.namespace, {})[uid] = (node, pod, counted)
        for term in counted:
            self._holders[term].add(node, pod.standing)
            self.version += 1
        self._follow(pod, lambda there: there.add(node, pod.standing))

    def remove(self, uid: Uid, namespace: str) -> None:
        """Stop counting a pod."""
        node, pod, counted = self._pods[namespace].pop(uid)
        if not self._pods[namespace]:
            del self._pods[namespace]
        for term in counted:
            holders = self._holders[term]
            holders.remove(node, pod.standing)
            self.version += 1
            if not holders.nodes:
                self._forget(term)
        self._follow(pod, lambda there: there.remove(node, pod.standing))

    def held_against(self, namespace: str, labels: Mapping[str, str]) -> tuple[Term, ...]:
        """Return the terms of anti-affinity of pods that are there which a pod would break, sorted."""
        found = {
            term
            for about in (namespace, _EVERYWHERE)
            for term in self._about.get(about, ())
            if term.pods.selects(namespace, labels)
        }
        return tuple(sorted(found, key=repr)) if found else ()

    def holders(self, term: Term) -> NodePods:
        """Return the pods with a term of anti-affinity."""
        return self._holders.get(term) or NodePods()

    def selected(self, selection: _Selection) -> NodePods:
        """Return the pods for which all these selectors hold."""
        known = self._watched.get(selection)
        if known is None:
            known = self._watched[selection] = NodePods()
            for node, pod in self._of(selection[0]):
                if _selects(selection, pod):
                    known.add(node, pod.standing)
            if len(self._watched) > _MOST_WATCHED:
                self._watched.popitem(last=False)
        self._watched.move_to_end(selection)
        return known

    def _of(self, selector: PodSelector) -> Iterable[tuple[str, Neighbour]]:
        names = self._pods if selector.everywhere else selector.namespaces
        for name in names:
            for node, pod, _ in self._pods.get(name, {}).values():
                yield node, pod

    def _follow(self, pod: Neighbour, change: Callable[[NodePods], None]) -> None:
        for selection, there in self._watched.items():
            if _selects(selection, pod):
                change(there)
                self.version += 1

    def _learn(self, term: Term) -> bool:
        """Note a term; return False where there are too many."""
        names = (_EVERYWHERE,) if term.pods.everywhere else term.pods.namespaces
        if any(len(self._about.get(name, ())) >= _MOST_HELD for name in names):
            return False
        for name in names:
            self._about.setdefault(name, {})[term] = None
        self._holders[term] = NodePods()
        return True

    def _forget(self, term: Term) -> None:
        del self._holders[term]
        for name in (_EVERYWHERE,) if term.pods.everywhere else term.pods.namespaces:
            del self._about[name][term]
            if not self._about[name]:
                del self._about[name]


def _selects(selection: _Selection, pod: Neighbour) -> bool:
    return all(selector.selects(pod.namespace, pod.labels) for selector in selection)
