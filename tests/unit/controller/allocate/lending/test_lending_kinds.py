"""Loans on several nodes, also for pods that the controller could serve; the test plays kube-scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import virtual_time
from builders import DRIVER, request
from controller_harness import NS, Harness, claim, controlling
from fake_client import FakeClient
from lending_cluster import (
    BACK,
    FIRST_READ,
    HIDDEN,
    bare,
    cluster_of,
    decide,
    doubles,
    place,
    pod,
    report,
    schedule,
    write,
)

from controller.config import LendingMode
from dra_driver.api.core import CONFIG_MAPS, PODS
from dra_driver.api.meta import PoolName
from dra_driver.api.names import RECALLED_DEVICES, SYSTEM_NAMESPACE
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.ownership import PoolID, Recalls


def run(
    cluster: FakeClient, scenario: Callable[[Harness], Awaitable[None]], *, scheduler: bool = True
) -> None:
    async def main() -> None:
        async with asyncio.timeout(30_000), controlling(cluster, lending=LendingMode.ON) as harness:
            await asyncio.sleep(FIRST_READ)
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


def own(cluster: FakeClient, name: str, hidden: str = "", **more: Any) -> None:
    """Make a pod with one claim of ours; kube-scheduler takes it to the hidden nodes alone."""
    claim(cluster, name)
    metadata = {"annotations": {HIDDEN: hidden}} if hidden else {}
    pod(cluster, name, name, metadata=metadata, **more)


def node_of(cluster: FakeClient, name: str) -> str:
    return cluster.obj(PODS, name, NS).spec.node_name


def ended(h: Harness, why: str) -> float:
    name = "dra_driver_controller_ended_loans_total"
    return h.controller.metrics.registry.get_sample_value(name, {"reason": why}) or 0.0


# --- pods that came back ------------------------------------------------------------------------------------


def test_a_pod_that_came_back_gets_loans_on_three_nodes_and_goes_where_it_can() -> None:
    cluster = cluster_of(*(f"n{i}" for i in range(1, 7)), gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p", hidden="n4")
        await asyncio.sleep(10.0)
        # n1 was our choice; of n2, n3 and n4 kube-scheduler has taken the last one.
        assert node_of(cluster, "p") == "n4"
        assert h.devices("p") == [("n4", "gpu-0")]
        assert ended(h, "allocated") == 1
        (event,) = h.events("DevicesLent")
        assert event.startswith("gpu-0 of node n2; gpu-0 of node n3; gpu-0 of node n4 are lent")
        await asyncio.sleep(1.0)
        assert not bare(cluster)
        await asyncio.sleep(BACK)
        # The others are ours again.
        for i in range(5):
            own(cluster, f"q{i}")
        await asyncio.sleep(2.0)
        assert all(node_of(cluster, f"q{i}") for i in range(5))

    run(cluster, scenario)


def test_a_pod_that_comes_back_from_its_loans_is_served_all_the_same() -> None:
    nodes = [f"n{i:02}" for i in range(1, 13)]
    cluster = cluster_of(*nodes, gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p", hidden="n12")
        async with asyncio.timeout(120):
            while not node_of(cluster, "p"):
                await asyncio.sleep(1.0)
        assert node_of(cluster, "p") == "n12"
        assert ended(h, "refused") >= 1

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
            blocked = {node for node, _ in bare(cluster)} | {n for n, _ in h.devices("p")}
            free += not blocked
        assert free > 400
        own(cluster, "q")
        async with asyncio.timeout(60):
            while not h.devices("q"):
                await asyncio.sleep(1.0)

    run(cluster, scenario, scheduler=False)


@pytest.mark.long
def test_pods_whose_loans_are_in_vain_leave_room_for_those_after_them() -> None:
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


# --- what a loan excludes -----------------------------------------------------------------------------------


def test_a_claim_that_is_lent_for_is_not_allocated_for_another_pod() -> None:
    cluster = cluster_of("n1", "n2", "n3", gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p")
        await asyncio.sleep(2.0)
        h.report("p", "0/3 nodes are available: 3 resourceclaim not available on the node.")
        while not bare(cluster):
            await asyncio.sleep(0.5)
        assert len(bare(cluster)) == 2
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
        # The loan is over, and its devices are in drain; the controller may serve the pod itself by now.
        before = h.devices("p")
        assert write(cluster, late) is not bool(before)
        await asyncio.sleep(BACK)
        held = h.devices("p")
        assert len(held) == 1
        assert not before or held == before

    run(cluster, scenario, scheduler=False)


def test_a_loan_goes_on_where_nobody_else_has_taken_it() -> None:
    cluster = cluster_of("n1", "n2", "n3", "n4", gpus=1)

    async def scenario(h: Harness) -> None:
        own(cluster, "p")
        await asyncio.sleep(2.0)
        h.report("p", "0/4 nodes are available: 4 resourceclaim not available on the node.")
        await asyncio.sleep(3.0)
        assert {node for node, _ in bare(cluster)} == {"n2", "n3", "n4"}
        pod(cluster, "thief", amount=1, gated=False, priority=9)
        assert place(cluster, "thief")
        taken = node_of(cluster, "thief")
        report(cluster, "p")
        await asyncio.sleep(1.0)
        assert {node for node, _ in bare(cluster)} == {"n2", "n3", "n4"} - {taken}
        assert ended(h, "taken") == 0
        assert place(cluster, "p")
        await asyncio.sleep(1.0)
        assert ended(h, "allocated") == 1
        assert not bare(cluster)

    run(cluster, scenario, scheduler=False)


@pytest.mark.parametrize(("recalled", "number"), [(0, 3), (300, 1)])
def test_where_little_can_be_recalled_one_node_is_lent(recalled: int, number: int) -> None:
    cluster = cluster_of("n1", "n2", "n3", "n4", gpus=1)
    gone = PoolID(DRIVER, PoolName("gone"))
    devices = frozenset((gone, f"d{i}") for i in range(recalled))
    data = {"data": Recalls(devices=devices).data()}
    cluster.edit(CONFIG_MAPS, RECALLED_DEVICES, data, SYSTEM_NAMESPACE)

    async def scenario(h: Harness) -> None:
        own(cluster, "p")
        await asyncio.sleep(2.0)
        h.report("p", "0/4 nodes are available: 4 resourceclaim not available on the node.")
        for _ in range(40):
            await asyncio.sleep(0.5)
            if bare(cluster):
                break
        await asyncio.sleep(1.0)
        assert len(bare(cluster)) == number

    run(cluster, scenario, scheduler=False)


def test_a_claim_of_a_later_version_is_served() -> None:
    cluster = cluster_of("n1", gpus=1)
    claim(cluster, "p", request(selectors=[{"newer": {"expression": "device.isNice"}}]))
    pod(cluster, "p", "p")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(6.0)
        assert bare(cluster) == {("n1", "gpu-0")}
        # The kube-scheduler of the test does not know it either.
        body = cluster.raw(RESOURCE_CLAIMS, "p", NS)
        body["spec"]["devices"]["requests"][0]["exactly"].pop("selectors")
        cluster.edit(RESOURCE_CLAIMS, "p", {"spec": body["spec"]}, NS)
        assert place(cluster, "p")
        await asyncio.sleep(1.0)
        assert ended(h, "allocated") == 1

    run(cluster, scenario, scheduler=False)
