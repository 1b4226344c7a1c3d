"""Which nodes can take the pods that use a claim. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from controller.allocate.decide import is_finished
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.nodefit import condition_problem, has_many_conditions

__all__ = ["ANYWHERE", "PodNodes", "PodNodesFinder"]

# Users of one claim that differ: more cost more than the answer is worth.
_MOST_PODS: Final = 64
# Tolerations and requirements of a pod, of which it may have a megabyte; the controller looks at no more.
_MOST_CONDITIONS: Final = 512


class PodNodes(NamedTuple):
    """The nodes that pods leave for their claim.

    Attributes:
        nodes: their names; None if the pods leave out none.
        summary: how many nodes are left, and why the others are not; empty if none is left out.
    """

    nodes: frozenset[str] | None
    summary: str


ANYWHERE: Final = PodNodes(None, "")


class PodNodesFinder:
    """Finds the nodes of pods by node selector, required affinity and taints, or the one that they are on.

    Args:
        nodes: of the cluster; without them, no node is left out.
        names: of the nodes that have devices. Those that are not among ``nodes`` are not left out.
    """

    def __init__(self, nodes: Sequence[Node], names: Iterable[str]) -> None:
        self._nodes = nodes
        self._unknown = frozenset(names).difference(n.metadata.name for n in nodes)
        self._known: dict[tuple[bytes, ...], PodNodes] = {}

    def of(self, pods: Sequence[Pod]) -> PodNodes:
        """Return the nodes that can take each of some pods; those that have ended need none."""
        asked = {_asked(pod): pod for pod in pods if not is_finished(pod)}
        if not asked or not self._nodes:
            return ANYWHERE
        key = tuple(asked)
        if key not in self._known:
            self._known[key] = self._find(list(asked.values())[:_MOST_PODS])
        return self._known[key]

    def _find(self, pods: Sequence[Pod]) -> PodNodes:
        rejected: Counter[str] = Counter()
        left: list[str] = []
        for node in self._nodes:
            reason = next((why for pod in pods if (why := _problem(pod, node))), "")
            if reason:
                rejected[reason] += 1
            else:
                left.append(node.metadata.name)
        if not rejected:
            return ANYWHERE
        parts = ", ".join(f"{number} {reason}" for reason, number in sorted(rejected.items()))
        summary = f"{len(left)}/{len(self._nodes)} nodes can take the pod{'s' * (len(pods) > 1)}: {parts}"
        return PodNodes(self._unknown.union(left), summary)


def _asked(pod: Pod) -> bytes:
    spec = pod.spec
    return codec.encode((spec.node_name, spec.node_selector, spec.affinity, spec.tolerations))


def _problem(pod: Pod, node: Node) -> str:
    if pod.spec.node_name:
        return "" if node.metadata.name == pod.spec.node_name else "other than the pod's node"
    if node.metadata.deletion_timestamp:
        return "being deleted"
    return condition_problem(pod, node, looked_at=not has_many_conditions(pod, _MOST_CONDITIONS))
