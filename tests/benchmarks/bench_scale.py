"""The process that decides at 50,000 nodes: until the first allocation of each kind, and afterwards.

Run alone: ``python tests/benchmarks/run.py scale``. ``BENCH_SCALE_NODES`` makes it smaller or larger. The
journal of the controller is filled in memory, without an API server; the worker is a process as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Any

import builders
from apiserver_support import resident
from builders import DRIVER
from journal_fleet import add_pod, fill, lateness

from controller.allocate.answers.decider import Decider
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import ClaimAssumed, Lane, NotYet, Settings, Write
from controller.allocate.signal import Signal
from controller.allocate.worker.child import WorkerChild
from controller.allocate.worker.process import Limits, WorkerProcess
from dra_driver.api.core import Pod
from dra_driver.kube import SystemClock

Row = dict[str, Any]
NODES = int(os.environ.get("BENCH_SCALE_NODES", "50000"))
GPUS, PODS = 8, 500
OF = f'device.attributes["{DRIVER}"]'
# As the allocator loop asks again.
POLL_SECONDS = 0.5


def _requests() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Request and the rest of the claim, by kind."""

    def selected(expression: str, count: int = 1) -> dict[str, Any]:
        return builders.request("gpu", count=count, selectors=[{"cel": {"expression": expression}}])

    same = {"constraints": [{"matchAttribute": f"{DRIVER}/rack"}]}
    return {
        "any GPU": (builders.request("gpu"), {}),
        "a GPU by its model": (selected(f'{OF}.model == "H200"'), {}),
        "four of one rack": (builders.request("gpu", count=4), same),
        "a GPU by its serial number": (selected(f'{OF}.uuid.endsWith("-{NODES - 7}-3")'), {}),
    }


def _attributes(node: int, gpu: int) -> dict[str, Any]:
    model = "H100" if node % 3 > 0 else "H200"
    return {"uuid": f"GPU-{node}-{gpu}", "model": model, "rack": f"r{node % 50}", "numaNode": gpu // 4}


class _Asking:
    """Asks about pods as the allocator loop does, and puts the answers into effect."""

    def __init__(self, journal: Journal, worker: WorkerProcess) -> None:
        self._journal = journal
        self._decider = Decider(journal, worker, SystemClock(), Signal(), lambda _: True)
        self.waits = 0

    async def serve(self, pod: Pod) -> None:
        """Ask until the pod has devices."""
        while True:
            found = await self._decider.decide(pod, Lane.FAST)
            if found is None:
                continue
            answer, answered = found
            if isinstance(answer.decision, NotYet):
                self.waits += 1
                await asyncio.sleep(POLL_SECONDS)
                continue
            assert isinstance(answer.decision, Write), answer.decision
            with self._decider.accepting(answered):
                for claim, allocation in answer.decision.allocations:
                    self._journal.apply(ClaimAssumed(claim.key, claim.metadata.uid, allocation))
            return


async def _measure() -> list[Row]:
    rows: list[Row] = []
    journal = Journal()
    fill(journal, NODES, GPUS, _attributes)
    worker = WorkerProcess(journal, Settings(drivers=(DRIVER,)), Limits())

    def row(name: str, value: float, unit: str) -> None:
        rows.append({"name": f"{name}, {NODES} nodes of {GPUS}", "value": value, "unit": unit})

    running = asyncio.create_task(worker.run())
    try:
        with lateness() as late:
            asking = _Asking(journal, worker)
            for kind, (request, more) in _requests().items():
                began, used = time.monotonic(), _cpu(worker)
                asking.waits = 0
                await asking.serve(add_pod(journal, f"first-{len(rows)}", request, **more))
                row(f"until the first allocation: {kind}", time.monotonic() - began, "s")
                row("  of this processor time of the worker", _cpu(worker) - used, "s")
                row("  questions without an answer yet", asking.waits, "questions")
            request, more = _requests()["a GPU by its model"]
            pods = [add_pod(journal, f"p{i}", request, **more) for i in range(PODS)]
            began = time.monotonic()
            used = _cpu(worker)
            async with asyncio.TaskGroup() as group:
                for pod in pods:
                    group.create_task(asking.serve(pod))
            row("allocations afterwards", PODS / (time.monotonic() - began), "/s")
            row("  per second of processor time of the worker", PODS / (_cpu(worker) - used), "/s")
            row("workers that were replaced", worker.restarts, "workers")
            assert isinstance(worker._child, WorkerChild)
            row("memory of the worker", resident(worker._child.pid), "MiB")
            row("the event loop was held for at most", 1000 * max(late), "ms")
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    return rows


def _cpu(worker: WorkerProcess) -> float:
    return worker._child.cpu_seconds if worker._child is not None else 0.0


def run() -> list[Row]:
    """Measure."""
    return asyncio.run(_measure())
