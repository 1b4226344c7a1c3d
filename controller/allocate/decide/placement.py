"""Which nodes a pod could go to, apart from its claims.

kube-scheduler decides in the end. Here the most important of its conditions are looked at, so that devices
are mostly chosen where the pod can go: node selector, required node affinity, taints, unschedulable nodes,
free CPU and memory, the number of pods. A wrong choice costs a second or two in which the devices are held in
vain: kube-scheduler reports that it cannot place the pod, and another node is tried.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from controller.allocate.decide.objects import Objects, is_finished
from controller.allocate.decide.signatures import digest
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod, Taint, Toleration
from dra_driver.api.meta import Uid
from dra_driver.api.resource import NodeSelector
from dra_driver.structured.model.nodeselection import selector_matches

__all__ = ["Demand", "NodeUsage", "Placement", "Placements", "same_for_pods"]

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_RESOURCES = ("cpu", "memory")
_AVOIDED: Final = "where kube-scheduler could not place it a short while ago"
_MOST_KEPT: Final = 64
_LONGEST_LOG: Final = 1_000
# More than any group needs of any node, in 1e-9 of a byte.
_PLENTY: Final = 10**30
# Tolerations, and requirements of node affinity with their values: a pod may have a megabyte of them, and
# each costs a comparison per node.
_MOST_CONDITIONS: Final = 512


class Demand(NamedTuple):
    """CPU and memory, in 1e-9 of a core and of a byte, and pods."""

    cpu: int = 0
    memory: int = 0
    pods: int = 0

    @classmethod
    def of(cls, pod: Pod) -> Demand:
        """Return what kube-scheduler counts for a pod: all containers, or the largest init container."""
        amounts = []
        for name in _RESOURCES:
            running = sum(_request(c.resources.requests, name) for c in pod.spec.containers)
            starting = max(
                (_request(c.resources.requests, name) for c in pod.spec.init_containers), default=0
            )
            amounts.append(max(running, starting))
        return cls(cpu=amounts[0], memory=amounts[1], pods=1)

    def plus(self, other: Demand) -> Demand:
        """Return both together."""
        return Demand(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)

    def minus(self, other: Demand) -> Demand:
        """Return what is left without the other."""
        return Demand(self.cpu - other.cpu, self.memory - other.memory, self.pods - other.pods)


def _request(requests: Mapping[str, object], name: str) -> int:
    amount = requests.get(name)
    return getattr(amount, "nano", 0)


class NodeUsage:
    """What the pods of each node request, kept up to date pod by pod.

    A pod counts where it is bound; before that, where its devices were allocated (``place``).
    """

    def __init__(self) -> None:
        self._pods: dict[Uid, tuple[str, Demand]] = {}
        self._nodes: dict[str, Demand] = {}
        self.changed: Callable[[str], None] = lambda _: None
        """Called with the name of a node when what is taken of it has changed."""

    def on(self, node: str) -> Demand:
        """Return what pods take of a node."""
        return self._nodes.get(node, Demand())

    def place_of(self, pod: Pod) -> str | None:
        """Return the node where the pod counts."""
        entry = self._pods.get(pod.metadata.uid)
        return None if entry is None else entry[0]

    def place(self, pod: Pod, node: str) -> None:
        """Count a pod on the node where it is expected."""
        self._set(pod.metadata.uid, (node, Demand.of(pod)))

    def seen(self, pod: Pod) -> None:
        """Take in the pod as the API server has it."""
        if is_finished(pod):
            self.gone(pod)
        elif pod.spec.node_name:
            self.place(pod, pod.spec.node_name)

    def gone(self, pod: Pod) -> None:
        """Stop counting a pod that is deleted, finished or no longer expected."""
        self._set(pod.metadata.uid, None)

    def _set(self, uid: Uid, entry: tuple[str, Demand] | None) -> None:
        old = self._pods.get(uid)
        if old == entry:
            return
        if old is not None:
            del self._pods[uid]
            left = self._nodes[old[0]].minus(old[1])
            if left.pods:
                self._nodes[old[0]] = left
            else:
                del self._nodes[old[0]]
            self.changed(old[0])
        if entry is not None:
            self._pods[uid] = entry
            self._nodes[entry[0]] = self.on(entry[0]).plus(entry[1])
            self.changed(entry[0])


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that are left, and why the others are not. Holds until the next change.

    Attributes:
        nodes: names.
        rejected: reason → number of nodes.
    """

    nodes: Set[str]
    rejected: Mapping[str, int]

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
        conditions: whether its taints and affinity are looked at.
        seen: how much of the log of changed nodes is in it.
        reasons: nodes that cannot take the pod.
    """

    pod: Pod
    demand: Demand
    conditions: bool = True
    seen: int = 0
    fitting: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)

    def put(self, name: str, reason: str | None) -> None:
        """Note the answer for a node; None where there is no such node."""
        old = self.reasons.pop(name, None)
        if old is not None:
            self.rejected[old] -= 1
            if not self.rejected[old]:
                del self.rejected[old]
        self.fitting.discard(name)
        if reason:
            self.reasons[name] = reason
            self.rejected[reason] += 1
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
        usage.changed = self.changed

    def changed(self, node: str) -> None:
        """Note that a node, or what pods take of it, has changed."""
        self._log.append(node)

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
            return Placement(fit.fitting, fit.rejected)
        mine = replace(
            fit,
            pod=pod,
            seen=0,
            fitting=set(fit.fitting),
            reasons=dict(fit.reasons),
            rejected=Counter(fit.rejected),
        )
        for name in special:
            node = self._nodes.by_name(name)
            if node is None:
                continue
            reason = _AVOIDED
            if name not in avoid:
                left = self._usage.on(name).minus(fit.demand)
                reason = _rejection(pod, node, fit.demand, left, conditions=fit.conditions)
            mine.put(name, reason)
        return Placement(mine.fitting, mine.rejected)

    def free(self, nodes: Iterable[str], pods: Iterable[Pod]) -> dict[str, Demand]:
        """Return what is left of nodes for some pods, which do not count where they are expected."""
        back: dict[str, Demand] = {}
        for pod in pods:
            place = self._usage.place_of(pod)
            if place is not None and not pod.spec.node_name:
                back[place] = back.get(place, Demand()).plus(Demand.of(pod))
        found: dict[str, Demand] = {}
        for name in nodes:
            node = self._nodes.by_name(name)
            if node is not None:
                used = self._usage.on(name)
                found[name] = _free(node, used.minus(back[name]) if name in back else used)
        return found

    def _fit(self, pod: Pod) -> _NodeFit:
        spec = pod.spec
        demand = Demand.of(pod)
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        # A digest: the affinity of a pod may be a megabyte.
        key = digest(
            codec.encode((spec.node_selector, affinity, spec.tolerations, demand.cpu, demand.memory))
        )
        fit = self._kept.get(key)
        end = self._start + len(self._log)
        if fit is None or fit.seen < self._start:
            fit = self._kept[key] = _NodeFit(pod, demand, not _has_too_many_conditions(pod))
            changed: Iterable[str] = [n.metadata.name for n in self._nodes]
        else:
            changed = dict.fromkeys(self._log[fit.seen - self._start :])
        fit.seen = end
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        for name in changed:
            node = self._nodes.by_name(name)
            reason = None
            if node is not None:
                used = self._usage.on(name)
                reason = _rejection(pod, node, demand, used, conditions=fit.conditions)
            fit.put(name, reason)
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


def _required_affinity(pod: Pod) -> NodeSelector | None:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None


def _has_too_many_conditions(pod: Pod) -> bool:
    number = len(pod.spec.tolerations)
    required = _required_affinity(pod)
    if required is not None:
        for term in required.node_selector_terms:
            for requirement in (*term.match_expressions, *term.match_fields):
                number += 1 + len(requirement.values)
    return number > _MOST_CONDITIONS


def _rejection(pod: Pod, node: Node, demand: Demand, used: Demand, *, conditions: bool = True) -> str:
    """Return why the node cannot take the pod; empty where it can.

    Args:
        pod: to be placed.
        node: a node.
        demand: of the pod.
        used: what other pods take of the node.
        conditions: whether taints and node affinity are looked at.
    """
    spec = pod.spec
    if node.metadata.deletion_timestamp:
        return "being deleted"
    if conditions:
        if node.spec.unschedulable and not _tolerated(spec.tolerations, _UNSCHEDULABLE):
            return "unschedulable"
        for taint in node.spec.taints:
            if taint.effect in ("NoSchedule", "NoExecute") and not _tolerated(spec.tolerations, taint):
                return f"with the untolerated taint {taint.key}"
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return "not matching the node selector"
    required = _required_affinity(pod) if conditions else None
    if required is not None and not selector_matches(required, node):
        return "not matching the required node affinity"
    return _shortage(node, demand, used)


def _free(node: Node, used: Demand) -> Demand:
    allocatable = node.status.allocatable
    # What a node does not say (not initialised) is left to kube-scheduler.
    return Demand(
        *(
            max(0, allocatable[name].nano // unit - taken) if name in allocatable else _PLENTY
            for name, unit, taken in (
                ("cpu", 1, used.cpu),
                ("memory", 1, used.memory),
                ("pods", 10**9, used.pods),
            )
        )
    )


def _shortage(node: Node, demand: Demand, used: Demand) -> str:
    allocatable = node.status.allocatable
    for name, wanted, taken in (
        ("cpu", demand.cpu, used.cpu),
        ("memory", demand.memory, used.memory),
        ("pods", demand.pods * 10**9, used.pods * 10**9),
    ):
        # A node that does not say what it has (not initialised) is left to kube-scheduler.
        if name in allocatable and wanted and taken + wanted > allocatable[name].nano:
            return "with too many pods" if name == "pods" else f"with too little {name}"
    return ""


def _tolerated(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or (bool(t.key) and t.value == taint.value))
        for t in tolerations
    )
