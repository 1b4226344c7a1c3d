"""A cluster in memory beside a worker that is a real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import builders
from builders import DRIVER, PROTECTED
from forked_worker import ForkedWorker

from controller.allocate.answers.decider import Answered, Decider
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    ClaimAssumed,
    ClaimSeen,
    Lane,
    ObjectSeen,
    PodAnswer,
    Settings,
    Write,
)
from controller.allocate.signal import Signal
from controller.allocate.worker.child import WorkerChild
from controller.allocate.worker.process import Limits, WorkerProcess
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.fleet import ShapeCount
from dra_driver.kube import SystemClock
from dra_driver.ownership import PoolID, pool_of_slice
from dra_driver.structured import AllocatedState, fits_beside

__all__ = [
    "GPU_0",
    "NS",
    "POOL",
    "WorkerCluster",
    "copies_of",
    "device_of",
    "facts_of",
    "hard_claim",
    "long_text",
    "run",
    "world",
]

NS = builders.NAMESPACE
POOL = PoolID(DRIVER, PoolName("n1"))
GPU_0 = builders.allocation(builders.result("n1", "gpu-0"))


class WorkerCluster:
    """A cluster as the controller has it in memory, and a worker that knows of it."""

    def __init__(self, limits: Limits, settings: Settings, worker: type[WorkerChild]) -> None:
        self.journal = Journal()
        self.freed = 0
        freed: Signal[[]] = Signal()
        freed.listen(self._count)
        self.counts: list[Sequence[ShapeCount]] = []
        counted = self.counts.append
        self.worker = WorkerProcess(self.journal, settings, limits, start=worker.start, counted=counted)
        self.decider = Decider(self.journal, self.worker, SystemClock(), freed, self._allows)
        self.pods: dict[str, Pod] = {}
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))

    def _count(self) -> None:
        self.freed += 1

    def _allows(self, allocations: Iterable[AllocationResult]) -> bool:
        """What the journal says, in place of the controller's own view."""
        known = list(self.journal.replay())
        slices = [
            c.object for c in known if isinstance(c, ObjectSeen) and isinstance(c.object, ResourceSlice)
        ]
        taken = AllocatedState.from_claims(c.claim for c in known if isinstance(c, ClaimSeen))
        taken = taken.with_allocations(
            (str(c.key), c.allocation)
            for c in known
            if isinstance(c, ClaimAssumed) and c.allocation is not None
        )
        results = [r for a in allocations for r in a.devices.results]
        return all(
            fits_beside(
                taken.pool(pool),
                [s for s in slices if pool_of_slice(s) == pool],
                [r for r in results if PoolID(r.driver, r.pool) == pool],
            )
            for pool in {PoolID(r.driver, r.pool) for r in results}
        )

    def seen(self, kind: type[Any], body: dict[str, Any]) -> Any:
        item = codec.convert(kind, body)
        self.journal.apply(ObjectSeen(item))
        return item

    def hard_nodes(self) -> None:
        """Nodes that differ, so that each is a search of its own, with seven values of ``x`` each."""
        for i in range(5):
            self.node(f"n{i}", 8, memory=f"{40 + i}Gi", attributes=seven_values)

    def node(self, name: str, count: int, memory: str = "40Gi", **facts: Any) -> None:
        self.seen(Node, builders.node(name, allocatable={"cpu": "64", "memory": "64Gi", "pods": "110"}))
        devices = [
            builders.device(f"gpu-{i}", memory, taints=[PROTECTED], **{k: v(i) for k, v in facts.items()})
            for i in range(count)
        ]
        self.seen(ResourceSlice, builders.resource_slice(name, *devices, driver=DRIVER))

    def claim(self, body: dict[str, Any]) -> None:
        self.journal.apply(ClaimSeen(codec.convert(ResourceClaim, body)))

    def sharing(self, name: str, claim: str, node: str) -> None:
        """A pod for one node that uses a claim of that name."""
        body = builders.pod(name, claim, uid=f"pod-{name}", gated=True, cpu="1")
        body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.pods[name] = self.seen(Pod, body)

    def pod(self, name: str, claim: dict[str, Any] | None = None, **more: Any) -> Pod:
        self.claim(claim or builders.claim(name, uid=f"claim-{name}"))
        body = builders.pod(name, name, uid=f"pod-{name}", gated=True, cpu="1", **more)
        self.pods[name] = self.seen(Pod, body)
        return self.pods[name]

    async def ask(self, name: str, lane: Lane = Lane.FAST) -> tuple[PodAnswer, Answered]:
        found = await self.decider.decide(self.pods[name], lane)
        assert found is not None
        return found

    async def ask_together(self, *names: str) -> list[tuple[PodAnswer, Answered]]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.ask(name)) for name in names]
        return [task.result() for task in tasks]

    def accept(self, found: tuple[PodAnswer, Answered]) -> None:
        answer, answered = found
        assert isinstance(answer.decision, Write)
        with self.decider.accepting(answered):
            for claim, allocation in answer.decision.allocations:
                self.journal.apply(ClaimAssumed(claim.key, claim.metadata.uid, allocation))

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        child = self.child
        os.kill(child.pid, number)
        if number is signal.SIGKILL:
            await child.wait()

    @property
    def child(self) -> WorkerChild:
        assert isinstance(self.worker._child, WorkerChild)
        return self.worker._child


def hard_claim(name: str) -> dict[str, Any]:
    """Eight requests with eight alternatives, for eight devices with seven values of an attribute."""
    subs = [
        {"name": f"s{i}", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
        for i in range(8)
    ]
    requests = ({"name": f"r{i}", "firstAvailable": subs} for i in range(8))
    constraints = [{"distinctAttribute": f"{DRIVER}/x"}]
    return builders.claim(name, *requests, uid=f"claim-{name}", constraints=constraints)


def long_text(name: str) -> dict[str, Any]:
    """A selector that makes 4.5 MB of text, in a few milliseconds."""
    expression = f"'{'a' * 3000}'.replace('a', '{'b' * 1500}').size() > 1"
    selectors = [{"cel": {"expression": expression}}]
    return builders.claim(name, builders.request("gpu", selectors=selectors), uid=f"claim-{name}")


def seven_values(i: int) -> dict[str, int]:
    return {"x": i % 7}


@contextlib.asynccontextmanager
async def world(
    limits: Limits | None = None, worker: type[WorkerChild] = ForkedWorker, **settings: Any
) -> AsyncIterator[WorkerCluster]:
    made = WorkerCluster(limits or Limits(), Settings(drivers=(DRIVER,), **settings), worker)
    task = asyncio.create_task(made.worker.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def facts_of(process: int) -> list[str]:
    """State, parent and so on of a process (proc_pid_stat(5)); empty where it has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return fields if fields[0] not in "ZX" else []
    return []


def copies_of(process: int) -> list[int]:
    """The processes that a process has made."""
    every = (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
    return [pid for pid in every if (facts := facts_of(pid)) and int(facts[1]) == process]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(240):
            await scenario()

    asyncio.run(main())


def device_of(answer: PodAnswer) -> str:
    assert isinstance(answer.decision, Write), answer.decision
    ((_, allocation),) = answer.decision.allocations
    return allocation.devices.results[0].device
