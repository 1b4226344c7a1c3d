"""Real workers that are killed and stopped at random moments, beside a controller that works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal

import pytest
from controller_harness import NS, GoingClock, Harness, claim, cluster_of, controlling, pod
from worker_audit import Bench, audited

from controller.allocate.worker.child import WorkerChild
from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS

SECONDS = float(os.environ.get("DRA_WORKER_SECONDS", "3"))
DEVICES = 8


@pytest.mark.long
def test_devices_are_given_once_and_no_pod_is_lost_whatever_ends_the_workers() -> None:
    cluster = audited(cluster_of(n1=(40,) * 4, n2=(40,) * 4))
    bench, rng = Bench(), random.Random(SECONDS)
    alive: list[str] = []

    def step() -> None:
        if len(alive) < DEVICES + 4 and rng.random() < 0.6:
            alive.append(f"p{rng.randrange(1 << 30)}")
            claim(cluster, alive[-1])
            pod(cluster, alive[-1], alive[-1])
        elif alive:
            name = alive.pop(rng.randrange(len(alive)))
            cluster.remove(PODS, name, NS)
            cluster.remove(RESOURCE_CLAIMS, name, NS)

    def hurt() -> None:
        child = bench.process._child if bench.process is not None else None
        if isinstance(child, WorkerChild) and not child.has_ended:
            number = rng.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM])
            # It may have ended a moment ago, without the event loop having heard of it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    async def scenario(h: Harness) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SECONDS
        while loop.time() < until:
            for _ in range(rng.randrange(4)):
                step()
            if rng.random() < 0.1:
                hurt()
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.01, 0.05]))
        while len(alive) > DEVICES:
            step()
        while not (all(h.devices(name) and not h.gates(name) for name in alive) and bench.is_clean()):
            await asyncio.sleep(0.05)
        assert bench.restarts > 0

    async def main() -> None:
        async with asyncio.timeout(100), controlling(cluster, bench.answers_of(), GoingClock()) as harness:
            await scenario(harness)

    asyncio.run(main())
