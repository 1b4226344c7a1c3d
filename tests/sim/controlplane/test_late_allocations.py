"""A stand-in for kube-scheduler that writes what it has decided after a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import virtual_time
from controller_harness import NS, claim, classes, node, pod, pool
from fake_client import FakeClient
from slow_scheduler import SlowScheduler

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import Forbidden
from dra_driver.sim.controlplane.scheduler import Scheduler

LATE = 30.0


def run(cluster: FakeClient, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        classes(cluster)
        node(cluster, "n1")
        pool(cluster, "n1", 40, protected=False)
        scheduler = Scheduler(SlowScheduler(cluster, random.Random(1)))
        scheduler.slow_allocation = LATE
        task = asyncio.create_task(scheduler.run())
        await asyncio.sleep(1)
        await scenario()
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(main())


def held(cluster: FakeClient) -> list[str]:
    return [c.metadata.name for c in cluster.all(RESOURCE_CLAIMS) if c.status.allocation is not None]


def message(cluster: FakeClient, name: str) -> str:
    conditions = cluster.obj(PODS, name, NS).status.conditions
    return str(next((c["message"] for c in conditions if c.get("type") == "PodScheduled"), ""))


def test_what_was_decided_counts_as_taken_until_it_is_written() -> None:
    cluster = FakeClient()

    async def scenario() -> None:
        for name in "ab":
            claim(cluster, f"c{name}")
            pod(cluster, name, f"c{name}", gated=False)
        pod(cluster, "c", "ca", gated=False)
        await asyncio.sleep(LATE - 5)
        assert not held(cluster)
        assert "cannot allocate all claims" in message(cluster, "b")
        assert "in the process of being allocated" in message(cluster, "c")
        await asyncio.sleep(10)
        assert held(cluster) == ["ca"]
        assert cluster.obj(PODS, "a", NS).spec.node_name == "n1"

    run(cluster, scenario)


def test_it_is_written_for_a_pod_that_is_gone() -> None:
    cluster = FakeClient()

    async def scenario() -> None:
        claim(cluster, "ca")
        pod(cluster, "a", "ca", gated=False)
        await asyncio.sleep(5)
        cluster.remove(PODS, "a", NS)
        await asyncio.sleep(LATE)
        assert held(cluster) == ["ca"]

    run(cluster, scenario)


def test_what_an_admission_policy_refuses_is_reported_and_tried_again() -> None:
    cluster = FakeClient()
    refused: list[str] = []

    def refuse(_verb: str, kind: str, name: str, subresource: str) -> None:
        if (kind, subresource) == ("ResourceClaim", "status") and not refused:
            refused.append(name)
            raise Forbidden("denied request: a device is the controller's", code=403)

    async def scenario() -> None:
        claim(cluster, "ca")
        pod(cluster, "a", "ca", gated=False)
        cluster.before = refuse
        await asyncio.sleep(LATE + 1)
        assert refused == ["ca"]
        assert "a device is the controller's" in message(cluster, "a")
        assert not held(cluster)
        await asyncio.sleep(LATE + 5)
        assert held(cluster) == ["ca"]

    run(cluster, scenario)
