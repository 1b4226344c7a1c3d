"""The parts of ``core/v1`` that the driver reads: Node, Pod, Namespace, Event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dra_driver.api.meta import ObjectMeta, Resource, Uid, Wire, WireObject
from dra_driver.api.pod_affinity import PodAffinity, TopologySpreadConstraint
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import NodeSelector

__all__ = [
    "EVENTS",
    "MOST_VOLUMES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "SECRETS",
    "ActualResources",
    "Container",
    "ContainerClaim",
    "ContainerExtendedResourceRequest",
    "ContainerPort",
    "ContainerResources",
    "ContainerStatus",
    "DiskSource",
    "Event",
    "MappedResource",
    "Namespace",
    "Node",
    "NodeAllocatableClaimStatus",
    "NodeSpec",
    "NodeStatus",
    "ObjectReference",
    "OverheadResource",
    "Pod",
    "PodExtendedResourceClaimStatus",
    "PodResourceClaim",
    "PodResourceClaimStatus",
    "PodSchedulingGate",
    "PodSchedulingGroup",
    "PodSpec",
    "PodStatus",
    "PodVolume",
    "Secret",
    "Taint",
    "Toleration",
]


class Taint(Wire, frozen=True, kw_only=True):
    """``spec.taints[]`` of a node."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Wire, frozen=True, kw_only=True):
    """``status`` of a node. ``conditions`` stay raw: the kubelet's have other fields than metav1's."""

    allocatable: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    conditions: tuple[Mapping[str, str | None], ...] = ()


class Node(WireObject, frozen=True, kw_only=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Toleration(Wire, frozen=True, kw_only=True):
    """``spec.tolerations[]`` of a pod."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class ContainerClaim(Wire, frozen=True, kw_only=True):
    """``resources.claims[]``: a claim of the pod, or one request of it."""

    name: str
    request: str = ""


class ContainerResources(Wire, frozen=True, kw_only=True):
    """``resources`` of a container."""

    claims: tuple[ContainerClaim, ...] = ()
    requests: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    limits: Mapping[str, Quantity] = msgspec.field(default_factory=dict)


class ContainerPort(Wire, frozen=True, kw_only=True):
    """``ports[]`` of a container, as far as the host is concerned."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(Wire, frozen=True, kw_only=True):
    """``spec.containers[]``. ``restart_policy`` Always makes a sidecar of an init container.

    Ports without a host port are not kept.
    """

    name: str
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None
    ports: tuple[ContainerPort, ...] = ()

    def __post_init__(self) -> None:
        if self.ports and not all(port.host_port for port in self.ports):
            kept = tuple(port for port in self.ports if port.host_port)
            msgspec.structs.force_setattr(self, "ports", kept)


class PodResourceClaim(Wire, frozen=True, kw_only=True):
    """``spec.resourceClaims[]``: a claim by name, or a template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSchedulingGate(Wire, frozen=True, kw_only=True):
    """``spec.schedulingGates[]``."""

    name: str


class NodeAffinity(Wire, frozen=True, kw_only=True):
    """``spec.affinity.nodeAffinity``: only the required part binds us."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(Wire, frozen=True, kw_only=True):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class VolumeClaimSource(Wire, frozen=True, kw_only=True):
    """``spec.volumes[].persistentVolumeClaim``."""

    claim_name: str = ""


class EphemeralSource(Wire, frozen=True, kw_only=True):
    """``spec.volumes[].ephemeral``: the claim is made for the pod, and is named after pod and volume."""


class DiskSource(Wire, frozen=True, kw_only=True):
    """A disk that the pod itself names: the fields that identify it among those of its kind."""

    pd_name: str = ""
    volume_id: str = msgspec.field(default="", name="volumeID")
    iqn: str = ""
    monitors: tuple[str, ...] = ()
    pool: str = "rbd"
    image: str = ""
    read_only: bool = False


class PodVolume(Wire, frozen=True, kw_only=True):
    """``spec.volumes[]``, as far as it decides where the pod can go."""

    name: str
    persistent_volume_claim: VolumeClaimSource | None = None
    ephemeral: EphemeralSource | None = None
    aws_elastic_block_store: DiskSource | None = None
    gce_persistent_disk: DiskSource | None = None
    iscsi: DiskSource | None = None
    rbd: DiskSource | None = None

    @property
    def decides(self) -> bool:
        """Whether it matters where the pod goes: it does not for most, such as ConfigMaps."""
        return any(
            source is not None
            for source in (
                self.persistent_volume_claim,
                self.ephemeral,
                self.aws_elastic_block_store,
                self.gce_persistent_disk,
                self.iscsi,
                self.rbd,
            )
        )


class PodSchedulingGroup(Wire, frozen=True, kw_only=True):
    """``spec.schedulingGroup``: the PodGroup of the pod's namespace that it belongs to; immutable."""

    pod_group_name: str | None = None


MOST_VOLUMES: Final = 256
"""Volumes of one pod that are kept; a pod can have tens of thousands."""


class PodSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a pod. Of volumes only those are kept that decide where it can go, up to 256."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ContainerResources | None = None
    overhead: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    priority: int = 0
    preemption_policy: str = ""
    volumes: tuple[PodVolume, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None

    @property
    def pod_group(self) -> str:
        """The name of the PodGroup that the pod belongs to; empty if it belongs to none."""
        group = self.scheduling_group
        return (group.pod_group_name or "") if group is not None else ""

    def __post_init__(self) -> None:
        if self.volumes and not all(volume.decides for volume in self.volumes):
            kept = tuple(volume for volume in self.volumes if volume.decides)
            msgspec.structs.force_setattr(self, "volumes", kept)
        if len(self.volumes) > MOST_VOLUMES:
            msgspec.structs.force_setattr(self, "volumes", self.volumes[:MOST_VOLUMES])


class PodResourceClaimStatus(Wire, frozen=True, kw_only=True):
    """``status.resourceClaimStatuses[]``: the generated claim; None where none is needed."""

    name: str
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(Wire, frozen=True, kw_only=True):
    """``requestMappings[]``: the request of the claim that serves one resource of a container."""

    container_name: str
    resource_name: str
    request_name: str


class PodExtendedResourceClaimStatus(Wire, frozen=True, kw_only=True):
    """``status.extendedResourceClaimStatus``: the claim that the scheduler made for extended resources."""

    request_mappings: tuple[ContainerExtendedResourceRequest, ...] = ()
    resource_claim_name: str = ""


class ActualResources(Wire, frozen=True, kw_only=True):
    """``resources`` in the status of a pod or a container: what it has, whatever its spec asks for by now."""

    requests: Mapping[str, Quantity] = msgspec.field(default_factory=dict)


class ContainerStatus(Wire, frozen=True, kw_only=True):
    """``status.containerStatuses[]``: what a container has while it is resized (KEP-1287)."""

    name: str
    resources: ActualResources | None = None
    allocated_resources: Mapping[str, Quantity] = msgspec.field(default_factory=dict)


class MappedResource(Wire, frozen=True, kw_only=True):
    """``mapping[]``: an amount of a resource of the node that devices of the claim count as."""

    name: str
    quantity: Quantity


class OverheadResource(Wire, frozen=True, kw_only=True):
    """``overhead[]``: an amount that using the claim costs, for the pod and for each of its containers."""

    name: str
    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableClaimStatus(Wire, frozen=True, kw_only=True):
    """``status.nodeAllocatableResourceClaimStatuses[]``: CPU and memory of a claim's devices (KEP-5517)."""

    resource_claim_name: str
    containers: tuple[str, ...] = ()
    mapping: tuple[MappedResource, ...] = ()
    overhead: tuple[OverheadResource, ...] = ()


class PodStatus(Wire, frozen=True, kw_only=True):
    """``status`` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: tuple[Mapping[str, str | int | None], ...] = ()
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: ActualResources | None = None
    allocated_resources: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    node_allocatable_resource_claim_statuses: tuple[NodeAllocatableClaimStatus, ...] = ()


class Pod(WireObject, frozen=True, kw_only=True):
    """A pod. Of container statuses only those are kept that say something else than the spec.

    Every container that runs has one, and few of them are ever resized.

    Attributes:
        left_out: which limit it exceeds, so that it is not kept as a whole (``dra_driver.trimming``).
    """

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    left_out: str = ""

    def __post_init__(self) -> None:
        status = self.status
        if status.container_statuses or status.init_container_statuses:
            of = {c.name: c.resources.requests for c in (*self.spec.init_containers, *self.spec.containers)}

            def differing(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
                return tuple(s for s in statuses if _differs(s, of.get(s.name, {})))

            kept = msgspec.structs.replace(
                status,
                container_statuses=differing(status.container_statuses),
                init_container_statuses=differing(status.init_container_statuses),
            )
            msgspec.structs.force_setattr(self, "status", kept)


def _differs(status: ContainerStatus, asked: Mapping[str, Quantity]) -> bool:
    """Return whether a container has other resources than its spec asks for."""
    if status.resources is None:
        return False
    allocated = status.allocated_resources
    return status.resources.requests != asked or (bool(allocated) and allocated != asked)


class Namespace(WireObject, frozen=True, kw_only=True):
    """A namespace; its labels say whether admin access and our gate apply."""


class ObjectReference(Wire, frozen=True, kw_only=True):
    """What an Event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: Uid = Uid("")
    api_version: str = ""
    resource_version: str = ""


class Secret(WireObject, frozen=True, kw_only=True):
    """``core/v1 Secret``; values are base64. Never log one."""

    data: Mapping[str, str] | None = None


class ConfigMap(WireObject, frozen=True, kw_only=True):
    """``core/v1 ConfigMap``."""

    data: Mapping[str, str] | None = None


class Event(WireObject, frozen=True, kw_only=True):
    """``core/v1 Event``."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None


NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", Pod, namespaced=True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", Namespace, namespaced=False)
EVENTS = Resource("", "v1", "events", "Event", Event, namespaced=True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap, namespaced=True)
SECRETS = Resource("", "v1", "secrets", "Secret", Secret, namespaced=True)
