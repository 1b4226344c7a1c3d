"""Nodes that kube-scheduler turned down for a pod, and for how long they are left out for it."""

from __future__ import annotations

from dra_driver.api.meta import Uid

__all__ = ["NodeBackoff"]


class NodeBackoff:
    """Nodes to avoid, by pod. Each time that a pod is turned down, its node is avoided for twice as long.

    Args:
        seconds: for which the first node of a pod is avoided.
        longest: seconds that doubling leads to at most.
    """

    def __init__(self, seconds: float, longest: float) -> None:
        self._seconds = seconds
        self._longest = longest
        self._until: dict[Uid, dict[str, float]] = {}
        self._bounces: dict[Uid, int] = {}

    def add(self, pod: Uid, node: str, now: float) -> float:
        """Note that a node does not suit a pod; return the seconds for which it is avoided."""
        bounces = self._bounces[pod] = self._bounces.get(pod, 0) + 1
        seconds = min(self._seconds * float(1 << min(bounces - 1, 16)), self._longest)
        self._until.setdefault(pod, {})[node] = now + seconds
        return seconds

    def nodes(self, pod: Uid, now: float) -> dict[str, float]:
        """Return the nodes that are avoided now, with the seconds for which they still are."""
        return {node: until - now for node, until in self._until.get(pod, {}).items() if until > now}

    def forget(self, pod: Uid) -> None:
        """Forget a pod that is gone."""
        self._until.pop(pod, None)
        self._bounces.pop(pod, None)
