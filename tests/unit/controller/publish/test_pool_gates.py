"""What the allocator is told about pools that change hands and pools whose devices change form."""

from __future__ import annotations

import asyncio

import builders
import virtual_time
from fake_client import FakeClient

from controller.publish.gates import PoolGates
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
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
