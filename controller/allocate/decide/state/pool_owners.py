"""Which allocator allocates from a pool, by what its slices say."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Set

from dra_driver.api.meta import DriverName
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import PoolID, is_protected, pool_of_slice

__all__ = ["Owner", "PoolOwners"]


class Owner(enum.Enum):
    """The allocator that allocates from a pool."""

    OURS = "ours"
    OTHER_CONTROLLER = "sibling"
    OTHERS = "others"


class PoolOwners:
    """The owner of each pool: a pool is protected while every device in it carries our taint.

    Args:
        drivers: whose protected pools are ours.
    """

    def __init__(self, drivers: Iterable[DriverName]) -> None:
        self._drivers = frozenset(drivers)
        # Slice → pool; pool → slice → whether all its devices are protected (slices with devices only).
        self._pool_of: dict[str, PoolID] = {}
        self._protected: dict[PoolID, dict[str, bool]] = {}

    @property
    def pools(self) -> Set[PoolID]:
        """All pools with devices."""
        return self._protected.keys()

    def slices(self, pool: PoolID) -> Collection[str]:
        """Return the names of the slices with devices of a pool."""
        return self._protected.get(pool, {}).keys()

    def pools_of(self, slice_: ResourceSlice) -> list[PoolID]:
        """Return the pools that a slice is of: as it is given, and as it was last put."""
        now, before = pool_of_slice(slice_), self._pool_of.get(slice_.metadata.name)
        return [now] if before is None or before == now else [before, now]

    def of(self, pool: PoolID) -> Owner | None:
        """Return the owner of a pool; None if it has no devices."""
        slices = self._protected.get(pool)
        if slices is None:
            return None
        if not all(slices.values()):
            return Owner.OTHERS
        return Owner.OURS if pool.driver in self._drivers else Owner.OTHER_CONTROLLER

    def put(self, slice_: ResourceSlice) -> set[PoolID]:
        """Take in a slice that was added or changed.

        Returns:
            The pools that it is of now and was of before.
        """
        name = slice_.metadata.name
        before = self.remove(name)
        pool = self._pool_of[name] = pool_of_slice(slice_)
        if slice_.spec.devices:
            self._protected.setdefault(pool, {})[name] = is_protected(slice_)
        return {pool} if before is None else {before, pool}

    def remove(self, name: str) -> PoolID | None:
        """Forget a slice; return the pool that it was of, if it was known."""
        pool = self._pool_of.pop(name, None)
        if pool is not None and pool in self._protected:
            self._protected[pool].pop(name, None)
            if not self._protected[pool]:
                del self._protected[pool]
        return pool
