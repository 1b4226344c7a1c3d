"""What the controller counts, as Prometheus reads it."""

from __future__ import annotations

import asyncio

import aiohttp
from controller_harness import OURS, Harness, claim, cluster_of, inline, nothing, pod, request, run
from fake_client import FakeClient

from controller.app import Controller
from controller.config import ControllerConfig


def test_metrics_are_served_beside_health() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    claim(cluster, "d", request(count=9))
    pod(cluster, "q", "d")

    async def main() -> str:
        config = ControllerConfig(drivers=(OURS,), leader_elect=False, health_port=0)
        controller = Controller(cluster, config, answers_of=inline)
        task = asyncio.create_task(controller.run())
        try:
            async with asyncio.timeout(60):
                await controller.ready.wait()
                assert controller.health_address is not None
                host, port = controller.health_address
                async with aiohttp.ClientSession() as session:
                    text = ""
                    while 'allocations_total{outcome="allocated"} 1.0' not in text:
                        await asyncio.sleep(0.05)
                        async with session.get(f"http://{host}:{port}/metrics") as response:
                            assert response.headers["Content-Type"].startswith("text/plain")
                            text = await response.text()
        finally:
            task.cancel()
            await asyncio.wait([task])
        return text

    text = asyncio.run(main())
    prefix = "dra_driver_controller_"
    assert f'{prefix}allocations_total{{outcome="refused"}}' in text
    assert f'{prefix}api_calls_total{{code="200",resource="resourceclaims",verb="patch"}} 2.0' in text
    assert f'{prefix}queue_depth{{queue="allocator"}} 0.0' in text
    assert f"{prefix}allocation_seconds_count 1.0" in text
    assert f"{prefix}leader 1.0" in text
    assert f'{prefix}event_loop_lag_seconds_bucket{{le="0.05"}}' in text


def test_a_cluster_without_work_costs_no_calls() -> None:
    cluster = FakeClient()

    async def scenario(h: Harness) -> None:
        assert cluster.writes == []

    run(cluster, scenario)
    run(cluster, nothing)
