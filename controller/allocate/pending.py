"""Pods that could not be served, in the order in which they are looked at again.

Pods that ask for the same have one *signature*. They fit or do not fit together, so of each signature only
the first pod by rank is tried when something changes; when it is served, the next one is. A change costs one
decision per signature, however many pods wait, and those of higher priority, then those that waited longest,
are served first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from controller.allocate.decide import Rank, rank_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey

__all__ = ["PendingPods"]


@dataclass(slots=True)
class _Alike:
    """The pods of one signature.

    Attributes:
        ranks: of each.
        order: their ranks as a heap, with some of pods that wait no longer.
        group: rank of all of them together, if they are a group.
    """

    ranks: dict[ObjectKey, Rank] = field(default_factory=dict)
    order: list[Rank] = field(default_factory=list)
    group: Rank | None = None

    def add(self, rank: Rank) -> None:
        self.ranks[rank.key] = rank
        heapq.heappush(self.order, rank)

    def first(self) -> Rank:
        """Return the rank of the first pod that still waits; there is one."""
        while self.ranks.get(self.order[0].key) != self.order[0]:
            heapq.heappop(self.order)
        return self.order[0]


class PendingPods:
    """Pods that wait, by signature, ordered by ``Rank``."""

    def __init__(self) -> None:
        self._signatures: dict[ObjectKey, bytes] = {}
        self._reasons: dict[ObjectKey, str] = {}
        self._alike: dict[bytes, _Alike] = {}

    def __len__(self) -> int:
        return len(self._signatures)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._signatures

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._signatures)

    def reason(self, key: ObjectKey) -> str:
        """Return why a pod waits, as its Event said; empty where it does not wait."""
        return self._reasons.get(key, "")

    def rank(self, key: ObjectKey) -> Rank | None:
        """Return the rank with which a pod waits, that of its group where it has one; None: it does not."""
        signature = self._signatures.get(key)
        if signature is None:
            return None
        alike = self._alike[signature]
        return alike.ranks[key] if alike.group is None else alike.group._replace(key=key)

    def add(self, pod: Pod, signature: bytes, reason: str = "", group: Rank | None = None) -> None:
        """Note that a pod waits; with another signature or for another reason than before, perhaps.

        Args:
            pod: that waits.
            signature: of what it asks for.
            reason: why it waits.
            group: rank of its group, as far as it has one and that is known.
        """
        before = self._alike.get(signature)
        group = group or (before.group if before is not None else None)
        self.remove(pod.key)
        self._signatures[pod.key] = signature
        self._reasons[pod.key] = reason
        alike = self._alike.setdefault(signature, _Alike())
        alike.add(rank_of(pod))
        alike.group = group

    def remove(self, key: ObjectKey) -> ObjectKey | None:
        """Note that a pod waits no longer.

        Returns:
            The first pod that still waits with the same signature, if the pod waited and there is one.
        """
        self._reasons.pop(key, None)
        signature = self._signatures.pop(key, None)
        if signature is None:
            return None
        alike = self._alike[signature]
        del alike.ranks[key]
        if not alike.ranks:
            del self._alike[signature]
            return None
        return alike.first().key

    def ranked(self) -> list[tuple[Rank, ObjectKey]]:
        """Return the first pod of each signature with the rank that counts for it, in order."""
        return sorted((alike.group or alike.first(), alike.first().key) for alike in self._alike.values())

    def heads(self) -> list[ObjectKey]:
        """Return the first pod of each signature, in order."""
        return [key for _, key in self.ranked()]

    def first(self) -> Rank | None:
        """Return the least rank of all; None where no pod waits."""
        return min((alike.group or alike.first() for alike in self._alike.values()), default=None)
