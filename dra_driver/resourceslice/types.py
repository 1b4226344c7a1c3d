"""What goes into slice building and what comes out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import CounterSet, Device

__all__ = ["GATES", "DesiredPool", "PoolAllocator", "PublishOptions", "ServerFeatures", "SliceContent"]


class PoolAllocator(enum.Enum):
    """Who allocates the devices of a pool."""

    CONTROLLER = "controller"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class ServerFeatures:
    """Which fields of ResourceSlices the API server keeps. It drops those of a disabled gate in silence.

    Attributes:
        taints: ``devices[].taints`` (DRADeviceTaints).
        counters: ``sharedCounters`` and ``consumesCounters`` (DRAPartitionableDevices).
        multi_allocation: ``allowMultipleAllocations`` and request policies (DRAConsumableCapacity).
    """

    taints: bool = True
    counters: bool = True
    multi_allocation: bool = True

    def missing_gates(self) -> tuple[str, ...]:
        """Names of the feature gates that are off, as an admin would turn them on."""
        return tuple(gate for name, gate in GATES.items() if not getattr(self, name))


GATES: Final[Mapping[str, str]] = {
    "taints": "DRADeviceTaints",
    "counters": "DRAPartitionableDevices",
    "multi_allocation": "DRAConsumableCapacity",
}


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How a pool is published.

    Attributes:
        allocator: ``CONTROLLER`` puts the protecting taint on every device.
    """

    allocator: PoolAllocator = PoolAllocator.CONTROLLER


@dataclass(frozen=True, slots=True)
class SliceContent:
    """Devices or counters of one slice, never both: the API allows one of them, even where it is empty."""

    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """The complete set of slices of one pool. There is always at least one slice.

    Attributes:
        driver: ``spec.driver`` of each slice.
        pool: ``spec.pool.name``; the node's name.
        node_name: ``spec.nodeName``.
        allocator: who allocates, after what the server can do was considered.
        slices: in the order in which readers should see them.
        problems: what of the inventory was left out and why, for people.
    """

    driver: DriverName
    pool: PoolName
    node_name: str
    allocator: PoolAllocator
    slices: tuple[SliceContent, ...]
    problems: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(len(s.devices) for s in self.slices)
