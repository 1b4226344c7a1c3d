"""A Lease that shows that a process works, where there is no election."""

from __future__ import annotations

import asyncio
from typing import Any

import virtual_time
from fake_client import FakeClient, unreachable
from virtual_time import LoopClock

from dra_driver.kube import LEASES, Heartbeat, LeaderConfig

CONFIG = LeaderConfig("system", "beat", "me_1")


def spec(cluster: FakeClient) -> dict[str, Any]:
    found: dict[str, Any] = cluster.raw(LEASES, "beat", "system")["spec"]
    return found


def test_it_is_renewed_while_the_process_works_and_released_at_its_end() -> None:
    cluster = FakeClient()

    async def main() -> None:
        async with Heartbeat(cluster, CONFIG, LoopClock()).beating():
            await asyncio.sleep(1)
            first = spec(cluster)
            assert (first["holderIdentity"], first["leaseDurationSeconds"]) == ("me_1", 15)
            await asyncio.sleep(4)
            assert spec(cluster)["renewTime"] > first["renewTime"]
        assert spec(cluster)["holderIdentity"] == ""

    virtual_time.run(main())


def test_an_api_server_that_is_away_does_not_end_it() -> None:
    cluster = FakeClient()

    async def main() -> None:
        async with Heartbeat(cluster, CONFIG, LoopClock()).beating():
            await asyncio.sleep(1)
            before, cluster.before = spec(cluster)["renewTime"], unreachable
            await asyncio.sleep(20)
            cluster.before = lambda *_: None
            assert spec(cluster)["renewTime"] == before
            await asyncio.sleep(4)
            assert spec(cluster)["renewTime"] > before

    virtual_time.run(main())
