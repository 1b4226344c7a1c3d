"""Eight GPUs are held by pods of low priority, and one of high priority comes; the controller is killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.cli import status
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim


def low(name: str, **labels: str) -> dict[str, Any]:
    body: dict[str, Any] = support.gpu_pod(name, command="sleep 600")
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **labels}
    return body


def high(name: str, claim: str) -> dict[str, Any]:
    body: dict[str, Any] = support.gpu_pod(name, claim=claim)
    body["spec"]["priority"] = 1000
    return body


async def full(cluster: EmbeddedCluster) -> None:
    """Have eight pods hold the eight GPUs, of which a budget keeps two."""
    await support.apply(cluster, support.TEMPLATE)
    for i in range(8):
        await support.apply(cluster, low(f"low-{i}", **({"app": "kept"} if i < 2 else {})))
    for i in range(8):
        await support.phase(cluster, f"low-{i}", "Running")
    budget = {
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "kept"}}},
    }
    await cluster.api.create(POD_DISRUPTION_BUDGETS, budget, "default")


async def left(cluster: EmbeddedCluster) -> set[str]:
    pods = (await cluster.api.list(PODS, "default")).items
    return {p.metadata.name for p in pods if p.metadata.deletion_timestamp is None}


def test_a_pod_of_high_priority_gets_room_although_the_controller_is_killed() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await full(cluster)
        await support.apply(cluster, support.claim("six", 6), high("high", "six"))

        async def begun() -> bool:
            events = (await cluster.api.list(EVENTS, "default")).items
            return any(e.reason == "Preempted" for e in events)

        await cluster.wait_for("the first pod to be removed", begun)
        assert cluster.controller.pid is not None
        os.kill(cluster.controller.pid, signal.SIGKILL)
        await cluster.controller.stop()
        await cluster.start_process(cluster.controller)
        await support.phase(cluster, "high", "Running")
        assert await left(cluster) == {"low-0", "low-1", "high"}

    flags = ("--preemption=on", "--preemption-rate=100")
    support.run(scenario, support.config("dgx-h100", controller_flags=flags), seconds=180)


@pytest.mark.long
def test_in_a_dry_run_it_is_said_who_would_be_removed() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await full(cluster)
        await support.apply(cluster, support.claim("one", 1), high("high", "one"))

        async def shown() -> bool:
            rows = (await status.look(cluster.api, [DEFAULT_DRIVER_NAME])).preemptions
            return [(row.pod, row.state, len(row.victims)) for row in rows] == [
                ("default/high", "WouldPreempt", 1)
            ]

        await cluster.wait_for("status to say it", shown)
        (event,) = [
            e for e in (await cluster.api.list(EVENTS, "default")).items if e.reason == "WouldPreempt"
        ]
        assert event.message.startswith("would preempt low-")
        assert len(await left(cluster)) == 9

    support.run(scenario, support.config("dgx-h100"), seconds=180)
