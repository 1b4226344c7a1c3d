"""Jumps of the wall clock: a battery that is empty, time servers that are wrong and then right."""

from __future__ import annotations

import random

from crash_script import Life, populate, script_of
from crash_world import CrashedNode

from scenarios.kills import plans

_DAY = 86400.0
_JUMPS = (
    -20 * 365 * _DAY,
    -365 * _DAY,
    -_DAY,
    -3600.0,
    -30.0,
    -1.0,
    0.0,
    1.0,
    30.0,
    3600.0,
    _DAY,
    20 * 365 * _DAY,
)


async def jump(world: CrashedNode, chance: random.Random) -> None:
    """Set the clock back and forth between the kubelet's calls and while agents are down."""
    populate(world)
    life = Life(world, plans(chance, 4))
    await life.begin()
    for step in script_of(world, chance):
        if chance.random() < 0.6:
            world.figures.faults += 1
            (world.faults / "clock").write_text(str(chance.choice(_JUMPS)))
        if chance.random() < 0.1:
            await life.restart()
        await life.do(step)
    await life.finish()
