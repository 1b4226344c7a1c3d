"""A tenant takes the finalizer off its claim and deletes it while its pod runs, without a policy."""

from __future__ import annotations

import asyncio

import cluster_support as support
import pytest

from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim


async def listed(cluster: EmbeddedCluster) -> set[str]:
    found = (await cluster.api.list(DEVICE_INVENTORIES)).items
    return {c.uid for i in found for c in i.status.gone_claims}


def test_the_devices_of_running_pods_are_given_to_nobody_before_they_have_ended() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        names = [f"theirs-{i}" for i in range(4)]
        for name in names:
            await support.apply(cluster, support.claim(name, 1), support.gpu_pod(name, claim=name))
        for name in names:
            await support.phase(cluster, name, "Running")
        uids = {c.metadata.uid for c in await support.claims(cluster)}
        for name in names:
            no_finalizers = {"metadata": {"finalizers": None}}
            await cluster.api.merge_patch(RESOURCE_CLAIMS, name, no_finalizers, "default")
            await cluster.api.delete(RESOURCE_CLAIMS, name, "default")
        await support.apply(cluster, support.claim("mine", 1), support.gpu_pod("mine", claim="mine"))
        async with asyncio.timeout(60):
            while await listed(cluster) != uids:
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        (mine,) = await support.claims(cluster)
        assert mine.status.allocation is None
        await support.delete(cluster, names[0])
        await support.phase(cluster, "mine", "Running")
        async with asyncio.timeout(60):
            while len(await listed(cluster)) != 3:
                await asyncio.sleep(0.05)

    support.run(scenario)
