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
from collections.abc import Mapping
from typing import Any, TypeVar

import builders
import pytest
import virtual_time
from builders import PROTECTED
from controller_harness import OURS, inline
from fake_client import FakeClient, error_of, unreachable
from placement_judge import judging

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.objects.status import StatusError
from dra_driver.sim.apiserver.writing import pods as pod_writes
from dra_driver.sim.apiserver.writing.options import Options
from dra_driver.sim.controlplane.scheduler import Scheduler
from dra_driver.sim.objects import VOLUME_CLAIMS

T = TypeVar("T", bound=WireObject)

NS = "default"
SCHEDULES = int(os.environ.get("DRA_BINDING_SCHEDULES", "8"))
NODE_NAMES = ("n0", "n1", "n2")


class OneOfMany(FakeClient):
    """A client of an API server that has others."""

    def __init__(self, server: FakeClient) -> None:
        super().__init__()
        self.registry = server.registry


class SlowScheduler(OneOfMany):
    """The client of a kube-scheduler whose requests wait for their turn, one after the other."""

    def __init__(self, server: FakeClient, rng: random.Random) -> None:
        super().__init__(server)
        self.longest = 0.0
        self._rng = rng
        self._turn = asyncio.Lock()

    async def _wait(self) -> None:
        async with self._turn:
            await asyncio.sleep(self._rng.uniform(0, self.longest))

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        await self._wait()
        return await super().merge_patch(
            resource, name, patch, namespace, subresource=subresource, dry_run=dry_run
        )

    async def create(
        self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> T:
        if resource.kind != "Binding":
            return await super().create(resource, body, namespace, dry_run=dry_run)
        await self._wait()
        kind = self._kind(PODS)
        try:
            pod_writes.bind(self.registry, kind, namespace, body["metadata"]["name"], dict(body), Options())
        except StatusError as e:
            raise error_of(e) from None
        return None  # type: ignore[return-value]


class MortalClient(OneOfMany):
    """The client of a controller that ends after some writes; the last one may be done later, or never."""

    def __init__(self, server: FakeClient, rng: random.Random, writes: int | None) -> None:
        super().__init__(server)
        self.ended = asyncio.Event()
        self._left = writes
        self._late = rng.choice([0.0, 0.0, 0.3, 2.0, 6.0])
        self._loses = rng.random() < 0.3
        self._tasks: set[asyncio.Task[Any]] = set()

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        if self.ended.is_set():
            unreachable()
        if self._left is not None and resource.kind in ("Pod", "ResourceClaim"):
            self._left -= 1
            if self._left < 0:
                self.ended.set()
                self._end(resource, name, patch, namespace, subresource)
                unreachable()
        return await super().merge_patch(
            resource, name, patch, namespace, subresource=subresource, dry_run=dry_run
        )

    def _end(
        self,
        resource: Resource[Any],
        name: str,
        patch: Mapping[str, Any],
        namespace: str,
        subresource: str,
    ) -> None:
        # The fence of the leader keeps allocations from being late (tests of the lease).
        allocates = bool((patch.get("status") or {}).get("allocation"))
        if self._loses or (allocates and self._late):
            return

        async def late() -> None:
            await asyncio.sleep(self._late)
            with contextlib.suppress(Exception):
                await FakeClient.merge_patch(self, resource, name, patch, namespace, subresource=subresource)

        task = asyncio.create_task(late())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class World:
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


def bound(cluster: FakeClient) -> set[str]:
    return {p.metadata.name for p in cluster.all(PODS) if p.spec.node_name}


async def lives(world: World, writes: int | None, seconds: float) -> None:
    """Let a controller work until it ends by itself, or for some time."""
    client = MortalClient(world.cluster, world.rng, writes)
    settings = ControllerConfig(drivers=(OURS,), leader_elect=False, binding_seconds=8.0)
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
    world = World(rng)
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
                body = {"metadata": {"name": "misspelt", "namespace": NS}}
                world.cluster.put(VOLUME_CLAIMS, body)
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


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_random_schedules_of_slow_bindings_and_ends_of_the_controller(seed: int) -> None:
    virtual_time.run(play(seed))
