"""Pools, and who allocates from them."""

from __future__ import annotations

import enum
from typing import NamedTuple

from dra_driver.api.meta import DriverName, PoolName

__all__ = ["PoolAllocator", "PoolID"]


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
