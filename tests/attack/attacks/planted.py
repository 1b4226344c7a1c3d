"""Violations that the suite itself commits: each must be found, or its bar cannot fail (``--planted``)."""

from __future__ import annotations

import asyncio
import os
import signal

import attack_objects as objects
from attack_api import path_of
from attack_objects import claim
from attack_world import TENANT, AttackedCluster, planted


@planted("devices in two claims")
async def planted_double_allocation(world: AttackedCluster) -> None:
    """Write the allocation of an honest claim into another one, and take it away again."""
    world.strike()
    made = claim("double", TENANT, objects.devices())
    await world.create([made])
    for _ in range(200):
        await asyncio.sleep(0.05)
        for honest in await world.api.items("ResourceClaim"):
            allocation = (honest.get("status") or {}).get("allocation")
            if allocation and honest["metadata"]["namespace"] != TENANT:
                await world.api.patch(f"{path_of(made)}/status", {"status": {"allocation": allocation}})
                await world.api.patch(f"{path_of(made)}/status", {"status": {"allocation": None}})
                return


async def _stop_for(world: AttackedCluster, seconds: float) -> None:
    """Stop the leader without telling the suite."""
    leader = await world.controllers.leader()
    world.strike()
    await asyncio.sleep(0.5)
    os.kill(leader.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(leader.pid, signal.SIGCONT)


@planted("longest lag")
async def planted_long_lag(world: AttackedCluster) -> None:
    """Stop the leader for 400 ms."""
    await _stop_for(world, 0.4)


@planted("lag p99.9")
async def planted_lag(world: AttackedCluster) -> None:
    """Stop the leader for a tenth of a second, ten times."""
    for _ in range(10):
        await _stop_for(world, 0.1)


@planted("probe")
async def planted_late_probe(world: AttackedCluster) -> None:
    """Stop the leader for a second, so that no probe is answered."""
    await _stop_for(world, 1.0)


@planted("review")
async def planted_late_review(world: AttackedCluster) -> None:
    """Stop the leader for two seconds, so that no review is answered."""
    await _stop_for(world, 2.0)


@planted("worst")
async def planted_slow_claim(world: AttackedCluster) -> None:
    """Stop the leader for four seconds, so that honest claims wait for more than three."""
    await _stop_for(world, 4.0)


@planted("restarts")
async def planted_restart(world: AttackedCluster) -> None:
    """Kill the replica that stands by without telling the suite."""
    leader = await world.controllers.leader()
    other = next(r for r in world.controllers.replicas if r is not leader)
    world.strike()
    await asyncio.sleep(0.5)
    os.kill(other.pid, signal.SIGKILL)


@planted("the API took nothing of it")
async def planted_harmless_attack(world: AttackedCluster) -> None:
    """Create what the API refuses."""
    await world.submit(claim("refused", TENANT, objects.selected("this is no CEL")))
