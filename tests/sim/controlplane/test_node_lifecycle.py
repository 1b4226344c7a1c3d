"""Nodes that fall silent: taints, and the eviction of pods that do not bear them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import virtual_time
from apiserver_client import pod
from fake_client import FakeClient

from dra_driver.api.core import NODES, PODS
from dra_driver.sim.controlplane.node_lifecycle import NodeLifecycle

NS = "default"
MINE = ("mine", "NoSchedule")


def taints(cluster: FakeClient) -> set[tuple[str, str]]:
    node = cluster.obj(NODES, "n1")
    return {(t.key.rpartition("/")[2], t.effect) for t in node.spec.taints}


def is_leaving(cluster: FakeClient, name: str) -> bool:
    found = cluster.find(PODS, name, NS)
    return found is None or "deletionTimestamp" in found["metadata"]


async def hear(cluster: FakeClient, beat: int, status: str = "True") -> None:
    heard = {"lastHeartbeatTime": f"2026-01-01T00:00:{beat:02}Z"}
    conditions = [{"type": "Ready", "status": status, **heard}]
    await cluster.merge_patch(NODES, "n1", {"status": {"conditions": conditions}}, subresource="status")


async def story(cluster: FakeClient) -> None:
    own = {"key": MINE[0], "effect": MINE[1]}
    await cluster.create(NODES, {"metadata": {"name": "n1"}, "spec": {"taints": [own]}})
    await hear(cluster, 0)
    brief: dict[str, Any] = {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}
    brief |= {"effect": "NoExecute", "tolerationSeconds": 0}
    await cluster.create(PODS, pod("leaves", nodeName="n1", tolerations=[brief]), NS)
    await cluster.create(PODS, pod("stays", nodeName="n1"), NS)  # 300 s by default
    for beat in range(1, 8):  # longer than the grace period, but never silent
        await asyncio.sleep(10.0)
        await hear(cluster, beat)
    await asyncio.sleep(45.0)
    assert taints(cluster) == {MINE}
    await asyncio.sleep(10.0)
    assert taints(cluster) == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute"), MINE}
    assert cluster.raw(NODES, "n1")["status"]["conditions"][0]["status"] == "Unknown"
    assert is_leaving(cluster, "leaves")
    assert not is_leaving(cluster, "stays")
    await hear(cluster, 30, "False")
    await asyncio.sleep(5.0)
    assert ("not-ready", "NoExecute") in taints(cluster)
    await hear(cluster, 31)
    await asyncio.sleep(5.0)
    assert taints(cluster) == {MINE}


def test_silence_taints_a_node_and_a_heartbeat_clears_it() -> None:
    async def main() -> None:
        cluster = FakeClient()
        task = asyncio.create_task(NodeLifecycle(cluster, clock=virtual_time.LoopClock()).run())
        try:
            await story(cluster)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    virtual_time.run(main())
