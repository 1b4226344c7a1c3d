"""The parts of ``core/v1`` that the driver reads: Node, Pod, Namespace, Event."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dra_driver.api.meta import ObjectMeta, Resource, Uid, Wire, WireObject
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import NodeSelector

__all__ = [
    "EVENTS",
    "NAMESPACES",
    "NODES",
    "PODS",
    "SECRETS",
    "Container",
    "ContainerClaim",
    "ContainerExtendedResourceRequest",
    "ContainerResources",
    "Event",
    "Namespace",
    "Node",
    "NodeSpec",
    "NodeStatus",
    "ObjectReference",
    "Pod",
    "PodExtendedResourceClaimStatus",
    "PodResourceClaim",
    "PodResourceClaimStatus",
    "PodSchedulingGate",
    "PodSpec",
    "PodStatus",
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


class Container(Wire, frozen=True, kw_only=True):
    """``spec.containers[]``. ``restart_policy`` Always makes a sidecar of an init container."""

    name: str
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None


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


class PodSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


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


class PodStatus(Wire, frozen=True, kw_only=True):
    """``status`` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Mapping[str, str | int | None], ...] = ()
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


class Pod(WireObject, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


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
SECRETS = Resource("", "v1", "secrets", "Secret", Secret, namespaced=True)
