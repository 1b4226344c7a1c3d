"""What backends say of hardware: devices, their partitions, events and samples. Values, without behaviour.

A fact that a backend cannot read is absent, never invented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.api.own.inventory import DeviceHealth, InventoryDevice
from dra_driver.cdi import ContainerEdits, DeviceNode, Parts

__all__ = [
    "BackendMetric",
    "DevicePlan",
    "DeviceSample",
    "DeviceUse",
    "DeviceWork",
    "DiscoveredDevice",
    "GpuInstance",
    "HealthEvent",
    "PartitioningMode",
]

_NO_EDITS: Final = ContainerEdits()
_NO_PARTS: Final = Parts()


@dataclass(frozen=True, slots=True)
class PartitioningMode:
    """A mode that is on, in which a device is cut into partitions and is not used as a whole.

    Attributes:
        name: for people: ``MIG mode``.
        condition: what ``health`` of the device says of it. It concerns the device as a whole; partitions of
            the device need the mode.
    """

    name: str
    condition: DeviceHealth


@dataclass(frozen=True, slots=True)
class DiscoveredDevice:
    """A physical device as a backend sees it: what goes into the inventory, and what only the node knows.

    Attributes:
        device: the part for the inventory.
        uuid: the vendor's identity; prepare refuses a device whose UUID is not the one expected.
        material: what a container needs on the side of the operating system to use it.
        own_nodes: paths, in the container, of the nodes of ``material`` that belong to this device alone.
            Prepare refuses a device while one of them is missing, and its partitions do not get them. The
            other nodes are of the driver, and left out while they are missing. If None, the nodes whose names
            on the host end in a number are the device's own (``cdi.own_nodes``).
        partitioning: the mode in which the device is cut into partitions, if it is on; its condition is in
            ``device.health``.
        is_partition: whether the device is a partition that was made by other means than this driver:
            parameters for partitions hold for it.
        parts: what a container gets of the device's driver beside ``material``, by capabilities of which a
            claim can choose. Empty where the driver is not divided.
    """

    device: InventoryDevice
    uuid: str
    material: ContainerEdits = _NO_EDITS
    own_nodes: tuple[str, ...] | None = None
    partitioning: PartitioningMode | None = None
    is_partition: bool = False
    parts: Parts = _NO_PARTS

    @property
    def health_of_partitions(self) -> tuple[DeviceHealth, ...]:
        """Conditions of the device that all of its partitions share."""
        own = None if self.partitioning is None else self.partitioning.condition
        return tuple(h for h in self.device.health if h != own and h.places is None)


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A partition that exists.

    Attributes:
        instance_id: the number by which the device knows it now.
        profile_id: the vendor's number of its profile.
        start: the first slice of the device that it occupies, of a GPU the first slice of its memory.
        size: number of slices.
        uuid: its identity; empty where it is half made and nothing can run on it.
        device_nodes: what a container needs for it, beside what it needs for any device of the vendor: each
            of them belongs to the partition alone, or to the device that is cut.
    """

    instance_id: int
    profile_id: int
    start: int
    size: int
    uuid: str = ""
    device_nodes: tuple[DeviceNode, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """Something that happened to a device, as the hardware reports it.

    Attributes:
        uuid: the vendor's identity of the device, as in ``DiscoveredDevice``.
        reason: CamelCase, stable; the same as in ``DeviceHealth`` where it makes a condition.
        severity: as in ``DeviceHealth``; empty where it makes no condition.
        code: the vendor's number (NVIDIA's XID) where it has one.
    """

    uuid: str
    reason: str
    severity: str
    message: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """What a device does right now; a value that it does not report is None.

    Attributes:
        device: its name in the inventory.
        utilization: share of time in which something ran on it lately, 0 to 1.
        memory_used: bytes.
        memory_total: bytes.
        temperature: degrees Celsius.
        power: watts.
        errors: (part of the device, ``corrected`` or ``uncorrected``) → errors of its memories and links that
            it has counted since the driver was loaded.
    """

    device: str
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    power: float | None = None
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BackendMetric:
    """One value that a backend measures.

    Attributes:
        name: small letters, digits and underscores; of a counter without ``_total``. What Prometheus gets is
            ``dra_driver_backend_<backend>_<name>``.
        text: what it is, with its unit; the same for all values of one name.
        labels: of few values each; the same names for all values of one name.
        counter: whether it only grows while the agent runs.
    """

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    counter: bool = False


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device that a claim was given, for the backend to plan what it does to it.

    Attributes:
        claim_uid: of the claim, as in ``namespace`` and ``claim``.
        request: of the claim that the device satisfies.
        device: name of the device; of a partition its own.
        uuid: its identity, as discovery says; of a partition that of its device.
        profile: of a partition the name of its profile, else empty.
        share_id: which share of a device that several claims may have; empty where the claim has it alone.
        parameters: the ``Parameters`` that hold for the device, of a kind of the backend; None if none do.
    """

    claim_uid: str
    namespace: str
    claim: str
    request: str
    device: str
    uuid: str
    profile: str = ""
    share_id: str = ""
    parameters: Any = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What a backend is going to do to a device for a claim.

    Attributes:
        settings: plain data that JSON can hold, at most 8 KiB. It is written down durably before anything is
            done, and handed to prepare and to unprepare as it is: what has to be set back belongs into it.
        edits: what the container gets besides what the device itself brings.
        seconds: that ``prepare_device`` may take, from 1 to 3600; if None, 25. What takes longer than 25 s
            goes on while the kubelet asks again and again, about once a minute.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    edits: ContainerEdits = _NO_EDITS
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """What was planned for a device and a claim, for the backend to do or to undo it.

    Attributes:
        claim_uid: of the claim, as in ``namespace`` and ``claim``.
        device: name of the device; of a partition its own.
        uuid: as it was when it was planned.
        share_id: as in ``DeviceUse``.
        settings: as in ``DevicePlan``.
    """

    claim_uid: str
    namespace: str
    claim: str
    device: str
    uuid: str
    share_id: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
