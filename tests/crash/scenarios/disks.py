"""Disks that refuse: a state directory that became read-only, a file system without inodes.

With root these are real mounts; otherwise the calls of the agent fail as they would there.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

import crash_mounts
from crash_script import Life, Step, gone, populate, script_of
from crash_world import CrashedNode


class Disk(Protocol):
    """A disk that can be made to refuse."""

    def begin(self) -> None:
        """Refuse from now on."""

    def end(self) -> None:
        """Be well again."""


class Injected:
    """A disk whose calls fail in the agent; implements ``Disk``.

    Args:
        file: see ``live_faults``.
        words: errno, folder, call.
    """

    def __init__(self, file: Path, words: str) -> None:
        self._file = file
        self._words = words

    def begin(self) -> None:
        self._file.write_text(self._words)

    def end(self) -> None:
        self._file.unlink()


async def read_only(world: CrashedNode, chance: random.Random) -> None:
    """Make the state directory read-only for a while, several times."""
    disk: Disk = Injected(world.faults / "disk", "EROFS state all")
    if crash_mounts.isolated():
        disk = crash_mounts.ReadOnly(world.state)
    await _refuse(world, chance, disk)


async def without_inodes(world: CrashedNode, chance: random.Random) -> None:
    """Use up the inodes of the state directory's file system for a while, several times."""
    if not crash_mounts.isolated():
        await _refuse(world, chance, Injected(world.faults / "disk", "ENOSPC state create"))
        return
    world.state.mkdir(mode=0o700, exist_ok=True)
    disk = crash_mounts.FewInodes(world.state)
    try:
        await _refuse(world, chance, disk)
    finally:
        disk.close()


async def _refuse(world: CrashedNode, chance: random.Random, disk: Disk) -> None:
    """Play a script; what is asked for while the disk refuses may fail, and is asked for again afterwards."""
    populate(world)
    life = Life(world)
    await life.begin()
    for step in script_of(world, chance):
        if chance.random() < 0.35:
            world.figures.faults += 1
            disk.begin()
            try:
                await _try(life, step, chance)
            finally:
                disk.end()
            if await gone(life.agent):
                await life.begin()
        await life.do(step)
    # What could not be removed while the disk refused is removed at the next start.
    await life.restart()
    await life.finish()


async def _try(life: Life, step: Step, chance: random.Random) -> None:
    world = life.world
    for _ in range(chance.randrange(1, 4)):
        if step.verb in ("prepare", "unprepare"):
            call = world.prepare if step.verb == "prepare" else world.unprepare
            await call(life.agent, world.claims[step.claim])
        if chance.random() < 0.3:
            await life.kill()
            await life.try_to_begin()
            if await gone(life.agent):
                return
