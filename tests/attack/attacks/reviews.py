"""Pods that send reviews to the webhooks, which are meant for the API server's alone."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from attack_world import AttackedCluster, attack

from dra_driver.sim.processes import spawn

_FLOOD = Path(__file__).parents[1] / "review_flood.py"


async def _flood(world: AttackedCluster, kind: str, pods: int, connections: int) -> None:
    """Let pods send reviews, each over some connections to each webhook port, until cancelled."""
    ports = [str(replica.webhook) for replica in world.controllers.replicas]
    process = await spawn((sys.executable, str(_FLOOD), kind, str(pods), str(connections), *ports), {})
    assert process.stdout is not None
    sent = 0
    try:
        async for line in process.stdout:
            sent = int(line)
            if sent:
                world.strike()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
        world.notes.append(f"{pods} pods have sent {sent}")
        if not sent:
            world.problems.append("nothing was sent")


@attack
async def floods_of_large_reviews(world: AttackedCluster) -> None:
    """Send reviews of four megabytes from eight pods, over four connections each to each webhook port."""
    await _flood(world, "large", 8, 4)


@attack
async def slow_reviews_of_many_pods(world: AttackedCluster) -> None:
    """Send reviews byte by byte from 60 pods, over four connections each to each webhook port."""
    await _flood(world, "slow", 60, 4)


@attack
async def half_handshakes_of_many_pods(world: AttackedCluster) -> None:
    """Begin handshakes from 100 pods, five each with each webhook port, and never go on."""
    await _flood(world, "handshake", 100, 5)
