"""How many pods may have allocations that kube-scheduler has not reserved yet."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["LEAST", "LEAST_OF_NAMESPACE", "BindingWindow"]

LEAST: Final = 128
"""Pods that may be with kube-scheduler however few it binds: some seconds of its work."""

LEAST_OF_NAMESPACE: Final = 16
"""Pods of one namespace that may be however many there are of others: some of those may never be bound."""

_MEASURED_SECONDS: Final = 10.0
# Of the time-out, so that pods at the end of kube-scheduler's queue do not meet it.
_SHARE: Final = 1 / 3


class BindingWindow:
    """A window that follows the rate at which pods are bound.

    It is as wide as what kube-scheduler binds in a third of the time-out, by the rate of the last ten
    seconds. More pods would wait for it with devices that others could use, and meet the time-out. It is
    never narrower than ``LEAST``, so that a burst after a pause begins at once.

    Args:
        seconds: the time-out.
    """

    def __init__(self, seconds: float) -> None:
        self._factor = seconds * _SHARE / _MEASURED_SECONDS
        self._bindings: deque[float] = deque()

    def bound(self, now: float) -> None:
        """Note that a pod was bound."""
        self._bindings.append(now)
        self._forget(now)

    def size(self, now: float) -> int:
        """Return how many pods may be allocated and not bound."""
        self._forget(now)
        return max(LEAST, int(len(self._bindings) * self._factor))

    def _forget(self, now: float) -> None:
        while self._bindings and self._bindings[0] <= now - _MEASURED_SECONDS:
            self._bindings.popleft()
