"""Devices are set aside for a pod that kube-scheduler cannot place: once, and again when it could."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import pytest
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.fleet import set_aside_condition

pytestmark = pytest.mark.slow

PATIENCE = 2.0
# The allocator does not know the labels of namespaces. By them alone, kube-scheduler would not notice the
# friend before it looks at all pods again, after five minutes.
FRIEND = {
    "labelSelector": {"matchLabels": {"app": "friend"}},
    "namespaces": [NAMESPACE],
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
    "topologyKey": "zone",
}
AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [FRIEND]}}


async def make(world: SchedulingWorld, name: str, count: int = 1, **spec: Any) -> None:
    body = builders.claim(name, builders.request(count=count), namespace=NAMESPACE)
    await world.api.create(RESOURCE_CLAIMS, body)
    await world.pod(name, name, **spec)


async def end(world: SchedulingWorld, name: str) -> None:
    """Delete a pod, and free its claim as kube-controller-manager does."""
    await world.api.delete(PODS, name, NAMESPACE, grace_period_seconds=0)
    freed = {"status": {"allocation": None, "reservedFor": None}}
    await world.api.merge_patch(RESOURCE_CLAIMS, name, freed, NAMESPACE, subresource="status")


async def is_aside(world: SchedulingWorld) -> bool:
    return set_aside_condition(await world.get("big")) is not None


async def until(seconds: float, condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.1)


async def never_again(world: SchedulingWorld) -> None:
    """Look for a while whether devices are set aside anew; a turn that has ended is shown for a second."""
    await asyncio.sleep(3.0)
    for _ in range(40):
        assert not await is_aside(world)
        await asyncio.sleep(0.3)


async def played(world: SchedulingWorld, help_it: Callable[[], Awaitable[None]], **spec: Any) -> None:
    await world.node("n0", gpus=2, labels={"zone": "z"})
    async with world.controller(starvation_seconds=PATIENCE, reads_storage=False):
        for name in ("a", "b"):
            await make(world, name)
        await world.until_bound(("a", "b"))
        await make(world, "big", 2, **spec)
        await until(20.0, lambda: is_aside(world))
        for name in ("c", "d"):
            await make(world, name)
        await end(world, "a")
        await end(world, "b")
        # It has its devices, kube-scheduler cannot place it, and they go to others.
        await world.until_bound(("c", "d"))
        await never_again(world)
        await help_it()
        await until(40.0, lambda: is_aside(world))
        await end(world, "c")
        await end(world, "d")
        await world.until_bound(("big",))


def run(kind: str, scenario: Callable[[SchedulingWorld], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(240), scheduling_world(kind) as world:
            await scenario(world)

    asyncio.run(main())


@pytest.mark.long
def test_a_volume_that_comes_late() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        async def help_it() -> None:
            await world.bound_volume("late")

        await played(world, help_it, volume="late")

    run("embedded", scenario)


@pytest.mark.long
def test_a_pod_that_must_be_beside_another_one() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        async def help_it() -> None:
            labels = {"labels": {"app": "friend"}}
            await world.pod("friend", gated=False, metadata=labels, nodeName="n0")

        await played(world, help_it, affinity=AFFINITY)

    run("real", scenario)
