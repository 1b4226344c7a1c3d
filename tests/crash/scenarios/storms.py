"""XID storms: a GPU that breaks down reports hundreds of errors a second."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator

from crash_script import Life, populate, script_of
from crash_world import CrashedNode
from machines.nvml import BUSES, NvmlMachine

from scenarios.kills import plans

# NVML's event type of an XID.
_XID = 8
# Of programs, of memory, of links, and GPUs that fall off the bus; one that nobody knows.
_NUMBERS = (13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 999)
_LINES = 200


async def of_xids(world: CrashedNode, chance: random.Random) -> None:
    """Report errors of all GPUs without end while claims come and go and agents are killed.

    Afterwards the inventory names what is wrong, and after a reboot nothing is.
    """
    machine = world.machine
    assert isinstance(machine, NvmlMachine)
    populate(world)
    life = Life(world, plans(chance, 3))
    await life.begin()
    storm = asyncio.create_task(_storm(world, machine, chance))
    try:
        for step in script_of(world, chance):
            await life.do(step)
            if chance.random() < 0.1:
                await life.restart()
    finally:
        storm.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await storm
    await world.eventually("no GPU of the inventory is unwell", lambda: any(_unwell(world)))
    await life.kill()
    for lines in machine.lines.values():
        lines.clear()
    world.reboot(chance)
    await life.begin()
    await world.eventually("GPUs are unwell after a reboot", lambda: not any(_unwell(world)))
    await life.finish()


async def _storm(world: CrashedNode, machine: NvmlMachine, chance: random.Random) -> None:
    for sequence in itertools.count(1):
        bus = chance.choice(BUSES)
        lines = machine.lines[bus]
        lines.append(f"event {sequence} {_XID} {chance.choice(_NUMBERS)}")
        del lines[:-_LINES]
        world.figures.faults += 1
        if sequence % 50 == 0:
            machine.write()
            await asyncio.sleep(0.02)


def _unwell(world: CrashedNode) -> Iterator[str]:
    for device in world.inventory().get("spec", {}).get("devices", ()):
        if device.get("health"):
            yield device["name"]
