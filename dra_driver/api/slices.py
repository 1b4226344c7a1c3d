"""ResourceSlices of ``resource.k8s.io/v1``, with their devices and counters.

Source: the API reference of Kubernetes 1.34 to 1.37; KEP-4815 for counters.
``dra_driver.api.resource`` exports these names, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, ExactWire, PoolName, Resource, Wire, WireObject
from dra_driver.api.names import COUNTERS_ANNOTATION
from dra_driver.api.quantity import Quantity
from dra_driver.api.shared import shared_attributes, shared_capacities
from dra_driver.errors import DecodeError

__all__ = [
    "RESOURCE_SLICES",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "Counter",
    "CounterSet",
    "Device",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceCounterConsumption",
    "DeviceTaint",
    "NodeAllocatableMapping",
    "NodeAllocatableOverhead",
    "NodeAllocatableResource",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "ResourcePool",
    "ResourceSlice",
    "ResourceSliceSpec",
]

# --- node selectors (core/v1) -------------------------------------------------------------------------------


class NodeSelectorRequirement(Wire, frozen=True, kw_only=True):
    """``core/v1 NodeSelectorRequirement``: operator is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True, kw_only=True):
    """Requirements that must all hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Wire, frozen=True, kw_only=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


# --- ResourceSlice ------------------------------------------------------------------------------------------


class DeviceAttribute(ExactWire, frozen=True, kw_only=True):
    """One attribute: exactly one of the values is set. The plural ones need DRAListTypeAttributes."""

    int_value: int | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string_value: str | None = msgspec.field(default=None, name="string")
    version_value: str | None = msgspec.field(default=None, name="version")
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRequestPolicyRange(ExactWire, frozen=True, kw_only=True):
    """Values that a request for shared capacity may take: ``min``, ``min + step``, … up to ``max``."""

    min: Quantity
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(ExactWire, frozen=True, kw_only=True):
    """How requests for one capacity of a device that is allocated several times are rounded (KEP-5075)."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(ExactWire, frozen=True, kw_only=True):
    """One capacity of a device."""

    value: Quantity
    request_policy: CapacityRequestPolicy | None = None


class Counter(ExactWire, frozen=True, kw_only=True):
    """An amount in a counter set."""

    value: Quantity


class CounterSet(ExactWire, frozen=True, kw_only=True):
    """Counters that the partitions of one physical device share (KEP-4815)."""

    name: str
    counters: Mapping[str, Counter] = msgspec.field(default_factory=dict)


class DeviceCounterConsumption(ExactWire, frozen=True, kw_only=True):
    """What a device takes from a counter set.

    Devices that take from one set are allocated together only if all of them have a group in common. Without
    groups a device goes with others without groups (KEP-5963, gate DRADeviceCompatibilityGroups).
    """

    counter_set: str
    counters: Mapping[str, Counter] = msgspec.field(default_factory=dict)
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(ExactWire, frozen=True, kw_only=True):
    """``spec.devices[].taints[]`` (KEP-5055)."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeAllocatableMapping(ExactWire, frozen=True, kw_only=True):
    """``mapping``: how much of a resource of the node an allocated device counts as."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableOverhead(ExactWire, frozen=True, kw_only=True):
    """``overhead``: how much of a resource of the node its use costs, besides."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableResource(ExactWire, frozen=True, kw_only=True):
    """``nodeAllocatableResources``: CPU or memory of the node that comes with a device (KEP-5517)."""

    mapping: NodeAllocatableMapping | None = None
    overhead: NodeAllocatableOverhead | None = None


class Device(ExactWire, frozen=True, kw_only=True):
    """``spec.devices[]``. ``node_name`` and its siblings apply with ``perDeviceNodeSelection`` only.

    Attributes:
        newer: path of the first field that this version does not know; never on the wire.
    """

    name: str
    attributes: Mapping[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None
    node_allocatable_resources: Mapping[str, NodeAllocatableResource] = {}
    newer: str = ""

    def __post_init__(self) -> None:
        """Share what is equal in devices of one model: most attributes are."""
        shared_attributes(self.attributes)
        msgspec.structs.force_setattr(self, "capacity", shared_capacities(self.capacity))


class ResourcePool(ExactWire, frozen=True, kw_only=True):
    """``spec.pool``: usable only when ``resource_slice_count`` slices of its newest generation are there."""

    name: PoolName
    generation: int
    resource_slice_count: int


class ResourceSliceSpec(ExactWire, frozen=True, kw_only=True):
    """``spec``: devices or shared counters, never both.

    Attributes:
        skip_node_operations: calls that the kubelet leaves out for claims whose devices of the driver all say
            so (KEP-5945, gate DRAOptionalNodeOperations). Never of ours, which are prepared.
        partition_type_attribute: attribute that names the type of each partition (gate
            DRAPartitionableDevicesType).
        newer: path of the first field that this version does not know; never on the wire.
    """

    driver: DriverName
    pool: ResourcePool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    skip_node_operations: tuple[str, ...] = ()
    partition_type_attribute: str | None = None
    newer: str = ""


class ResourceSlice(WireObject, frozen=True, kw_only=True):
    """A part of a pool of devices, with its counters, however they are stored.

    An earlier version of the controller stored the counters of some pools in the annotation
    ``COUNTERS_ANNOTATION``, where kube-scheduler does not see them. Whatever decodes this struct gets them
    back in their fields: without them, overlapping partitions would look like devices of their own. The value
    of the annotation is empty from then on; its presence says how the slice is stored.

    An annotation that cannot be decoded leaves no devices, because it is not known what they share.
    """

    spec: ResourceSliceSpec

    def __post_init__(self) -> None:
        """Restore the counters from the annotation."""
        annotations = self.metadata.annotations
        stored = annotations.get(COUNTERS_ANNOTATION) if annotations else None
        if not annotations or not stored:
            return
        meta = msgspec.structs.replace(self.metadata, annotations={**annotations, COUNTERS_ANNOTATION: ""})
        msgspec.structs.force_setattr(self, "metadata", meta)
        msgspec.structs.force_setattr(self, "spec", _with_counters(self.spec, stored))

    @property
    def withholds_counters(self) -> bool:
        """Whether the counters are stored in the annotation, where kube-scheduler does not see them."""
        return COUNTERS_ANNOTATION in (self.metadata.annotations or {})


class _WithheldCounters(Wire, frozen=True, kw_only=True):
    """What the annotation says, as JSON.

    Attributes:
        shared_counters: ``spec.sharedCounters``.
        consumes_counters: name of a device → its ``consumesCounters``.
    """

    shared_counters: tuple[CounterSet, ...] = ()
    consumes_counters: Mapping[str, tuple[DeviceCounterConsumption, ...]] = {}


def _with_counters(spec: ResourceSliceSpec, stored: str) -> ResourceSliceSpec:
    try:
        counters = codec.decode(_WithheldCounters, stored)
    except DecodeError:
        return msgspec.structs.replace(spec, devices=())
    devices = tuple(
        msgspec.structs.replace(d, consumes_counters=counters.consumes_counters[d.name])
        if d.name in counters.consumes_counters
        else d
        for d in spec.devices
    )
    return msgspec.structs.replace(spec, devices=devices, shared_counters=counters.shared_counters)


RESOURCE_SLICES = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False
)
