"""Kills at chosen steps, on hardware that the exhaustive part of the test does not have."""

from __future__ import annotations

import random

from crash_script import Life, populate, script_of
from crash_world import CrashedNode
from faults import Plan


async def at_steps(world: CrashedNode, chance: random.Random) -> None:
    """Kill agents at a dozen random steps, and at random moments between calls."""
    populate(world)
    life = Life(world, plans(chance, 12))
    await life.begin()
    for step in script_of(world, chance):
        if chance.random() < 0.2:
            await life.restart()
        await life.do(step)
    await life.finish()


def plans(chance: random.Random, number: int) -> list[Plan]:
    """Return so many lives that end at a random step, some of them in the middle of a write."""
    return [Plan(kill_at=chance.randrange(30), torn=chance.random() < 0.3) for _ in range(number)]
