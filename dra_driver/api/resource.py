"""``resource.k8s.io/v1``: ResourceSlice, ResourceClaim, ResourceClaimTemplate, DeviceClass.

Source: the API reference of Kubernetes 1.34 to 1.37. A field that an older server does not know is absent
there. List-valued fields default to an empty tuple, which is not written to the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dra_driver.api.meta import DriverName, ExactWire, ObjectMeta, PoolName, Resource, Uid, Wire, WireObject
from dra_driver.api.quantity import Quantity
from dra_driver.api.slices import (
    RESOURCE_SLICES,
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)

__all__ = [
    "DEVICE_CLASSES",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_SLICES",
    "AllocatedDeviceStatus",
    "AllocationResult",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "CapacityRequirements",
    "CelSelector",
    "Condition",
    "Counter",
    "CounterSet",
    "Device",
    "DeviceAllocationConfiguration",
    "DeviceAllocationResult",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceClaim",
    "DeviceClaimConfiguration",
    "DeviceClass",
    "DeviceClassConfiguration",
    "DeviceClassSpec",
    "DeviceConstraint",
    "DeviceCounterConsumption",
    "DeviceDerivedAttribute",
    "DeviceRequest",
    "DeviceRequestAllocationResult",
    "DeviceSelector",
    "DeviceSubRequest",
    "DeviceTaint",
    "DeviceTaintRule",
    "DeviceTaintRuleSpec",
    "DeviceTaintSelector",
    "DeviceToleration",
    "ExactDeviceRequest",
    "NetworkDeviceData",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "OpaqueDeviceConfiguration",
    "ResourceClaim",
    "ResourceClaimConsumerReference",
    "ResourceClaimSpec",
    "ResourceClaimStatus",
    "ResourceClaimTemplate",
    "ResourceClaimTemplateSpec",
    "ResourcePool",
    "ResourceSlice",
    "ResourceSliceSpec",
]

TaintEffect = Literal["None", "NoSchedule", "NoExecute"]


# --- selectors, requests ------------------------------------------------------------------------------------


class CelSelector(ExactWire, frozen=True, kw_only=True):
    """A CEL expression over ``device`` that gives a bool."""

    expression: str


class DeviceSelector(ExactWire, frozen=True, kw_only=True):
    """``selectors[]``; CEL is the only form."""

    cel: CelSelector | None = None


class OpaqueDeviceConfiguration(Wire, frozen=True, kw_only=True):
    """Parameters for a driver; hostile input until the driver has decoded them strictly."""

    driver: DriverName
    parameters: msgspec.Raw = msgspec.Raw(b"null")

    def __post_init__(self) -> None:
        # As decoded, it is a view of all that was decoded with it: a page of a list would stay in memory.
        msgspec.structs.force_setattr(self, "parameters", self.parameters.copy())


class DeviceToleration(ExactWire, frozen=True, kw_only=True):
    """``tolerations[]``: operator is Equal (default) or Exists; an empty key with Exists tolerates all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(ExactWire, frozen=True, kw_only=True):
    """``capacity``: least amounts, by capacity name (KEP-5075)."""

    requests: Mapping[str, Quantity] = msgspec.field(default_factory=dict)


class DeviceDerivedAttribute(ExactWire, frozen=True, kw_only=True):
    """``derivedAttributes[]``: a CEL expression over ``device`` that gives an attribute for constraints.

    KEP-6080, gate DRADerivedAttributes. ``name`` is qualified by a domain; in the constraints of the claim it
    stands in the place of an attribute of that name.
    """

    name: str
    expression: str


class ExactDeviceRequest(ExactWire, frozen=True, kw_only=True):
    """``requests[].exactly``. ``allocation_mode`` is ExactCount (default, with ``count``) or All."""

    device_class_name: str
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceSubRequest(ExactWire, frozen=True, kw_only=True):
    """One alternative of ``firstAvailable`` (KEP-4816)."""

    name: str
    device_class_name: str
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceRequest(ExactWire, frozen=True, kw_only=True):
    """``requests[]``: ``exactly`` or ``firstAvailable``."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(ExactWire, frozen=True, kw_only=True):
    """All devices of ``requests`` (empty: of the claim) have the same / pairwise different attribute."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(ExactWire, frozen=True, kw_only=True):
    """``spec.devices.config[]`` of a claim."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(ExactWire, frozen=True, kw_only=True):
    """``spec.devices`` of a claim. The server writes ``requests: null`` where there are none."""

    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


# --- allocation ---------------------------------------------------------------------------------------------


class DeviceRequestAllocationResult(Wire, frozen=True, kw_only=True):
    """One allocated device. ``request`` is ``name`` or ``name/subrequest``."""

    request: str
    driver: DriverName
    pool: PoolName
    device: str
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: Uid | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    skip_node_operations: tuple[str, ...] = ()


class DeviceAllocationConfiguration(Wire, frozen=True, kw_only=True):
    """Configuration for the driver; ``source`` is FromClass or FromClaim, classes come first."""

    source: str
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(Wire, frozen=True, kw_only=True):
    """``status.allocation.devices``."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(Wire, frozen=True, kw_only=True):
    """``status.allocation``: immutable once written."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(Wire, frozen=True, kw_only=True):
    """``status.reservedFor[]``: usually a pod; do not assume it."""

    resource: str
    name: str
    uid: Uid
    api_group: str = ""


class Condition(Wire, frozen=True, kw_only=True):
    """``metav1.Condition``."""

    type: str
    status: str
    last_transition_time: str
    reason: str
    message: str = ""
    observed_generation: int = 0


class NetworkDeviceData(Wire, frozen=True, kw_only=True):
    """``status.devices[].networkData``."""

    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


class AllocatedDeviceStatus(Wire, frozen=True, kw_only=True):
    """``status.devices[]``: what a driver says about a device that the claim holds (KEP-4817)."""

    driver: DriverName
    pool: PoolName
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[Condition, ...] | None = None  # the server writes null where there are none
    # Not ``msgspec.Raw | None``, into which msgspec decodes null alone.
    data: msgspec.Raw = msgspec.Raw(b"null")
    network_data: NetworkDeviceData | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "data", self.data.copy())  # as of opaque parameters


class ResourceClaimStatus(Wire, frozen=True, kw_only=True):
    """``status`` of a claim."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaimSpec(ExactWire, frozen=True, kw_only=True):
    """``spec`` of a claim: immutable."""

    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(WireObject, frozen=True, kw_only=True):
    """Devices that a workload asks for, and those that it got.

    Attributes:
        left_out: which limit it exceeds, so that it is not kept as a whole (``dra_driver.trimming``).
        newer: path of the first field of the spec that this version does not know.
    """

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()
    left_out: str = ""
    newer: str = ""


class ResourceClaimTemplateSpec(Wire, frozen=True, kw_only=True):
    """The claim that is generated for each pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(WireObject, frozen=True, kw_only=True):
    """A template: the controller-manager makes a claim of it for each pod that names it."""

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# --- DeviceClass --------------------------------------------------------------------------------------------


class DeviceClassConfiguration(ExactWire, frozen=True, kw_only=True):
    """``spec.config[]`` of a class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(ExactWire, frozen=True, kw_only=True):
    """``spec`` of a class."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(WireObject, frozen=True, kw_only=True):
    """A name that admins give to a set of devices and their default configuration.

    Attributes:
        newer: path of the first field that this version does not know.
    """

    spec: DeviceClassSpec = DeviceClassSpec()
    newer: str = ""


# --- DeviceTaintRule ----------------------------------------------------------------------------------------


class DeviceTaintSelector(Wire, frozen=True, kw_only=True):
    """``spec.deviceSelector`` of a rule; what is absent selects everything."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a rule. Without a selector it selects no device."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRule(WireObject, frozen=True, kw_only=True):
    """A taint that an admin puts on devices (KEP-5055)."""

    spec: DeviceTaintRuleSpec


_GROUP = "resource.k8s.io"
RESOURCE_CLAIMS = Resource(_GROUP, "v1", "resourceclaims", "ResourceClaim", ResourceClaim, namespaced=True)
RESOURCE_CLAIM_TEMPLATES = Resource(
    _GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplate, namespaced=True
)
DEVICE_CLASSES = Resource(_GROUP, "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False)


def device_taint_rules(version: str) -> Resource[DeviceTaintRule]:
    """Return the kind in the version that a server has."""
    return Resource(_GROUP, version, "devicetaintrules", "DeviceTaintRule", DeviceTaintRule, namespaced=False)
