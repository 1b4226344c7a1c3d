"""Allocations that are tentative, beside a kube-scheduler: the stand-in, and the real one.

The real one needs no root and no kubelet, only a folder with etcd, kube-apiserver and kube-scheduler that the
variable ``DRA_K8S_BIN`` names. ``SLOW_BINDING_SECONDS`` is how slow a binding cycle is made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from builders import container
from placement_judge import judging
from real_apiserver import scheduler_has
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.kube import Handler, Informer
from dra_driver.nodefit import MOST_RESOURCES

pytestmark = pytest.mark.slow

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.long)]
SLOW = float(os.environ.get("SLOW_BINDING_SECONDS") or 7.0)
# A volume claim with a typo: kube-scheduler cannot place such a pod, and a controller that may not read
# storage objects does not know.
TYPO = "data-o"

Scenario = Callable[[SchedulingWorld], Awaitable[None]]


def run(kind: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(240), scheduling_world(kind) as world:
            async with judging(world.api, NAMESPACE) as judge:
                await scenario(world)
            print(kind, {what: round(seconds, 2) for what, seconds in judge.longest.items()})

    asyncio.run(main())


def asking(*resources: str) -> list[dict[str, Any]]:
    """Return a container that asks for one of each."""
    amounts = dict.fromkeys(resources, "1")
    return [{**container(), "resources": {"requests": amounts, "limits": amounts}}]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_pods_that_cannot_be_placed_keep_nothing_from_those_that_can(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        for i in range(3):
            await world.node(f"n{i}", gpus=1)
        async with world.controller(reads_storage=False):
            for i in range(4):
                await world.claim(f"typo-{i}")
                await world.pod(f"typo-{i}", f"typo-{i}", volume=TYPO)
            await asyncio.sleep(1)
            healthy = [f"healthy-{i}" for i in range(3)]
            for name in healthy:
                await world.claim(name)
                await world.pod(name, name)
            await world.until_bound(healthy)
            await asyncio.sleep(2)
        held = [
            c.metadata.name
            for c in (await world.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
            if c.status.allocation is not None
        ]
        assert sorted(held) == healthy

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_with_a_typo_never_holds_anything(kind: str) -> None:
    """Nor does one whose volume cannot be attached: the node with a place for it is chosen."""
    held: set[str] = set()

    def saw(claim: ResourceClaim) -> None:
        if claim.status.allocation is not None:
            held.add(claim.metadata.name)

    async def scenario(world: SchedulingWorld) -> None:
        for i in range(3):
            await world.node(f"n{i}", gpus=2)
            await world.attach_limit(f"n{i}", 1 if i == 1 else 0)
        claims = Informer(world.api, RESOURCE_CLAIMS)
        claims.add_handler(Handler(added=saw, updated=lambda _, claim: saw(claim)))
        watching = asyncio.create_task(claims.run())
        async with world.controller():
            for name in ("typo", "late", "attached", "full"):
                await world.claim(name)
            await world.pod("typo", "typo", volume=TYPO)
            await world.pod("late", "late", volume="data-late")
            await world.bound_volume("data-attached")
            await world.pod("attached", "attached", volume="data-attached")
            await world.until_bound(["attached"])
            assert (await world.get("attached")).spec.node_name == "n1"
            await world.bound_volume("data-full")
            await world.pod("full", "full", volume="data-full")
            await asyncio.sleep(3)
            assert held == {"attached"}
            await world.bound_volume("data-late", driver="other.example.com")
            await world.attach_limit("n2", 1)
            await world.until_bound(["late", "full"])
            assert (await world.get("full")).spec.node_name == "n2"
            assert held == {"attached", "late", "full"}
        watching.cancel()
        await asyncio.wait({watching})

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_the_node_is_nominated_before_kube_scheduler_sees_the_pod(kind: str) -> None:
    # Before 1.35 the API server leaves the nomination when a pod is bound.
    clears = kind != "real" or scheduler_has("ClearingNominatedNodeNameAfterBinding")

    async def scenario(world: SchedulingWorld) -> None:
        await world.node("n0", gpus=1)
        async with world.controller():
            world.scheduler.slow_binding = 3.0
            await world.claim("c")
            await world.pod("p", "c")
            await asyncio.sleep(1.5)
            pod = await world.get("p")
            assert (pod.status.nominated_node_name, pod.spec.scheduling_gates) == ("n0", ())
            await world.until_bound(["p"])
            assert (await world.get("p")).status.nominated_node_name == ("" if clears else "n0")

    run(kind, scenario)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_with_room_again_is_used_within_two_seconds(kind: str) -> None:
    """Without room for what the allocator does not count, each node is tried and left out for a while."""
    counted = [f"example.com/r{i:02}" for i in range(MOST_RESOURCES)]
    last = "example.com/the-last-of-many"

    async def scenario(world: SchedulingWorld) -> None:
        for i in range(3):
            await world.node(f"n{i}", gpus=1, more=dict.fromkeys([*counted, last], "1"))
            await world.pod(f"old-{i}", gated=False, nodeName=f"n{i}", containers=asking(last))
        async with world.controller():
            await world.claim("c")
            await world.pod("p", "c", containers=asking(*counted, last))
            await asyncio.sleep(14)
            assert not (await world.get("p")).spec.node_name
            await world.api.delete(PODS, "old-1", NAMESPACE, grace_period_seconds=0)
            async with asyncio.timeout(2):
                while (await world.api.get(RESOURCE_CLAIMS, "c", NAMESPACE)).status.allocation is None:
                    await asyncio.sleep(0.05)
            # kube-scheduler, whom the room wakes as well, waits for its own back-off of up to ten seconds if
            # it looks before there are devices.
            took = await world.until_bound(["p"])
            assert (await world.get("p")).spec.node_name == "n1"
            print(f"{kind}: bound {took:.2f} s after the node had room")
            assert took < 12

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
@pytest.mark.parametrize("timeout", [5.0, 60.0], ids=["timeout shorter than binding", "longer"])
def test_slow_bindings_meet_deallocations_and_ends_of_the_controller(kind: str, timeout: float) -> None:
    """A device is never in two claims, and no pod is bound without its devices on its node."""

    async def scenario(world: SchedulingWorld) -> None:
        for i in range(3):
            await world.node(f"n{i}", gpus=2)
        world.scheduler.slow_binding = SLOW
        names = [f"p{i}" for i in range(6)]
        async with world.controller(reads_storage=False, binding_seconds=timeout):
            for i in range(6):
                await world.claim(f"c{i}")
            for i, name in enumerate(names):
                await world.pod(name, f"c{i % 4}", gated=i % 3 > 0)  # two claims are shared
            await world.pod("typo", "c1", volume=TYPO)
            await world.pod("alone", "c5", volume=TYPO)
            await asyncio.sleep(SLOW / 2)
        for _ in range(3):
            await asyncio.sleep(0.5)
            async with world.controller(reads_storage=False, binding_seconds=timeout):
                await asyncio.sleep(SLOW * 0.8)
        world.scheduler.slow_binding = 0.0
        async with world.controller(reads_storage=False, binding_seconds=timeout):
            await world.until_bound(names, 120)
            await asyncio.sleep(6)
        assert not (await world.get("typo")).spec.node_name

    run(kind, scenario)
