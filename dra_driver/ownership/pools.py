"""Pools, and who allocates from them."""

from __future__ import annotations

import enum
from typing import NamedTuple

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceSlice

__all__ = ["PoolAllocator", "PoolID", "parse_device", "pool_of_inventory", "pool_of_slice"]


class PoolID(NamedTuple):
    """A pool of devices: names of pools are unique per driver only."""

    driver: DriverName
    pool: PoolName

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class PoolAllocator(enum.Enum):
    """Who allocates the devices of a pool."""

    CONTROLLER = "controller"
    SCHEDULER = "scheduler"


def pool_of_inventory(inventory: DeviceInventory) -> PoolID:
    """Return the pool that an inventory is published as; it has the name of the node."""
    return PoolID(inventory.spec.driver, PoolName(inventory.spec.node_name))


def pool_of_slice(slice_: ResourceSlice) -> PoolID:
    """Return the pool that a slice belongs to."""
    return PoolID(slice_.spec.driver, slice_.spec.pool.name)


def parse_device(line: str) -> tuple[PoolID, str] | None:
    """Return the pool and the name of a device that policies know as one text; None where it is none."""
    parts = line.split("/")
    if len(parts) < 3 or not all(parts):
        return None
    driver, *pool, device = parts
    return PoolID(DriverName(driver), PoolName("/".join(pool))), device
