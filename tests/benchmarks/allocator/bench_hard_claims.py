"""Honest pods beside claims that are made to be hard, on the embedded cluster: from created to running.

The baseline is the same cluster and the same pods without the hard claims, in the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from hostile_claims import attacks

from dra_driver.sim.cluster import EmbeddedCluster

sys.path[:0] = [str(Path(__file__).parents[2] / "sim")]

import cluster_support as support  # noqa: E402 - of the tests of the embedded cluster

Row = dict[str, Any]
NODES = 10
PODS = 20


async def _pods(cluster: EmbeddedCluster, prefix: str) -> list[float]:
    """Seconds from the creation of each pod to its start; the devices of every other one are freed again."""
    seconds = []
    for i in range(PODS):
        name = f"{prefix}-{i}"
        started = time.monotonic()
        await support.apply(cluster, support.claim(name, 1 + i % 4), support.gpu_pod(name, claim=name))
        await support.phase(cluster, name, "Running")
        seconds.append(time.monotonic() - started)
        if i % 2:
            await support.delete(cluster, name)
    return seconds


def run() -> list[Row]:
    """Rows of this benchmark."""
    alone: list[float] = []
    beside: list[float] = []

    async def scenario(cluster: EmbeddedCluster) -> None:
        alone.extend(await _pods(cluster, "alone"))
        # All at once, so that the first honest pod comes while every one of them is new.
        async with asyncio.TaskGroup() as group:
            for manifests in attacks().values():
                group.create_task(support.apply(cluster, *manifests))
        beside.extend(await _pods(cluster, "beside"))

    support.run(scenario, support.config(*["dgx-h100"] * NODES), seconds=900)
    return [
        {
            "name": f"{what} honest pod beside {len(attacks())} kinds of hard claims, {NODES} nodes",
            "value": round(of(beside), 3),
            "unit": "s",
            "baseline": round(of(alone), 3),
            "baseline_of": "the same pods alone",
        }
        for what, of in (("slowest", max), ("median", statistics.median))
    ]
