"""Which nodes a pod could go to, apart from its claims.

kube-scheduler decides in the end. Here the same is looked at as far as nodes and the requests of pods decide
it (``dra_driver.nodefit``), so that devices are chosen where the pod can go. What is not looked at (pod
affinity, topology spread, volumes) costs a second or two in which devices are held in vain: kube-scheduler
reports that it cannot place the pod, and another node is tried.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from controller.allocate.decide.objects import Objects, is_finished
from controller.allocate.decide.signatures import digest
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import Uid
from dra_driver.api.resource import DeviceClass
from dra_driver.nodefit import (
    NeedsVectors,
    NodeRoom,
    PodNeeds,
    Vector,
    condition_problem,
    has_many_conditions,
    needs_of,
    problem,
)

__all__ = ["FreeRoom", "NodeUsage", "Placement", "Placements", "same_for_pods"]

_AVOIDED: Final = "where kube-scheduler could not place it a short while ago"
_MOST_KEPT: Final = 64
_LONGEST_LOG: Final = 1_000
# Tolerations, and requirements of node affinity with their values: a pod may have a megabyte of them, and
# each costs a comparison per node.
_MOST_CONDITIONS: Final = 512
_EMPTY: Final = NodeRoom()
# Of extended resources that a DeviceClass serves without naming one (KEP-5004).
_IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"


class _Entry(NamedTuple):
    """Where a pod counts.

    Attributes:
        node: its name.
        needs: of the pod.
        expected: whether its claims are allocated there; else it is bound, or kube-scheduler nominated it.
    """

    node: str
    needs: PodNeeds
    expected: bool = False


class NodeUsage:
    """What the pods of each node take, kept up to date pod by pod.

    A pod counts where it is bound; before that, where its devices were allocated (``place``), or where
    kube-scheduler evicts pods for it (``status.nominatedNodeName``).
    """

    def __init__(self) -> None:
        self._pods: dict[Uid, _Entry] = {}
        self._nodes: dict[str, NodeRoom] = {}
        self.changed: Callable[[str], None] = lambda _: None
        """Called with the name of a node when what is taken of it has changed."""

    def on(self, node: str) -> NodeRoom:
        """Return what pods take of a node."""
        return self._nodes.get(node, _EMPTY)

    def place_of(self, pod: Pod) -> str | None:
        """Return the node where the pod counts."""
        entry = self._pods.get(pod.metadata.uid)
        return None if entry is None else entry.node

    def place(self, pod: Pod, node: str) -> None:
        """Count a pod on the node where it is expected."""
        self._set(pod.metadata.uid, _Entry(node, needs_of(pod), expected=True))

    @contextlib.contextmanager
    def placing(self) -> Iterator[Callable[[Pod, str], None]]:
        """Give a ``place`` that holds until the block ends."""
        before: dict[Uid, _Entry | None] = {}

        def place(pod: Pod, node: str) -> None:
            before.setdefault(pod.metadata.uid, self._pods.get(pod.metadata.uid))
            self.place(pod, node)

        try:
            yield place
        finally:
            for uid, entry in before.items():
                self._set(uid, entry)

    @contextlib.contextmanager
    def without(self, pods: Iterable[Pod]) -> Iterator[None]:
        """Leave out pods that are not bound, until the block ends; nothing else may change meanwhile."""
        found = [self._pods.get(p.metadata.uid) for p in pods if not p.spec.node_name]
        entries = [entry for entry in found if entry is not None]
        for entry in entries:
            self._nodes[entry.node].remove(entry.needs)
        try:
            yield
        finally:
            for entry in entries:
                self._nodes[entry.node].add(entry.needs)

    def seen(self, pod: Pod) -> None:
        """Take in the pod as the API server has it."""
        uid = pod.metadata.uid
        if is_finished(pod):
            self._set(uid, None)
        elif pod.spec.node_name:
            self._set(uid, _Entry(pod.spec.node_name, needs_of(pod)))
        elif not ((entry := self._pods.get(uid)) is not None and entry.expected):
            node = pod.status.nominated_node_name
            self._set(uid, _Entry(node, needs_of(pod)) if node else None)

    def gone(self, pod: Pod) -> None:
        """Stop counting a pod that is deleted, finished or no longer expected."""
        self._set(pod.metadata.uid, None)

    def _set(self, uid: Uid, entry: _Entry | None) -> None:
        old = self._pods.get(uid)
        if old == entry:
            return
        if entry is None:
            del self._pods[uid]
        else:
            self._pods[uid] = entry
        if old is not None and entry is not None and old[:2] == entry[:2]:
            return
        if old is not None:
            room = self._nodes[old.node]
            room.remove(old.needs)
            if not room:
                del self._nodes[old.node]
            self.changed(old.node)
        if entry is not None:
            self._nodes.setdefault(entry.node, NodeRoom()).add(entry.needs)
            self.changed(entry.node)


class FreeRoom(NamedTuple):
    """What is left of nodes besides devices for some pods.

    Attributes:
        vectors: what the places of a vector stand for.
        nodes: by name.
    """

    vectors: NeedsVectors
    nodes: Mapping[str, Vector]

    def needs(self, pod: Pod) -> Vector:
        """Return what one of the pods takes; nothing if it is bound, for then it counts there already."""
        return self.vectors.nothing if pod.spec.node_name else self.vectors.of(needs_of(pod))


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that are left, and why the others are not. Holds until the next change.

    Attributes:
        nodes: names.
        rejected: reason → number of nodes.
        evicting: of the rejected nodes, those that would be left if kube-scheduler evicted pods of lower
            priority, which it may do for this pod.
    """

    nodes: Set[str]
    rejected: Mapping[str, int]
    evicting: Set[str] = frozenset()

    def summary(self) -> str:
        """Return the text for the Event when no node is left."""
        total = len(self.nodes) + sum(self.rejected.values())
        if not total:
            return "there are no nodes"
        parts = ", ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items()))
        return f"{len(self.nodes)}/{total} nodes can take the pod: {parts}"


@dataclass(slots=True)
class _NodeFit:
    """What is known for pods that want the same of a node.

    Attributes:
        pod: one of them.
        needs: of each.
        conditions: whether its taints and affinity are looked at.
        seen: how much of the log of changed nodes is in it.
        reasons: nodes that cannot take the pod.
        evicting: of these, those that could if pods of lower priority were evicted.
    """

    pod: Pod
    needs: PodNeeds
    conditions: bool = True
    seen: int = 0
    fitting: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    evicting: set[str] = field(default_factory=set)
    rejected: Counter[str] = field(default_factory=Counter)

    def look(self, node: Node, room: NodeRoom, served: Collection[str]) -> None:
        """Work out the answer for a node."""
        needs, allocatable = self.needs, node.status.allocatable
        found = "being deleted" if node.metadata.deletion_timestamp else ""
        found = found or condition_problem(self.pod, node, looked_at=self.conditions)
        evicting = False
        if not found and (found := problem(needs, room, allocatable, served)):
            below = needs.preempts and room.has_below(needs.priority)
            evicting = below and not problem(needs, room, allocatable, served, evicting=True)
        self.put(node.metadata.name, found, evicting=evicting)

    def put(self, name: str, reason: str | None, *, evicting: bool = False) -> None:
        """Note the answer for a node; None where there is no such node."""
        old = self.reasons.pop(name, None)
        if old is not None:
            self.rejected[old] -= 1
            if not self.rejected[old]:
                del self.rejected[old]
        self.fitting.discard(name)
        self.evicting.discard(name)
        if reason:
            self.reasons[name] = reason
            self.rejected[reason] += 1
            if evicting:
                self.evicting.add(name)
        elif reason is not None:
            self.fitting.add(name)


class Placements:
    """The nodes that can take a pod, kept for pods that want the same of a node.

    A changed node, or a pod that comes or goes there, costs a look at that node for each kind of pod.
    """

    def __init__(self, nodes: Objects[Node], usage: NodeUsage) -> None:
        """Look at nodes and usage from now on.

        Args:
            nodes: all of them; ``changed`` must be called for each that changes.
            usage: what pods take.
        """
        self._nodes = nodes
        self._usage = usage
        self._kept: OrderedDict[bytes, _NodeFit] = OrderedDict()
        # Names of nodes that have changed; ``_start`` is the number of the first of them.
        self._log: list[str] = []
        self._start = 0
        # DeviceClass → the extended resources that it serves.
        self._classes: dict[str, tuple[str, ...]] = {}
        self._served: frozenset[str] = frozenset()
        usage.changed = self.changed

    def changed(self, node: str) -> None:
        """Note that a node, or what pods take of it, has changed."""
        self._log.append(node)

    def class_changed(self, name: str, device_class: DeviceClass | None) -> None:
        """Note that a DeviceClass has changed, or is gone: it may serve other extended resources."""
        self._classes.pop(name, None)
        if device_class is not None:
            named = device_class.spec.extended_resource_name
            self._classes[name] = (_IMPLICIT_PREFIX + name, *([named] if named else []))
        served = frozenset(r for of in self._classes.values() for r in of)
        if served != self._served:
            self._served = served
            self._kept.clear()

    def candidates(self, pod: Pod, avoid: Collection[str] = ()) -> Placement:
        """Return the nodes that can take the pod.

        Affinity and taints of a pod with more than 512 conditions on nodes are left to kube-scheduler.

        Args:
            pod: not bound; a bound pod has one candidate, whatever that node looks like.
            avoid: nodes where kube-scheduler could not place the pod a short while ago.
        """
        if pod.spec.node_name:
            return Placement({pod.spec.node_name}, {})
        fit = self._fit(pod)
        # The pod's own expected place does not count against it.
        own = self._usage.place_of(pod)
        special = {*avoid, *(() if own is None else (own,))}
        if not special:
            return Placement(fit.fitting, fit.rejected, fit.evicting)
        mine = replace(
            fit,
            pod=pod,
            seen=0,
            fitting=set(fit.fitting),
            reasons=dict(fit.reasons),
            evicting=set(fit.evicting),
            rejected=Counter(fit.rejected),
        )
        with self._usage.without([pod]):
            for name in special:
                node = self._nodes.by_name(name)
                if node is None:
                    continue
                if name in avoid:
                    mine.put(name, _AVOIDED)
                else:
                    mine.look(node, self._usage.on(name), self._served)
        return Placement(mine.fitting, mine.rejected, mine.evicting)

    def free(self, nodes: Iterable[str], pods: Collection[Pod]) -> FreeRoom:
        """Return what is left of nodes for some pods, which do not count where they are expected."""
        vectors = NeedsVectors(needs_of(pod) for pod in pods if not pod.spec.node_name)
        found: dict[str, Vector] = {}
        with self._usage.without(pods):
            for name in nodes:
                node = self._nodes.by_name(name)
                if node is not None:
                    found[name] = vectors.free(self._usage.on(name), node.status.allocatable, self._served)
        return FreeRoom(vectors, found)

    def _fit(self, pod: Pod) -> _NodeFit:
        spec = pod.spec
        needs = needs_of(pod)
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        # A digest: the affinity of a pod may be a megabyte.
        key = digest(codec.encode((spec.node_selector, affinity, spec.tolerations, needs)))
        fit = self._kept.get(key)
        end = self._start + len(self._log)
        if fit is None or fit.seen < self._start:
            looked_at = not has_many_conditions(pod, _MOST_CONDITIONS)
            fit = self._kept[key] = _NodeFit(pod, needs, looked_at)
            changed: Iterable[str] = [n.metadata.name for n in self._nodes]
        else:
            changed = dict.fromkeys(self._log[fit.seen - self._start :])
        fit.seen = end
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        for name in changed:
            node = self._nodes.by_name(name)
            if node is None:
                fit.put(name, None)
            else:
                fit.look(node, self._usage.on(name), self._served)
        # What has not been asked about for so long is made anew.
        if len(self._log) > max(_LONGEST_LOG, 2 * len(self._nodes)):
            self._start += len(self._log) // 2
            del self._log[: len(self._log) // 2]
        return fit


def same_for_pods(old: Node, node: Node) -> bool:
    """Return whether nothing has changed that matters to pods: nodes report their health all the time."""
    return (
        old.metadata.labels == node.metadata.labels
        and old.metadata.uid == node.metadata.uid
        and old.metadata.deletion_timestamp == node.metadata.deletion_timestamp
        and old.spec == node.spec
        and old.status.allocatable == node.status.allocatable
    )
