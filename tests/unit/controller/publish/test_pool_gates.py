"""What the allocator is told about pools that change hands and pools whose devices change form."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import builders
import virtual_time
from fake_client import FakeClient

from controller.publish.gates import PoolGates
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID
from dra_driver.publishing.handover import Handover, HandoverEffect, HandoverState

POOL = PoolID(DriverName("gpu.example.com"), PoolName("n1"))


def test_a_pool_is_blocked_for_as_long_as_any_reason_holds() -> None:
    told: list[tuple[PoolID, bool]] = []
    cluster = FakeClient()

    async def scenario() -> None:
        gates = PoolGates(
            virtual_time.LoopClock(),
            inventories=Informer(cluster, DEVICE_INVENTORIES),
            slices=Informer(cluster, RESOURCE_SLICES),
            changed=lambda pool, blocked: told.append((pool, blocked)),
        )
        gates.begin(POOL)
        gates.hand_over(POOL, Handover(HandoverState.YIELDING), (HandoverEffect.BLOCK,))
        gates.end(POOL)
        assert gates.blocked(POOL)
        gates.hand_over(POOL, Handover(HandoverState.CONTROLLER), (HandoverEffect.UNBLOCK,))
        assert not gates.blocked(POOL)

    asyncio.run(scenario())
    assert told[0] == (POOL, True)
    assert told[-1] == (POOL, False)
    assert {blocked for _, blocked in told[:-1]} == {True}


@contextlib.asynccontextmanager
async def following(cluster: FakeClient, told: list[tuple[str, bool]]) -> AsyncIterator[PoolGates]:
    """Gates whose informers are running."""
    inventories, slices = Informer(cluster, DEVICE_INVENTORIES), Informer(cluster, RESOURCE_SLICES)
    gates = PoolGates(
        virtual_time.LoopClock(),
        inventories=inventories,
        slices=slices,
        changed=lambda pool, blocked: told.append((pool.pool, blocked)),
    )
    tasks = [asyncio.create_task(informer.run()) for informer in (inventories, slices)]
    await asyncio.sleep(1)
    try:
        yield gates
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def inventory(allocator: str) -> dict[str, Any]:
    made = builders.inventory(POOL.pool, driver=POOL.driver)
    made["status"]["publication"] = {"allocator": allocator}
    return made


def test_what_is_noted_of_a_pool_counts_at_once_and_is_forgotten_with_its_inventory() -> None:
    cluster, told = FakeClient(), list[tuple[str, bool]]()
    cluster.put(DEVICE_INVENTORIES, inventory("scheduler"))

    async def scenario() -> None:
        async with following(cluster, told) as gates:
            assert told == [("n1", True)]
            assert gates.handover(POOL).state is HandoverState.SCHEDULER
            cluster.remove(DEVICE_INVENTORIES, inventory_name(POOL.pool, POOL.driver))
            await asyncio.sleep(1)
            assert told == [("n1", True), ("n1", False)]
            assert not gates._handovers

    virtual_time.run(scenario())


def test_a_pool_whose_inventory_is_deleted_is_frozen_no_more() -> None:
    """Nothing is published of it any more, so that nothing else would open it."""
    cluster, told = FakeClient(), list[tuple[str, bool]]()
    cluster.put(DEVICE_INVENTORIES, inventory("controller"))

    async def scenario() -> None:
        async with following(cluster, told) as gates:
            gates.begin(POOL)
            assert told == [("n1", True)]
            cluster.remove(DEVICE_INVENTORIES, inventory_name(POOL.pool, POOL.driver))
            await asyncio.sleep(1)
            assert told == [("n1", True), ("n1", False)]
            assert not gates._freezes

    virtual_time.run(scenario())


def test_only_what_concerns_the_allocator_is_reported_to_it() -> None:
    cluster, told = FakeClient(), list[tuple[str, bool]]()

    async def scenario() -> None:
        async with following(cluster, told) as gates:
            gates.end(POOL)
            gates.hand_over(POOL, Handover(HandoverState.DRAINING), (HandoverEffect.READ_CLAIMS,))
            assert told == []
            effects = (HandoverEffect.READ_CLAIMS, HandoverEffect.UNBLOCK)
            gates.hand_over(POOL, Handover(HandoverState.CONTROLLER), effects)
            assert told == [("n1", False)]

    virtual_time.run(scenario())


def test_one_event_opens_every_pool_that_waited_for_it() -> None:
    cluster, told = FakeClient(), list[tuple[str, bool]]()
    pools = [POOL, POOL._replace(pool=PoolName("n2"))]

    async def scenario() -> None:
        async with following(cluster, told) as gates:
            cluster.quiet.add(RESOURCE_SLICES.kind)
            for pool in pools:
                gates.begin(pool)
                body = builders.resource_slice(pool.pool, driver=pool.driver, name=pool.pool)
                cluster.put(RESOURCE_SLICES, body)
                gates.wrote(cluster.obj(RESOURCE_SLICES, pool.pool))
                gates.end(pool)
            assert all(map(gates.blocked, pools))
            cluster.expire()
            cluster.quiet.clear()
            cluster.wake()
            cluster.put(RESOURCE_SLICES, builders.resource_slice("another"))
            await asyncio.sleep(5)
            assert not any(map(gates.blocked, pools))

    virtual_time.run(scenario())


def test_a_slice_that_is_wiped_before_it_was_seen_keeps_no_pool_frozen() -> None:
    cluster = FakeClient()

    async def scenario() -> None:
        slices = Informer(cluster, RESOURCE_SLICES)
        inventories = Informer(cluster, DEVICE_INVENTORIES)
        gates = PoolGates(virtual_time.LoopClock(), inventories=inventories, slices=slices)
        task = asyncio.create_task(slices.run())
        await slices.synced.wait()
        await asyncio.sleep(1)
        cluster.quiet.add(RESOURCE_SLICES.kind)
        gates.begin(POOL)
        for i in range(2):
            body = builders.resource_slice(POOL.pool, driver=POOL.driver, name=f"slice-{i}")
            cluster.put(RESOURCE_SLICES, body)
            gates.wrote(cluster.obj(RESOURCE_SLICES, body["metadata"]["name"]))
            cluster.remove(RESOURCE_SLICES, body["metadata"]["name"])
        gates.end(POOL)
        # The watch comes back, and no event tells of the two.
        cluster.expire()
        cluster.quiet.clear()
        cluster.wake()
        await asyncio.sleep(5)
        assert not slices.items()
        assert gates.blocked(POOL)
        cluster.put(RESOURCE_SLICES, builders.resource_slice("another"))
        await asyncio.sleep(5)
        assert not gates.blocked(POOL)
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(scenario())
