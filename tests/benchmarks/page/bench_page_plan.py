"""Plans beside waiting pods on the page, and what decisions notice of them: 5,000 nodes of eight GPUs."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import builders
import msgspec
from builders import DRIVER, PROTECTED

from controller.allocate.answers.decider import Decider
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import ClaimSeen, Lane, ObjectSeen, PodID, Settings
from controller.allocate.plans import PlanQuestion
from controller.allocate.signal import Signal
from controller.allocate.worker.child import WorkerChild
from controller.allocate.worker.process import Limits, WorkerProcess
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.kube import SystemClock

Row = dict[str, Any]
NODES, GPUS, GANG = 5000, 8, 64
SECONDS = 10.0
# Two GPUs of each of so many nodes are left, so that decisions find something.
FREE_NODES = 100


class _Cluster:
    """A full cluster in a journal."""

    def __init__(self, nodes: int) -> None:
        self.journal = Journal()
        self._seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        chance = random.Random(1)
        for i in range(nodes):
            self._node(f"n{i:04}", chance, 2 if i < FREE_NODES else 0)

    def _seen(self, kind: type[Any], body: Row) -> Any:
        item = codec.convert(kind, body)
        self.journal.apply(ObjectSeen(item))
        return item

    def _node(self, name: str, chance: random.Random, left: int) -> None:
        self._seen(Node, builders.node(name, allocatable={"cpu": "64", "memory": "512Gi", "pods": "110"}))
        devices = [
            builders.device(
                f"gpu-{j}", "80Gi", taints=[PROTECTED], attributes={"model": "H100", "nvlinkGroup": name}
            )
            for j in range(GPUS)
        ]
        self._seen(ResourceSlice, builders.resource_slice(name, *devices, driver=DRIVER))
        free = [f"gpu-{j}" for j in range(GPUS)]
        while len(free) > left:
            size = min(len(free) - left, chance.choice((1, 1, 2, 4, 8)))
            self._running(f"{name}-{len(free)}", name, free[:size], chance.choice((0, 0, 100)))
            free = free[size:]

    def _running(self, name: str, node: str, devices: list[str], priority: int) -> None:
        status = builders.allocation(*(builders.result(node, device) for device in devices))
        body = builders.claim(name, builders.request(count=len(devices)), uid=f"c-{name}", status=status)
        self.journal.apply(ClaimSeen(codec.convert(ResourceClaim, body)))
        pod = builders.pod(name, name, uid=f"p-{name}", cpu="1")
        pod["spec"] |= {"nodeName": node, "priority": priority}
        self._seen(Pod, pod)

    def waiting(self, name: str, count: int, labels: dict[str, str] | None = None) -> Pod:
        """Return a pod that waits for so many GPUs."""
        body = builders.claim(name, builders.request(count=count), uid=f"c-{name}")
        self.journal.apply(ClaimSeen(codec.convert(ResourceClaim, body)))
        pod = builders.pod(name, name, uid=f"p-{name}", gated=True, cpu="1")
        pod["metadata"]["labels"] = labels or {}
        found: Pod = self._seen(Pod, pod)
        return found


def _memory(process: int, kind: str) -> int:
    """Return MiB of a process by ``smaps_rollup``; 0 where it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(kind)) >> 10


def _copies(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(pid) for pid in path.read_text(encoding="ascii").split()]


async def _decisions(decider: Decider, pods: list[Pod], stop: asyncio.Event) -> list[float]:
    """Return the seconds of each of many decisions, one after the other."""
    found: list[float] = []
    while not stop.is_set():
        pod = pods[len(found) % len(pods)]
        since = time.perf_counter()
        answer = await decider.decide(pod, Lane.FAST)
        found.append(time.perf_counter() - since)
        if answer is not None:
            decider.release(answer[1])
        await asyncio.sleep(0.005)
    return found


def _row(what: str, value: float, unit: str, **more: Any) -> Row:
    return {"name": f"{what}, {NODES} nodes", "value": round(value, 3), "unit": unit, **more}


def _late(what: str, seconds: list[float]) -> Row:
    ordered = sorted(seconds)
    return _row(
        f"decisions {what}: median",
        1000 * statistics.median(ordered),
        "ms",
        p99=round(1000 * ordered[int(0.99 * len(ordered))], 1),
        longest=round(1000 * ordered[-1], 1),
        number=len(ordered),
    )


async def _measure(nodes: int) -> list[Row]:
    rows: list[Row] = []
    cluster = _Cluster(nodes)
    worker = WorkerProcess(cluster.journal, Settings(drivers=(DRIVER,)), Limits())
    decider = Decider(cluster.journal, worker, SystemClock(), Signal(), lambda _: True)
    task = asyncio.create_task(worker.run())
    one = cluster.waiting("one", 8)
    labels = {"dra-driver.dev/group": "g", "dra-driver.dev/group-size": str(GANG)}
    gang = [cluster.waiting(f"gang-{i}", 8, labels) for i in range(GANG)]
    small = [cluster.waiting(f"small-{i}", 1) for i in range(50)]
    for pod in small:
        found = await decider.decide(pod, Lane.FAST)
        if found is not None:
            decider.release(found[1])
    child = worker._child
    assert isinstance(child, WorkerChild)
    rows.append(_row("memory of the process that decides", _memory(child.pid, "Rss:"), "MiB"))
    asked: list[tuple[str, Pod | None]] = [
        ("alone", None),
        ("plans for a pod", one),
        ("plans for 64 pods", gang[0]),
    ]
    for what, asked_about in asked:
        stop = asyncio.Event()
        deciding = asyncio.create_task(_decisions(decider, small, stop))
        if asked_about is None:
            await asyncio.sleep(5)
        else:
            rows += await _plans(worker, asked_about, what, child.pid)
        stop.set()
        rows.append(_late(what if asked_about is None else f"beside {what}", await deciding))
    rows.append(_row("times that the process ended", worker.restarts, ""))
    task.cancel()
    return rows


async def _plans(worker: WorkerProcess, pod: Pod, what: str, process: int) -> list[Row]:
    cpu: list[float] = []
    wall: list[float] = []
    most = 0
    plan: Row = {}
    for _ in range(3):
        since = time.perf_counter()
        asked = asyncio.create_task(worker.plan(PlanQuestion(PodID(pod.key, pod.metadata.uid), SECONDS)))
        while not asked.done():
            await asyncio.sleep(0.1)
            most = max([most, *(_memory(copy, "Private_") for copy in _copies(process))])
        answer = asked.result()
        wall.append(time.perf_counter() - since)
        cpu.append(answer.seconds)
        plan = {"limit": answer.limit} if answer.limit else msgspec.json.decode(answer.plan)
    told = {
        "limit": plan.get("limit", ""),
        "freed": (plan.get("free") or {}).get("number"),
        "unfinished": plan.get("unfinished"),
        "elapsed": round(max(wall), 2),
        "MiB": most,
    }
    return [_row(what, max(cpu), "s of CPU", **told)]


def run(nodes: int = NODES) -> Iterator[Row]:
    """Measure plans for a pod and for a gang, and decisions alone and beside them."""
    yield from asyncio.run(_measure(nodes))


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row), flush=True)
