"""Which claims are deallocated because no pod uses them: one look at a claim."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import reserved
from releasing_world import OTHER, ReleasingWorld, key, play

from dra_driver.api.resource import RESOURCE_CLAIMS

DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/keeps"]}
BOUND = {"nodeName": "n1"}
OTHER_SCHEDULER = {"schedulerName": "another"}


async def looked_at(world: ReleasingWorld, name: str = "c") -> None:
    await world.seen()
    await world.unused.reconcile(key(name))
    await world.seen()


@pytest.mark.parametrize(
    "of_pod",
    [
        {"metadata": DELETED},
        OTHER_SCHEDULER,
        {"gates": ["example.com/holds"]},
        {"gates": ["example.com/holds"], "gated": True},
        {**BOUND, "phase": "Succeeded"},
        {**BOUND, "phase": "Failed"},
    ],
    ids=["deleted", "of another scheduler", "held", "gated and held", "succeeded", "failed"],
)
def test_a_claim_is_deallocated_whose_only_pod_cannot_use_it(of_pod: dict[str, Any]) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        world.pod("p", "c", **of_pod)
        await looked_at(world)
        assert world.allocated("c") == []

    play(scenario)


@pytest.mark.parametrize(
    "of_pod",
    [
        {},
        {"gated": True},
        BOUND,
        {**BOUND, "metadata": DELETED},
        {**BOUND, **OTHER_SCHEDULER},
    ],
    ids=["waits", "gated", "runs", "runs and is deleted", "runs, of another scheduler"],
)
def test_a_claim_stays_allocated_while_one_of_its_pods_uses_it(of_pod: dict[str, Any]) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        world.pod("ended", "c", **BOUND, phase="Succeeded")
        world.pod("p", "c", **of_pod)
        await looked_at(world)
        assert world.allocated("c") == ["c"]

    play(scenario)


def test_a_claim_that_is_gone_or_not_allocated_needs_nothing() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("free")
        await looked_at(world, "free")
        await looked_at(world, "gone")
        assert world.cluster.writes == []

    play(scenario)


def test_a_claim_that_is_reserved_is_left_to_the_controller_manager() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0", **reserved("gone"))
        await looked_at(world)
        assert world.allocated("c") == ["c"]

    play(scenario)


def test_a_claim_that_is_being_deleted_is_left_to_the_controller_manager() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        world.cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": DELETED}, key("c").namespace)
        await looked_at(world)
        assert world.allocated("c") == ["c"]

    play(scenario)


def test_a_claim_whose_allocation_is_still_being_written_is_looked_at_again_later() -> None:
    """The API server has the allocation, and its answer was lost."""

    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        await world.seen()
        world.assume("c", "n1/gpu-0")
        await asyncio.sleep(2 * world.timings.unused)
        await world.due(world.wakeups.unused)
        await looked_at(world)
        assert world.allocated("c") == ["c"]
        assert await world.due(world.wakeups.unused) == []
        await asyncio.sleep(world.timings.unused)
        assert await world.due(world.wakeups.unused) == ["c"]

    play(scenario)


def test_a_claim_that_no_pod_uses_is_deallocated_although_its_pool_is_kube_schedulers_by_now() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n3/gpu-0")
        await looked_at(world)
        assert world.allocated("c") == []

    play(scenario)


def test_a_claim_of_another_driver_is_not_looked_at_again() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/nic-0", driver=OTHER)
        await looked_at(world)
        assert world.allocated("c") == ["c"]
        assert world.wakeups.unused_later == set()

    play(scenario)


def test_a_claim_of_a_pool_that_changes_hands_is_looked_at_again_when_something_changes() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        world.block("n1")
        await looked_at(world)
        assert world.allocated("c") == ["c"]
        assert world.wakeups.unused_later == {key("c")}

    play(scenario)
