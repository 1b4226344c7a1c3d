"""When the stand-in for kube-scheduler looks again at a pod that it could not place."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import builders
import pytest
import virtual_time
from builders import allocation, result
from controller_harness import NS, claim, classes, node, pod, pool
from fake_client import FakeClient
from slow_scheduler import SlowScheduler

from dra_driver.api.core import NODES, PODS
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS
from dra_driver.sim.controlplane.scheduler import Scheduler

ON = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
ALLOCATED = allocation(result("n1", "gpu-0"), nodeSelector={"nodeSelectorTerms": [ON]})
ALLOCATED["allocation"]["allocationTimestamp"] = "2026-01-01T00:00:00Z"
ELSEWHERE = {"nodeSelector": {"zone": "b"}}


async def refused(cluster: FakeClient) -> None:
    async with asyncio.timeout(10):
        while not cluster.obj(PODS, "p", NS).status.conditions:
            await asyncio.sleep(0.1)


def cluster_with(**spec: Any) -> FakeClient:
    cluster = FakeClient()
    classes(cluster)
    node(cluster, "n1")
    pool(cluster, "n1", 40)  # protected: the stand-in allocates nothing
    claim(cluster, "c")
    pod(cluster, "p", "c", gated=False, **spec)
    return cluster


def is_bound(cluster: FakeClient) -> bool:
    return bool(cluster.obj(PODS, "p", NS).spec.node_name)


def scheduling(cluster: FakeClient, scenario: Any) -> None:
    async def main() -> None:
        task = asyncio.create_task(Scheduler(SlowScheduler(cluster, random.Random(1)), backoff=1.0).run())
        try:
            await refused(cluster)
            await scenario()
        finally:
            task.cancel()
            await asyncio.wait({task})

    virtual_time.run(main())


def test_an_allocation_helps_a_pod_that_lacked_its_claims() -> None:
    cluster = cluster_with()

    async def scenario() -> None:
        cluster.edit(RESOURCE_CLAIMS, "c", {"status": ALLOCATED}, NS)
        await asyncio.sleep(15)
        assert is_bound(cluster)

    scheduling(cluster, scenario)


@pytest.mark.parametrize("change", ["node", "pod", "time"])
def test_an_allocation_is_no_reason_to_look_again_where_claims_were_not_missing(change: str) -> None:
    cluster = cluster_with(**ELSEWHERE)

    async def scenario() -> None:
        await asyncio.sleep(15)
        # A look would end the nomination.
        nominated = {"status": {"nominatedNodeName": "n1"}}
        cluster.edit(PODS, "p", nominated, NS)
        cluster.edit(RESOURCE_CLAIMS, "c", {"status": ALLOCATED}, NS)
        cluster.edit(NODES, "n1", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        await asyncio.sleep(60)
        assert cluster.obj(PODS, "p", NS).status.nominated_node_name == "n1"
        if change == "node":
            cluster.edit(NODES, "n1", {"metadata": {"labels": {"zone": "b"}}})
            await asyncio.sleep(15)
            assert is_bound(cluster)
        elif change == "pod":
            cluster.put(PODS, builders.pod("other", nodeName="n1"))
            await asyncio.sleep(15)
            assert not cluster.obj(PODS, "p", NS).status.nominated_node_name
        else:
            await asyncio.sleep(300)
            assert not cluster.obj(PODS, "p", NS).status.nominated_node_name

    scheduling(cluster, scenario)


@pytest.mark.parametrize("helps", [True, False])
def test_an_extended_resource_of_a_class_is_a_reason_to_look_again(helps: bool) -> None:
    cluster = cluster_with(**ELSEWHERE)

    async def scenario() -> None:
        await asyncio.sleep(15)
        cluster.edit(PODS, "p", {"status": {"nominatedNodeName": "n1"}}, NS)
        changed: Any = {"extendedResourceName": "example.com/gpu"} if helps else {"selectors": []}
        name = cluster.all(DEVICE_CLASSES)[0].metadata.name
        cluster.edit(DEVICE_CLASSES, name, {"spec": changed})
        await asyncio.sleep(15)
        assert bool(cluster.obj(PODS, "p", NS).status.nominated_node_name) is not helps

    scheduling(cluster, scenario)
