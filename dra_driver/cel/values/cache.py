"""A cache bounded by the memory of its entries, not by their number."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A cache of the most recently used entries, for several threads: each step is one dict operation."""

    def __init__(self, most: int) -> None:
        """Make an empty cache for entries that weigh ``most`` bytes together."""
        self._most = most
        self._entries: dict[K, tuple[V, int]] = {}
        self._weight = 0

    @property
    def weight(self) -> int:
        """Bytes of all entries."""
        return sum(weight for _, weight in list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value, which counts as used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        # Used entries move to the end, so the first one is the least recently used.
        if self._entries.pop(key, None) is not None:
            self._entries[key] = entry
        return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value of so many bytes; what was not used for longest makes room."""
        self._entries[key] = (value, weight)
        self._weight += weight
        if self._weight <= self._most:
            return
        # Summed anew: other threads may have changed it meanwhile.
        total = self.weight
        for oldest in list(self._entries):
            # The newest stays even if it is too heavy alone: it is in use.
            if total <= self._most * 3 // 4 or oldest == key:
                break
            removed = self._entries.pop(oldest, None)
            total -= removed[1] if removed is not None else 0
        self._weight = total
