"""What the stand-ins for the control plane's parts do where a write of a claim is not answered."""

from __future__ import annotations

import asyncio
import random

import virtual_time
from builders import container
from controller_harness import NS, claim, classes, node, pod, pool
from fake_client import FakeClient
from slow_scheduler import SlowScheduler

from dra_driver.api.core import PODS
from dra_driver.api.names import POD_CLAIM_ANNOTATION
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.errors import ApiUnavailable
from dra_driver.sim.controlplane.controllers import ClaimController
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


def test_a_pod_keeps_the_generated_claim_that_its_status_names() -> None:
    """Where the answer to a creation was lost there are two, and kube-scheduler may have reserved one."""
    cluster = FakeClient()
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    spec = {"containers": [container()], "resourceClaims": [entry]}
    cluster.put(PODS, {"metadata": {"name": "p", "namespace": NS}, "spec": spec})
    uid = cluster.obj(PODS, "p", NS).metadata.uid
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
    for name in ("p-gpu-a", "p-gpu-b"):
        metadata = {
            "name": name,
            "namespace": NS,
            "annotations": {POD_CLAIM_ANNOTATION: "gpu"},
            "ownerReferences": [owner],
        }
        cluster.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {}})

    def named() -> list[str | None]:
        return [s.resource_claim_name for s in cluster.obj(PODS, "p", NS).status.resource_claim_statuses]

    async def scenario() -> None:
        for name in ("p-gpu-a", "p-gpu-b"):
            statuses = [{"name": "gpu", "resourceClaimName": name}]
            cluster.edit(PODS, "p", {"status": {"resourceClaimStatuses": statuses}}, NS)
            task = asyncio.create_task(ClaimController(cluster).run())
            await asyncio.sleep(5)
            assert named() == [name]
            task.cancel()
            await asyncio.wait({task})

    virtual_time.run(scenario())


def test_one_claim_is_generated_however_late_the_watch_is() -> None:
    cluster = FakeClient()
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    spec = {"containers": [container()], "resourceClaims": [entry]}
    template = {"metadata": {"name": "t", "namespace": NS}, "spec": {"spec": {}}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, template)

    async def scenario() -> None:
        task = asyncio.create_task(ClaimController(cluster).run())
        await asyncio.sleep(1)
        cluster.quiet.add("ResourceClaim")
        cluster.put(PODS, {"metadata": {"name": "p", "namespace": NS}, "spec": spec})
        for i in range(20):
            await asyncio.sleep(1)
            cluster.edit(PODS, "p", {"metadata": {"labels": {"again": str(i)}}}, NS)
        assert len(cluster.all(RESOURCE_CLAIMS)) == 1
        cluster.quiet.clear()
        cluster.wake()
        await asyncio.sleep(1)

        # One that is deleted is generated again.
        (first,) = cluster.all(RESOURCE_CLAIMS)
        cluster.remove(RESOURCE_CLAIMS, first.metadata.name, NS)
        await asyncio.sleep(1)
        (second,) = cluster.all(RESOURCE_CLAIMS)
        assert second.metadata.name != first.metadata.name
        statuses = cluster.obj(PODS, "p", NS).status.resource_claim_statuses
        assert [s.resource_claim_name for s in statuses] == [second.metadata.name]
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(scenario())
