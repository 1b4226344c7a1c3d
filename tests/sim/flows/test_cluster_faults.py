"""The embedded cluster under faults: pods come to run, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest
from cluster_support import TEMPLATE, apply, config, delete, gone, gpu_pod, no_claims, phase, run

from dra_driver.errors import ConfigurationError
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.faults import parse as parse_faults

pytestmark = [pytest.mark.sim, pytest.mark.slow]

EVERYTHING = """
error 429 15%
lose 10% on update,patch
latency 5ms..40ms 50%
drop watches every 500ms until 3s
expire watches at 1200ms
kill controller at 200ms for 400ms
kill kubelet node1 at 300ms for 300ms
kill plugin node1 at 900ms for 500ms
kill apiserver at 1600ms for 300ms
clock +90s at 1s
seed 5
"""


async def a_pod_runs_and_goes(cluster: EmbeddedCluster) -> None:
    await phase(cluster, "p", "Running")
    await delete(cluster, "p")
    await gone(cluster, "p")
    await no_claims(cluster)

    async def clean() -> bool:
        return not cluster.nodes["node1"].leftovers()

    await cluster.wait_for("a clean node", clean)


def test_a_pod_gets_its_device_whatever_happens() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await apply(cluster, TEMPLATE, gpu_pod("p"))
        cluster.inject(parse_faults(EVERYTHING))
        await asyncio.sleep(3.2)
        cluster.server.set_faults(None)
        await a_pod_runs_and_goes(cluster)

    run(scenario)


@pytest.mark.long
def test_a_full_disk_delays_a_pod_but_kills_nobody() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        node = cluster.nodes["node1"]
        cluster.inject(parse_faults("fulldisk node1"))
        await asyncio.sleep(0.1)
        await apply(cluster, TEMPLATE, gpu_pod("p"))
        await asyncio.sleep(1.0)
        assert (await phase(cluster, "p", "Pending")).status.phase == "Pending"
        node.plugin.limit_file_size(None)
        await a_pod_runs_and_goes(cluster)

    run(scenario)


def test_plans_for_what_is_not_there_are_refused() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        for text, says in (
            ("kill plugin node9 at 1s", "no such node; there are node1"),
            ("fulldisk node9", "no such node"),
            ("kill controller", "runs no controller"),
        ):
            with pytest.raises(ConfigurationError, match=says):
                cluster.inject(parse_faults(text))

    async def main() -> None:
        async with EmbeddedCluster(config(run_controller=False)) as cluster:
            await scenario(cluster)

    asyncio.run(main())
