"""Nodes that kube-scheduler turned down for a pod, and for how long they are left out for it."""

from __future__ import annotations

from typing import Final

from controller.config import Timings
from dra_driver.api.meta import Uid
from dra_driver.ports import Clock

__all__ = ["NodeBackoff"]

# Timers may be early by a little.
_SLACK_SECONDS: Final = 0.1


class NodeBackoff:
    """By pod. Each time that a pod is turned down, its node is avoided for twice as long as the last one."""

    def __init__(self, clock: Clock, timings: Timings) -> None:
        self._clock = clock
        self._timings = timings
        self._until: dict[Uid, dict[str, float]] = {}
        self._bounces: dict[Uid, int] = {}

    def add(self, pod: Uid, node: str) -> float:
        """The node does not suit the pod now; gives the seconds for which it is avoided."""
        bounces = self._bounces[pod] = self._bounces.get(pod, 0) + 1
        doubled = self._timings.avoid * float(1 << min(bounces - 1, 16))
        seconds = min(doubled, self._timings.longest_avoid)
        self._until.setdefault(pod, {})[node] = self._clock.monotonic() + seconds
        return seconds

    def nodes(self, pod: Uid) -> set[str]:
        """What is avoided now."""
        return set(self._left(pod))

    def next_change(self, pod: Uid) -> float | None:
        """Seconds until fewer nodes are avoided; None where none is."""
        left = self._left(pod)
        return min(left.values()) + _SLACK_SECONDS if left else None

    def forget(self, pod: Uid) -> None:
        """The pod is gone, or runs."""
        self._until.pop(pod, None)
        self._bounces.pop(pod, None)

    def _left(self, pod: Uid) -> dict[str, float]:
        now = self._clock.monotonic()
        return {node: until - now for node, until in self._until.get(pod, {}).items() if until > now}
