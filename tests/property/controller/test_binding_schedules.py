"""Random schedules of slow binding cycles, ends of the controller, late writes, hopeless pods.

A stand-in kube-scheduler places pods whose claims are allocated by controllers, of which one after the other
ends in the middle of a write. Some pods can never be placed, some only later, some share claims. At any time
no device is in two claims and no pod is bound without its devices on its node; in the end every pod that can
run is bound, and those that cannot hold nothing.

The default run plays some schedules; ``DRA_BINDING_SCHEDULES=500`` plays that many.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import builders
import pytest
import virtual_time
from builders import PROTECTED
from controller_harness import OURS, inline
from examples import seeds
from fake_client import FakeClient, unreachable
from placement_judge import judging
from slow_scheduler import SlowScheduler
from without_storage import WithoutStorage

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.storage import BIND_COMPLETED, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from dra_driver.kube import DelegatingClient
from dra_driver.sim.controlplane.scheduler import Scheduler

T = TypeVar("T", bound=WireObject)
R = TypeVar("R")

NS = "default"
# After which devices are set aside for a pod.
STARVATION = float(os.environ.get("STARVATION_SECONDS") or 1.0)
NODE_NAMES = ("n0", "n1", "n2")


class MortalClient(DelegatingClient):
    """The client of a controller that ends after some writes; the last one may be done later, or never."""

    def __init__(self, server: FakeClient, rng: random.Random, writes: int | None) -> None:
        # Without storage objects kube-scheduler reports that it cannot place pods because of their volumes.
        super().__init__(WithoutStorage(server) if rng.random() < 0.7 else server)
        self.ended = asyncio.Event()
        self._left = writes
        self._late = rng.choice([0.0, 0.0, 0.3, 2.0, 6.0])
        self._loses = rng.random() < 0.3
        self._tasks: set[asyncio.Task[Any]] = set()

    async def merge_patch(
        self, resource: Resource[T], name: str, patch: Mapping[str, Any], *args: Any, **options: Any
    ) -> T:
        if self.ended.is_set():
            unreachable()
        if self._left is not None and resource.kind in ("Pod", "ResourceClaim"):
            self._left -= 1
            if self._left < 0:
                self.ended.set()
                # The fence of the leader keeps allocations from being late (tests of the lease).
                allocates = bool((patch.get("status") or {}).get("allocation"))
                if not (self._loses or (allocates and self._late)):
                    write = super().merge_patch
                    self._do_later(lambda: write(resource, name, patch, *args, **options))
                unreachable()
        return await super().merge_patch(resource, name, patch, *args, **options)

    def _do_later(self, write: Callable[[], Awaitable[Any]]) -> None:
        async def late() -> None:
            await asyncio.sleep(self._late)
            with contextlib.suppress(Exception):
                await write()

        task = asyncio.create_task(late())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SimulatedCluster:
    """The objects, and what users do."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cluster = FakeClient()
        self.placeable: list[str] = []
        self.hopeless: list[str] = []
        self.log: list[str] = []
        self.cluster.put(DEVICE_CLASSES, builders.device_class("gpu"))
        room = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "10Gi"}
        for name in NODE_NAMES:
            self.cluster.put(NODES, builders.node(name, allocatable=room))
            devices = [builders.device(f"gpu-{i}", "40Gi", taints=[PROTECTED]) for i in range(4)]
            self.cluster.put(RESOURCE_SLICES, builders.resource_slice(name, *devices))

    def claim(self, name: str) -> str:
        self.cluster.put(RESOURCE_CLAIMS, builders.claim(name))
        return name

    def pod(self, name: str, *claims: str, volume: str = "", storage: str = "", **spec: Any) -> None:
        if volume:
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}]
        if storage:
            container = {**builders.container(), "resources": {"requests": {"ephemeral-storage": storage}}}
            spec["containers"] = [container]
        gated = self.rng.random() < 0.7
        self.cluster.put(PODS, builders.pod(name, *claims, gated=gated, **spec))

    def make(self) -> None:
        """Make pods; there are devices enough for all of them."""
        rng = self.rng
        shared = self.claim("shared")
        for i in range(2):
            self.pod(f"shared-{i}", shared)
        self.pod("pair", self.claim("pair-0"), self.claim("pair-1"))
        self.pod("single", self.claim("single"))
        # Room for one of these on each node, which the allocator may not know.
        for i in range(2):
            self.pod(f"large-{i}", self.claim(f"large-{i}"), storage="8Gi")
        self.placeable = ["shared-0", "shared-1", "pair", "single", "large-0", "large-1"]
        for i in range(rng.randrange(3)):
            self.pod(f"typo-{i}", self.claim(f"typo-{i}"), volume="misspelt")
            self.hopeless.append(f"typo-{i}")
        if rng.random() < 0.5:
            self.pod("typo-shared", shared, volume="misspelt")
            self.hopeless.append("typo-shared")
        if rng.random() < 0.5:
            self.pod("old", nodeName=rng.choice(NODE_NAMES), storage="8Gi")


def bound_claim(cluster: FakeClient, name: str) -> None:
    """Make a PersistentVolumeClaim that is bound to a volume."""
    storage = {"storage": "1Gi"}
    volume = {"accessModes": ["ReadWriteOnce"], "capacity": storage, "hostPath": {"path": "/data"}}
    cluster.put(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": volume})
    metadata = {"name": name, "namespace": NS, "annotations": {BIND_COMPLETED: "yes"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}, "volumeName": name}
    cluster.put(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": spec})


def bound(cluster: FakeClient) -> set[str]:
    return {p.metadata.name for p in cluster.all(PODS) if p.spec.node_name}


async def lives(world: SimulatedCluster, writes: int | None, seconds: float) -> None:
    """Let a controller work until it ends by itself, or for some time."""
    client = MortalClient(world.cluster, world.rng, writes)
    settings = ControllerConfig(
        drivers=(OURS,), leader_elect=False, binding_seconds=8.0, starvation_seconds=STARVATION
    )
    controller = Controller(client, settings, virtual_time.LoopClock(), answers_of=inline)
    task = asyncio.create_task(controller.run())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await client.ended.wait()
    client.ended.set()
    task.cancel()
    await asyncio.wait({task})


async def play(seed: int) -> None:
    rng = random.Random(seed)
    world = SimulatedCluster(rng)
    slow = SlowScheduler(world.cluster, rng)
    slow.longest = rng.choice([0.0, 0.1, 0.5, 1.5])
    scheduler = Scheduler(slow, backoff=rng.choice([0.1, 1.0]))
    scheduler.slow_binding = rng.choice([0.0, 0.5, 3.0, 12.0])
    task = asyncio.create_task(scheduler.run())
    try:
        # How long devices are held in vain is not measured while no controller works.
        async with judging(world.cluster, NS, held_seconds=1e9):
            world.make()
            for _ in range(rng.randrange(1, 7)):
                await lives(world, rng.randrange(1, 25), rng.uniform(1, 20))
                await asyncio.sleep(rng.choice([0.0, 0.0, 0.5, 4.0]))
                if rng.random() < 0.3 and world.cluster.find(PODS, "old", NS):
                    world.cluster.remove(PODS, "old", NS)
            if world.cluster.find(PODS, "old", NS):
                world.cluster.remove(PODS, "old", NS)
            slow.longest, scheduler.slow_binding = 0.0, 0.0
            if rng.random() < 0.5 and "typo-0" in world.hopeless:
                bound_claim(world.cluster, "misspelt")
                world.hopeless = []
            last = asyncio.create_task(lives(world, None, 3_600))
            try:
                async with asyncio.timeout(900):
                    while not set(world.placeable) <= bound(world.cluster):
                        await asyncio.sleep(0.5)
            except TimeoutError:
                raise AssertionError(f"not bound: {set(world.placeable) - bound(world.cluster)}") from None
            await asyncio.sleep(40)
            for name in set(world.hopeless) - {"typo-shared"}:
                claim = world.cluster.obj(RESOURCE_CLAIMS, name, NS)
                assert claim.status.allocation is None, name
            last.cancel()
            await asyncio.wait({last})
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize("seed", seeds("DRA_BINDING_SCHEDULES", 8, first=3))
def test_random_schedules_of_slow_bindings_and_ends_of_the_controller(seed: int) -> None:
    virtual_time.run(play(seed))
