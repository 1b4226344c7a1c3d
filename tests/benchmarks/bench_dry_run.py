"""What pods that wait cost a controller that only says whom it would preempt, beside one that does not.

Run alone: ``bench_dry_run.py [NODES [PODS [MINUTES]]]``. Nodes of eight GPUs, each full with a pod of
priority 0, and pods of higher priority that wait, each with another request. One pod comes and goes each
second, so that there is always something new to ask about. Minutes pass in virtual time; the API server is in
the same process, and questions are answered there, so the processor time is that of everything together.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from pathlib import Path
from typing import Any

_SUPPORT = Path(__file__).parents[1] / "support"
sys.path[:0] = [str(_SUPPORT), str(_SUPPORT / "controller"), str(_SUPPORT / "allocator")]

import builders  # noqa: E402
import virtual_time  # noqa: E402
from controller_harness import NS, Harness, claim, classes, controlling, node, pod, pool, request  # noqa: E402
from fake_client import FakeClient  # noqa: E402
from preemption_world import Time  # noqa: E402

from controller.config import PreemptionMode, PreemptionSettings  # noqa: E402
from dra_driver.api.core import EVENTS, PODS  # noqa: E402
from dra_driver.api.resource import RESOURCE_CLAIMS  # noqa: E402

NODES, PODS_WAITING, GPUS, MINUTES = 5000, 1000, 8, 5
Row = dict[str, Any]


def full_cluster(nodes: int, waiting: int) -> FakeClient:
    """Return a cluster all of whose devices are held, with pods that wait for them."""
    cluster = FakeClient()
    classes(cluster)
    for i in range(nodes):
        name = f"n{i:05}"
        node(cluster, name, cpu="64")
        pool(cluster, name, *(80,) * GPUS)
        taken = builders.allocation(*(builders.result(name, f"gpu-{j}") for j in range(GPUS)))
        cluster.put(RESOURCE_CLAIMS, builders.claim(f"held-{i}", namespace=NS, status=taken))
        body = builders.pod(f"held-{i}", f"held-{i}", namespace=NS, nodeName=name)
        cluster.put(PODS, body | {"status": {"phase": "Running"}})
    for i in range(waiting):
        claim(cluster, f"waits-{i}", request(count=1 + i % GPUS, memory=f"{1 + i // GPUS}Mi"))
        pod(cluster, f"waits-{i}", f"waits-{i}", priority=100 + i % 7)
    return cluster


async def _churn(h: Harness, minutes: float) -> None:
    for i in range(int(minutes * 60)):
        claim(h.cluster, f"passes-{i}", request(count=GPUS + 1))
        pod(h.cluster, f"passes-{i}", f"passes-{i}")
        await asyncio.sleep(1)
        h.cluster.remove(PODS, f"passes-{i}", NS)
        h.cluster.remove(RESOURCE_CLAIMS, f"passes-{i}", NS)


class Load:
    """What minutes of a mode cost.

    Attributes:
        seconds: of processor time, in each minute after those in which pods get the reason why they wait.
        writes: of what is said about preemption, in each minute.
        events: the same.
        shown: for how many pods it is said whom they would preempt, at the end.
    """

    def __init__(self, mode: PreemptionMode, nodes: int, waiting: int, minutes: int) -> None:
        self.seconds: list[float] = []
        self.writes: list[int] = []
        self.events: list[int] = []
        self.shown = 0
        self._cluster = full_cluster(nodes, waiting)
        self._settings = PreemptionSettings(mode=mode)
        self._minutes = minutes
        # As the controller's processes do with what they keep.
        gc.collect()
        gc.freeze()
        virtual_time.run(self._run())

    async def _run(self) -> None:
        clock = Time(self._cluster)
        settings: dict[str, Any] = {"preemption": self._settings, "starvation_seconds": 0.0}
        async with controlling(self._cluster, clock=clock, **settings) as h:
            for number in range(2 * self._minutes):
                before, done = time.process_time(), len(self._cluster.applied)
                events = self._number_of("WouldPreempt")
                await _churn(h, 1)
                if number >= self._minutes:
                    self.seconds.append(time.process_time() - before)
                self.writes.append(sum("Preempt" in str(body) for _, body in self._cluster.applied[done:]))
                self.events.append(self._number_of("WouldPreempt") - events)
            self.shown = sum("WouldPreempt" in str(p.status.conditions) for p in self._cluster.all(PODS))

    def _number_of(self, reason: str) -> int:
        return sum(e.count for e in self._cluster.all(EVENTS) if e.reason == reason)

    def row(self, what: str, off: Load | None) -> Row:
        """Return the processor time, beside that of another mode."""
        result: Row = {
            "name": what,
            "value": round(sum(self.seconds) / len(self.seconds), 2),
            "unit": "s a minute",
        }
        if off is not None:
            baseline = round(sum(off.seconds) / len(off.seconds), 2)
            result |= {"baseline": baseline, "baseline_of": "preemption off"}
        most = {"most conditions a minute": max(self.writes), "most Events a minute": max(self.events)}
        return result | most | {"pods shown": self.shown}


def run(nodes: int = NODES, waiting: int = PODS_WAITING, minutes: int = MINUTES) -> list[Row]:
    """Measure."""
    with contextlib.redirect_stdout(sys.stderr):  # where the controller writes its log
        off = Load(PreemptionMode.OFF, nodes, waiting, minutes)
        dry = Load(PreemptionMode.DRY_RUN, nodes, waiting, minutes)
    what = f"{waiting} pods wait on {nodes} full nodes of {GPUS}"
    return [off.row(f"{what}, off", None), dry.row(f"{what}, dry run", off)]


if __name__ == "__main__":
    for line in run(*map(int, sys.argv[1:])):
        print(line)
