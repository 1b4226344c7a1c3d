"""A device is lent when kube-scheduler has shown that it knows who has shares of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER, NAMESPACE
from fake_client import FakeClient

from controller.allocate.lending.shares import SETTLED_SECONDS, UNSHOWN_SECONDS, SettledShares
from dra_driver.api.core import PODS
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID

POOL = PoolID(DRIVER, PoolName("n1"))
SHARE = "0b0e0c5e-5a3f-4b3f-9d65-0d4e1c5b8f2a"


@dataclass
class SimulatedCluster:
    cluster: FakeClient
    shares: SettledShares

    def left(self, device: str = "gpu-0", scheduler: str = "") -> float:
        return self.shares.left(POOL, device, scheduler)

    def pod(self, name: str = "p", **spec: Any) -> None:
        self.cluster.put(PODS, builders.pod(name, "c", uid=f"uid-{name}", **spec))

    def bind(self, name: str = "p") -> None:
        self.cluster.edit(PODS, name, {"spec": {"nodeName": "n1"}}, NAMESPACE)

    def take_back(self) -> None:
        patch = {"status": {"allocation": None, "reservedFor": None}}
        self.cluster.edit(RESOURCE_CLAIMS, "c", patch, NAMESPACE)

    def give(self, *pods: str, claim: str = "c") -> None:
        """Give a claim a share of gpu-0 and all of gpu-7, reserved for pods."""
        results = (builders.result("n1", "gpu-0", shareID=SHARE), builders.result("n1", "gpu-7"))
        status = builders.allocation(*results) | builders.reserved(*pods)
        self.cluster.put(RESOURCE_CLAIMS, builders.claim(claim, status=status))


def play(scenario: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = FakeClient()
        claims, pods = Informer(cluster, RESOURCE_CLAIMS), Informer(cluster, PODS)
        world = SimulatedCluster(cluster, SettledShares(claims, pods, virtual_time.LoopClock()))
        tasks = [asyncio.create_task(claims.run()), asyncio.create_task(pods.run())]
        try:
            await claims.synced.wait()
            await pods.synced.wait()
            await scenario(world)
        finally:
            for task in tasks:
                task.cancel()

    virtual_time.run(main())


def test_what_was_bound_with_a_share_shows_that_it_is_known() -> None:
    async def scenario(world: SimulatedCluster) -> None:
        world.pod()
        world.give("p")
        await asyncio.sleep(10)
        assert world.left() == SETTLED_SECONDS, "it is looked at again and again"
        assert not world.left("gpu-7"), "it is held as a whole"
        world.bind()
        await asyncio.sleep(0.1)
        assert not world.left()
        assert world.left(scheduler="another") == SETTLED_SECONDS

        # It stays known without the pod, and in another version of the claim.
        world.cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"reservedFor": None}}, NAMESPACE)
        world.cluster.remove(PODS, "p", NAMESPACE)
        await asyncio.sleep(0.1)
        assert not world.left()

    play(scenario)


def test_a_share_rests_for_two_seconds_in_any_case() -> None:
    async def scenario(world: SimulatedCluster) -> None:
        world.pod()
        world.give("p")
        await asyncio.sleep(0.1)
        world.bind()
        await asyncio.sleep(0.4)
        assert world.left() == pytest.approx(1.5)
        await asyncio.sleep(1.5)
        assert not world.left()
        world.cluster.edit(
            RESOURCE_CLAIMS, "c", {"status": {"allocation": None, "reservedFor": None}}, NAMESPACE
        )
        await asyncio.sleep(0.5)
        assert world.left() == pytest.approx(1.5), "kube-scheduler may think that it is taken"
        await asyncio.sleep(1.5)
        assert not world.left()

    play(scenario)


def test_an_earlier_binding_shows_nothing_about_a_later_allocation() -> None:
    async def scenario(world: SimulatedCluster) -> None:
        for name in ("first", "second"):
            world.pod(name)
        world.give("first")
        await asyncio.sleep(0.1)
        world.bind("first")
        await asyncio.sleep(3)
        assert not world.left()
        world.cluster.edit(
            RESOURCE_CLAIMS, "c", {"status": {"allocation": None, "reservedFor": None}}, NAMESPACE
        )
        await asyncio.sleep(3)
        world.give("second")
        await asyncio.sleep(3)
        assert world.left() > 0
        world.bind("second")
        await asyncio.sleep(0.1)
        assert not world.left()

    play(scenario)


@pytest.mark.parametrize(
    "how", ["with a node from the start", "again under its name", "by another scheduler"]
)
def test_a_pod_that_kube_scheduler_may_not_have_bound_shows_nothing(how: str) -> None:
    async def scenario(world: SimulatedCluster) -> None:
        match how:
            case "with a node from the start":
                world.pod(nodeName="n1")
            case "again under its name":
                world.cluster.put(PODS, builders.pod("p", "c", uid="uid-before"))
                await asyncio.sleep(0.1)
                # The informer sees both in one step.
                world.cluster.remove(PODS, "p", NAMESPACE)
                world.pod(nodeName="n1")
            case _:
                world.pod(schedulerName="another")
                await asyncio.sleep(0.1)
                world.bind()
        world.give("p")
        await asyncio.sleep(10)
        assert world.left() == SETTLED_SECONDS
        await asyncio.sleep(UNSHOWN_SECONDS - 10)
        assert not world.left(), "only time is left"

    play(scenario)


def test_nothing_is_kept_of_pods_and_claims_that_are_gone() -> None:
    async def scenario(world: SimulatedCluster) -> None:
        for i in range(5):
            world.pod(f"p{i}")
            world.give(f"p{i}", claim=f"c{i}")
            await asyncio.sleep(0.1)
            world.bind(f"p{i}")
            await asyncio.sleep(0.1)
        assert world.shares.kept() > 0
        for i in range(5):
            world.cluster.remove(PODS, f"p{i}", NAMESPACE)
            world.cluster.remove(RESOURCE_CLAIMS, f"c{i}", NAMESPACE)
        await asyncio.sleep(3)
        assert world.shares.kept() == 0

    play(scenario)
