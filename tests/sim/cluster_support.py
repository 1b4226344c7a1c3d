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
