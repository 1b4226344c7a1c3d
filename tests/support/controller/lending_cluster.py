"""A cluster whose devices the controller publishes and lends, and a kube-scheduler played by the test."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import builders
import msgspec
from builders import DRIVER, NAMESPACE
from fake_client import FakeClient
from manifest_files import documents

from dra_driver import structured
from dra_driver.api import codec
from dra_driver.api.core import CONFIG_MAPS, NODES, PODS, Pod
from dra_driver.api.names import (
    CANNOT_ALLOCATE,
    LENDING_STATUS,
    NOT_ON_NODE,
    RECALLED_DEVICES,
    SYSTEM_NAMESPACE,
)
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocationResult,
    ResourceClaim,
)
from dra_driver.api.server.admission import MUTATING_POLICIES, MUTATING_POLICY_BINDINGS
from dra_driver.ownership import PoolID, Recalls, unprotected_devices
from dra_driver.resourceclaim import (
    classes_by_resource,
    extended_claim,
    extended_resources,
    pod_claims,
    shares,
)
from dra_driver.sim.assets import deploy_directory

__all__ = [
    "BACK",
    "FIRST_READ",
    "Decided",
    "bare",
    "cluster_of",
    "decide",
    "doubles",
    "gate_everywhere",
    "place",
    "pod",
    "recalls",
    "report",
    "schedule",
    "write",
]

HIDDEN = "hidden.example.com/nodes"
"""Annotation of a pod: the nodes that kube-scheduler would take, for a reason that nobody else knows."""
OTHER = "nic.example.com"
RESOURCE = "example.com/gpu"
ROOM = {"cpu": "64", "memory": "320Gi", "pods": "110"}
FIRST_READ = 30.0
"""Seconds until a controller that has started lends."""
BACK = 30.0
"""Seconds from the end of a loan until its devices are ours again."""
_MAPPING = {"containerName": "c", "resourceName": RESOURCE, "requestName": "container-0-request-0"}


def cluster_of(*nodes: str, gpus: int = 2) -> FakeClient:
    """Return nodes with GPUs of ours, which the controller publishes, and a NIC of another driver."""
    cluster = FakeClient()
    ours = f'device.driver == "{DRIVER}"'
    cluster.put(DEVICE_CLASSES, builders.device_class("gpu", ours, extendedResourceName=RESOURCE))
    cluster.put(DEVICE_CLASSES, builders.device_class("nic", f'device.driver == "{OTHER}"'))
    for name in (RECALLED_DEVICES, LENDING_STATUS):
        cluster.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}})
    gate_everywhere(cluster)
    for name in nodes:
        cluster.put(NODES, builders.node(name, uid=f"uid-{name}", allocatable=ROOM))
        devices = [builders.device(f"gpu-{i}", "40Gi", attributes={"type": "gpu"}) for i in range(gpus)]
        cluster.put(DEVICE_INVENTORIES, builders.inventory(name, *devices))
        nic = builders.device("nic-0")
        cluster.put(RESOURCE_SLICES, builders.resource_slice(name, nic, driver=OTHER))
    return cluster


def gate_everywhere(cluster: FakeClient, **constraints: Any) -> None:
    """Install the policy that sets the gate, as for lending.

    Args:
        cluster: where.
        constraints: in place of those of the policy.
    """
    policy, binding = copy.deepcopy(_gating())
    policy["spec"]["matchConstraints"] |= constraints
    cluster.put(MUTATING_POLICIES, policy)
    cluster.put(MUTATING_POLICY_BINDINGS, binding)


@functools.cache
def _gating() -> tuple[dict[str, Any], dict[str, Any]]:
    (policy,) = documents(deploy_directory("optional") / "lending" / "gating.yaml")
    bindings = documents(deploy_directory("manifests") / "gate-policy" / "gating.yaml")
    (binding,) = (d for d in bindings if d["kind"] == MUTATING_POLICY_BINDINGS.kind)
    return policy, binding


def pod(
    cluster: FakeClient, name: str, *claims: str, amount: int = 0, gated: bool = True, **more: Any
) -> None:
    """Make a pod with claims, or so many GPUs as an extended resource."""
    requests = {"cpu": "1", **({RESOURCE: str(amount)} if amount else {})}
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    body = builders.pod(name, *claims, uid=f"uid-{name}", gated=gated, containers=[container], **more)
    cluster.put(PODS, body)


# --- kube-scheduler -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decided:
    """What kube-scheduler has decided for a pod and not written yet."""

    pod: Pod
    node: str
    claims: Sequence[tuple[ResourceClaim, AllocationResult]]


def suiting(cluster: FakeClient, pod: Pod) -> list[str]:
    """Return the nodes that kube-scheduler would take for a pod, but for its claims."""
    hidden = (pod.metadata.annotations or {}).get(HIDDEN)
    names = sorted(n.metadata.name for n in cluster.all(NODES))
    return names if hidden is None else [n for n in names if n in hidden.split(",")]


def report(cluster: FakeClient, name: str) -> None:
    """Do as kube-scheduler with a pod for which it has no place: report, and clear the nominated node."""
    pod, total = cluster.obj(PODS, name, NAMESPACE), len(cluster.all(NODES))
    suits = len(suiting(cluster, pod))
    # The claim for extended resources it looks for by its owner, not by the status of the pod.
    named = [u.key.name for u in pod_claims(pod) if u.key and u.entry]
    claims = [cluster.obj(RESOURCE_CLAIMS, name, NAMESPACE) for name in named]
    why = NOT_ON_NODE if any(c.status.allocation is not None for c in claims) else CANNOT_ALLOCATE
    parts = [f"{total - suits} node(s) were hidden"] * (suits < total) + [f"{suits} {why}"] * (suits > 0)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"0/{total} nodes are available: {', '.join(parts)}.",
    }
    kept = [dict(c) for c in pod.status.conditions if c["type"] != "PodScheduled"]
    if condition in [dict(c) for c in pod.status.conditions] and not pod.status.nominated_node_name:
        return  # it writes nothing that is there already
    status = {"conditions": [*kept, condition], "nominatedNodeName": None}
    cluster.edit(PODS, name, {"status": status}, NAMESPACE)


def decide(cluster: FakeClient, pod: Pod, under_way: Sequence[Decided] = ()) -> Decided | None:
    """Decide as kube-scheduler: the nominated node first, the first devices that fit.

    Args:
        cluster: as kube-scheduler sees it.
        pod: to be placed.
        under_way: what it has decided before and not written yet.
    """
    assumed = [("", result) for other in under_way for _, result in other.claims]
    # The claim for extended resources it looks for by its owner, not by the status of the pod.
    named = [u.key.name for u in pod_claims(pod) if u.key and u.entry]
    claims = [cluster.obj(RESOURCE_CLAIMS, name, NAMESPACE) for name in named]
    classes = classes_by_resource(cluster.all(DEVICE_CLASSES))
    share = shares(pod, {n: classes[n] for n in extended_resources(pod) if n in classes})
    claims += [extended_claim(pod, share.requests)] if share.requests else []
    snapshot = structured.Snapshot.build(
        slices=cluster.all(RESOURCE_SLICES),
        classes=cluster.all(DEVICE_CLASSES),
        nodes=cluster.all(NODES),
        allocated=structured.AllocatedState.from_claims(cluster.all(RESOURCE_CLAIMS)).with_allocations(
            assumed
        ),
    )
    for node in sorted(suiting(cluster, pod), key=lambda n: n != pod.status.nominated_node_name):
        first = structured.Strategy.FIRST_FIT
        found = structured.allocate(snapshot, claims, strategy=first, nodes=(node,))
        if isinstance(found, structured.Allocated):
            return Decided(pod, node, tuple(zip(claims, found.results, strict=True)))
    return None


def write(cluster: FakeClient, decided: Decided, *, bind: bool = True) -> bool:
    """Write what was decided, as far as the policy admits it now; return whether it did.

    Args:
        cluster: where.
        decided: for one pod.
        bind: whether the pod is bound, too.
    """
    refused = recalls(cluster)
    for claim, result in decided.claims:
        there = cluster.find(RESOURCE_CLAIMS, claim.metadata.name, NAMESPACE) or {}
        held = there.get("status", {}).get("allocation")
        if bool(held) is not (claim.status.allocation is not None):
            return False  # it was allocated, or deallocated, by another in the meantime
        if held:
            continue
        if any((PoolID(r.driver, r.pool), r.device) in refused.devices for r in result.devices.results):
            return False
    name, uid = decided.pod.metadata.name, decided.pod.metadata.uid
    for claim, result in decided.claims:
        allocation = msgspec.json.decode(codec.encode(result))
        status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": name, "uid": uid}]}
        if claim.status.allocation is None:
            status["allocation"] = allocation
        if cluster.find(RESOURCE_CLAIMS, claim.metadata.name, NAMESPACE) is not None:
            cluster.edit(RESOURCE_CLAIMS, claim.metadata.name, {"status": status}, NAMESPACE)
            continue
        body = builders.claim(f"{name}-extended", uid=f"uid-{name}-extended", status=status)
        cluster.put(RESOURCE_CLAIMS, {**body, "spec": msgspec.json.decode(codec.encode(claim.spec))})
        made = {"resourceClaimName": f"{name}-extended", "requestMappings": [_MAPPING]}
        if cluster.find(PODS, name, NAMESPACE) is not None:
            cluster.edit(PODS, name, {"status": {"extendedResourceClaimStatus": made}}, NAMESPACE)
    if bind and cluster.find(PODS, name, NAMESPACE) is not None:
        bound = {"spec": {"nodeName": decided.node}, "status": {"nominatedNodeName": None}}
        cluster.edit(PODS, name, bound, NAMESPACE)
    return True


def place(cluster: FakeClient, name: str) -> bool:
    """Do as kube-scheduler with one pod; return whether it has a place."""
    decided = decide(cluster, cluster.obj(PODS, name, NAMESPACE))
    return decided is not None and write(cluster, decided)


def waiting(cluster: FakeClient) -> list[Pod]:
    """Return the pods that kube-scheduler looks at."""
    return [p for p in cluster.all(PODS) if not (p.spec.node_name or p.spec.scheduling_gates)]


async def schedule(cluster: FakeClient, *, reports: bool = False) -> None:
    """Do as kube-scheduler for ever; it says why pods have no place where ``reports`` is true."""
    while True:
        await asyncio.sleep(0.05)
        for one in waiting(cluster):
            if not place(cluster, one.metadata.name) and reports:
                report(cluster, one.metadata.name)


# --- what is seen -------------------------------------------------------------------------------------------


def bare(cluster: FakeClient) -> set[tuple[str, str]]:
    """Return what kube-scheduler can allocate of ours, by node."""
    ours = [s for s in cluster.all(RESOURCE_SLICES) if s.spec.driver == DRIVER]
    return {(s.spec.pool.name, name) for s in ours for name in unprotected_devices((s,))}


def recalls(cluster: FakeClient) -> Recalls:
    """Return the devices whose allocation is refused."""
    data = cluster.obj(CONFIG_MAPS, RECALLED_DEVICES, SYSTEM_NAMESPACE).data
    return Recalls.of_data(data or {})


def doubles(cluster: FakeClient) -> list[tuple[str, ...]]:
    """Return the devices that two claims hold."""
    held: set[tuple[str, ...]] = set()
    found: list[tuple[str, ...]] = []
    for claim in cluster.all(RESOURCE_CLAIMS):
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation is not None else ():
            device = (result.driver, result.pool, result.device)
            found += [device] if device in held else []
            held.add(device)
    return found
