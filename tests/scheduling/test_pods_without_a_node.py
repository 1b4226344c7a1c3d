"""Pods that kube-scheduler has no node for: how often they get devices, and what serves them in the end."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from placement_judge import judging
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from dra_driver.api.core import NODES, PODS
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.kube import Handler, Informer

pytestmark = pytest.mark.slow

HOPELESS = ("nowhere-0", "nowhere-1", "nowhere-2")
# The controller does not know the labels of namespaces; neither does the stand-in scheduler.
FRIEND = {
    "labelSelector": {"matchLabels": {"app": "friend"}},
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
    "topologyKey": "zone",
}
AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [FRIEND]}}


async def leave(world: SchedulingWorld, number: int) -> None:
    """Have a pod leave a node, so that others may fit there."""
    await world.pod(f"leaves-{number}", gated=False)
    await world.until_bound((f"leaves-{number}",))
    await world.api.delete(PODS, f"leaves-{number}", NAMESPACE, grace_period_seconds=0)


async def play() -> None:
    async with scheduling_world("real") as world, world.controller(), judging(world.api, NAMESPACE):
        allocations: Counter[str] = Counter()

        def saw(old: ResourceClaim, new: ResourceClaim) -> None:
            allocations[new.metadata.name] += old.status.allocation is None and bool(new.status.allocation)

        claims = Informer(world.api, RESOURCE_CLAIMS, namespace=NAMESPACE)
        claims.add_handler(Handler(updated=saw))
        following = asyncio.create_task(claims.run())
        await claims.synced.wait()
        try:
            for name in ("n0", "n1"):
                await world.node(name, gpus=2, labels={"zone": "z"})
            for name in HOPELESS:
                await world.claim(name)
                await world.pod(name, name, affinity=AFFINITY)
            for number in range(6):
                await leave(world, number)
                await asyncio.sleep(2)
            # One whose turn it is, and one that was tried once more at first.
            assert all(1 <= allocations[name] <= 3 for name in HOPELESS), allocations
            await world.claim("healthy")
            await world.pod("healthy", "healthy")
            await world.until_bound(("healthy",))
            await world.pod("friend", gated=False, metadata={"labels": {"app": "friend"}})
            await world.until_bound(("friend",))
            # For terms with a namespaceSelector it looks again when a node changes, not for a pod.
            for name in ("n0", "n1"):
                await world.api.merge_patch(NODES, name, {"metadata": {"labels": {"zone": "other"}}})
            await world.until_bound(HOPELESS)
        finally:
            following.cancel()
            await asyncio.wait({following})


def test_pods_without_a_node_get_devices_seldom_and_at_once_when_they_have_one() -> None:
    asyncio.run(play())
