"""Which nodes a pod could go to, apart from its claims.

kube-scheduler decides in the end; this looks at what it will look at, so that devices are mostly chosen where
the pod can go: node selector, required node affinity, taints, unschedulable nodes, free CPU and memory, the
number of pods; nothing more. A wrong choice is not a loss: the scheduler deallocates, and another node is
tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dra_driver.api.core import Node, Pod, Taint, Toleration
from dra_driver.api.meta import Uid
from dra_driver.structured.nodeselection import selector_matches

__all__ = ["Demand", "NodeUsage", "Placement", "candidates", "is_finished"]

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_RESOURCES = ("cpu", "memory")


def is_finished(pod: Pod) -> bool:
    """Whether its containers will not run again."""
    return pod.status.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Demand:
    """CPU and memory, in 1e-9 of a core and of a byte, and pods."""

    cpu: int = 0
    memory: int = 0
    pods: int = 0

    @classmethod
    def of(cls, pod: Pod) -> Demand:
        """What kube-scheduler counts for a pod: all containers together, or the largest init container."""
        amounts = []
        for name in _RESOURCES:
            running = sum(_request(c.resources.requests, name) for c in pod.spec.containers)
            starting = max(
                (_request(c.resources.requests, name) for c in pod.spec.init_containers), default=0
            )
            amounts.append(max(running, starting))
        return cls(cpu=amounts[0], memory=amounts[1], pods=1)

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)

    def __sub__(self, other: Demand) -> Demand:
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

    def on(self, node: str) -> Demand:
        """What is taken."""
        return self._nodes.get(node, Demand())

    def place(self, pod: Pod, node: str) -> None:
        """The pod is expected on the node."""
        self._set(pod.metadata.uid, (node, Demand.of(pod)))

    def seen(self, pod: Pod) -> None:
        """The pod as the API server has it."""
        if is_finished(pod):
            self.gone(pod)
        elif pod.spec.node_name:
            self.place(pod, pod.spec.node_name)

    def gone(self, pod: Pod) -> None:
        """The pod is deleted, finished or no longer expected."""
        self._set(pod.metadata.uid, None)

    def _set(self, uid: Uid, entry: tuple[str, Demand] | None) -> None:
        old = self._pods.pop(uid, None)
        if old is not None:
            left = self._nodes[old[0]] - old[1]
            if left.pods:
                self._nodes[old[0]] = left
            else:
                del self._nodes[old[0]]
        if entry is not None:
            self._pods[uid] = entry
            self._nodes[entry[0]] = self.on(entry[0]) + entry[1]


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that are left, and why the others are not.

    Attributes:
        nodes: names.
        rejected: reason → number of nodes.
    """

    nodes: tuple[str, ...]
    rejected: Mapping[str, int]

    def summary(self) -> str:
        """For the Event, when no node is left."""
        total = len(self.nodes) + sum(self.rejected.values())
        if not total:
            return "there are no nodes"
        parts = ", ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items()))
        return f"{len(self.nodes)}/{total} nodes can take the pod: {parts}"


def candidates(pod: Pod, nodes: Iterable[Node], usage: NodeUsage, avoid: Collection[str] = ()) -> Placement:
    """The nodes that can take the pod.

    Args:
        pod: not bound; a bound pod has one candidate, whatever that node looks like.
        nodes: all of them.
        usage: what other pods take; the pod's own expected place does not count against it.
        avoid: nodes where kube-scheduler could not place the pod a short while ago.
    """
    if pod.spec.node_name:
        return Placement((pod.spec.node_name,), {})
    demand = Demand.of(pod)
    left: list[str] = []
    rejected: Counter[str] = Counter()
    for node in nodes:
        if node.metadata.name in avoid:
            reason = "where kube-scheduler could not place it a short while ago"
        else:
            reason = _rejection(pod, node, demand, usage.on(node.metadata.name))
        if reason:
            rejected[reason] += 1
        else:
            left.append(node.metadata.name)
    return Placement(tuple(left), rejected)


def _rejection(pod: Pod, node: Node, demand: Demand, used: Demand) -> str:
    spec = pod.spec
    if node.metadata.deletion_timestamp:
        return "being deleted"
    if node.spec.unschedulable and not _tolerated(spec.tolerations, _UNSCHEDULABLE):
        return "unschedulable"
    for taint in node.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not _tolerated(spec.tolerations, taint):
            return f"with the untolerated taint {taint.key}"
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return "not matching the node selector"
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is not None and not selector_matches(required, node):
        return "not matching the required node affinity"
    return _shortage(node, demand, used)


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
