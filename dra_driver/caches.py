"""Caches bounded by the bytes that their entries take, not by their number.

Whoever may create claims writes what is cached for them: selectors, patterns, results, classes of requests
and nodes. So every cache of such things says how large its entries are, by an estimate that a test measures,
and makes room where they come to more than it may keep.
"""

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
        self.most = most
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

    def items(self) -> list[tuple[K, V]]:
        """Return keys and values, those that were used last at the end; none of them counts as used by it."""
        return [(key, value) for key, (value, _) in list(self._entries.items())]

    def put(self, key: K, value: V, weight: int) -> list[V]:
        """Keep a value of so many bytes, and return what made room for it: what was not used for longest.

        The value itself stays even where it is too heavy alone: it is in use.
        """
        old = self._entries.pop(key, None)
        self._entries[key] = (value, weight)
        self._weight += weight - (old[1] if old is not None else 0)
        return self._make_room(key)

    def grow(self, key: K, more: int) -> list[V]:
        """Note that a value takes more bytes (or fewer) than before, and that it was used; as for ``put``.

        An unknown key is ignored.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return []
        self._entries[key] = (entry[0], entry[1] + more)
        self._weight += more
        return self._make_room(key)

    def pop(self, key: K) -> V | None:
        """Remove a value; return it if it was there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._weight -= entry[1]
        return entry[0]

    def clear(self) -> None:
        """Remove everything."""
        self._entries.clear()
        self._weight = 0

    def _make_room(self, newest: K) -> list[V]:
        if self._weight <= self.most:
            return []
        gone: list[V] = []
        # Summed anew: other threads may have changed it meanwhile.
        total = self.weight
        for oldest in list(self._entries):
            if total <= self.most * 3 // 4 or oldest == newest:
                break
            removed = self._entries.pop(oldest, None)
            if removed is not None:
                total -= removed[1]
                gone.append(removed[0])
        self._weight = total
        return gone
