"""A cluster with open pools, and a kube-scheduler played by the test whose writes the policy judges."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import builders
import msgspec
import open_cluster
from builders import DRIVER, NAMESPACE
from open_cluster import PolicedCluster

from dra_driver import structured
from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.names import (
    CANNOT_ALLOCATE,
    EXTENDED_RESOURCE_ANNOTATION,
    GRANTS,
    NOT_ON_NODE,
)
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocationResult,
    ResourceClaim,
)
from dra_driver.resourceclaim import (
    classes_by_resource,
    extended_claim,
    extended_resources,
    pod_claims,
    shares,
)
from dra_driver.sim.apiserver.objects.status import StatusError
from dra_driver.sim.apiserver.writing.options import Options

__all__ = [
    "BACK",
    "HIDDEN",
    "IN_FORCE",
    "Decided",
    "cluster_of",
    "decide",
    "doubles",
    "granted",
    "place",
    "pod",
    "report",
    "schedule",
    "waiting",
    "write",
]

HIDDEN = "hidden.example.com/nodes"
"""Annotation of a pod: the nodes that kube-scheduler would take, for a reason that nobody else knows."""
OTHER = "nic.example.com"
RESOURCE = "example.com/gpu"
IN_FORCE = 12.0
"""Seconds until a controller that has started grants devices."""
BACK = 8.0
"""Seconds from the end of a grant until its devices are ours again."""
_MAPPING = {"containerName": "c", "resourceName": RESOURCE, "requestName": "container-0-request-0"}


def cluster_of(*nodes: str, gpus: int = 2) -> PolicedCluster:
    """Return nodes with GPUs of ours, which the controller publishes, and a NIC of another driver."""
    cluster = open_cluster.cluster_of(*nodes, gpus=gpus)
    ours = f'device.driver == "{DRIVER}"'
    cluster.put(DEVICE_CLASSES, builders.device_class("gpu", ours, extendedResourceName=RESOURCE))
    cluster.put(DEVICE_CLASSES, builders.device_class("nic", f'device.driver == "{OTHER}"'))
    for name in nodes:
        nic = builders.device("nic-0")
        cluster.put(RESOURCE_SLICES, builders.resource_slice(name, nic, driver=OTHER))
    return cluster


def pod(
    cluster: PolicedCluster, name: str, *claims: str, amount: int = 0, gated: bool = True, **more: Any
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

    @property
    def devices(self) -> set[tuple[str, str]]:
        """Of ours."""
        results = (r for _, a in self.claims for r in a.devices.results)
        return {(str(r.pool), r.device) for r in results if r.driver == DRIVER}


def suiting(cluster: PolicedCluster, pod: Pod) -> list[str]:
    """Return the nodes that kube-scheduler would take for a pod, but for its claims."""
    hidden = (pod.metadata.annotations or {}).get(HIDDEN)
    names = sorted(n.metadata.name for n in cluster.all(NODES))
    return names if hidden is None else [n for n in names if n in hidden.split(",")]


def _claims_of(cluster: PolicedCluster, pod: Pod) -> list[ResourceClaim]:
    """Return the claims of a pod. That for extended resources it looks for by its owner."""
    named = [u.key.name for u in pod_claims(pod) if u.key and u.entry]
    return [cluster.obj(RESOURCE_CLAIMS, name, NAMESPACE) for name in named]


def report(cluster: PolicedCluster, name: str, error: str = "") -> None:
    """Do as kube-scheduler with a pod that it could not place: report, and clear the nominated node.

    Args:
        cluster: where.
        name: of the pod.
        error: of its write; empty: it has no place for it.
    """
    pod, total = cluster.obj(PODS, name, NAMESPACE), len(cluster.all(NODES))
    suits = len(suiting(cluster, pod))
    allocated = any(c.status.allocation is not None for c in _claims_of(cluster, pod))
    why = NOT_ON_NODE if allocated else CANNOT_ALLOCATE
    parts = [f"{total - suits} node(s) were hidden"] * (suits < total) + [f"{suits} {why}"] * (suits > 0)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulerError" if error else "Unschedulable",
        "message": error or f"0/{total} nodes are available: {', '.join(parts)}.",
    }
    kept = [dict(c) for c in pod.status.conditions if c["type"] != "PodScheduled"]
    if condition in [dict(c) for c in pod.status.conditions] and not pod.status.nominated_node_name:
        return  # it writes nothing that is there already
    status = {"conditions": [*kept, condition], "nominatedNodeName": None}
    cluster.edit(PODS, name, {"status": status}, NAMESPACE)


def decide(cluster: PolicedCluster, pod: Pod, under_way: Sequence[Decided] = ()) -> Decided | None:
    """Decide as kube-scheduler: the nominated node first, the devices that its search picks.

    Args:
        cluster: as kube-scheduler sees it.
        pod: to be placed.
        under_way: what it has decided before and not written yet.
    """
    assumed = [("", result) for other in under_way for _, result in other.claims]
    claims = _claims_of(cluster, pod)
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


def write(cluster: PolicedCluster, decided: Decided, *, bind: bool = True) -> bool:
    """Write what was decided, as far as the API server admits it now; return whether it did.

    Args:
        cluster: where.
        decided: for one pod.
        bind: whether the pod is bound, too.
    """
    name, uid = decided.pod.metadata.name, decided.pod.metadata.uid
    for claim, _ in decided.claims:
        there = cluster.find(RESOURCE_CLAIMS, claim.metadata.name, NAMESPACE) or {}
        held = there.get("status", {}).get("allocation")
        if bool(held) is not (claim.status.allocation is not None):
            return False  # it was allocated, or deallocated, by another in the meantime
    for claim, result in decided.claims:
        status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": name, "uid": uid}]}
        if claim.status.allocation is None:
            status["allocation"] = msgspec.json.decode(codec.encode(result))
        made = cluster.find(RESOURCE_CLAIMS, claim.metadata.name, NAMESPACE) is None
        of = f"{name}-extended" if made else claim.metadata.name
        if made:
            _make(cluster, decided.pod, claim)
        if error := _patch(cluster, of, status):
            if made:
                cluster.remove(RESOURCE_CLAIMS, of, NAMESPACE)
            if cluster.find(PODS, name, NAMESPACE) is not None:
                what = f"add allocation and reservation to claim {NAMESPACE}/{of}"
                report(cluster, name, f'running PreBind plugin "DynamicResources": {what}: {error}')
            return False
        if made and cluster.find(PODS, name, NAMESPACE) is not None:
            known = {"resourceClaimName": of, "requestMappings": [_MAPPING]}
            cluster.edit(PODS, name, {"status": {"extendedResourceClaimStatus": known}}, NAMESPACE)
    if bind and cluster.find(PODS, name, NAMESPACE) is not None:
        bound = {"spec": {"nodeName": decided.node}, "status": {"nominatedNodeName": None}}
        cluster.edit(PODS, name, bound, NAMESPACE)
    return True


def _make(cluster: PolicedCluster, pod: Pod, claim: ResourceClaim) -> None:
    """Make the claim for the extended resources of a pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    metadata = {
        "annotations": {EXTENDED_RESOURCE_ANNOTATION: "true"},
        "ownerReferences": [{**owner, "controller": True}],
    }
    name = f"{pod.metadata.name}-extended"
    body = builders.claim(name, uid=f"uid-{name}", metadata=metadata)
    cluster.put(RESOURCE_CLAIMS, {**body, "spec": msgspec.json.decode(codec.encode(claim.spec))})


def _patch(cluster: PolicedCluster, claim: str, status: dict[str, Any]) -> str:
    """Write the status of a claim as kube-scheduler; return why that is refused."""
    kind, options = cluster._kind(RESOURCE_CLAIMS), Options(manager="kube-scheduler")
    try:
        cluster.registry.patch(kind, NAMESPACE, claim, "merge", {"status": status}, options, "status")
    except StatusError as e:
        if GRANTS not in str(e.raw()):
            raise
        return str(e.raw().get("message"))
    return ""


def place(cluster: PolicedCluster, name: str) -> bool:
    """Do as kube-scheduler with one pod; return whether it has a place."""
    decided = decide(cluster, cluster.obj(PODS, name, NAMESPACE))
    return decided is not None and write(cluster, decided)


def waiting(cluster: PolicedCluster) -> list[Pod]:
    """Return the pods that kube-scheduler looks at."""
    return [p for p in cluster.all(PODS) if not (p.spec.node_name or p.spec.scheduling_gates)]


async def schedule(cluster: PolicedCluster, *, reports: bool = False) -> None:
    """Do as kube-scheduler for ever; it says why pods have no place where ``reports`` is true."""
    while True:
        await asyncio.sleep(0.05)
        for one in waiting(cluster):
            decided = decide(cluster, one)
            if decided is not None:
                write(cluster, decided)
            elif reports:
                report(cluster, one.metadata.name)


# --- what is seen -------------------------------------------------------------------------------------------


def granted(cluster: PolicedCluster) -> set[tuple[str, str]]:
    """Return what is granted of ours, by node."""
    return {(str(pool.pool), name) for of in cluster.grants().devices.values() for pool, name in of}


def doubles(cluster: PolicedCluster) -> list[tuple[str, str]]:
    """Return the devices of ours that two claims hold."""
    return [one for one in cluster.doubles() if not one[1].startswith("nic")]
