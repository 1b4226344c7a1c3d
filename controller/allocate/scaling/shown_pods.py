"""How many pods are shown to autoscalers at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple, TypeVar

from dra_driver.api.meta import Uid

__all__ = ["LEAST_OF_NAMESPACE", "PLACE_SECONDS", "ShownPods"]

PLACE_SECONDS: Final = 900.0
"""For which a pod keeps its place: as long as the cluster autoscaler waits for a node by default.

Then the next one is shown, so that pods that no node can ever serve do not keep others from being shown.
"""

_K = TypeVar("_K")

LEAST_OF_NAMESPACE: Final = 8
"""Pods of each namespace that may be shown however many there are of others, so that none is kept from it."""


class _Shown(NamedTuple):
    namespace: str
    signature: bytes
    since: float


class ShownPods:
    """The pods that are shown, of which only those count that have not been for long.

    kube-scheduler tries pods that it sees again and again, at a cost that grows with nodes and partitions.

    Args:
        most: of them; the last group may exceed it, and ``LEAST_OF_NAMESPACE`` goes before it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._shown: dict[Uid, _Shown] = {}
        self._of_namespace: Counter[str] = Counter()
        self._of_signature: Counter[bytes] = Counter()
        # Those that count, by namespace.
        self._recent: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._shown)

    def __contains__(self, pod: Uid) -> bool:
        return pod in self._shown

    def of_namespace(self, namespace: str) -> int:
        """Return how many pods of a namespace are shown."""
        return self._of_namespace[namespace]

    def of_signature(self, signature: bytes) -> int:
        """Return how many pods that ask for the same are shown."""
        return self._of_signature[signature]

    def are_free(self, namespace: str) -> bool:
        """Return whether one more pod, or group, of a namespace may be shown."""
        least = min(LEAST_OF_NAMESPACE, self._most)
        return self._recent.total() < self._most or self._recent[namespace] < least

    def take(self, pod: Uid, namespace: str, signature: bytes, now: float) -> None:
        """Note that a pod is shown."""
        if pod not in self._shown:
            self._shown[pod] = _Shown(namespace, signature, now)
            self._of_namespace[namespace] += 1
            self._of_signature[signature] += 1
            self._recent[namespace] += 1

    def keep(self, pods: Collection[Uid], now: float) -> None:
        """Forget all but these, as they have been served or are gone."""
        for pod in self._shown.keys() - set(pods):
            gone = self._shown.pop(pod)
            _less(self._of_namespace, gone.namespace)
            _less(self._of_signature, gone.signature)
        shown = self._shown.values()
        self._recent = Counter(s.namespace for s in shown if now - s.since < PLACE_SECONDS)


def _less(counter: Counter[_K], key: _K) -> None:
    """Count one less."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
