"""What the process that reviews is told about requests for capacity."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import virtual_time
from builders import DRIVER
from fake_client import FakeClient

from controller.admission.capacity import PROBE_SECONDS, follow_capacity
from controller.admission.wire import Capacity
from dra_driver.errors import ApiUnavailable, Forbidden


def gate_off(body: dict[str, Any]) -> None:
    """Do as an API server without DRAConsumableCapacity."""
    for device in body.get("spec", {}).get("devices", ()):
        device.pop("allowMultipleAllocations", None)


@pytest.mark.parametrize("error", [Forbidden("no", code=403), ApiUnavailable("down")])
def test_what_the_api_server_keeps_is_told_when_it_is_known_and_when_it_changes(error: Exception) -> None:
    cluster = FakeClient()
    told: list[bool] = []

    def refuse(*_: str) -> None:
        raise error

    def tell(message: Capacity) -> None:
        told.append(message.kept)

    async def main() -> None:
        cluster.before = refuse
        following = asyncio.create_task(follow_capacity(cluster, DRIVER, tell))
        await asyncio.sleep(3 * PROBE_SECONDS)
        assert told == []  # it is refused
        cluster.before = lambda *_: None
        await asyncio.sleep(PROBE_SECONDS)
        assert told == [True]
        cluster.strip = gate_off
        await asyncio.sleep(PROBE_SECONDS)
        assert told == [True, False]
        cluster.strip, cluster.before = None, refuse
        await asyncio.sleep(3 * PROBE_SECONDS)
        assert told == [True, False]  # what was found last counts
        cluster.before = lambda *_: None
        await asyncio.sleep(PROBE_SECONDS)
        assert told == [True, False, True]
        assert not cluster.writes
        following.cancel()
        await asyncio.wait([following])

    virtual_time.run(main())
