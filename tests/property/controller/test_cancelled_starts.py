"""A controller that is cancelled ends: at any step of its start, also where the API server fails.

``DRA_CANCELLED_STARTS=2000`` tries that many moments.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest
import virtual_time
from controller_harness import OURS, claim, cluster_of, inline, pod
from fake_client import unreachable

from controller.app import Controller
from controller.config import ControllerConfig

STARTS = int(os.environ.get("DRA_CANCELLED_STARTS", "100"))
# What a start takes if nothing fails, in steps of the event loop.
STEPS = 400


async def start_and_cancel(seed: int) -> None:
    rng = random.Random(seed)
    cluster = cluster_of(n1=(40, 40), n2=(80,))
    for i in range(4):
        claim(cluster, f"c{i}")
        pod(cluster, f"p{i}", f"c{i}")
    failing = rng.choice([0.0, 0.2, 0.9])

    def fail(*_: str) -> None:
        if rng.random() < failing:
            unreachable()

    cluster.before = cluster.after = fail
    config = ControllerConfig(drivers=(OURS,), leader_elect=False)
    controller = Controller(cluster, config, virtual_time.LoopClock(), answers_of=inline)
    task = asyncio.create_task(controller.run())
    if rng.random() < 0.5:
        for _ in range(rng.randrange(STEPS)):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(rng.uniform(0, 5))
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done, f"it goes on: {task.get_stack()}"
    assert task.cancelled()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, STARTS, 50))
def test_a_controller_that_is_cancelled_while_it_starts_ends(first: int) -> None:
    for seed in range(first, first + 50):
        virtual_time.run(start_and_cancel(seed))
