"""Reboots: every process ends, nothing of what was set up is left, and devices have other numbers."""

from __future__ import annotations

import random

from crash_script import Life, populate, script_of
from crash_world import CrashedNode

from scenarios.kills import plans


async def with_other_numbers(world: CrashedNode, chance: random.Random) -> None:
    """Reboot in the middle of steps, between them, and while the node comes up from the last reboot.

    Each boot has another boot ID, other numbers of the devices, another driver with another set of files, and
    an empty CDI directory, or one that holds some of what it held. The toolkit's document is of this driver,
    of the one before, or not there.
    """
    populate(world)
    life = Life(world, plans(chance, 4), reboots=chance)
    await life.begin()
    for step in script_of(world, chance):
        if chance.random() < 0.15:
            await life.restart()
        await life.do(step)
    await life.finish()
