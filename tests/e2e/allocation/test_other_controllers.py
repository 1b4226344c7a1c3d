"""Pods as Kueue, JobSet, LeaderWorkerSet and the coscheduling plugin have them, on whichever cluster."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from e2e_support import IMAGE, clear, make_namespace, running
from written_pods import documented, pods_of, with_metadata

from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import ALLOCATION_GATE, DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.needs("allocation by the controller")]

NAMESPACE = "team"
KUEUE, TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
TEMPLATE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu", "namespace": NAMESPACE},
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": f"nvidia.{DEFAULT_DRIVER_NAME}"}}]
            }
        }
    },
}


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    async def prepare() -> None:
        await make_namespace(cluster, NAMESPACE)
        await examples.apply(cluster.api, [TEMPLATE])

    background.run(prepare())
    yield
    background.run(clear(cluster, NAMESPACE))


async def create(cluster: Cluster, *bodies: dict[str, Any]) -> list[str]:
    """Create pods as they are written, but for finalizers, which stay for ever here; return their names."""
    made = copy.deepcopy(list(bodies))
    for body in made:
        body["metadata"].pop("finalizers", None)
        body["spec"]["containers"][0]["image"] = IMAGE
    await examples.apply(cluster.api, made)
    return [body["metadata"]["name"] for body in made]


async def gates(cluster: Cluster, name: str) -> list[str]:
    found: Pod = await cluster.api.get(PODS, name, NAMESPACE)
    return [g.name for g in found.spec.scheduling_gates]


async def lift(cluster: Cluster, name: str, gate: str, meta: dict[str, Any], **spec: Any) -> None:
    """Take a gate away and write what goes with it, in one patch."""
    left = [{"name": g} for g in await gates(cluster, name) if g != gate]
    body = {"metadata": meta, "spec": {"schedulingGates": left or None, **spec}}
    await cluster.api.merge_patch(PODS, name, body, NAMESPACE)


async def none_is_allocated(cluster: Cluster) -> bool:
    claims = (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
    return all(claim.status.allocation is None for claim in claims)


async def roomiest_node(cluster: Cluster) -> str:
    """Return the node whose pool has most devices."""
    slices = (await cluster.api.list(RESOURCE_SLICES)).items
    number: dict[str, int] = {}
    for found in slices:
        if found.spec.driver == DEFAULT_DRIVER_NAME and found.spec.node_name:
            number[found.spec.node_name] = number.get(found.spec.node_name, 0) + len(found.spec.devices)
    return max(number, key=lambda name: number[name])


def test_the_gates_of_kueue_are_lifted_one_after_the_other(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        names = await create(cluster, *pods_of("kueue"))
        node = await roomiest_node(cluster)
        admitted = {
            "labels": {"kueue.x-k8s.io/podset": "6b1bd2a3"},
            "annotations": {"kueue.x-k8s.io/workload": "train"},
        }
        for name in names:
            assert await gates(cluster, name) == [KUEUE, TOPOLOGY, ALLOCATION_GATE]
            await lift(cluster, name, KUEUE, admitted)
        for name in names:
            await asyncio.sleep(1)
            assert await none_is_allocated(cluster)
            await lift(cluster, name, TOPOLOGY, {}, nodeSelector={"kubernetes.io/hostname": node})
        pods = await running(cluster, NAMESPACE, *names)
        assert {pod.spec.node_name for pod in pods} == {node}

    background.run(scenario())


def test_the_documented_job_set_starts_as_a_whole(background: Background, cluster: Cluster) -> None:
    templates = {
        job["name"]: job["template"]["spec"]["template"]
        for job in documented("JobSet")["spec"]["replicatedJobs"]
    }
    name = "jobset.sigs.k8s.io/replicatedjob-name"
    pods = [with_metadata(p, templates[p["metadata"]["labels"][name]]) for p in pods_of("jobset")]

    async def scenario() -> None:
        names = await create(cluster, *pods[:-1])
        await asyncio.sleep(2)
        assert await none_is_allocated(cluster)
        names += await create(cluster, pods[-1])
        await running(cluster, NAMESPACE, *names)

    background.run(scenario())


def test_each_group_of_the_documented_leader_worker_set_starts_as_a_whole(
    background: Background, cluster: Cluster
) -> None:
    template = documented("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    pods = [with_metadata(p, template) for p in pods_of("leaderworkerset")]

    async def scenario() -> None:
        leaders = await create(cluster, pods[0], pods[3])
        await asyncio.sleep(2)
        assert await none_is_allocated(cluster)
        workers = await create(cluster, *pods[1:3])
        await running(cluster, NAMESPACE, leaders[0], *workers)
        assert await gates(cluster, leaders[1]) == [ALLOCATION_GATE]
        workers = await create(cluster, *pods[4:])
        await running(cluster, NAMESPACE, leaders[1], *workers)

    background.run(scenario())


def test_as_many_as_the_labels_of_coscheduling_ask_for_start_together(
    background: Background, cluster: Cluster
) -> None:
    pods = pods_of("coscheduling")

    async def scenario() -> None:
        names = await create(cluster, *pods[:2])
        await asyncio.sleep(2)
        assert await none_is_allocated(cluster)
        names += await create(cluster, *pods[2:])
        await running(cluster, NAMESPACE, *names)

    background.run(scenario())
