"""Pods of all kinds beside the real kube-scheduler, with everything that can come in between of their grants.

Controller and kube-scheduler are killed, slices deleted, decisions written late. No device is in two claims,
and left alone every device is the controller's again.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from builders import request
from granting_beside import NAMESPACE, PART_RESOURCE, ROOTS, Beside, cut_gpu, gpu, granting_beside
from real_scheduler import RealScheduler

from dra_driver.api.core import EVENTS
from dra_driver.api.names import GRANTS, PCIE_ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]

SECONDS = 90.0
NODES = ("n0", "n1", "n2")
ALIGNED = {"requests": ["gpu", "nic"], "matchAttribute": PCIE_ROOT}
MOST_PODS = 12


class Disorder:
    """What happens, by chance."""

    def __init__(self, beside: Beside, seed: int) -> None:
        self.beside = beside
        self.rng = random.Random(seed)
        self.made = 0
        self.kills = 0
        scheduler = beside.world.scheduler
        assert isinstance(scheduler, RealScheduler)
        self.scheduler = scheduler

    async def new_pod(self) -> None:
        names = [p.metadata.name for p in self.beside.seen.pods.items()]
        if len(names) >= MOST_PODS:
            await self.beside.end(self.rng.choice(names))
            return
        self.made += 1
        name = f"p{self.made}"
        match self.rng.randrange(6):
            case 0 | 1:
                await self.beside.own(name, count=self.rng.choice((1, 1, 2)))
            case 2 | 3:
                gated = self.rng.random() < 0.8
                await self.beside.pod(name, amount=self.rng.choice((1, 2)), gated=gated)
            case 4:
                await self.beside.mixed(name, request("gpu", "whole"), constraints=[ALIGNED])
            case _:
                await self.beside.pod(name, amount=1, resource=PART_RESOURCE)

    async def end_of_a_pod(self) -> None:
        names = sorted(p.metadata.name for p in self.beside.seen.pods.items())
        if names:
            await self.beside.end(self.rng.choice(names))

    async def slices_are_deleted(self) -> None:
        node = self.rng.choice(NODES)
        await self.beside.wipe(node)
        await asyncio.sleep(self.rng.choice((0.0, 0.3, 2.0)))
        await self.beside.register(node)

    async def late_decisions(self) -> None:
        self.scheduler.slow_binding = self.rng.choice((0.0, 0.0, 2.0, 8.0, 15.0))

    async def kube_scheduler_is_killed(self) -> None:
        self.scheduler.stop()
        await asyncio.sleep(self.rng.random())
        self.scheduler.start()

    async def play(self) -> None:
        """Let things happen for a while, by several controllers one after the other; then end all pods."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SECONDS
        often = [self.new_pod, self.new_pod, self.new_pod, self.end_of_a_pod]
        seldom = [
            self.slices_are_deleted,
            self.late_decisions,
            self.late_decisions,
            self.kube_scheduler_is_killed,
        ]
        while loop.time() < end:
            killed = min(loop.time() + self.rng.choice((4.0, 12.0, 20.0, 40.0)), end)
            async with self.beside.controller():
                while loop.time() < killed:
                    await self.rng.choice(often if self.rng.random() < 0.85 else seldom)()
                    await asyncio.sleep(self.rng.choice((0.05, 0.3, 1.0, 2.0)))
            self.kills += 1
        self.scheduler.slow_binding = 0.0

    async def served(self) -> None:
        """Let pods that have what they asked for end, until every pod has had its turn."""
        seen = self.beside.seen
        while waiting := {p.metadata.name for p in seen.pods.items() if not p.spec.node_name}:
            bound = [p.metadata.name for p in seen.pods.items() if p.spec.node_name]
            await self.beside.end(*bound)
            try:
                await seen.until(lambda: waiting & seen.bound.keys(), 60.0)
            except TimeoutError:
                said = {p.metadata.name: p.status.conditions for p in seen.pods.items()}
                raise AssertionError(said) from None
            # More than one fits.
            await asyncio.sleep(3.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_doubled_and_nothing_is_stuck(seed: int) -> None:
    async def main() -> None:
        # A killed controller takes nothing back until the next one does.
        async with asyncio.timeout(290), granting_beside("real", held_seconds=30.0) as beside:
            await beside.policy("cut", "cut", partitions={"profiles": ["*"]})
            await beside.node("n0", gpu(0), gpu(1), nics=ROOTS)
            await beside.node("n1", gpu(0), gpu(1), gpu(2), nics=ROOTS[1:])
            await beside.node("n2", cut_gpu(0), gpu(1))
            disorder = Disorder(beside, seed)
            await disorder.play()
            seen = beside.seen
            said = [e.message for e in (await beside.world.api.list(EVENTS, NAMESPACE)).items]
            print(
                f"{disorder.made} pods, {len(seen.bound)} bound, {len(seen.granted_at)} devices granted,"
                f" {disorder.kills} kills, {sum(GRANTS in text for text in said)} decisions"
                f" refused, {beside.judge.longest}"
            )
            async with beside.controller():
                await disorder.served()
                await beside.all_is_ours(7)

    asyncio.run(main())
