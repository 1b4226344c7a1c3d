"""Decisions in a process of their own: what they gain beside decisions in the loop, what a start costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

from builders import DRIVER
from inline_answers import Inline
from journal_fleet import add_pod, fill, lateness

from controller.allocate.answers.decider import Answers, Decider
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import ClaimAssumed, Lane, Settings, Write
from controller.allocate.signal import Signal
from controller.allocate.worker.child import WorkerChild
from controller.allocate.worker.process import Limits, WorkerProcess
from dra_driver.api.core import Pod
from dra_driver.kube import SystemClock

Row = dict[str, Any]
SETTINGS = Settings(drivers=(DRIVER,))
NODES, GPUS, PODS, WORKERS = 1000, 8, 2000, 16
# Of an API server that is not busy: both writes of an allocation together.
WRITE_SECONDS = 0.01


def _attributes(node: int, gpu: int) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{node}-{gpu}",
        "model": "H100",
        "architecture": "Hopper",
        "numaNode": 0,
        "pcieRoot": "pci0000:00",
    }


@contextlib.asynccontextmanager
async def _answers(journal: Journal, *, inline: bool) -> AsyncIterator[Answers]:
    answers: Answers = (
        Inline(journal, SETTINGS, time.thread_time) if inline else WorkerProcess(journal, SETTINGS, Limits())
    )
    task = asyncio.create_task(answers.run())
    try:
        yield answers
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _throughput(*, inline: bool) -> tuple[float, float]:
    """Return the seconds for all pods, and the longest time for which the loop was held."""
    journal = Journal()
    async with _answers(journal, inline=inline) as answers:
        fill(journal, NODES, GPUS, _attributes)
        pods = [add_pod(journal, f"p{i}") for i in range(PODS + 1)]
        decider = Decider(journal, answers, SystemClock(), Signal(), lambda _: True)

        async def serve(pod: Pod) -> None:
            while (found := await decider.decide(pod, Lane.FAST)) is None:
                pass
            answer, answered = found
            assert isinstance(answer.decision, Write)
            with decider.accepting(answered):
                for claim, allocation in answer.decision.allocations:
                    journal.apply(ClaimAssumed(claim.key, claim.metadata.uid, allocation))
            await asyncio.sleep(WRITE_SECONDS)

        async def work() -> None:
            while pods:
                await serve(pods.pop())

        await serve(pods.pop())  # everything is started and warm
        with lateness() as late:
            since = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(work())
            seconds = time.monotonic() - since
    return seconds, max(late)


async def _starts(nodes: int) -> tuple[float, float]:
    """Return the seconds from the end of a worker to the next answer, and of doing the same in the loop."""
    journal = Journal()
    async with _answers(journal, inline=False) as answers:
        fill(journal, nodes, GPUS, _attributes)
        pod = add_pod(journal, "p0")
        decider = Decider(journal, answers, SystemClock(), Signal(), lambda _: True)

        async def ask() -> None:
            while (found := await decider.decide(pod, Lane.FAST)) is None:
                pass
            decider.release(found[1])

        await ask()
        assert isinstance(answers, WorkerProcess)
        child = answers._child
        assert isinstance(child, WorkerChild)
        since = time.monotonic()
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        await ask()
        again = time.monotonic() - since
    since = time.monotonic()
    inline = Inline(journal, SETTINGS, time.thread_time)
    for change in journal.replay():
        journal.apply(change)
    await Decider(journal, inline, SystemClock(), Signal(), lambda _: True).decide(pod, Lane.FAST)
    return again, time.monotonic() - since


def run() -> list[Row]:
    """Measure."""
    rows: list[Row] = []
    inline, held_inline = asyncio.run(_throughput(inline=True))
    worker, held = asyncio.run(_throughput(inline=False))
    text = f"{PODS} pods, {NODES} nodes of {GPUS}, writes of {WRITE_SECONDS * 1000:g} ms"
    loop = "decisions in the loop"
    rows.append({"name": text, "value": worker, "unit": "s", "baseline": inline, "baseline_of": loop})
    held_row = {"value": held * 1000, "unit": "ms", "baseline": held_inline * 1000, "baseline_of": loop}
    rows.append({"name": "the loop was held for at most", **held_row})
    for nodes in (1000, 5000):
        again, alone = asyncio.run(_starts(nodes))
        name = f"from the end of a worker to the next answer, {nodes} nodes of {GPUS}"
        of = "taking in the same objects in the loop, and the first answer"
        rows.append({"name": name, "value": again, "unit": "s", "baseline": alone, "baseline_of": of})
    return rows
