"""Hardware that does not answer: calls of its library that do not return for a while."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from crash_script import Life, populate, script_of
from crash_world import CrashedNode


async def while_calls_come(world: CrashedNode, chance: random.Random) -> None:
    """Let the library hang while the kubelet calls; what was asked for happens once it does not any more.

    Half of the hangs end by themselves, the others by the end of the agent.
    """
    populate(world)
    hang = world.faults / "hang"
    life = Life(world)
    await life.begin()
    for step in script_of(world, chance):
        if chance.random() < 0.3:
            world.figures.faults += 1
            hang.touch()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(life.do(step))
                await asyncio.sleep(chance.random() * 1.5)
                if chance.random() < 0.5:
                    life.agent.kill()
                    await asyncio.sleep(chance.random() * 0.2)
                hang.unlink()
        else:
            await life.do(step)
    await _begin_while_it_hangs(life, hang)
    await life.finish()


async def until_the_end(world: CrashedNode, chance: random.Random) -> None:
    """Tell an agent to end (SIGTERM) while the library hangs; it ends within its pod's grace period."""
    populate(world)
    hang = world.faults / "hang"
    life = Life(world)
    await life.begin()
    for step in script_of(world, chance):
        if chance.random() < 0.1:
            world.figures.faults += 1
            hang.touch()
            # Time enough for a look at the hardware to begin.
            await asyncio.sleep(1.5)
            try:
                await world.stop(life.agent)
            finally:
                hang.unlink()
            await life.begin()
        await life.do(step)
    await life.finish()


async def _begin_while_it_hangs(life: Life, hang: Path) -> None:
    """Start an agent on hardware that hangs: what it knows from before must be served all the same."""
    life.world.figures.faults += 1
    await life.kill()
    hang.touch()
    await life.begin()
    hang.unlink()
