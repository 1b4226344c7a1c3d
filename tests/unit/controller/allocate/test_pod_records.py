"""What is remembered of pods: by their UIDs, as long as they are there."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import virtual_time
from fake_client import FakeClient

from controller.allocate.state.records import Mark, PodRecords
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.kube import Informer

NS = "default"


class World:
    """Pods, which an informer shows, and their records."""

    def __init__(self) -> None:
        self.cluster = FakeClient()
        self.pods = Informer(self.cluster, PODS)
        self.records = PodRecords(self.pods)

    async def put(self, name: str, uid: str) -> Pod:
        self.cluster.put(PODS, builders.pod(name, uid=uid))
        await asyncio.sleep(1)
        found = self.pods.get(ObjectKey(NS, name))
        assert found is not None
        return found

    async def remove(self, name: str) -> None:
        await self.cluster.delete(PODS, name, NS)
        await asyncio.sleep(1)


def play(scenario: Any) -> None:
    async def run() -> None:
        world = World()
        task = asyncio.create_task(world.pods.run())
        await world.pods.synced.wait()
        await scenario(world)
        task.cancel()

    virtual_time.run(run())


def test_a_pod_keeps_its_record_and_its_marks_until_it_is_gone() -> None:
    async def scenario(world: World) -> None:
        pod, other = await world.put("p", "uid-1"), await world.put("q", "uid-2")
        world.records.of(pod).displaced = 3
        world.records.mark(pod, Mark.UNGATED)
        world.records.mark(other, Mark.UNGATED)
        assert world.records.of(pod).displaced == 3
        assert list(world.records.marked(Mark.UNGATED)) == [pod.key, other.key]
        await world.remove("p")
        assert list(world.records.marked(Mark.UNGATED)) == [other.key]
        await world.remove("q")
        assert len(world.records) == 0

    play(scenario)


def test_nothing_is_kept_of_a_pod_that_is_gone_already() -> None:
    async def scenario(world: World) -> None:
        pod = await world.put("p", "uid-1")
        await world.remove("p")
        world.records.mark(pod, Mark.SEEN_BOUND)
        world.records.of(pod).displaced = 1
        assert not world.records.has(pod, Mark.SEEN_BOUND)
        assert (world.records.of(pod).displaced, len(world.records)) == (0, 0)

    play(scenario)


def test_a_pod_inherits_nothing_from_one_that_had_its_name() -> None:
    async def scenario(world: World) -> None:
        old = await world.put("p", "uid-1")
        world.records.mark(old, Mark.SEEN_BOUND)
        await world.remove("p")
        new = await world.put("p", "uid-2")
        world.records.mark(old, Mark.WITHOUT_DEVICES)
        assert not world.records.has(new, Mark.SEEN_BOUND)
        assert world.records.number(Mark.WITHOUT_DEVICES) == 0

    play(scenario)


def test_a_mark_is_cleared_once_and_turned_for_all() -> None:
    async def scenario(world: World) -> None:
        pods = [await world.put(name, f"uid-{name}") for name in ("b", "a")]
        for pod in pods:
            world.records.mark(pod, Mark.BEHIND)
        assert world.records.turn(Mark.BEHIND, Mark.HAS_WAITED) == [pod.key for pod in pods]
        assert (world.records.number(Mark.BEHIND), world.records.number(Mark.HAS_WAITED)) == (0, 2)
        assert world.records.clear(pods[0], Mark.HAS_WAITED)
        assert not world.records.clear(pods[0], Mark.HAS_WAITED)

    play(scenario)
