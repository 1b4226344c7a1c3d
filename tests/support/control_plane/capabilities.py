"""What a cluster's API server can do, found out by dry runs and discovery: what tests need of it.

A test says so by the marker ``needs`` and the names below; it is skipped with ``reason`` where one is absent.
Version numbers say nothing about feature gates, so none is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.api.meta import DriverName
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GATE_POLICY
from dra_driver.api.scheduling import POD_GROUP_VERSIONS, POD_GROUPS, SCHEDULING_GROUP
from dra_driver.errors import ApiError, Forbidden, Invalid, NotFound
from dra_driver.kube import KubeApi
from dra_driver.kube.features import probe_features
from dra_driver.resourceslice import ServerFeatures

__all__ = ["CAPABILITIES", "Capability", "needed_by", "pod_group_version", "probe", "reason"]


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that an API server can do or not.

    Attributes:
        name: in reasons and in the table of docs/installation.md.
        lacks: what a server without it does, for people.
        gate: the feature gate that turns it on; empty: there is none of its own.
    """

    name: str
    lacks: str
    gate: str = ""


CAPABILITIES: Mapping[str, Capability] = {
    c.name: c
    for c in (
        Capability("prioritized list", "drops firstAvailable", "DRAPrioritizedList"),
        Capability("admin access", "drops adminAccess", "DRAAdminAccess"),
        Capability("device taints", "drops the taints of devices", "DRADeviceTaints"),
        Capability(
            "allocation by the controller",
            "drops the taints of devices, so kube-scheduler allocates",
            "DRADeviceTaints",
        ),
        Capability("consumable capacity", "drops requests for capacity", "DRAConsumableCapacity"),
        Capability("partitionable devices", "drops counters", "DRAPartitionableDevices"),
        Capability("extended resources", "drops the extended resource of a class", "DRAExtendedResource"),
        Capability("device status", "drops the status of devices in claims", "DRAResourceClaimDeviceStatus"),
        Capability("lists in attributes", "drops lists in attributes", "DRAListTypeAttributes"),
        Capability("taint rules", "serves no DeviceTaintRule", "DRADeviceTaintRules"),
        Capability(
            "gate policy",
            "does not serve MutatingAdmissionPolicy v1, so no policy puts the scheduling gate on",
        ),
        Capability("pod groups", "serves no PodGroup that pods can name", "GenericWorkload"),
        Capability(
            "absent lists",
            "writes null for lists without entries, which the version before cannot read",
        ),
    )
}


def reason(missing: Iterable[str]) -> str:
    """Return why a test is skipped: what it needs, and what this server does instead."""
    texts = []
    for name in missing:
        capability = CAPABILITIES[name]
        gate = f" (feature gate {capability.gate})" if capability.gate else ""
        texts.append(f"{name}: this API server {capability.lacks}{gate}")
    return f"needs {'; '.join(texts)}"


async def probe(api: KubeApi, namespace: str = "default") -> dict[str, bool]:
    """Return every capability by its name, and whether the server has it. What is stored is removed.

    Args:
        api: with the rights of an administrator.
        namespace: of the claims that are sent; without the label for admin access.
    """
    slices = await probe_features(api, DriverName(DEFAULT_DRIVER_NAME))
    found = {name: of(slices) for name, of in _OF_SLICES.items()}
    found["prioritized list"] = await _keeps(
        api,
        _claim(namespace, {"firstAvailable": [{"name": "a", "deviceClassName": "probe"}]}),
        "firstAvailable",
    )
    # Where it is known it is refused in a namespace without the label.
    admin = _claim(namespace, {"exactly": {"deviceClassName": "probe", "adminAccess": True}})
    found["admin access"] = await _keeps(api, admin, "adminAccess", "resource.kubernetes.io/admin-access")
    selectors = [{"cel": {"expression": "false"}}]
    spec = {"selectors": selectors, "extendedResourceName": "probe.example.com/probe"}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "dra-driver-probe"},
    }
    found["extended resources"] = await _keeps(api, {**body, "spec": spec}, "extendedResourceName")
    found["device status"] = await _keeps_device_status(api, namespace)
    found["taint rules"] = await _serves(api, "resource.k8s.io", "devicetaintrules")
    found["pod groups"] = await pod_group_version(api) is not None
    found["gate policy"] = await _is_there(
        api, f"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/{GATE_POLICY}"
    )
    found["absent lists"] = b'"devices":null' not in await _counters_only(api)
    return {name: found[name] for name in CAPABILITIES}


async def pod_group_version(api: KubeApi) -> str | None:
    """Return the newest version of PodGroup that is served; None where there is none."""
    for version in POD_GROUP_VERSIONS:
        if POD_GROUPS in await api.served(SCHEDULING_GROUP, version):
            return version
    return None


_OF_SLICES: Mapping[str, Callable[[ServerFeatures], bool]] = {
    "device taints": lambda f: f.taints,
    "allocation by the controller": lambda f: f.taints,
    "consumable capacity": lambda f: f.multi_allocation,
    "partitionable devices": lambda f: f.counters,
    "lists in attributes": lambda f: f.lists,
}


def needed_by(*objects: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the capabilities without which a server makes something else of these objects."""
    text = json.dumps(objects)
    words = {
        '"firstAvailable"': "prioritized list",
        '"adminAccess"': "admin access",
        '"capacity": {"requests"': "consumable capacity",
        '"deviceClassName": "mig.': "partitionable devices",
        '"extendedResourceName"': "extended resources",
        "dra-driver.dev/group-size": "allocation by the controller",
    }
    found = {name for word, name in words.items() if word in text}
    if '"tolerations": [{"key": "dra-driver.dev/unhealthy"' in text:
        found.add("device taints")
    return tuple(name for name in CAPABILITIES if name in found)


def _claim(namespace: str, request: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "dra-driver-probe", "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "probe", **request}]}},
    }


def _path(body: Mapping[str, Any]) -> str:
    plural = {
        "ResourceClaim": "resourceclaims",
        "DeviceClass": "deviceclasses",
        "ResourceSlice": "resourceslices",
    }
    namespace = body["metadata"].get("namespace")
    place = f"namespaces/{namespace}/" if namespace else ""
    return f"/apis/{body['apiVersion']}/{place}{plural[body['kind']]}"


async def _keeps(api: KubeApi, body: Mapping[str, Any], field: str, refusal: str = "") -> bool:
    """Return whether a field is in the answer to a dry run.

    Args:
        api: the server.
        body: what is sent.
        field: its name.
        refusal: what the server says where it refuses the object because of the field.
    """
    try:
        answer = await api._call("POST", _path(body), body=body, query={"dryRun": "All"})
    except (Invalid, Forbidden) as e:
        return bool(refusal) and refusal in str(e)
    return f'"{field}"'.encode() in answer


async def _keeps_device_status(api: KubeApi, namespace: str) -> bool:
    """Return whether ``status.devices`` of a claim is kept; the claim is removed again."""
    body = _claim(namespace, {"exactly": {"deviceClassName": "dra-driver-probe"}})
    path = f"{_path(body)}/dra-driver-probe"
    driver, pool, device = "probe.example.com", "probe", "probe"
    results = [{"request": "probe", "driver": driver, "pool": pool, "device": device}]
    status = {
        "allocation": {"devices": {"results": results}},
        "devices": [{"driver": driver, "pool": pool, "device": device, "data": {"probe": True}}],
    }
    await api._call("POST", _path(body), body=body)
    try:
        stored = json.loads(await api._call("GET", path))
        answer = await api._call(
            "PUT", f"{path}/status", body={**stored, "status": status}, query={"dryRun": "All"}
        )
        return b'"data"' in answer
    finally:
        await api._call("DELETE", path)


async def _serves(api: KubeApi, group: str, plural: str) -> bool:
    groups = json.loads(await api._call("GET", "/apis"))["groups"]
    versions = [v["version"] for g in groups if g["name"] == group for v in g["versions"]]
    return any([plural in await api.served(group, version) for version in versions])


async def _is_there(api: KubeApi, path: str) -> bool:
    try:
        await api._call("GET", path)
    except NotFound:
        return False
    return True


async def _counters_only(api: KubeApi) -> bytes:
    """Return what the server makes of a slice without devices."""
    spec = {
        "driver": DEFAULT_DRIVER_NAME,
        "nodeName": "dra-driver-probe",
        "pool": {"name": "dra-driver-probe", "generation": 1, "resourceSliceCount": 1},
    }
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "dra-driver-probe-"},
        "spec": spec,
    }
    try:
        return await api._call("POST", _path(body), body=body, query={"dryRun": "All"})
    except ApiError as e:
        return str(e).encode()
