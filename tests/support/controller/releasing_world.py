"""The parts that release allocations, on a cluster in memory. Their loops do not run: tests do each step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import builders
import virtual_time
from builders import DRIVER, NAMESPACE, PROTECTED
from fake_client import FakeClient
from virtual_time import LoopClock

from controller.allocate.answers.journal import Journal
from controller.allocate.attempts import Attempts, TakenBack
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import (
    CLAIM_INDEX,
    GROUP_INDEX,
    NODE_INDEX,
    Change,
    GroupFinder,
    claims_of,
    rank_of,
)
from controller.allocate.decide.state.objects import group_of_claim, groups_by, nodes_of
from controller.allocate.releasing.tentative import TentativeAllocations
from controller.allocate.releasing.unused import UnusedAllocations
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.pool_states import PoolStates
from controller.allocate.state.records import Mark, PodRecords
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from controller.config import Timings
from controller.observe.metrics import Metrics
from dra_driver.api import codec
from dra_driver.api.core import EVENTS, NODES, PODS, Pod
from dra_driver.api.meta import ObjectKey, PoolName
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocationResult,
    ResourceClaim,
)
from dra_driver.kube import EventRecorder, Informer, WorkQueue
from dra_driver.ownership import PoolAllocator, PoolID
from dra_driver.structured import PoolPolicy

__all__ = ["BINDING_SECONDS", "OTHER", "ReleasingWorld", "key", "play"]

OTHER = "nic.example.com"
"""A driver that is not ours."""

BINDING_SECONDS = 30.0
"""In which a cycle of kube-scheduler has ended."""


def key(name: str) -> ObjectKey:
    return ObjectKey(NAMESPACE, name)


class ReleasingWorld:
    """Nodes n1 and n2 with GPUs of ours, and n3 with GPUs that are left to kube-scheduler.

    Attributes:
        changes: what decisions have learnt, in order.
    """

    def __init__(self) -> None:
        self.cluster = FakeClient()
        for name, taints in (("n1", [PROTECTED]), ("n2", [PROTECTED]), ("n3", [])):
            gpus = [builders.device(f"gpu-{i}", taints=taints) for i in range(8)]
            self.cluster.put(NODES, builders.node(name))
            self.cluster.put(RESOURCE_SLICES, builders.resource_slice(name, *gpus))
        nics = [builders.device(f"nic-{i}") for i in range(8)]
        self.cluster.put(RESOURCE_SLICES, builders.resource_slice("n1", *nics, driver=OTHER))
        clock, journal = LoopClock(), Journal()
        self.changes: list[Change] = []
        journal.send_to(lambda _, change: self.changes.append(change))
        self.metrics = Metrics()
        of_pods = {CLAIM_INDEX: claims_of, GROUP_INDEX: groups_by(()), NODE_INDEX: nodes_of}
        self.pods = Informer(self.cluster, PODS, indices=of_pods)
        claims = Informer(self.cluster, RESOURCE_CLAIMS, indices={GROUP_INDEX: group_of_claim})
        nodes, slices = Informer(self.cluster, NODES), Informer(self.cluster, RESOURCE_SLICES)
        classes = Informer(self.cluster, DEVICE_CLASSES)
        self.informers: tuple[Informer[Any], ...] = (self.pods, claims, nodes, slices, classes)
        self.cache = AssumeCache(claims, journal, Signal())
        of_pool = lambda pool: [s for s in slices.items() if s.spec.pool.name == pool.pool]  # noqa: E731
        self.states = PoolStates(PoolPolicy(), lambda _: None, Signal(), of_pool)
        owners = CurrentOwners([DRIVER], self.states, slices, classes)
        writer = Writer(self.cluster, self.cache, clock)
        deallocator = Deallocator(writer)
        self.attempts = Attempts(BINDING_SECONDS)
        self.taken_back: Signal[[Pod, TakenBack]] = Signal()
        self.timings = Timings()
        self.records, known = PodRecords(self.pods), KnownPods(self.pods, self.cache)
        self.wakeups = Wakeups(
            self.timings,
            clock,
            lambda: PoolAllocator.CONTROLLER,
            journal,
            owners,
            self.cache,
            self.attempts,
            deallocator,
            self.taken_back,
            records=self.records,
            known=known,
            pods=self.pods,
            claims=claims,
            nodes=nodes,
            others=(),
            groups_of=groups_by(()),
        )
        self.unused = UnusedAllocations(
            ["default-scheduler"], known, self.cache, owners, deallocator, self.wakeups
        )
        groups = GroupFinder(
            self.pods.by_index,
            self.pods.number_by_index,
            lambda group: claims.each(GROUP_INDEX, group),
            self.cache.get,
            lambda _: "there are no PodGroups",
            (),
        )
        recorder = EventRecorder(self.cluster, "test", clock)
        self.background = recorder.run
        self.tentative = TentativeAllocations(
            BINDING_SECONDS,
            self.attempts,
            writer,
            journal,
            self.cache,
            owners,
            deallocator,
            self.wakeups,
            self.taken_back,
            recorder,
            self.metrics,
            clock,
            groups,
            self.records,
            known,
        )

    # --- what there is --------------------------------------------------------------------------------------

    def claim(
        self,
        name: str,
        *devices: str,
        driver: str = DRIVER,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Store a claim that is allocated devices, each named as ``POOL/DEVICE``; without any it is not.

        Args:
            name: of the claim.
            devices: that it has.
            driver: of the devices.
            metadata: more of it.
            more: of the status.
        """
        results = [builders.result(*device.split("/"), driver=driver) for device in devices]
        status = builders.allocation(*results) if results else {}
        body = builders.claim(name, status={**status, **more}, metadata=metadata)
        self.cluster.put(RESOURCE_CLAIMS, body)

    def pod(self, name: str, *claims: str, phase: str = "Pending", **more: Any) -> None:
        """Store a pod, whose UID is ``uid-NAME``."""
        body = builders.pod(name, *claims, uid=f"uid-{name}", **more)
        self.cluster.put(PODS, {**body, "status": {"phase": phase}})

    def mark(self, name: str, mark: Mark) -> None:
        """Have something be noted about a pod that the informer has shown."""
        pod = self.pods.get(key(name))
        assert pod is not None
        self.records.mark(pod, mark)

    def assume(self, name: str, device: str) -> None:
        """Have an allocation of a claim be on its way to the API server."""
        raw = builders.allocation(builders.result(*device.split("/")))["allocation"]
        self.cache.assume(self.claim_of(name), codec.convert(AllocationResult, raw))

    def block(self, node: str) -> None:
        """Have the pool of a node change hands."""
        self.states.set_blocked(PoolID(DRIVER, PoolName(node)), True)

    def claim_of(self, name: str) -> ResourceClaim:
        return self.cluster.obj(RESOURCE_CLAIMS, name, NAMESPACE)

    def allocated(self, *names: str) -> list[str]:
        """Return those of the claims that are allocated."""
        return [name for name in names if self.claim_of(name).status.allocation is not None]

    # --- pods that are with kube-scheduler ------------------------------------------------------------------

    def pod_of(self, name: str) -> Pod:
        pod = self.pods.get(key(name))
        assert pod is not None
        return pod

    def hand_over(self, name: str, node: str = "n1") -> None:
        """Have kube-scheduler be about to place a pod, whose claims are allocated on a node."""
        pod = self.pod_of(name)
        now = asyncio.get_running_loop().time()
        self.attempts.look(pod, now, was_allocated=False)
        self.attempts.begin(pod, node, now, handed_over=True)

    def wait_for_turn(self, name: str) -> None:
        """Have a pod wait until kube-scheduler has less to do."""
        self.attempts.wait(key(name), rank_of(self.pod_of(name)))

    async def report(self, name: str, message: str, *, nominated: str = "") -> None:
        """Do as kube-scheduler when it cannot place a pod."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        status = {"conditions": [condition], "nominatedNodeName": nominated or None}
        await self.edit(name, {"status": status})

    async def edit(self, name: str, patch: dict[str, Any]) -> None:
        """Change a pod, and wait until that is seen."""
        self.cluster.edit(PODS, name, patch, NAMESPACE)
        await self.seen()

    async def remove(self, name: str) -> None:
        """Remove a pod, and wait until that is seen."""
        self.cluster.remove(PODS, name, NAMESPACE)
        await self.seen()

    async def seen(self) -> None:
        """Wait until the informers show what is stored."""
        await asyncio.sleep(0.01)

    # --- what is to be done next ----------------------------------------------------------------------------

    async def due(self, queue: WorkQueue[ObjectKey]) -> list[str]:
        """Take out of a queue what is due, and return its names."""
        found = []
        while len(queue):
            found.append(await queue.get())
            queue.done(found[-1])
        return [key.name for key in found]

    def released(self, reason: str) -> float:
        """Return how often pods are counted to have given back devices for a reason."""
        name = "dra_driver_controller_tentative_deallocations_total"
        return self.metrics.registry.get_sample_value(name, {"reason": reason}) or 0.0

    def events(self, reason: str) -> list[str]:
        return [e.message for e in self.cluster.all(EVENTS) if e.reason == reason]


def play(scenario: Callable[[ReleasingWorld], Awaitable[None]]) -> None:
    """Run a scenario while the informers follow the cluster."""

    async def main() -> None:
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            world = ReleasingWorld()
            tasks = [group.create_task(i.run()) for i in world.informers]
            tasks.append(group.create_task(world.background()))
            for informer in world.informers:
                await informer.synced.wait()
            await scenario(world)
            world.wakeups.close()
            for task in tasks:
                task.cancel()

    virtual_time.run(main())
