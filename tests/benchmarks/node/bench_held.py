"""What a new claim costs on a node that holds 0, 100, 250 and 1,000 claims: prepare and unprepare together.

The claims that are held look on (admin access), so that sixteen devices suffice for all of them.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
from typing import Any

import bench_prepare
from bench_prepare import Agent, Row, running

HELD = (0, 100, 250, 1000)
ROUNDS = 60
AT_ONCE = 25


async def hold(agent: Agent, count: int) -> None:
    """Prepare so many claims more that stay."""
    while count > 0:
        claims = [agent.allocate(i % (bench_prepare.DEVICES - 1), adminAccess=True) for i in range(AT_ONCE)]
        some = claims[:count]
        await bench_prepare.side_by_side([functools.partial(agent.prepare, c) for c in some])
        count -= len(some)


async def one_life(agent: Agent) -> float:
    """Milliseconds of a prepare and an unprepare, p50."""
    times = []
    for _ in range(ROUNDS):
        claim = agent.allocate(bench_prepare.DEVICES - 1)
        times.append(await agent.prepare(claim) + await agent.unprepare(claim))
    return float(statistics.median(times))


async def measure() -> list[Row]:
    """All of it, on one agent."""
    found: dict[int, float] = {}
    async with running() as agent:
        await one_life(agent)  # what is slow only the first time
        before = 0
        for held in HELD:
            await hold(agent, held - before)
            before = held
            # What was prepared together is folded into the checkpoint, as it is between pods.
            await asyncio.sleep(2)
            found[held] = await one_life(agent)
    none: dict[str, Any] = {"baseline": round(found[0], 3), "baseline_of": "beside none"}
    return [
        {
            "name": f"prepare and unprepare beside {held} claims, p50 of {ROUNDS}",
            "value": round(value, 3),
            "unit": "ms",
            **(none if held else {}),
        }
        for held, value in found.items()
    ]


def run() -> list[Row]:
    """See ``run.py``."""
    return asyncio.run(measure())
