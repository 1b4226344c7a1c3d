"""Objects of the API as plain data: whole, so that an API server takes them, and no longer than a test needs.

``codec.convert(ResourceClaim, claim("c"))`` makes the struct. ``more`` goes into the part that is named last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.api.meta import DriverName
from dra_driver.api.names import ALLOCATION_GATE, CONTROLLER_TAINT

__all__ = [
    "CONTAINER",
    "DRIVER",
    "NAMESPACE",
    "PROTECTED",
    "allocation",
    "claim",
    "container",
    "device",
    "device_class",
    "inventory",
    "node",
    "pod",
    "request",
    "reserved",
    "resource_slice",
    "result",
    "template",
]

Body = dict[str, Any]

DRIVER = DriverName("gpu.example.com")
NAMESPACE = "default"
PROTECTED: Body = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}
"""The taint of pools from which the controller allocates."""


def container(cpu: str = "") -> Body:
    """Return a container, with a request for processors where given."""
    return {"name": "c", "image": "i", **({"resources": {"requests": {"cpu": cpu}}} if cpu else {})}


CONTAINER = container()


def _metadata(name: str, namespace: str = "", uid: str = "", **more: Any) -> Body:
    given = {"namespace": namespace, "uid": uid}
    return {"name": name, **{k: v for k, v in given.items() if v}, **more}


# --- pods and nodes -----------------------------------------------------------------------------------------


def pod(
    name: str,
    *claims: str,
    namespace: str = NAMESPACE,
    uid: str = "",
    gated: bool = False,
    gates: Sequence[str] = (),
    cpu: str = "",
    metadata: Mapping[str, Any] | None = None,
    **more: Any,
) -> Body:
    """Return a pending Pod that uses these claims.

    Args:
        name: of the pod.
        claims: names of ResourceClaims; the pod calls them c0, c1 …
        namespace: of the pod.
        uid: empty: the API server makes one.
        gated: whether it has our scheduling gate, after ``gates``.
        gates: further scheduling gates.
        cpu: what its only container asks for.
        metadata: more of it.
        more: of the spec.
    """
    names = (*gates, *((ALLOCATION_GATE,) if gated else ()))
    spec: Body = {"containers": [container(cpu)]}
    if claims:
        spec["resourceClaims"] = [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    if names:
        spec["schedulingGates"] = [{"name": g} for g in names]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(name, namespace, uid, **(metadata or {})),
        "spec": {**spec, **more},
        "status": {"phase": "Pending"},
    }


def node(
    name: str,
    *,
    uid: str = "",
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    **more: Any,
) -> Body:
    """Return a Node with its host name as a label; ``more`` of the spec."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": _metadata(name, uid=uid, labels={"kubernetes.io/hostname": name, **(labels or {})}),
        "spec": more,
        "status": {"allocatable": dict(allocatable)} if allocatable else {},
    }


# --- claims -------------------------------------------------------------------------------------------------


def request(
    name: str = "gpu", device_class: str = "gpu", *, count: int | None = 1, memory: str = "", **more: Any
) -> Body:
    """Return a request; a count of None means all devices, ``more`` goes into ``exactly``."""
    mode = {"allocationMode": "ExactCount", "count": count} if count else {"allocationMode": "All"}
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **mode, **capacity, **more}}


def claim(
    name: str,
    *requests: Body,
    namespace: str = NAMESPACE,
    uid: str = "",
    status: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **more: Any,
) -> Body:
    """Return a ResourceClaim, of one GPU where there are no requests; ``more`` of ``spec.devices``."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": _metadata(name, namespace, uid, **(metadata or {})),
        "spec": {"devices": {"requests": list(requests or [request()]), **more}},
        "status": dict(status or {}),
    }


def template(name: str, *requests: Body, namespace: str = NAMESPACE, **more: Any) -> Body:
    """Return a ResourceClaimTemplate of such claims."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(name, namespace),
        "spec": {"spec": claim(name, *requests, **more)["spec"]},
    }


def result(pool: str, device: str, *, request: str = "gpu", driver: str = DRIVER, **more: Any) -> Body:
    """Return one device of an allocation."""
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


def allocation(*results: Body, **more: Any) -> Body:
    """Return the status of an allocated claim; ``more`` of ``status.allocation``."""
    return {"allocation": {"devices": {"results": list(results)}, **more}}


def reserved(*pods: str) -> Body:
    """Return the status field that says which pods use a claim; their UIDs are ``uid-NAME``."""
    return {"reservedFor": [{"resource": "pods", "name": p, "uid": f"uid-{p}"} for p in pods]}


# --- devices ------------------------------------------------------------------------------------------------


def device_class(name: str = "gpu", expression: str = "", **more: Any) -> Body:
    """Return a DeviceClass, of every device where there is no expression; ``more`` of the spec."""
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": _metadata(name),
        "spec": {**selectors, **more},
    }


def attribute(value: object) -> Body:
    """Return the value of an attribute as it is on the wire; a list has several of one type."""
    if isinstance(value, list):
        ((kind, _),) = attribute(value[0]).items()
        return {f"{kind}s": value}
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def device(name: str, memory: str = "", **more: Any) -> Body:
    """Return a device of a slice or an inventory; ``attributes`` take plain values."""
    raw: Body = {"name": name, **more}
    if "attributes" in more:
        raw["attributes"] = {k: attribute(v) for k, v in more["attributes"].items()}
    if memory:
        raw["capacity"] = {"memory": {"value": memory}, **more.get("capacity", {})}
    return raw


def resource_slice(
    node: str,
    *devices: Body,
    driver: str = DRIVER,
    name: str = "",
    generation: int = 1,
    count: int = 1,
    **more: Any,
) -> Body:
    """Return one of the ``count`` ResourceSlices of the pool of a node; ``more`` of the spec."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": _metadata(name or f"{node}-{driver}"),
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            **({"devices": list(devices)} if devices else {}),
            **more,
        },
    }


def inventory(
    node: str,
    *devices: Body,
    driver: str = DRIVER,
    node_uid: str = "",
    registered: bool = True,
    epoch: int = 1,
    **more: Any,
) -> Body:
    """Return the DeviceInventory of a node whose UID is ``uid-NODE`` or given; ``more`` of the spec."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid or f"uid-{node}"}
    return {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DeviceInventory",
        "metadata": _metadata(f"{node}.{driver}", ownerReferences=[owner]),
        "spec": {"nodeName": node, "driver": driver, "devices": list(devices), **more},
        "status": {"registration": {"registered": registered, "epoch": epoch}},
    }
