"""Nodes, inventories, pods and claims, honest and hostile, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import fleet_objects as fleet
from attack_api import Manifest

from dra_driver.api.names import (
    ALLOCATION_GATE,
    DEFAULT_DRIVER_NAME,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_SIZE_LABEL,
    RDMA_DRIVER_NAME,
)
from dra_driver.api.own.inventory import API_VERSION, inventory_name

__all__ = [
    "DRIVER",
    "IN_RACKS",
    "NIC_CLASS",
    "NUMA",
    "RACK",
    "SIX",
    "UUID",
    "WITH_NIC",
    "alternatives",
    "claim",
    "devices",
    "exactly",
    "inventory",
    "member",
    "nic_inventory",
    "node",
    "one",
    "pair",
    "pod",
    "requests",
    "selected",
]

DRIVER = DEFAULT_DRIVER_NAME
NIC_CLASS = "attack-nic"
RACK = "attack.dra-driver.dev/rack"
"""Label of the first 200 nodes: four of them have each value."""
SIX = "attack.dra-driver.dev/six"
"""Label of the first six nodes, which have a NIC beside their GPUs."""
NUMA = "resource.kubernetes.io/numaNode"
UUID = f'device.attributes["{DRIVER}"].uuid'
IN_RACKS, WITH_NIC = 200, 6


# --- nodes ----------------------------------------------------------------------------------------------


def node(number: int) -> Manifest:
    """Return the Node of a number, with the labels that attacks refer to."""
    made = fleet.node(number)
    labels = made["metadata"]["labels"]
    if number < IN_RACKS:
        labels[RACK] = f"r{number // 4}"
    if number < WITH_NIC:
        labels[SIX] = "true"
    return {"apiVersion": "v1", "kind": "Node", **made}


def inventory(name: str, uid: str, found: Sequence[Mapping[str, Any]], driver: str = DRIVER) -> Manifest:
    """Return an inventory as the agent of a node writes it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceInventory",
        "metadata": {"name": inventory_name(name, driver), "ownerReferences": [owner]},
        "spec": {"nodeName": name, "driver": driver, "devices": list(found)},
    }


def nic_inventory(number: int, uid: str) -> Manifest:
    """Return the inventory of a node's only NIC."""
    facts = {"type": {"string": "nic"}, NUMA: {"int": 0}, "uuid": {"string": f"nic-{number}"}}
    found = {"name": "nic-0", "attributes": facts}
    return inventory(fleet.node_name(number), uid, [found], RDMA_DRIVER_NAME)


# --- claims ---------------------------------------------------------------------------------------------


def exactly(*expressions: str, **more: Any) -> Manifest:
    """Return a request, or a subrequest without its name, with selectors."""
    selectors = [{"cel": {"expression": e}} for e in expressions]
    given = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1, **more}
    if given["allocationMode"] == "All":
        given.pop("count")
    return {**given, **({"selectors": selectors} if selectors else {})}


def requests(
    *wanted: Manifest, constraints: Sequence[Manifest] = (), config: Sequence[Manifest] = ()
) -> Manifest:
    """Return ``spec.devices`` of a claim with requests r0, r1 …"""
    named = [{"name": f"r{i}", "exactly": w} for i, w in enumerate(wanted)]
    return {
        "requests": named,
        **({"constraints": list(constraints)} if constraints else {}),
        **({"config": list(config)} if config else {}),
    }


def devices(count: int = 1, **more: Any) -> Manifest:
    """Return ``spec.devices`` of an ordinary claim."""
    return requests(exactly(count=count, **more))


def selected(*expressions: str) -> Manifest:
    """Return ``spec.devices`` of a claim for one device with selectors."""
    return requests(exactly(*expressions))


def alternatives(
    number: int, expressions: Sequence[str] = (), constraints: Sequence[Manifest] = ()
) -> Manifest:
    """Return requests with eight alternatives each; the i-th has the i-th expression, if there are any."""
    subs = [
        {"name": f"s{i}", **exactly(*([expressions[i % len(expressions)]] if expressions else []))}
        for i in range(8)
    ]
    wanted = [{"name": f"r{i}", "firstAvailable": subs} for i in range(number)]
    return {"requests": wanted, **({"constraints": list(constraints)} if constraints else {})}


def claim(name: str, namespace: str, spec: Manifest, **metadata: Any) -> Manifest:
    """Return a ResourceClaim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"devices": spec},
    }


# --- pods -----------------------------------------------------------------------------------------------


def pod(
    name: str, namespace: str, *claims: str, selector: Mapping[str, str] | None = None, **meta: Any
) -> Manifest:
    """Return a gated pod that uses claims."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **meta},
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": [{"name": ALLOCATION_GATE}],
            "resourceClaims": [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)],
            "containers": [{"name": "main", "image": "busybox:1"}],
            **({"nodeSelector": dict(selector)} if selector else {}),
        },
    }


def one(name: str, namespace: str, spec: Manifest, **more: Any) -> list[Manifest]:
    """Return a pod and its only claim, which has the pod's name."""
    return [claim(name, namespace, spec), pod(name, namespace, name, **more)]


def pair(name: str, namespace: str, *specs: Manifest, **more: Any) -> list[Manifest]:
    """Return a pod and its claims."""
    names = [f"{name}-{i}" for i in range(len(specs))]
    made = [claim(n, namespace, s) for n, s in zip(names, specs, strict=True)]
    return [*made, pod(name, namespace, *names, **more)]


def member(
    name: str, namespace: str, group: str, size: int | str, domain: str = "", spec: Manifest | None = None
) -> list[Manifest]:
    """Return a pod of a group and its claim."""
    annotations = {"annotations": {GROUP_DOMAIN_ANNOTATION: domain}} if domain else {}
    labels = {GROUP_LABEL: group, GROUP_SIZE_LABEL: str(size)}
    return one(name, namespace, spec or devices(), labels=labels, **annotations)
