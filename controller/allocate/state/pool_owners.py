"""Which allocations are of pools of ours, as far as slices and the publishing side say it right now."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.allocate.decide import Owner, PoolOwners
from controller.allocate.state.pool_states import PoolStates
from dra_driver.api.meta import DriverName
from dra_driver.api.resource import AllocationResult, DeviceClass, ResourceSlice
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
        slices.add_handler(Handler(added=self._seen, updated=lambda _, s: self._seen(s), deleted=self._gone))
        classes.add_handler(Handler(added=self._count, updated=self._count, deleted=self._count))

    def are_ours(self, allocation: AllocationResult) -> bool:
        """Return whether every device is of a pool that is this controller's to allocate from."""
        pools = _pools(allocation)
        return all(self._owners.of(p) is Owner.OURS and not self._states.of(p).blocked for p in pools)

    def are_left_to_scheduler(self, allocation: AllocationResult) -> bool:
        """Return whether every device is of a pool of our drivers that is kube-scheduler's."""
        return all(
            p.driver in self._drivers and self._owners.of(p) not in (None, Owner.OURS)
            for p in _pools(allocation)
        )

    def may_become_ours(self, allocation: AllocationResult) -> bool:
        """Return whether devices are of pools that are changing hands, or whose node is away."""
        ours = any(p.driver in self._drivers for p in _pools(allocation))
        return ours and not (self.are_ours(allocation) or self.are_left_to_scheduler(allocation))

    def _count(self, *_: object) -> None:
        self.version += 1

    def _seen(self, slice_: ResourceSlice) -> None:
        self._change(slice_, lambda: self._owners.put(slice_))

    def _gone(self, slice_: ResourceSlice) -> None:
        self._change(slice_, lambda: self._owners.remove(slice_.metadata.name))

    def _change(self, slice_: ResourceSlice, change: Callable[[], object]) -> None:
        pools = self._owners.pools_of(slice_)
        before = list(map(self._owners.of, pools))
        change()
        if before != list(map(self._owners.of, pools)):
            self._count()


def _pools(allocation: AllocationResult) -> set[PoolID]:
    return {PoolID(r.driver, r.pool) for r in allocation.devices.results}
