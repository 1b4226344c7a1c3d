"""Groups of which kube-scheduler cannot place a pod, beside the stand-in, and the real one.

The variable ``DRA_K8S_BIN`` names the folder with its program, and those of the API server and etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from builders import container
from placement_judge import HELD_SECONDS, judging
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from dra_driver.api.core import EVENTS
from dra_driver.api.names import (
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
)
from dra_driver.api.resource import RESOURCE_CLAIMS

pytestmark = [pytest.mark.slow, pytest.mark.long]

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.long)]
# What kube-scheduler looks at and a controller that may not read storage objects does not.
TYPO = "data-o"

Scenario = Callable[[SchedulingWorld], Awaitable[None]]


def run(kind: str, scenario: Scenario, held_seconds: float = HELD_SECONDS) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(240),
            scheduling_world(kind) as world,
            judging(world.api, NAMESPACE, held_seconds),
        ):
            await scenario(world)

    asyncio.run(main())


async def member(
    world: SchedulingWorld, name: str, size: int, *, least: str = "", some_run: str = "", **options: Any
) -> None:
    await world.claim(name)
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: str(size), **({GROUP_MIN_LABEL: least} if least else {})}
    annotations = {GROUP_SOME_RUN_ANNOTATION: some_run} if some_run else {}
    await world.pod(name, name, metadata={"labels": labels, "annotations": annotations}, **options)


async def held(world: SchedulingWorld) -> set[str]:
    claims = (await world.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
    return {c.metadata.name for c in claims if c.status.allocation is not None}


async def until_held(world: SchedulingWorld, names: set[str], seconds: float = 90.0) -> None:
    async with asyncio.timeout(seconds):
        while await held(world) != names:
            await asyncio.sleep(0.05)


async def events(world: SchedulingWorld, reason: str) -> list[str]:
    return [e.message for e in (await world.api.list(EVENTS, NAMESPACE)).items if e.reason == reason]


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_with_a_pod_that_no_node_suits_leaves_the_devices_to_others(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await world.node("n0", gpus=3)
        async with world.controller(reads_storage=False):
            world.scheduler.slow_binding = 5.0  # so that none of them is bound before
            for i in range(3):
                await member(world, f"m{i}", 3, volume=TYPO if i == 0 else "")
            await asyncio.sleep(1.0)
            healthy = [f"healthy-{i}" for i in range(2)]
            for name in healthy:
                await world.claim(name)
                await world.pod(name, name)
            await world.until_bound(healthy)

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("some_run", ["wait", "release"])
def test_pods_of_a_group_that_run_are_left_alone(kind: str, some_run: str) -> None:
    """One is bound with its own claims reserved, one cannot be placed, one is being bound."""

    async def scenario(world: SchedulingWorld) -> None:
        await world.node("n0", gpus=3)
        async with world.controller(reads_storage=False):
            await member(world, "m0", 3, some_run=some_run)
            await member(world, "m1", 3, some_run=some_run, volume=TYPO)
            await member(world, "m2", 3, some_run=some_run)
            async with asyncio.timeout(60):
                while "m1" in await held(world) or not (await events(world, "Deallocated")):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(3)
            bound = {n for n in ("m0", "m1", "m2") if (await world.get(n)).spec.node_name}
            assert "m1" not in bound
            left = await held(world)
            # What is bound has its devices; what is not bound has them only with the policy "wait".
            assert bound <= left
            assert "m1" not in left
            if some_run == "release":
                assert left == bound

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_an_elastic_group_goes_on_without_a_pod_that_no_node_suits(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await world.node("n0", gpus=3)
        async with world.controller(reads_storage=False):
            for i in range(3):
                await member(world, f"m{i}", 3, least="2", volume=TYPO if i == 1 else "")
            await world.until_bound(["m0", "m2"])
            await until_held(world, {"m0", "m2"})

    run(kind, scenario)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["embedded", "real"])
def test_ends_of_the_controller_leave_no_part_of_a_group(kind: str) -> None:
    """The group fits on no nodes that suit it; each controller ends at another moment."""

    async def scenario(world: SchedulingWorld) -> None:
        await world.node("n0", gpus=2)
        await world.node("n1", gpus=2)
        world.scheduler.slow_binding = 0.5
        for i in range(4):
            options: dict[str, Any] = {"volume": TYPO} if i == 2 else {}
            await member(world, f"m{i}", 4, some_run="release", containers=[container()], **options)
        for i in range(8):
            async with world.controller(reads_storage=False, binding_seconds=5.0):
                await asyncio.sleep(0.3 + 0.25 * i)
        async with world.controller(reads_storage=False, binding_seconds=5.0):
            await asyncio.sleep(8)
            left = await held(world)
        bound = {f"m{i}" for i in range(4) if (await world.get(f"m{i}")).spec.node_name}
        assert left == bound

    run(kind, scenario, 20.0)  # each controller begins anew to wait for victims of a preemption
