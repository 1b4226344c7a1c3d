"""Decisions of before an allocation that kube-scheduler writes after it: the stand-in, and the real one.

It reports each as an error about the pod, and tries the pod again. The real one needs a folder with etcd,
kube-apiserver and kube-scheduler that the variable ``DRA_K8S_BIN`` names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from builders import PROTECTED
from placement_judge import judging
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from controller.allocate.decide import Report, report_of
from dra_driver.api.core import EVENTS
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.sim.controlplane.scheduler import Scheduler

pytestmark = pytest.mark.slow

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.long)]
LATE = 3.0

Scenario = Callable[[SchedulingWorld], Awaitable[None]]


def run(kind: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(120),
            scheduling_world(kind) as world,
            judging(world.api, NAMESPACE),
        ):
            await scenario(world)

    asyncio.run(main())


def slow(world: SchedulingWorld, seconds: float) -> None:
    """Hold back what kube-scheduler writes to claims."""
    world.scheduler.slow_binding = seconds
    if isinstance(world.scheduler, Scheduler):
        world.scheduler.slow_allocation = seconds


async def report_about(world: SchedulingWorld, name: str) -> Report:
    while (report := report_of(await world.get(name))) is None:
        await asyncio.sleep(0.05)
    return report


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_that_was_allocated_meanwhile_keeps_its_devices(kind: str) -> None:
    """It is bound after the second of back-off that kube-scheduler begins with."""

    async def scenario(world: SchedulingWorld) -> None:
        await world.node("n0", gpus=1, protected=False)
        slow(world, LATE)
        async with world.controller():
            await world.claim("c")
            await world.pod("p", "c", gated=False)
            await asyncio.sleep(LATE / 3)  # its decision is on its way
            for one in (await world.api.list(RESOURCE_SLICES)).items:
                devices = [{"name": d.name, "taints": [PROTECTED]} for d in one.spec.devices]
                patch = {"spec": {"devices": devices}}
                await world.api.merge_patch(RESOURCE_SLICES, one.metadata.name, patch)
            report = await report_about(world, "p")
            assert "got allocated elsewhere in the meantime" in report.message
            slow(world, 0.0)
            took = await world.until_bound(["p"])
            print(f"{kind}: bound {took:.2f} s after the report")
            assert took < 3.0
            events = (await world.api.list(EVENTS, NAMESPACE)).items
            assert not [e.message for e in events if e.reason == "Deallocated"]

    run(kind, scenario)
