"""The controller measures how late its event loop is."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time

from controller.observe.event_loop import measuring_lag
from controller.observe.metrics import Metrics


def test_what_computes_in_the_loop_shows_as_delay() -> None:
    delays: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualTimeLoop)
        async with measuring_lag(delays.append):
            await asyncio.sleep(0.1)
            assert delays
            assert max(delays) < 0.001
            loop.compute(0.3)
            await asyncio.sleep(0.1)

    virtual_time.run(main())
    assert max(delays) == pytest.approx(0.3, abs=0.011)
    assert sum(delay > 0.001 for delay in delays) == 1


def test_delays_are_counted_and_the_longest_is_kept() -> None:
    metrics = Metrics()
    for delay in (0.002, 0.26, 0.04):
        metrics.observe_loop_lag(delay)
    text = metrics.text().decode()
    name = "dra_driver_controller_event_loop_lag"
    assert f'{name}_seconds_bucket{{le="0.05"}} 2.0' in text
    assert f'{name}_seconds_bucket{{le="0.25"}} 2.0' in text
    assert f"{name}_seconds_count 3.0" in text
    assert f"{name}_max_seconds 0.26" in text
