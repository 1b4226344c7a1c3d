"""Pods that kube-scheduler evicts others for: their devices wait on the node that is cleared.

Beside the real kube-scheduler only: the stand-in evicts nobody. There is no kubelet, so pods that are evicted
are deleted here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from builders import container
from real_apiserver import scheduler_has
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource
from dra_driver.errors import NotFound
from dra_driver.sim.objects import MetaObject

pytestmark = [pytest.mark.slow, pytest.mark.long]

PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", MetaObject, namespaced=False
)
Scenario = Callable[[SchedulingWorld, list[str]], Awaitable[None]]


@contextlib.asynccontextmanager
async def kubelets(world: SchedulingWorld, seconds: float) -> AsyncIterator[list[str]]:
    """End pods some seconds after they are deleted, as kubelets do; give their names."""
    ended: list[str] = []
    since: dict[str, float] = {}
    now = asyncio.get_running_loop().time

    async def run() -> None:
        while True:
            for pod in (await world.api.list(PODS, NAMESPACE)).items:
                name = pod.metadata.name
                if not (pod.metadata.deletion_timestamp and pod.spec.node_name):
                    continue
                if now() >= since.setdefault(name, now()) + seconds:
                    with contextlib.suppress(NotFound):
                        await world.api.delete(PODS, name, NAMESPACE, grace_period_seconds=0)
                    ended.append(name)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(run())
    try:
        yield ended
    finally:
        task.cancel()
        await asyncio.wait({task})


def run(scenario: Scenario, seconds: float = 0.0) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(240),
            scheduling_world("real") as world,
            kubelets(world, seconds) as ended,
        ):
            for name, value, policy in (
                ("high", 1000, "PreemptLowerPriority"),
                ("patient", 1000, "Never"),
            ):
                body = {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                    "preemptionPolicy": policy,
                }
                await world.api.create(PRIORITY_CLASSES, body)
            await scenario(world, ended)

    asyncio.run(main())


async def full(world: SchedulingWorld, node: str) -> None:
    """Fill a node with two pods of low priority."""
    for i in range(2):
        await world.pod(f"low-{node}-{i}", gated=False, nodeName=node, containers=[container("4")])


async def important(world: SchedulingWorld, name: str, of: str = "high", **more: Any) -> None:
    await world.claim(name)
    await world.pod(name, name, priorityClassName=of, containers=[container("3")], **more)


@pytest.mark.parametrize("seconds", [0.0, 6.0], ids=["ending at once", "ending slowly"])
def test_a_pod_gets_devices_on_a_node_that_is_cleared_for_it(seconds: float) -> None:
    """A pod that would have room as it is does not take the devices meanwhile."""

    async def scenario(world: SchedulingWorld, ended: list[str]) -> None:
        await world.node("full", gpus=1)
        await world.node("empty", gpus=0)
        await full(world, "full")
        async with world.controller():
            await important(world, "p")
            await asyncio.sleep(1)
            await world.claim("small")
            await world.pod("small", "small")
            took = await world.until_bound(["p"])
            assert (await world.get("p")).spec.node_name == "full"
            print(f"bound {took:.1f} s after the other one was made; evicted: {ended}")
            assert not (await world.get("small")).spec.node_name
        # Where it forgets which node it clears, kube-scheduler may begin anew before the first one has ended.
        assert len(ended) in ({1} if scheduler_has("NominatedNodeNameForExpectation") else {1, 2})

    run(scenario, seconds)


def test_nobody_is_evicted_where_another_node_has_devices_and_room() -> None:
    async def scenario(world: SchedulingWorld, ended: list[str]) -> None:
        for name in ("a-full", "b-free"):
            await world.node(name, gpus=1)
        await full(world, "a-full")
        async with world.controller():
            await important(world, "p")
            await world.until_bound(["p"])
            assert (await world.get("p")).spec.node_name == "b-free"
        assert not ended

    run(scenario)


def test_a_pod_that_never_preempts_waits_until_there_is_room() -> None:
    async def scenario(world: SchedulingWorld, ended: list[str]) -> None:
        await world.node("full", gpus=1)
        await full(world, "full")
        async with world.controller():
            await important(world, "p", of="patient")
            await asyncio.sleep(5)
            assert (await world.get("p")).spec.scheduling_gates
            assert not ended
            await world.api.delete(PODS, "low-full-0", NAMESPACE, grace_period_seconds=0)
            took = await world.until_bound(["p"])
            print(f"bound {took:.1f} s after there was room")
        assert not ended

    run(scenario)


def test_others_are_evicted_for_a_pod_that_kube_scheduler_has_refused_before() -> None:
    """Without the gate kube-scheduler looks at the pod first, and refuses it for its CPU alone.

    That a claim is allocated is then no reason for it to look again.
    """

    async def scenario(world: SchedulingWorld, ended: list[str]) -> None:
        await world.node("full", gpus=1)
        await full(world, "full")
        async with world.controller():
            await important(world, "p", gated=False)
            took = await world.until_bound(["p"])
            print(f"bound after {took:.1f} s; evicted: {ended}")
        assert len(ended) == 1

    run(scenario)
