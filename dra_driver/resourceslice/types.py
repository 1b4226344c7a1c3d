"""What goes into slice building and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import OtherDriverNote
from dra_driver.api.resource import CounterSet, Device
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice.device_plugins import PluginDevices
from dra_driver.resourceslice.other_drivers import OtherDriver
from dra_driver.resourceslice.policies import PolicyOutcome

__all__ = [
    "GATES",
    "DesiredPool",
    "Pending",
    "PoolAllocator",
    "PublishOptions",
    "ServerFeatures",
    "SliceContent",
    "Usage",
    "Withheld",
]


# Most resources that status.publication names, other drivers, and pools of one; the CRD allows no more.
MAX_WITHHELD_FOR: Final = 16
# Devices in the notes of all other drivers together: the object has to stay small enough to be stored.
_MAX_NOTED_DEVICES: Final = 1024


@dataclass(frozen=True, slots=True)
class ServerFeatures:
    """Which fields of ResourceSlices the API server keeps. It drops those of a disabled gate in silence.

    Attributes:
        taints: ``devices[].taints`` (DRADeviceTaints).
        counters: ``sharedCounters`` and ``consumesCounters`` (DRAPartitionableDevices).
        together: whether counters are taken in the slice of the devices that consume them only, as Kubernetes
            1.34 has it, in place of slices of their own.
        multi_allocation: ``allowMultipleAllocations`` and request policies (DRAConsumableCapacity).
        lists: attributes with several values (DRAListTypeAttributes).
        partition_types: ``partitionTypeAttribute`` (DRAPartitionableDevicesType).
    """

    taints: bool = True
    counters: bool = True
    together: bool = False
    multi_allocation: bool = True
    lists: bool = True
    partition_types: bool = True

    def missing_gates(self) -> tuple[str, ...]:
        """Return the names of the feature gates that are off, as an admin would turn them on.

        Without those of lists and of types: they are alpha, hence off on most clusters, which lack nothing.
        """
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
        allocator: where no policy says otherwise; ``CONTROLLER`` puts the protecting taint on every device.
        forced: whatever policies say: a pool that changes hands is published for its present allocator.
        open: the API server refuses what others allocate from the pool, so the controller needs no taint.
    """

    allocator: PoolAllocator = PoolAllocator.CONTROLLER
    forced: PoolAllocator | None = None
    open: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What claims hold of a pool, by name of the device, and how the pool is published now.

    Attributes:
        whole: devices that one claim holds alone.
        shared: devices of which claims hold shares.
        published: devices as they are in the slices.
    """

    whole: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    published: Mapping[str, Device] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Pending:
    """Something that a policy wants and that waits until a device is free.

    Attributes:
        policy: name of the policy; empty where it is gone: what it had asked for is what waits to end.
        text: for people, with the name of the device.
    """

    policy: str
    text: str


@dataclass(frozen=True, slots=True)
class Withheld:
    """Devices of an inventory that are not published, because a device plugin hands them out.

    Attributes:
        plugin: which resources of the node, and whose devices.
        devices: number of devices.
    """

    plugin: PluginDevices
    devices: int


@dataclass(frozen=True, slots=True)
class SliceContent:
    """Devices or counters of one slice; both only for a server that wants them together.

    Attributes:
        partition_type_attribute: see ``partition_types``; None where no device of the slice has counters.
    """

    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    partition_type_attribute: str | None = None


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
        wanted: who should allocate, before that.
        strategy: ``first-fit``, ``best-fit`` or empty, for our allocator.
        node_policy: ``pack``, ``spread`` or empty, for our allocator.
        missing: feature gate → what could not be published without it.
        pending: what waits until devices are free.
        outcomes: policy → what became of it here.
        sources: field of the pool → policy that it is from.
        partitioned: whether there are counters.
        open: whether it is the controller's without taints of ours.
        withheld: devices that a device plugin of the node hands out; they are not in the slices.
        other_drivers: those that have devices of the pool, which are not in the slices either.
        refusal: why the controller does not get the pool, or should not have it, though it is wanted.
        doubts: what of the inventory is published and can hardly be true, for people.
        conflicts: what people may expect of the pool and it cannot do, for people.
    """

    driver: DriverName
    pool: PoolName
    node_name: str
    allocator: PoolAllocator
    slices: tuple[SliceContent, ...]
    problems: tuple[str, ...] = ()
    wanted: PoolAllocator = PoolAllocator.CONTROLLER
    strategy: str = ""
    node_policy: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    outcomes: Mapping[str, PolicyOutcome] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    partitioned: bool = False
    open: bool = False
    withheld: tuple[Withheld, ...] = ()
    other_drivers: tuple[OtherDriver, ...] = ()
    refusal: str = ""
    doubts: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(len(s.devices) for s in self.slices)

    @property
    def withheld_for(self) -> tuple[str, ...]:
        """Resources of device plugins for which devices are withheld, as ``status.publication`` has them."""
        return tuple(sorted({name for w in self.withheld for name in w.plugin.resources})[:MAX_WITHHELD_FOR])

    @property
    def other_driver_notes(self) -> tuple[OtherDriverNote, ...]:
        """Return other drivers for which devices are withheld, as ``status.publication`` has them."""
        notes = []
        drivers = sorted({o.driver for o in self.other_drivers})[:MAX_WITHHELD_FOR]
        for driver in drivers:
            mine = [o for o in self.other_drivers if o.driver == driver]
            pools = sorted({pool for o in mine for pool in o.pools})[:MAX_WITHHELD_FOR]
            devices = sorted({name for o in mine for name in o.devices})
            noted = tuple(devices[: _MAX_NOTED_DEVICES // len(drivers)])
            notes.append(OtherDriverNote(driver=driver, pools=tuple(pools), devices=noted))
        return tuple(notes)
