"""What the page says beside a pod that waits, carried out on the embedded cluster: the pod then runs."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
import cluster_support as support
import pytest

from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = [pytest.mark.sim, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def running(cluster: EmbeddedCluster, name: str, count: int) -> None:
    await support.apply(cluster, support.claim(name, count), support.gpu_pod(name, claim=name))
    await support.phase(cluster, name, "Running")


def test_freeing_the_holder_that_the_page_names_makes_the_pod_run() -> None:
    port = free_port()

    async def plan(cluster: EmbeddedCluster, session: aiohttp.ClientSession, name: str) -> dict[str, Any]:
        async def answered() -> dict[str, Any] | None:
            async with session.get("/fleet/plan", params={"pod": f"default/{name}"}) as response:
                found: dict[str, Any] = await response.json()
                return found if response.status == 200 else None

        found = await cluster.wait_for(f"the plan for {name}", answered)
        answer: dict[str, Any] = found["plan"]
        return answer

    async def scenario(cluster: EmbeddedCluster) -> None:
        for name, count in (("small", 1), ("big", 3)):
            await running(cluster, name, count)
        await support.apply(cluster, support.claim("wants", 2), support.gpu_pod("wants", claim="wants"))
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            answer = await plan(cluster, session, "wants")
            assert not answer["fits"], answer
            (holder,) = answer["free"]["holders"]
            assert (holder["name"], answer["free"]["proven"]) == ("default/big", True)
            (more,) = answer["addNodes"]
            assert more["number"] == 1
            await support.delete(cluster, "big")
            pod = await support.phase(cluster, "wants", "Running")
            assert pod.spec.node_name == answer["free"]["placement"][0]["node"]
            # It does not wait any more.
            async with session.get("/fleet/plan", params={"pod": "default/wants"}) as response:
                assert response.status == 404

    flags = ("--web-port", str(port))
    support.run(scenario, support.config("l4x4", controller_flags=flags))
