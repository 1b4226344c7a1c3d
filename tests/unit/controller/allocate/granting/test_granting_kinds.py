"""Grants on several nodes, also for pods that the controller could serve; the test plays kube-scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import virtual_time
from builders import request
from controller_harness import NS, Harness, claim, controlling
from granting_cluster import (
    BACK,
    HIDDEN,
    IN_FORCE,
    cluster_of,
    decide,
    doubles,
    granted,
    place,
    pod,
    report,
    schedule,
    write,
)
from open_cluster import PolicedCluster

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS


def run(
    cluster: PolicedCluster, scenario: Callable[[Harness], Awaitable[None]], *, scheduler: bool = True
) -> None:
    async def main() -> None:
        async with asyncio.timeout(30_000), controlling(cluster, open_pools=True) as harness:
            await asyncio.sleep(IN_FORCE)
            task = asyncio.create_task(schedule(cluster, reports=True)) if scheduler else None
            try:
                await scenario(harness)
                assert not doubles(cluster)
            finally:
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    virtual_time.run(main())


def own(cluster: PolicedCluster, name: str, hidden: str = "", **more: Any) -> None:
    """Make a pod with one claim of ours; kube-scheduler takes it to the hidden nodes alone."""
    claim(cluster, name)
    metadata = {"annotations": {HIDDEN: hidden}} if hidden else {}
    pod(cluster, name, name, metadata=metadata, **more)


def node_of(cluster: PolicedCluster, name: str) -> str:
    return cluster.obj(PODS, name, NS).spec.node_name


def ended(h: Harness, why: str) -> float:
    name = "dra_driver_controller_ended_grants_total"
    return h.controller.metrics.registry.get_sample_value(name, {"reason": why}) or 0.0


# --- pods that came back ------------------------------------------------------------------------------------


def test_a_pod_that_came_back_gets_grants_on_three_nodes_and_goes_where_it_can() -> None:
    cluster = cluster_of(*(f"n{i}" for i in range(1, 7)), gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p", hidden="n4")
        await asyncio.sleep(10.0)
        # n1 was our choice; of n2, n3 and n4 kube-scheduler has taken the last one.
        assert node_of(cluster, "p") == "n4"
        assert h.devices("p") == [("n4", "gpu-0")]
        assert ended(h, "allocated") == 1
        (event,) = h.events("DevicesGranted")
        assert event.startswith("gpu-0 of node n2; gpu-0 of node n3; gpu-0 of node n4 are granted")
        await asyncio.sleep(1.0)
        assert not granted(cluster)
        await asyncio.sleep(BACK)
        # The others are ours again.
        for i in range(5):
            own(cluster, f"q{i}")
        await asyncio.sleep(2.0)
        assert all(node_of(cluster, f"q{i}") for i in range(5))

    run(cluster, scenario)


def test_a_pod_that_comes_back_from_its_grants_is_granted_what_kube_scheduler_has_chosen() -> None:
    """However many nodes there are: the refusal says which device it was."""
    nodes = [f"n{i:02}" for i in range(1, 31)]
    cluster = cluster_of(*nodes, gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p", hidden="n30")
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(120):
            while not node_of(cluster, "p"):
                await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() - began < 10.0
        assert node_of(cluster, "p") == "n30"
        assert ended(h, "elsewhere") == 1

    run(cluster, scenario)


def test_a_pod_that_is_never_placed_keeps_devices_from_others_for_a_part_of_the_time_only() -> None:
    cluster = cluster_of("n1", "n2", gpus=1)

    async def scenario(h: Harness) -> None:
        # kube-scheduler says that n2 would do, and never takes it.
        own(cluster, "p", hidden="n2")
        free = 0
        for _ in range(600):
            await asyncio.sleep(1.0)
            for one in cluster.all(PODS):
                if one.metadata.name == "p" and not one.spec.scheduling_gates and not one.spec.node_name:
                    report(cluster, "p")
            blocked = {node for node, _ in granted(cluster)} | {n for n, _ in h.devices("p")}
            free += not blocked
        assert free > 400
        own(cluster, "q")
        async with asyncio.timeout(60):
            while not h.devices("q"):
                await asyncio.sleep(1.0)

    run(cluster, scenario, scheduler=False)


@pytest.mark.long
def test_pods_whose_grants_are_in_vain_leave_room_for_those_after_them() -> None:
    nodes = [f"n{i}" for i in range(8)]
    cluster = cluster_of(*nodes, gpus=1)

    async def scenario(h: Harness) -> None:
        # Four pods that never fit, older and of higher priority than the one that does.
        for i in range(4):
            pod(cluster, f"never-{i}", amount=1, priority=5)
        await asyncio.sleep(5.0)
        pod(cluster, "p", amount=1)
        async with asyncio.timeout(240):
            while not node_of(cluster, "p"):
                await asyncio.sleep(0.2)
                for i in range(4):
                    if not h.gates(f"never-{i}"):
                        h.report(
                            f"never-{i}",
                            "0/8 nodes are available: 8 node(s) were hidden, 1 cannot allocate all claims.",
                        )
                if not h.gates("p"):
                    place(cluster, "p")

    run(cluster, scenario, scheduler=False)


# --- what a grant excludes ----------------------------------------------------------------------------------


def test_a_claim_with_a_grant_is_not_allocated_for_another_pod() -> None:
    cluster = cluster_of("n1", "n2", "n3", gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p")
        await asyncio.sleep(2.0)
        h.report("p", "0/3 nodes are available: 3 resourceclaim not available on the node.")
        while not granted(cluster):
            await asyncio.sleep(0.5)
        assert len(granted(cluster)) == 2
        # Without the nomination nothing else keeps the claim from the node that is free.
        h.report("p", "0/3 nodes are available: 3 node(s) were busy.")
        pod(cluster, "late", "p")
        await asyncio.sleep(1.0)
        assert not h.devices("p")
        assert place(cluster, "p")
        await asyncio.sleep(2.0)
        assert not h.gates("late")

    run(cluster, scenario, scheduler=False)


def test_a_decision_of_kube_scheduler_and_one_of_ours_for_the_same_claim_do_not_both_come_true() -> None:
    cluster = cluster_of("n1", "n2", "n3", "n4", "n5", gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p")
        await asyncio.sleep(2.0)
        h.report("p", "0/5 nodes are available: 5 resourceclaim not available on the node.")
        await asyncio.sleep(4.0)
        late = decide(cluster, cluster.obj(PODS, "p", NS))
        assert late is not None
        h.report("p", "0/5 nodes are available: 5 cannot allocate all claims.")
        await asyncio.sleep(10.0)
        # The grant is over; the controller may serve the pod itself by now.
        before = h.devices("p")
        assert write(cluster, late) is not bool(before)
        await asyncio.sleep(BACK)
        held = h.devices("p")
        assert len(held) == 1
        assert not before or held == before

    run(cluster, scenario, scheduler=False)


def test_a_claim_of_a_later_version_is_served() -> None:
    cluster = cluster_of("n1", gpus=1)
    claim(cluster, "p", request(selectors=[{"newer": {"expression": "device.isNice"}}]))
    pod(cluster, "p", "p")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(6.0)
        assert granted(cluster) == {("n1", "gpu-0")}
        # The kube-scheduler of the test does not know it either.
        body = cluster.raw(RESOURCE_CLAIMS, "p", NS)
        body["spec"]["devices"]["requests"][0]["exactly"].pop("selectors")
        cluster.edit(RESOURCE_CLAIMS, "p", {"spec": body["spec"]}, NS)
        assert place(cluster, "p")
        await asyncio.sleep(1.0)
        assert ended(h, "allocated") == 1

    run(cluster, scenario, scheduler=False)
