"""Pods that could not be served, in the order in which they are looked at again.

Pods that ask for the same have one *signature*. They fit or do not fit together, so of each signature only
the first pod by rank is tried when something changes; when it is served, the next one is. A change costs one
decision per signature, however many pods wait, and those of higher priority, then those that waited longest,
are served first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from controller.allocate.decide import Rank, rank_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.nodefit import waits_for_others

__all__ = ["PendingPods"]

# So many ranks of pods that are gone cost nothing to speak of.
_FEW: Final = 16


class _Ordered:
    """Ranks of pods that come and go, of which the first is known at little cost."""

    def __init__(self) -> None:
        self.ranks: dict[ObjectKey, Rank] = {}
        # A heap, with some of pods that are gone.
        self._order: list[Rank] = []

    def add(self, rank: Rank) -> None:
        self.ranks[rank.key] = rank
        heapq.heappush(self._order, rank)

    def remove(self, key: ObjectKey) -> None:
        del self.ranks[key]
        if len(self._order) > 2 * len(self.ranks) + _FEW:
            self._order = sorted(self.ranks.values())

    def first(self) -> Rank:
        """Return the least rank; there is one."""
        while self.ranks.get(self._order[0].key) != self._order[0]:
            heapq.heappop(self._order)
        return self._order[0]


class _Alike(_Ordered):
    """The pods of one signature.

    Attributes:
        group: rank of all of them together, if they are a group.
        new_node: whether another node might serve them (``Refuse``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.group: Rank | None = None
        self.new_node = False


class PendingPods:
    """Pods that wait, by signature, ordered by ``Rank``.

    Attributes:
        for_others: those that may fit for the mere reason that another pod is bound.
    """

    def __init__(self) -> None:
        self.for_others: set[ObjectKey] = set()
        self._signatures: dict[ObjectKey, bytes] = {}
        self._alike: dict[bytes, _Alike] = {}
        self._all = _Ordered()

    def __len__(self) -> int:
        return len(self._signatures)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._signatures

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._signatures)

    def alike(self, key: ObjectKey) -> list[ObjectKey]:
        """Return the other pods that wait with the signature of a pod."""
        signature = self._signatures.get(key)
        return [] if signature is None else [k for k in self._alike[signature].ranks if k != key]

    def is_first(self, key: ObjectKey) -> bool:
        """Return whether a pod waits, and is the first of its signature."""
        signature = self._signatures.get(key)
        return signature is not None and self._alike[signature].first().key == key

    def rank(self, key: ObjectKey) -> Rank | None:
        """Return the rank with which a pod waits, that of its group where it has one; None: it does not."""
        signature = self._signatures.get(key)
        if signature is None:
            return None
        alike = self._alike[signature]
        return alike.ranks[key] if alike.group is None else alike.group._replace(key=key)

    def add(
        self, pod: Pod, signature: bytes, group: Rank | None = None, *, new_node: bool = False
    ) -> ObjectKey | None:
        """Note that a pod waits; with another signature than before, perhaps.

        Args:
            pod: that waits.
            signature: of what it asks for.
            group: rank of its group, as far as it has one and that is known.
            new_node: whether another node might serve it, and those that ask for the same.

        Returns:
            The pod that is the first of the signature that this one had before, if it was that itself: what
            keeps this one waiting may not hold for the other.
        """
        following = None
        before = self._alike.get(signature)
        group = group or (before.group if before is not None else None)
        rank = rank_of(pod)
        if before is None or before.ranks.get(pod.key) != rank:
            following = self._remove_first(pod.key, signature)
            before = self._alike.setdefault(signature, _Alike())
            before.add(rank)
            self._all.add(rank)
            self._signatures[pod.key] = signature
        if waits_for_others(pod):
            self.for_others.add(pod.key)
        before.group = group
        before.new_node = new_node
        return following

    def _remove_first(self, key: ObjectKey, signature: bytes) -> ObjectKey | None:
        """Remove a pod; return the one that comes in its place, where it was first of another signature."""
        old = self._signatures.get(key)
        was_first = old is not None and old != signature and self._alike[old].first().key == key
        following = self.remove(key)
        return following if was_first else None

    def remove(self, key: ObjectKey) -> ObjectKey | None:
        """Note that a pod waits no longer.

        Returns:
            The first pod that still waits with the same signature, if the pod waited and there is one.
        """
        signature = self._signatures.pop(key, None)
        if signature is None:
            return None
        self.for_others.discard(key)
        self._all.remove(key)
        alike = self._alike[signature]
        alike.remove(key)
        if not alike.ranks:
            del self._alike[signature]
            return None
        return alike.first().key

    def first_of_each(self) -> Iterator[tuple[Rank, ObjectKey]]:
        """Yield the first pod of each signature with the rank that counts for it, in no order."""
        for alike in self._alike.values():
            first = alike.first()
            yield alike.group or first, first.key

    def first_of_namespaces(self, may: Callable[[ObjectKey], bool]) -> Iterator[tuple[Rank, ObjectKey]]:
        """Yield the first pod of each signature in each namespace with the rank that counts for it.

        Args:
            may: returns whether a pod counts: one that does not hides none behind it.
        """
        for alike in self._alike.values():
            first: dict[str, Rank] = {}
            for rank in alike.ranks.values():
                known = first.get(rank.key.namespace)
                if (known is None or rank < known) and may(rank.key):
                    first[rank.key.namespace] = rank
            for rank in first.values():
                yield alike.group or rank, rank.key

    def for_new_nodes(self) -> Iterator[tuple[bytes, Rank | None, Rank]]:
        """Yield signature, rank of the group and own rank of each pod that another node might serve."""
        for signature, alike in self._alike.items():
            if alike.new_node:
                for rank in alike.ranks.values():
                    yield signature, alike.group, rank

    def heads(self) -> list[ObjectKey]:
        """Return the first pod of each signature, in order."""
        return [key for _, key in sorted(self.first_of_each())]

    def first(self) -> Rank | None:
        """Return the least rank of all pods by themselves; None where no pod waits."""
        return self._all.first() if self._all.ranks else None
