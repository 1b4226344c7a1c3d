"""Device taints and tolerations (KEP-5055), and the taint that keeps kube-scheduler off a pool.

Whether a toleration covers a taint is decided here and nowhere else: by the allocator, by the controller that
looks for claims which kube-scheduler could serve from its pools, and in the tests that hold the admission
policy against it, case by case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import DeviceTaint, DeviceToleration, ResourceSlice
from dra_driver.ownership.pools import PoolAllocator, PoolID, pool_of_inventory, pool_of_slice
from dra_driver.ownership.records import AllocatorRecord, is_marked_open, recorded_allocator

__all__ = [
    "PROTECTION_TAINT",
    "allocating_pools",
    "bare_devices",
    "blocks",
    "is_controller_taint",
    "protected_pools",
    "tolerates",
]

PROTECTION_TAINT: Final = DeviceTaint(key=names.CONTROLLER_TAINT, value="allocates", effect="NoSchedule")
"""Keeps kube-scheduler's allocator off the devices that our controller allocates."""


def blocks(taint: DeviceTaint) -> bool:
    """Whether the taint keeps new allocations away. Effect ``None`` informs only; unknown effects too."""
    return taint.effect in ("NoSchedule", "NoExecute")


def tolerates(tolerations: Iterable[DeviceToleration], taint: DeviceTaint) -> bool:
    """Whether one of the tolerations covers the taint."""
    return any(_covers(t, taint) for t in tolerations)


def _covers(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False


def is_controller_taint(taint: DeviceTaint) -> bool:
    """Return whether the taint is the one that keeps kube-scheduler off our devices.

    With another effect it would not keep it off. Its time does not matter.
    """
    ours = PROTECTION_TAINT
    return (taint.key, taint.value, taint.effect) == (ours.key, ours.value, ours.effect)


def bare_devices(slice_: ResourceSlice) -> frozenset[str]:
    """Return the devices of a slice that kube-scheduler can allocate, by name."""
    return frozenset(d.name for d in slice_.spec.devices if not any(map(is_controller_taint, d.taints)))


def protected_pools(slices: Iterable[ResourceSlice]) -> frozenset[PoolID]:
    """Return the pools of which kube-scheduler can allocate no device; a pool without devices is none."""
    protected: dict[PoolID, bool] = {}
    for slice_ in slices:
        if slice_.spec.devices:
            pool = pool_of_slice(slice_)
            protected[pool] = protected.get(pool, True) and not bare_devices(slice_)
    return frozenset(pool for pool, good in protected.items() if good)


def allocating_pools(
    slices: Iterable[ResourceSlice], inventories: Iterable[DeviceInventory] = ()
) -> Mapping[PoolID, PoolAllocator]:
    """Return who allocates from each pool, as far as objects tell: for people, nothing safe rests on it.

    A pool is the controller's if a device of it has the taint, or if it is open, by its record or by the mark
    of its slices. Pools of drivers of which the controller has no pool are left out: nothing tells them from
    those of other drivers.

    Args:
        slices: of all pools.
        inventories: with the records, where they can be read.
    """
    records = {pool_of_inventory(i): recorded_allocator(i.status.publication) for i in inventories}
    found: dict[PoolID, PoolAllocator] = {}
    for slice_ in slices:
        pool = pool_of_slice(slice_)
        record = records.get(pool)
        is_open = record is AllocatorRecord.OPEN or (
            is_marked_open(slice_) and record is not AllocatorRecord.SCHEDULER
        )
        if len(bare_devices(slice_)) < len(slice_.spec.devices) or is_open:
            found[pool] = PoolAllocator.CONTROLLER
        else:
            found.setdefault(pool, PoolAllocator.SCHEDULER)
    drivers = {pool.driver for pool, allocator in found.items() if allocator is PoolAllocator.CONTROLLER}
    return {pool: allocator for pool, allocator in sorted(found.items()) if pool.driver in drivers}
