"""Devices of which shares have just changed hands are not lent yet."""

from __future__ import annotations

import asyncio

import builders
import virtual_time
from builders import DRIVER, NAMESPACE
from fake_client import FakeClient

from controller.allocate.lending import RecentShares
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID

POOL = PoolID(DRIVER, PoolName("n1"))
SHARE = "0b0e0c5e-5a3f-4b3f-9d65-0d4e1c5b8f2a"


def test_a_device_rests_for_two_seconds_after_each_change_of_a_share() -> None:
    async def scenario() -> None:
        cluster = FakeClient()
        claims = Informer(cluster, RESOURCE_CLAIMS)
        shares = RecentShares(claims, virtual_time.LoopClock())
        task = asyncio.create_task(claims.run())
        try:
            await claims.synced.wait()
            results = (builders.result("n1", "gpu-0", shareID=SHARE), builders.result("n1", "gpu-1"))
            cluster.put(RESOURCE_CLAIMS, builders.claim("c", status=builders.allocation(*results)))
            await asyncio.sleep(0.5)
            assert shares.left(POOL, "gpu-0") == 1.5
            assert not shares.left(POOL, "gpu-1"), "it is held as a whole"
            # Another version of the claim, with the same allocation.
            cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"a": "b"}}}, NAMESPACE)
            await asyncio.sleep(1.5)
            assert not shares.left(POOL, "gpu-0")
            cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"allocation": None}}, NAMESPACE)
            await asyncio.sleep(0.5)
            assert shares.left(POOL, "gpu-0") == 1.5
        finally:
            task.cancel()

    virtual_time.run(scenario())
