"""The nodes that a pod cannot go to because of the pods that are there, or expected there."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from controller.allocate.decide.state.objects import Objects, is_finished
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import Uid
from dra_driver.nodefit import (
    Domains,
    Eligible,
    Neighbours,
    PodRules,
    Spread,
    Surroundings,
    matches_selectors,
    rules_of,
    terms_of,
    tolerates_taints,
)

__all__ = ["Apart", "BesideOthers", "Left", "attracts", "repels_less"]

_MOST_KEPT: Final = 64
# Terms of the pods of one group that are looked at between these pods.
_MOST_APART: Final = 8


def attracts(old: Pod, pod: Pod) -> bool:
    """Return whether a change of a pod may help others that wait for it (``waits_for_others``).

    They do where affinity asks for it, or where topology spread counts it.
    """
    if not pod.spec.node_name or is_finished(pod):
        return False
    ends = bool(pod.metadata.deletion_timestamp) and not old.metadata.deletion_timestamp
    return ends or not old.spec.node_name or repels_less(old, pod)


def repels_less(old: Pod, pod: Pod) -> bool:
    """Return whether anti-affinity of others, or against others, may end with a change of a pod."""
    return bool(pod.spec.node_name) and old.metadata.labels != pod.metadata.labels


class Apart(NamedTuple):
    """A term of anti-affinity between the pods of a group, as an amount that each takes of a node.

    Attributes:
        key: of the label; a node without it does not count.
        has: what a node has of it.
        needs: what a pod takes: all of it where it has the term and is selected by it; one where it is so by
            half, so that it goes with others like it, but with none that takes all.
    """

    key: str
    has: int
    needs: Mapping[Uid, int]

    def on(self, node: Node) -> int:
        """Return what a node has of it."""
        return self.has if self.key in (node.metadata.labels or {}) else self.has**2


class Left(NamedTuple):
    """The nodes that are left for a pod, as in ``Placement``."""

    nodes: Set[str]
    rejected: Mapping[str, int]
    evicting: Set[str]


class _Kept(NamedTuple):
    """An answer, and what it rests on."""

    rests_on: tuple[object, ...]
    left: Left


class BesideOthers:
    """Leaves out nodes because of other pods; answers are kept until something changes.

    Args:
        nodes: all of them.
        neighbours: the pods that count.
        has_below: whether there are pods of lower priority on a node.
    """

    def __init__(
        self, nodes: Objects[Node], neighbours: Neighbours, has_below: Callable[[str, int], bool]
    ) -> None:
        self._nodes = nodes
        self._neighbours = neighbours
        self._has_below = has_below
        self._domains = Domains(self._labels)
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        # For pods that want the same of nodes: those that count for topology spread.
        self._eligible: OrderedDict[Hashable, tuple[int, Eligible]] = OrderedDict()

    def _labels(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        for node in self._nodes:
            yield node.metadata.name, node.metadata.labels or {}

    def changed(self, name: str) -> None:
        """Note that a node has changed."""
        node = self._nodes.by_name(name)
        self._domains.changed(name, None if node is None else node.metadata.labels or {})

    def apart(self, pods: Collection[Pod]) -> tuple[Apart, ...]:
        """Return the terms by which pods of a group keep one another away from a node.

        Only terms on labels that differ from node to node; what keeps pods away from larger domains, and one
        kind of pods from another, is left to kube-scheduler.
        """
        own = {pod.metadata.uid: terms_of(pod).anti for pod in pods}
        found: list[Apart] = []
        for term in list(dict.fromkeys(term for terms in own.values() for term in terms))[:_MOST_APART]:
            if any(len(nodes) > 1 for nodes in self._domains.members(term.key).values()):
                continue
            needs: dict[Uid, int] = {}
            for pod in pods:
                has = term in own[pod.metadata.uid]
                selected = term.pods.selects(pod.metadata.namespace, pod.metadata.labels or {})
                if has or selected:
                    needs[pod.metadata.uid] = len(pods) if has and selected else 1
            if len(pods) in needs.values():
                found.append(Apart(term.key, len(pods), needs))
        return tuple(found)

    def forget(self) -> None:
        """Forget answers: what they rest on has changed."""
        self._kept.clear()

    def rules(self, pod: Pod, *, conditions: bool) -> PodRules | None:
        """Return what decides where a pod may go beside others; None: nothing does.

        Args:
            pod: to be placed.
            conditions: whether its conditions on nodes are looked at: topology spread rests on them.
        """
        found = rules_of(pod, self._neighbours)
        if found is None or conditions:
            return found
        return found._replace(terms=found.terms._replace(spread=()), counted=())

    def left(self, pod: Pod, rules: PodRules, base: Left, alike: bytes, state: Hashable = None) -> Left:
        """Return the nodes that are left of those that can take the pod otherwise.

        Args:
            pod: that does not count where it is expected.
            rules: that hold for it.
            base: the nodes that can take it as far as other pods do not matter.
            alike: the same for pods that want the same of nodes.
            state: the same while ``base`` is; None: the answer is for this pod only.
        """
        rests_on = (state, self._domains.version, self._neighbours.version)
        key = (alike, rules)
        known = self._kept.get(key) if state is not None else None
        if known is not None and known.rests_on == rests_on:
            self._kept.move_to_end(key)
            return known.left
        left = self._work_out(pod, rules, base, alike)
        if state is not None:
            # Pods are counted for the first time when they are asked for.
            rests_on = (state, self._domains.version, self._neighbours.version)
            self._kept[key] = _Kept(rests_on, left)
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return left

    def _work_out(self, pod: Pod, rules: PodRules, base: Left, alike: bytes) -> Left:
        def eligible(constraint: Spread) -> Eligible:
            return self._eligible_for(pod, constraint, rules.terms.spread, alike)

        around = Surroundings(rules, self._neighbours, self._domains, eligible)
        closed = around.closed()
        rejected = Counter(base.rejected)
        lost: list[str] = []
        for name, reason in closed.items():
            if name in base.nodes:
                rejected[reason] += 1
                lost.append(name)
        evicting: set[str] = set()
        if pod.spec.preemption_policy != "Never":
            priority = pod.spec.priority
            below = (n for n in lost if around.may_end(closed[n]) and self._has_below(n, priority))
            asked = [*base.evicting, *below]
            evicting = {name for name in asked if not around.problem_without(name, priority)}
        return Left(base.nodes - set(lost) if lost else base.nodes, rejected, evicting)

    def _eligible_for(
        self, pod: Pod, constraint: Spread, all_of_them: Sequence[Spread], alike: bytes
    ) -> Eligible:
        """Return the nodes that count for one of the spread constraints of a pod."""
        spec = pod.spec
        by_affinity = constraint.by_affinity and bool(spec.node_selector or spec.affinity is not None)
        by_taints = constraint.by_taints
        keys = tuple(c.key for c in all_of_them)
        of = alike if by_affinity or by_taints else b""
        key = (of, by_affinity, by_taints, keys, constraint.key)
        known = self._eligible.get(key)
        if known is None or known[0] != self._domains.version:
            values = self._domains.values(constraint.key)
            others = [self._domains.values(k) for k in keys if k != constraint.key]
            found = {
                name: value
                for name, value in values.items()
                if all(name in other for other in others)
                and self._counts(pod, name, by_affinity=by_affinity, by_taints=by_taints)
            }
            eligible = Eligible(found, frozenset(found.values()))
            known = self._eligible[key] = (self._domains.version, eligible)
            if len(self._eligible) > _MOST_KEPT:
                self._eligible.popitem(last=False)
        self._eligible.move_to_end(key)
        return known[1]

    def _counts(self, pod: Pod, name: str, *, by_affinity: bool, by_taints: bool) -> bool:
        node = self._nodes.by_name(name) if by_affinity or by_taints else None
        if node is None:
            return True
        return not (by_affinity and not matches_selectors(pod, node)) and not (
            by_taints and not tolerates_taints(pod, node)
        )
