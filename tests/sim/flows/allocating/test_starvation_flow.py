"""A stream of small pods, and one that needs a whole node; the controller is killed meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal

import cluster_support as support
import pytest

from dra_driver.api.core import EVENTS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.cli import status
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim


class Stream:
    """Nine pods that run for a moment, on eight GPUs: whenever one ends, another one waits for its GPU."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count()
        self._tasks = [asyncio.create_task(self._one()) for _ in range(9)]

    async def _one(self) -> None:
        while True:
            name = f"small-{next(self._numbers)}"
            await support.apply(self._cluster, support.gpu_pod(name, command="sleep 3"))
            while (pod := await support.pod(self._cluster, name)) is None or pod.status.phase != "Succeeded":
                await asyncio.sleep(0.1)
            await support.delete(self._cluster, name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


@pytest.mark.long
def test_a_pod_that_needs_the_whole_node_runs_beside_a_stream_of_small_ones() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, support.TEMPLATE)
        stream = Stream(cluster)
        await support.phase(cluster, "small-8", "Running")
        await support.apply(cluster, support.claim("all", 8), support.gpu_pod("big", claim="all"))

        async def reported() -> bool:
            events = (await cluster.api.list(EVENTS, "default")).items
            return any(e.reason == "DevicesSetAside" for e in events)

        async def shown() -> bool:
            rows = (await status.look(cluster.api, [DEFAULT_DRIVER_NAME])).set_aside
            return [row.pod for row in rows] == ["default/big"] and "gpu-0" in rows[0].devices

        await cluster.wait_for("devices to be set aside", reported)
        await cluster.wait_for("status to show it", shown)
        assert cluster.controller.pid is not None
        os.kill(cluster.controller.pid, signal.SIGKILL)
        await cluster.controller.stop()
        await cluster.start_process(cluster.controller)
        await support.phase(cluster, "big", "Running")
        await support.delete(cluster, "big")
        await support.gone(cluster, "big")
        await stream.stop()

    flags = ("--starvation-timeout=1",)
    support.run(scenario, support.config("dgx-h100", controller_flags=flags))
