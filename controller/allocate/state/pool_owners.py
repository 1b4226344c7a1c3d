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
        # As of the last look: an owner was told with these devices that are lent, and whether it is open.
        self._known: dict[PoolID, tuple[frozenset[str], bool]] = {}
        slices.add_handler(Handler(added=self._seen, updated=lambda _, s: self._seen(s), deleted=self._gone))
        classes.add_handler(Handler(added=self._count, updated=self._count, deleted=self._count))

    def are_ours(self, allocation: AllocationResult) -> bool:
        """Return whether every device is this controller's: of a pool of its own, and not lent.

        What has admin access to a device that is lent takes nothing of it.
        """
        if any(self._is_lent(r) for r in allocation.devices.results):
            return False
        pools = _pools(allocation)
        return all(self._of(p) is Owner.OURS and not self._states.of(p).blocked for p in pools)

    def are_left_to_scheduler(self, allocation: AllocationResult) -> bool:
        """Return whether every device is of a pool of our drivers that is kube-scheduler's."""
        return all(
            p.driver in self._drivers and self._of(p) not in (None, Owner.OURS) for p in _pools(allocation)
        )

    def may_become_ours(self, allocation: AllocationResult) -> bool:
        """Return whether devices are lent, of pools that are changing hands, or whose node is away."""
        ours = any(p.driver in self._drivers for p in _pools(allocation))
        return ours and not (self.are_ours(allocation) or self.are_left_to_scheduler(allocation))

    def pool_changed(self, pool: PoolID) -> None:
        """Take note that the state of a pool is another one."""
        state = self._states.of(pool)
        now, nothing = (state.lent, state.open), (frozenset[str](), False)
        lent, is_open = known = self._known.get(pool, nothing)
        if known == now:
            return
        before = self._owners.of(pool, lent, is_open=is_open)
        if now == nothing:
            del self._known[pool]
        else:
            self._known[pool] = now
        if before is not self._of(pool):
            self._count()

    def _of(self, pool: PoolID) -> Owner | None:
        state = self._states.of(pool)
        return self._owners.of(pool, state.lent, is_open=state.open)

    def _is_lent(self, result: DeviceRequestAllocationResult) -> bool:
        lent = self._states.lent(PoolID(result.driver, result.pool))
        return result.device in lent and not result.admin_access

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
