"""``dra-driver.dev/v1alpha1 DeviceInventory``: what a node's plugin found, and how publishing is agreed.

One object per node and driver, cluster-scoped, owned by the Node, written by the node's plugin. The
controller writes ``status.publication`` only. ResourceSlices are made of it by
``dra_driver.resourceslice.build_slices``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from dra_driver.api.meta import DriverName, PoolName, Resource, Uid, Wire, WireObject
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Condition, DeviceAttribute, DeviceCapacity
from dra_driver.api.shared import shared, shared_attributes, shared_capacities

__all__ = [
    "API_VERSION",
    "DEVICE_INVENTORIES",
    "GROUP",
    "LARGEST_CAPACITY",
    "MOST_GONE_CLAIMS",
    "MOST_PLACES",
    "MOST_PLACES_OF_ALL",
    "NODE_PUBLISHES",
    "Activity",
    "BackendProblem",
    "DeviceHealth",
    "DeviceInventory",
    "DeviceInventorySpec",
    "DeviceInventoryStatus",
    "DeviceLink",
    "Discovery",
    "GoneClaim",
    "GoneClaimDevice",
    "InventoryDevice",
    "LentUnit",
    "OccupiedPlace",
    "OtherDriverNote",
    "PartitionPlacement",
    "PartitionProfile",
    "Publication",
    "Registration",
    "inventory_name",
]

GROUP = "dra-driver.dev"
API_VERSION = f"{GROUP}/v1alpha1"
# No device has more of anything; a pool of 1,024 of them stays within an int64. The CRD refuses ten times as
# much.
LARGEST_CAPACITY: Final = Quantity.parse("1Pi")
# Partitions that one device can be cut into, each kind at each place; and all devices of an inventory.
MOST_PLACES: Final = 128
MOST_PLACES_OF_ALL: Final = 4096
# Of one inventory; the CRD refuses more. A claim has at most 32 devices.
MOST_GONE_CLAIMS: Final = 128
# ``spec.publisher`` of a node whose plugin publishes.
NODE_PUBLISHES = "node"


class PartitionPlacement(Wire, frozen=True, kw_only=True):
    """Place where a partition can sit.

    Attributes:
        start: first memory slice of the device that it takes.
        size: memory slices that it takes.
    """

    start: int
    size: int


class PartitionProfile(Wire, frozen=True, kw_only=True):
    """A kind of partition that the device can be cut into (a MIG profile, a VF type).

    Attributes:
        name: the vendor's name, for example ``1g.5gb``.
        profile_id: the number by which the vendor's library knows it (NVML ``.id``).
        placements: every place where it fits on the empty device.
        attributes: attributes that differ from the whole device.
        capacity: what a partition of this kind has.
    """

    name: str
    profile_id: int = 0
    placements: tuple[PartitionPlacement, ...] = ()
    attributes: Mapping[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, DeviceCapacity] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Share what is equal in all GPUs of a fleet: they list the same profiles."""
        shared_attributes(self.attributes)
        msgspec.structs.force_setattr(self, "placements", shared(self.placements))
        msgspec.structs.force_setattr(self, "capacity", shared_capacities(self.capacity))


class DeviceLink(Wire, frozen=True, kw_only=True):
    """A direct connection to another device of the node.

    Attributes:
        peer: name of the other device in the same inventory, or ``switch``.
        type: ``nvlink`` or ``xgmi``.
        count: number of parallel links.
    """

    peer: str
    type: str
    count: int = 1


class OccupiedPlace(Wire, frozen=True, kw_only=True):
    """Place of a partition that exists.

    Attributes:
        profile_id: as in ``PartitionProfile``.
        start: as in ``PartitionPlacement``.
        size: likewise.
    """

    profile_id: int = 0
    start: int
    size: int


class DeviceHealth(Wire, frozen=True, kw_only=True):
    """Reason not to use a device, in ``health[]`` of it; without one it is healthy as far as can be told.

    Attributes:
        reason: CamelCase, stable, for example ``XidError``.
        severity: ``info`` (seen, harmless), ``degraded`` (nothing new on it) or ``failed`` (evict).
        message: for people.
        since: RFC 3339.
        places: what is taken of a device that can be cut: the condition concerns the device as a whole, and
            the partitions for which there is no room beside these. If None, it concerns all partitions.
    """

    reason: str
    severity: str
    message: str = ""
    since: str = ""
    places: tuple[OccupiedPlace, ...] | None = None


class InventoryDevice(Wire, frozen=True, kw_only=True):
    """One physical device.

    Attributes:
        name: as in the ResourceSlice; made of the PCI address where there is one.
        attributes: by the names of the ResourceSlice.
        capacity: by the names of the ResourceSlice.
    """

    name: str
    attributes: Mapping[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    partitions: tuple[PartitionProfile, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    health: tuple[DeviceHealth, ...] = ()

    def __post_init__(self) -> None:
        """Share what is equal in devices of one model: most attributes are."""
        shared_attributes(self.attributes)
        msgspec.structs.force_setattr(self, "capacity", shared_capacities(self.capacity))


class DeviceInventorySpec(Wire, frozen=True, kw_only=True):
    """Devices that the plugin found on its node.

    Attributes:
        node_name: the node whose devices they are; it owns the object.
        driver: name of the driver, as in ResourceSlices.
        devices: all of them, also those that are not published.
        truncated: number of devices that were left out because the object would have grown beyond what the
            API server stores; 0 where everything is there.
        publisher: ``node`` where the plugin publishes the slices itself; empty: the controller does.
    """

    node_name: str
    driver: DriverName
    devices: tuple[InventoryDevice, ...] = ()
    truncated: int = 0
    publisher: str = ""


class Registration(Wire, frozen=True, kw_only=True):
    """Written by the plugin: whether the kubelet knows it, and how often slices were asked for.

    ``epoch`` grows whenever the kubelet confirms a registration, and whenever the plugin is registered and
    sees that the slices published for the present epoch are gone. The controller creates slices once per
    epoch, never without ``registered``.

    Attributes:
        registered: whether the kubelet knows the plugin.
        epoch: how often slices were asked for.
        gone_claims_epoch: the same as ``epoch`` where the plugin keeps ``status.goneClaims``; an older one
            raises ``epoch`` alone.
    """

    registered: bool = False
    epoch: int = 0
    gone_claims_epoch: int = 0

    @property
    def keeps_gone_claims(self) -> bool:
        """Whether the plugin removes claims from ``status.goneClaims`` that it does not have prepared."""
        return 0 < self.epoch == self.gone_claims_epoch


class LentUnit(Wire, frozen=True, kw_only=True):
    """Devices that an earlier version has lent to kube-scheduler, in a pool of the controller.

    Attributes:
        unit: what is exclusive together with them: the counter set, or the device that consumes none.
        devices: by name.
    """

    unit: str
    devices: tuple[str, ...] = ()


class OtherDriverNote(Wire, frozen=True, kw_only=True):
    """Devices that are withheld because another DRA driver publishes them for the same node.

    Attributes:
        driver: the other one.
        pools: of it, in which claims may still have these devices when it has gone.
        devices: of this inventory, by name.
    """

    driver: DriverName
    pools: tuple[PoolName, ...] = ()
    devices: tuple[str, ...] = ()


class Publication(Wire, frozen=True, kw_only=True):
    """Written by the controller: what it published and for which epoch.

    Attributes:
        epoch: epoch for which the slices in ``slices`` were created.
        attempted: epoch for which creating slices was begun, noted before the first of them. Where it is
            ahead of ``epoch``, a controller was killed in between and what it had created is not known.
        generation: pool generation.
        slices: names of the ResourceSlices of the pool.
        devices: number of devices published.
        allocator: of the pool: ``scheduler``, ``controller``, or ``draining`` while it
            goes from the first to the second; empty where an older controller wrote the rest.
        withheld_for: resources of device plugins for which devices of the node are withheld.
        other_drivers: other DRA drivers for which devices of the node are withheld.
        lent: what kube-scheduler may allocate although the pool is the controller's. Only earlier versions
            note something here; the pool is nobody's until it is removed (``recorded_allocator``).
    """

    epoch: int = 0
    attempted: int = 0
    generation: int = 0
    slices: tuple[str, ...] = ()
    devices: int = 0
    allocator: str = ""
    withheld_for: tuple[str, ...] = ()
    other_drivers: tuple[OtherDriverNote, ...] = ()
    lent: tuple[LentUnit, ...] = ()


class BackendProblem(Wire, frozen=True, kw_only=True):
    """A backend that cannot look at its hardware.

    Attributes:
        backend: as given to ``--backend``.
        state: ``failed`` (an error; what it found last stays as it was) or ``vanished`` (library or driver
            are gone; its devices stay with the condition ``DriverAbsent``).
        reason: CamelCase: ``DiscoveryFailed``, ``DriverAbsent``, ``DriverMissing`` (GPUs are on the bus, and
            never had one) or ``DriverHanging`` (a call does not come back); empty in those of older plugins.
        message: for people.
    """

    backend: str
    state: str
    reason: str = ""
    message: str = ""


class Discovery(Wire, frozen=True, kw_only=True):
    """Written by the plugin: the backends that are in trouble.

    Attributes:
        problems: one for each of them.
    """

    problems: tuple[BackendProblem, ...] = ()


class Activity(Wire, frozen=True, kw_only=True):
    """Written by the plugin: devices on which something runs, and devices on which nothing does.

    A device in neither reports no utilisation, or not for long enough. Changes are a minute or more apart.

    Attributes:
        busy: names of devices on which something runs.
        idle: names of devices on which nothing runs.
    """

    busy: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


class GoneClaimDevice(Wire, frozen=True, kw_only=True):
    """A device that stays with a claim that is gone.

    Attributes:
        device: its name in the pool.
        share_id: which share of it, if the claim had a share.
        consumed_capacity: of that share.
    """

    device: str
    share_id: Uid | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: Mapping[str, Quantity] = msgspec.field(default_factory=dict)


class GoneClaim(Wire, frozen=True, kw_only=True):
    """A claim that the API server has no more although it was not deallocated.

    Added by the controller, which has seen it deleted, or by the plugin, which has it prepared; removed by
    the plugin once it has not. It names no claim: readers of inventories may not be readers of its namespace.

    Attributes:
        uid: of the claim.
        devices: that it had of this pool.
    """

    uid: Uid
    devices: tuple[GoneClaimDevice, ...] = ()


class DeviceInventoryStatus(Wire, frozen=True, kw_only=True):
    """``publication`` and ``conditions`` belong to the publisher of the slices, the rest to the plugin.

    One condition is the plugin's: ``Discovered``, which is there once a backend has been in trouble. Another
    is the controller's, whoever publishes: ``Registered``, whether the plugin is there.

    Attributes:
        conditions: ``Published`` of the publisher, ``Discovered`` of the plugin, ``Registered``.
        gone_claims: whose devices stay taken.
    """

    registration: Registration = Registration()
    discovery: Discovery = Discovery()
    activity: Activity = Activity()
    publication: Publication = Publication()
    conditions: tuple[Condition, ...] = ()
    gone_claims: tuple[GoneClaim, ...] = ()


class DeviceInventory(WireObject, frozen=True, kw_only=True):
    """The devices of one node and driver."""

    spec: DeviceInventorySpec
    status: DeviceInventoryStatus = DeviceInventoryStatus()


DEVICE_INVENTORIES = Resource(
    GROUP, "v1alpha1", "deviceinventories", "DeviceInventory", DeviceInventory, namespaced=False
)


def inventory_name(node_name: str, driver: str) -> str:
    """Return the name of the DeviceInventory: ``<node>.<driver>``, hashed where that is over 253 bytes."""
    name = f"{node_name}.{driver.lower()}"
    if len(name) <= 253:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[:236].rstrip('.-')}-{digest}"
