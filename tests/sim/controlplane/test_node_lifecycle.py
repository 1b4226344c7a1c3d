"""Nodes that fall silent: taints, and the eviction of pods that do not bear them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
from apiserver_client import PODS, Client, pod

from dra_driver.kube import KubeApi
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.controlplane.node_lifecycle import NodeLifecycle

NODE = "/api/v1/nodes/n1"


def taints(node: dict[str, Any]) -> set[tuple[str, str]]:
    return {(t["key"].rpartition("/")[2], t["effect"]) for t in node["spec"].get("taints") or ()}


def ready(beat: int, status: str = "True") -> dict[str, Any]:
    heard = {"lastHeartbeatTime": f"2026-01-01T00:00:{beat:02}Z"}
    return {"status": {"conditions": [{"type": "Ready", "status": status, **heard}]}}


async def story(client: Client) -> None:
    own = {"key": "mine", "effect": "NoSchedule"}
    await client.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {"taints": [own]}})
    await client.patch(f"{NODE}/status", ready(0))
    brief = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    await client.create(PODS, pod("leaves", nodeName="n1", tolerations=[{**brief, "tolerationSeconds": 0}]))
    await client.create(PODS, pod("stays", nodeName="n1"))  # 300 s by default
    for beat in range(1, 8):  # longer than the grace period, but never silent
        await asyncio.sleep(0.1)
        await client.patch(f"{NODE}/status", ready(beat))
    assert taints((await client.get(NODE))[1]) == {("mine", "NoSchedule")}
    both = {("unreachable", "NoSchedule"), ("unreachable", "NoExecute"), ("mine", "NoSchedule")}
    while taints((await client.get(NODE))[1]) != both:
        await asyncio.sleep(0.02)
    assert (await client.get(NODE))[1]["status"]["conditions"][0]["status"] == "Unknown"
    while "deletionTimestamp" not in (await client.get(f"{PODS}/leaves"))[1]["metadata"]:
        await asyncio.sleep(0.02)
    assert "deletionTimestamp" not in (await client.get(f"{PODS}/stays"))[1]["metadata"]
    await client.patch(f"{NODE}/status", ready(30, "False"))
    while ("not-ready", "NoExecute") not in taints((await client.get(NODE))[1]):
        await asyncio.sleep(0.02)
    await client.patch(f"{NODE}/status", ready(31))
    while taints((await client.get(NODE))[1]) != {("mine", "NoSchedule")}:
        await asyncio.sleep(0.02)


def test_silence_taints_a_node_and_a_heartbeat_clears_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), ApiServer() as server, aiohttp.ClientSession() as session:
            server.write_kubeconfig(tmp_path / "kubeconfig")
            async with await KubeApi.connect(tmp_path / "kubeconfig") as api:
                task = asyncio.create_task(NodeLifecycle(api, grace=0.5, tick=0.05).run())
                try:
                    await story(Client(server, session))
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    asyncio.run(main())
