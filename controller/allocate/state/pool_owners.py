"""Which allocations are of pools of ours, as far as slices and the publishing side say it right now."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.allocate.decide import Owner, PoolOwners
from controller.allocate.state.pool_states import PoolStates
from dra_driver.api.meta import DriverName
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    ResourceSlice,
)
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID

__all__ = ["CurrentOwners"]


class CurrentOwners:
    """The owners of all pools.

    Attributes:
        version: another one whenever the allocator that serves some claim may have changed.

    Args:
        drivers: ours.
        states: which pools must be left alone.
        slices: all; followed from now on.
        classes: all; followed from now on.
    """

    def __init__(
        self,
        drivers: Iterable[DriverName],
        states: PoolStates,
        slices: Informer[ResourceSlice],
        classes: Informer[DeviceClass],
    ) -> None:
        self.version = 0
        self._drivers = frozenset(drivers)
        self._states = states
        self._owners = PoolOwners(self._drivers)
        # Pools that were open at the last look.
        self._open: set[PoolID] = set()
        slices.add_handler(Handler(added=self._seen, updated=lambda _, s: self._seen(s), deleted=self._gone))
        classes.add_handler(Handler(added=self._count, updated=self._count, deleted=self._count))

    def are_ours(self, allocation: AllocationResult) -> bool:
        """Return whether every device is this controller's: of a pool of its own, and not granted.

        What has admin access to a device that is granted takes nothing of it.
        """
        if any(self._is_granted(r) for r in allocation.devices.results):
            return False
        pools = _pools(allocation)
        return all(self._of(p) is Owner.OURS and not self._states.of(p).blocked for p in pools)

    def are_left_to_scheduler(self, allocation: AllocationResult) -> bool:
        """Return whether every device is of a pool of our drivers that is kube-scheduler's."""
        return all(
            p.driver in self._drivers and self._of(p) not in (None, Owner.OURS) for p in _pools(allocation)
        )

    def may_become_ours(self, allocation: AllocationResult) -> bool:
        """Return whether devices are granted, of pools that are changing hands, or whose node is away."""
        ours = any(p.driver in self._drivers for p in _pools(allocation))
        return ours and not (self.are_ours(allocation) or self.are_left_to_scheduler(allocation))

    def pool_changed(self, pool: PoolID) -> None:
        """Take note that the state of a pool is another one."""
        was_open, is_open = pool in self._open, self._states.of(pool).open
        if is_open is was_open:
            return
        if is_open:
            self._open.add(pool)
        else:
            self._open.discard(pool)
        if self._owners.of(pool, is_open=was_open) is not self._of(pool):
            self._count()

    def _of(self, pool: PoolID) -> Owner | None:
        return self._owners.of(pool, is_open=self._states.of(pool).open)

    def _is_granted(self, result: DeviceRequestAllocationResult) -> bool:
        granted = self._states.granted(PoolID(result.driver, result.pool))
        return result.device in granted and not result.admin_access

    def _count(self, *_: object) -> None:
        self.version += 1

    def _seen(self, slice_: ResourceSlice) -> None:
        self._change(slice_, lambda: self._owners.put(slice_))

    def _gone(self, slice_: ResourceSlice) -> None:
        self._change(slice_, lambda: self._owners.remove(slice_.metadata.name))

    def _change(self, slice_: ResourceSlice, change: Callable[[], object]) -> None:
        pools = self._owners.pools_of(slice_)
        before = list(map(self._of, pools))
        change()
        if before != list(map(self._of, pools)):
            self._count()


def _pools(allocation: AllocationResult) -> set[PoolID]:
    return {PoolID(r.driver, r.pool) for r in allocation.devices.results}
