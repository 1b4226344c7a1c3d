"""Which allocator allocates from a pool, by what its slices say."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Set

from dra_driver.api.meta import DriverName
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import PoolID, bare_devices, pool_of_slice

__all__ = ["Owner", "PoolOwners"]


class Owner(enum.Enum):
    """The allocator that allocates from a pool."""

    OURS = "ours"
    OTHER_CONTROLLER = "sibling"
    OTHERS = "others"


class PoolOwners:
    """The owner of each pool: it is protected while all its devices carry our taint.

    Or the publishing side says that it is open: then taints say nothing about the owner.

    Args:
        drivers: whose protected pools are ours.
    """

    def __init__(self, drivers: Iterable[DriverName]) -> None:
        self._drivers = frozenset(drivers)
        # Slice → pool; pool → slice → its devices without our taint (slices with devices only).
        self._pool_of: dict[str, PoolID] = {}
        self._bare: dict[PoolID, dict[str, frozenset[str]]] = {}

    @property
    def pools(self) -> Set[PoolID]:
        """All pools with devices."""
        return self._bare.keys()

    def slices(self, pool: PoolID) -> Collection[str]:
        """Return the names of the slices with devices of a pool."""
        return self._bare.get(pool, {}).keys()

    def pools_of(self, slice_: ResourceSlice) -> list[PoolID]:
        """Return the pools that a slice is of: as it is given, and as it was last put."""
        now, before = pool_of_slice(slice_), self._pool_of.get(slice_.metadata.name)
        return [now] if before is None or before == now else [before, now]

    def of(self, pool: PoolID, *, is_open: bool = False) -> Owner | None:
        """Return the owner of a pool; None if it has no devices.

        Args:
            pool: which one.
            is_open: whether the controller's pool is published without our taint.
        """
        slices = self._bare.get(pool)
        if slices is None:
            return None
        if not is_open and any(slices.values()):
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
            self._bare.setdefault(pool, {})[name] = bare_devices(slice_)
        return {pool} if before is None else {before, pool}

    def remove(self, name: str) -> PoolID | None:
        """Forget a slice; return the pool that it was of, if it was known."""
        pool = self._pool_of.pop(name, None)
        if pool is not None and pool in self._bare:
            self._bare[pool].pop(name, None)
            if not self._bare[pool]:
                del self._bare[pool]
        return pool
