"""Nodes that kube-scheduler turned down for a pod, and for how long they are left out for it."""

from __future__ import annotations

from typing import NamedTuple

from controller.allocate.decide.objects import is_finished
from controller.allocate.decide.placement import same_for_pods
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import Uid, WireObject

__all__ = ["NodeBackoff", "changed_node"]


class _TurnedDown(NamedTuple):
    until: float
    times: int


def changed_node(old: WireObject | None, new: WireObject | None) -> str:
    """Return the node that may suit pods after a change which it did not suit before; empty: none.

    Args:
        old: a Node, or a Pod, before the change; None: it was not there.
        new: after the change; None: it is gone.
    """
    match old, new:
        case Pod(), None:
            return old.spec.node_name
        case Pod(), Pod() if is_finished(new) and not is_finished(old):
            return new.spec.node_name
        case Node(), Node() if not same_for_pods(old, new):
            return new.metadata.name
        case _:
            return ""


class NodeBackoff:
    """Nodes to avoid, by pod. Each time that a pod is turned down on a node, it is avoided for twice as long.

    Other nodes do not count: eight nodes that are tried in turn are each tried for the first time. What
    changes on a node ends its avoidance.

    Args:
        seconds: for which a node is avoided the first time.
        longest: seconds that doubling leads to at most.
    """

    def __init__(self, seconds: float, longest: float) -> None:
        self._seconds = seconds
        self._longest = longest
        self._nodes: dict[Uid, dict[str, _TurnedDown]] = {}
        self._pods: dict[str, set[Uid]] = {}

    def add(self, pod: Uid, node: str, now: float) -> float:
        """Note that a node does not suit a pod; return the seconds for which it is avoided."""
        known = self._nodes.setdefault(pod, {})
        self._pods.setdefault(node, set()).add(pod)
        times = known[node].times if node in known else 0
        seconds = min(self._seconds * float(1 << min(times, 16)), self._longest)
        known[node] = _TurnedDown(now + seconds, times + 1)
        return seconds

    def nodes(self, pod: Uid, now: float) -> dict[str, float]:
        """Return the nodes that are avoided now, with the seconds for which they still are."""
        known = self._nodes.get(pod)
        if known is None:
            return {}
        return {node: entry.until - now for node, entry in known.items() if entry.until > now}

    def reset(self, node: str) -> None:
        """Note that something on a node has changed: it may suit all pods now."""
        for pod in self._pods.pop(node, ()):
            known = self._nodes[pod]
            del known[node]
            if not known:
                del self._nodes[pod]

    def forget(self, pod: Uid) -> None:
        """Forget a pod that is gone."""
        for node in self._nodes.pop(pod, ()):
            pods = self._pods[node]
            pods.discard(pod)
            if not pods:
                del self._pods[node]
