"""What the stand-in for kube-scheduler does where a write of a claim is not answered."""

from __future__ import annotations

import asyncio
import random

import virtual_time
from controller_harness import NS, claim, classes, node, pod, pool
from fake_client import FakeClient
from slow_scheduler import SlowScheduler

from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import ApiUnavailable
from dra_driver.sim.controlplane.scheduler import Scheduler


def test_a_device_is_given_out_once_though_no_answer_and_no_watch_tells_of_it() -> None:
    cluster = FakeClient()
    classes(cluster)
    node(cluster, "n1")
    pool(cluster, "n1", 40, protected=False)
    lost: list[str] = []

    def lose(verb: str, kind: str, name: str, subresource: str) -> None:
        if (kind, subresource) == ("ResourceClaim", "status") and not lost:
            lost.append(name)
            cluster.quiet.add("ResourceClaim")
            raise ApiUnavailable("the answer is lost")

    async def scenario() -> None:
        task = asyncio.create_task(Scheduler(SlowScheduler(cluster, random.Random(1)), backoff=1.0).run())
        await asyncio.sleep(5)
        for name in "ab":
            claim(cluster, f"c{name}")
        await asyncio.sleep(5)  # the watch has shown both claims
        cluster.after = lose
        for name in "ab":
            pod(cluster, name, f"c{name}", gated=False)
        await asyncio.sleep(60)
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(scenario())
    assert lost == ["ca"]
    held = [c.metadata.name for c in cluster.all(RESOURCE_CLAIMS) if c.status.allocation is not None]
    assert held == ["ca"]
    assert cluster.obj(RESOURCE_CLAIMS, "ca", NS).status.reserved_for
