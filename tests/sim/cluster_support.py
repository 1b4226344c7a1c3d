"""Short hands for tests on the embedded cluster."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import forked

from dra_driver.api.core import PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.errors import NotFound
from dra_driver.sim.cluster import ClusterConfig, EmbeddedCluster
from dra_driver.sim.cluster_config import NodeConfig
from dra_driver.sim.demo import examples
from dra_driver.sim.kubelet import KubeletSettings
from dra_driver.sim.node import SimNode
from dra_driver.sim.objects import RUN_PODS, RunPod

SETTINGS = dataclasses.replace(KubeletSettings.quick(), wipe_delay=0.7, registry_tick=0.05)


def config(*profiles: str | NodeConfig, settings: KubeletSettings = SETTINGS, **more: Any) -> ClusterConfig:
    return ClusterConfig(profiles=profiles or ("l4x4",), kubelet=settings, spawn=forked.spawn, **more)


def run(
    scenario: Callable[[EmbeddedCluster], Awaitable[None]],
    cluster_config: ClusterConfig | None = None,
    seconds: float = 240,
) -> None:
    """Runs a scenario on a cluster of its own, whose devices are published."""

    async def main() -> None:
        async with asyncio.timeout(seconds), EmbeddedCluster(cluster_config or config()) as cluster:
            await cluster.ready()
            await scenario(cluster)
            cluster.check()

    asyncio.run(main())


def gpu_pod(name: str, claim: str = "", command: str = "sleep 3600", **spec: Any) -> dict[str, Any]:
    """A pod with one GPU: from the template ``gpu``, or through the claim of that name."""
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "gpu"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", **source}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "command": ["sh", "-c", command],
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
            **spec,
        },
    }


def _devices(count: int = 1) -> dict[str, Any]:
    exactly = {"deviceClassName": DEFAULT_DRIVER_NAME, "allocationMode": "ExactCount", "count": count}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu", "namespace": "default"},
    "spec": {"spec": _devices()},
}


def claim(name: str, count: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": _devices(count),
    }


async def apply(cluster: EmbeddedCluster, *objects: dict[str, Any]) -> None:
    await examples.apply(cluster.api, objects)


async def pod(cluster: EmbeddedCluster, name: str) -> RunPod | None:
    try:
        return await cluster.api.get(RUN_PODS, name, "default")
    except NotFound:
        return None


async def phase(cluster: EmbeddedCluster, name: str, wanted: str) -> RunPod:
    async def reached() -> RunPod | None:
        found = await pod(cluster, name)
        return found if found is not None and found.status.phase == wanted else None

    return await cluster.wait_for(f"pod {name} to be {wanted}", reached)


async def gone(cluster: EmbeddedCluster, name: str) -> None:
    async def absent() -> bool:
        return await pod(cluster, name) is None

    await cluster.wait_for(f"pod {name} to be gone", absent)


async def claims(cluster: EmbeddedCluster) -> list[ResourceClaim]:
    return list((await cluster.api.list(RESOURCE_CLAIMS, "default")).items)


async def no_claims(cluster: EmbeddedCluster) -> None:
    async def none() -> bool:
        return not await claims(cluster)

    await cluster.wait_for("all claims to be gone", none)


async def held(cluster: EmbeddedCluster) -> dict[str, set[str]]:
    """Return the devices that claims hold, by pool."""
    found: dict[str, set[str]] = {}
    for claim in (await cluster.api.list(RESOURCE_CLAIMS)).items:
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation is not None else ():
            found.setdefault(result.pool, set()).add(result.device)
    return found


async def first_user(cluster: EmbeddedCluster) -> RunPod:
    """Have the pod "one" run with the claim "shared"."""
    await apply(cluster, TEMPLATE, claim("shared"), gpu_pod("one", "shared"))
    return await phase(cluster, "one", "Running")


async def second_user(cluster: EmbeddedCluster, first: RunPod) -> None:
    """Have the pod "two" run with the same claim, and get the same."""
    await apply(cluster, gpu_pod("two", "shared"))
    second = await phase(cluster, "two", "Running")
    assert environment(cluster, first) == environment(cluster, second)


async def end_users(cluster: EmbeddedCluster, node: str) -> None:
    """End both, and their claim: nothing is left of them."""
    for name in ("one", "two"):
        await delete(cluster, name)
        await gone(cluster, name)
    await cluster.api.delete(RESOURCE_CLAIMS, "shared", "default")
    await no_claims(cluster)
    assert cluster.nodes[node].leftovers() == []


async def pool(cluster: EmbeddedCluster, node: str) -> tuple[int, str]:
    """Return the number of devices in our slices of a node, and the reason of its condition."""
    slices = [
        s.spec
        for s in (await cluster.api.list(RESOURCE_SLICES)).items
        if s.spec.node_name == node and s.spec.driver in cluster.config.drivers
    ]
    conditions = (await inventory(cluster, cluster.nodes[node])).status.conditions
    return sum(len(s.devices) for s in slices), next((c.reason for c in conditions), "")


async def pool_becomes(cluster: EmbeddedCluster, node: str, *expected: object) -> None:
    async def reached() -> bool:
        return await pool(cluster, node) == expected

    await cluster.wait_for(f"the pool of {node} to be {expected}", reached)


async def opened(cluster: EmbeddedCluster) -> None:
    """Wait until every pool is open: one that comes before the policy is proved is tainted at first."""

    async def reached() -> bool:
        inventories = (await cluster.api.list(DEVICE_INVENTORIES)).items
        return {i.status.publication.allocator for i in inventories} == {"open"}

    await cluster.wait_for("all pools to be open", reached)


async def add_policy(cluster: EmbeddedCluster, name: str, **spec: str) -> None:
    meta = {"apiVersion": DEVICE_POLICIES.api_version, "kind": DEVICE_POLICIES.kind}
    await cluster.api.create(DEVICE_POLICIES, {**meta, "metadata": {"name": name}, "spec": spec})


async def slice_count(cluster: EmbeddedCluster) -> int:
    return len((await cluster.api.list(RESOURCE_SLICES)).items)


async def slices_gone(cluster: EmbeddedCluster) -> None:
    async def none() -> bool:
        return await slice_count(cluster) == 0

    await cluster.wait_for("the slices to be wiped", none)


async def inventory(cluster: EmbeddedCluster, node: SimNode) -> DeviceInventory:
    return await cluster.api.get(DEVICE_INVENTORIES, f"{node.name}.{DEFAULT_DRIVER_NAME}")


def environment(cluster: EmbeddedCluster, found: RunPod) -> dict[str, str]:
    sandbox = cluster.nodes[found.spec.node_name].kubelet.runtime.sandboxes[found.metadata.uid]
    return sandbox.containers["main"].view.env


async def delete(cluster: EmbeddedCluster, name: str, grace: int | None = None) -> None:
    await cluster.api.delete(PODS, name, "default", grace_period_seconds=grace)
