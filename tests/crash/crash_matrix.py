"""The kills of the crash test: at every step, at every pair of steps, under load."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crash_load import Load, one_at_a_time, rolling
from crash_script import ACME_SCRIPT, GPU_SCRIPT, SCRIPT, Step, play
from crash_world import CrashedNode
from faults import Plan
from machines import Machine
from machines.acme import AcmeMachine
from machines.simulated import SimulatedMachine

ERRORS = ("ENOSPC", "EIO", "EROFS")
# How many steps in a row fail, and where: a moment, a while, a directory that became read-only.
PATTERNS = ((1, ""), (3, ""), (12, ""), (25, "cdi"), (25, "state"), (25, "gpu"), (25, "metadata"))
BACKEND = (25, "backend")


@dataclass(frozen=True)
class Script:
    """What is played with kills at every step of it.

    Attributes:
        of: of which hardware, for the names of its runs.
    """

    of: str
    steps: Sequence[Step]
    hardware: Callable[[Path, str], Machine]


SCRIPTS = (
    Script("plain", SCRIPT, SimulatedMachine),
    Script("with hardware", GPU_SCRIPT, SimulatedMachine),
    Script("of a third party", ACME_SCRIPT, AcmeMachine),
)


@dataclass(frozen=True)
class Disturbed:
    """One run of the matrix, on this hardware."""

    name: str
    play: Callable[[CrashedNode], Awaitable[None]]
    hardware: Callable[[Path, str], Machine] = SimulatedMachine


# A script, the steps of an undisturbed life, and how many a restart takes at most.
Counted = tuple[Script, list[str], int]


def matrix(scripts: Sequence[Counted], kills: int, seed: int) -> list[Disturbed]:
    """All runs: every step, every pair of step and step of the restart, torn writes, errors, load."""
    chance = random.Random(seed)
    runs: list[Disturbed] = []
    for counted in scripts:
        runs += disturbed(counted, kills // len(scripts), chance)
    chance.shuffle(runs)
    each = 25 if kills > 200 else 5 if kills > 20 else 2
    pairs = 100 if kills > 20 else 2
    for i in range(max(2, kills * 45 // 100 // each)):
        killer = rolling if i % 3 == 1 else one_at_a_time
        hardware = i % 2 == 0
        name = f"{killer.__name__} {i}{' with hardware' if hardware else ''}"
        killing = partial(killer, kills=each)
        load = partial(under_load, seed=seed + i, killer=killing, hardware=hardware, pairs=pairs)
        runs.append(Disturbed(name, load))
    return runs


def disturbed(counted: Counted, kills: int, chance: random.Random) -> list[Disturbed]:
    """The runs of one script."""
    script, steps, restart = counted
    n = len(steps)
    runs: list[Disturbed] = []
    patterns = (*PATTERNS, BACKEND) if script.hardware is AcmeMachine else PATTERNS

    def add(name: str, *plans: Plan, power: random.Random | None = None) -> None:
        played = partial(play, plans=plans, power=power, script=script.steps)
        runs.append(Disturbed(f"{script.of}: {name}", played, script.hardware))

    for k in range(n):
        add(f"kill at {k}", Plan(kill_at=k))
        if steps[k].endswith("write"):
            add(f"torn write at {k}", Plan(kill_at=k, torn=True))
        if script.hardware is not SimulatedMachine or script.steps is SCRIPT or k % 3 == 0:
            add(f"power failure at {k}", Plan(kill_at=k), power=random.Random(k))
    nested = [(k, j) for k in range(1, n) for j in range(restart)]
    chance.shuffle(nested)
    for k, j in nested[: max(0, kills * 4 // 10 // 2)]:
        add(f"kill at {k}, then at {j}", Plan(kill_at=k), Plan(kill_at=j))
    faulty = [(e, k, count, where) for e in ERRORS for k in range(n) for count, where in patterns]
    chance.shuffle(faulty)
    for error, k, count, where in faulty[: max(4, kills // 8)]:
        plan = Plan(error=error, error_at=k, error_count=count, read_only=where)
        add(f"{error} at {k}+{count} {where}", plan)
        later = k + chance.randrange(1, 12)
        kill = Plan(error=error, error_at=k, error_count=count, read_only=where, kill_at=later)
        add(f"{error} at {k}+{count} {where}, kill at {later}", kill)
    return runs


async def under_load(
    world: CrashedNode, seed: int, killer: Callable[[Load], Awaitable[None]], *, hardware: bool, pairs: int
) -> None:
    """One run of ``Load``."""
    await Load(world, seed, hardware=hardware, pairs=pairs).run(killer)
