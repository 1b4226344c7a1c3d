"""The kills of the crash test: at every step, at every pair of steps, under load."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from crash_load import Load, one_at_a_time, rolling
from crash_script import SCRIPT, Step, play
from crash_world import World
from faults import Plan

ERRORS = ("ENOSPC", "EIO", "EROFS")
# How many steps in a row fail, and where: a moment, a while, a directory that became read-only.
PATTERNS = ((1, ""), (3, ""), (12, ""), (25, "cdi"), (25, "state"), (25, "gpu"), (25, "metadata"))

Run = Callable[[World], Awaitable[None]]
# A script, the steps of an undisturbed life, and how many a restart takes at most.
Counted = tuple[Sequence[Step], list[str], int]


def matrix(scripts: Sequence[Counted], kills: int, seed: int) -> list[tuple[str, Run]]:
    """All runs: every step, every pair of step and step of the restart, torn writes, errors, load."""
    chance = random.Random(seed)
    runs: list[tuple[str, Run]] = []
    for counted in scripts:
        runs += disturbed(counted, kills // len(scripts), chance)
    chance.shuffle(runs)
    each = 25 if kills > 200 else 5 if kills > 20 else 2
    for i in range(max(2, kills * 45 // 100 // each)):
        killer = rolling if i % 3 == 1 else one_at_a_time
        hardware = i % 2 == 0
        name = f"{killer.__name__} {i}{' with hardware' if hardware else ''}"
        load = partial(under_load, seed=seed + i, killer=partial(killer, kills=each), hardware=hardware)
        runs.append((name, load))
    return runs


def disturbed(counted: Counted, kills: int, chance: random.Random) -> list[tuple[str, Run]]:
    """The runs of one script."""
    script, steps, restart = counted
    n = len(steps)
    runs: list[tuple[str, Run]] = []
    of = "" if script is SCRIPT else "with hardware: "

    def add(name: str, *plans: Plan) -> None:
        runs.append((of + name, lambda world: play(world, plans, script=script)))

    for k in range(n):
        add(f"kill at {k}", Plan(kill_at=k))
        if steps[k].endswith("write"):
            add(f"torn write at {k}", Plan(kill_at=k, torn=True))
        if script is SCRIPT or k % 3 == 0:
            fails = partial(play, plans=(Plan(kill_at=k),), power=random.Random(k), script=script)
            runs.append((f"{of}power failure at {k}", fails))
    nested = [(k, j) for k in range(1, n) for j in range(restart)]
    chance.shuffle(nested)
    for k, j in nested[: max(0, kills * 4 // 10 // 2)]:
        add(f"kill at {k}, then at {j}", Plan(kill_at=k), Plan(kill_at=j))
    faulty = [(e, k, count, where) for e in ERRORS for k in range(n) for count, where in PATTERNS]
    chance.shuffle(faulty)
    for error, k, count, where in faulty[: max(4, kills // 8)]:
        plan = Plan(error=error, error_at=k, error_count=count, read_only=where)
        add(f"{error} at {k}+{count} {where}", plan)
        later = k + chance.randrange(1, 12)
        kill = Plan(error=error, error_at=k, error_count=count, read_only=where, kill_at=later)
        add(f"{error} at {k}+{count} {where}, kill at {later}", kill)
    return runs


async def under_load(
    world: World, seed: int, killer: Callable[[Load], Awaitable[None]], *, hardware: bool
) -> None:
    """One run of ``Load``."""
    await Load(world, seed, hardware=hardware).run(killer)
