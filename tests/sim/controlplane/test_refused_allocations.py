"""What the stand-in for kube-scheduler leaves behind when the API server refuses what it has allocated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, TypeVar

import builders
import virtual_time
from controller_harness import NS, classes, node, pool
from fake_client import FakeClient
from slow_scheduler import SlowScheduler

from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS
from dra_driver.errors import Forbidden
from dra_driver.sim.controlplane.scheduler import Scheduler

T = TypeVar("T", bound=WireObject)
RESOURCE = "example.com/gpu"


class RefusingCluster(FakeClient):
    """Refuses every allocation for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = True

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """Patch, or refuse."""
        if self.refuses and resource.plural == RESOURCE_CLAIMS.plural and subresource == "status":
            raise Forbidden("denied by a policy", code=403)
        return await super().merge_patch(
            resource, name, patch, namespace, subresource=subresource, dry_run=dry_run
        )


def test_the_claim_for_extended_resources_is_deleted_and_the_pod_tried_again() -> None:
    """As kube-scheduler 1.36 does when it gives back what it has reserved (``Unreserve``)."""
    cluster = RefusingCluster()
    classes(cluster)
    node(cluster, "n1")
    pool(cluster, "n1", 40, protected=False)
    name = cluster.all(DEVICE_CLASSES)[0].metadata.name
    cluster.edit(DEVICE_CLASSES, name, {"spec": {"extendedResourceName": RESOURCE}})
    container = builders.container()
    container["resources"] = {"requests": {RESOURCE: "1"}}
    cluster.put(PODS, builders.pod("p", uid="uid-p", containers=[container]))

    async def main() -> None:
        task = asyncio.create_task(Scheduler(SlowScheduler(cluster, random.Random(1)), backoff=1.0).run())
        await asyncio.sleep(20.0)
        found = cluster.obj(PODS, "p", NS)
        (condition,) = found.status.conditions
        assert condition["reason"] == "SchedulerError"
        assert "denied by a policy" in str(condition["message"])
        assert not cluster.all(RESOURCE_CLAIMS)
        cluster.refuses = False
        await asyncio.sleep(20.0)
        assert cluster.obj(PODS, "p", NS).spec.node_name == "n1"
        assert len(cluster.all(RESOURCE_CLAIMS)) == 1
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(main())
