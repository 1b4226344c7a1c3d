"""Random orders of pods, late writes of kube-scheduler and kills of a controller that lends."""

from __future__ import annotations

import asyncio
import random

import pytest
import virtual_time
from builders import request
from controller_harness import NS, claim, controlling
from fake_client import FakeClient
from lending_cluster import BACK, FIRST_READ, Decided, bare, cluster_of, decide, doubles, pod, waiting, write

from controller.config import LendingMode
from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS

KINDS = ("ours", "extended", "two", "mixed")


class World:
    """Two nodes with two GPUs each; kube-scheduler writes some of its decisions late."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster: FakeClient = cluster_of("n1", "n2")
        self.late: list[Decided] = []
        self.made = 0

    def step(self) -> None:
        match self.rng.randrange(8):
            case 0 | 1:
                self.new_pod()
            case 2:
                self.end_of_a_pod()
            case 3 | 4:
                self.decide(at_once=True)
            case 5:
                self.decide(at_once=False)
            case _:
                if self.late:
                    write(self.cluster, self.late.pop(self.rng.randrange(len(self.late))))

    def new_pod(self) -> None:
        self.made += 1
        name = f"p{self.made}"
        match self.rng.choice(KINDS):
            case "ours":
                claim(self.cluster, name)
                pod(self.cluster, name, name, priority=self.rng.randrange(2))
            case "mixed":
                claim(self.cluster, name, request(), request("nic", "nic"))
                pod(self.cluster, name, name)
            case kind:
                pod(self.cluster, name, amount=2 if kind == "two" else 1, gated=self.rng.random() < 0.8)

    def end_of_a_pod(self) -> None:
        """Do as the controllers of Kubernetes: the claims of a pod that is gone are deleted."""
        pods = self.cluster.all(PODS)
        if pods:
            name = self.rng.choice(pods).metadata.name
            self.cluster.remove(PODS, name, NS)
            for made in (name, f"{name}-extended"):
                if self.cluster.find(RESOURCE_CLAIMS, made, NS) is not None:
                    self.cluster.remove(RESOURCE_CLAIMS, made, NS)

    def decide(self, *, at_once: bool) -> None:
        busy = {one.pod.metadata.uid for one in self.late}
        pods = [p for p in waiting(self.cluster) if p.metadata.uid not in busy]
        found = decide(self.cluster, self.rng.choice(pods), self.late) if pods else None
        if found is None:
            return
        if at_once:
            write(self.cluster, found)
        else:
            self.late.append(found)


@pytest.mark.parametrize("seed", range(6))
def test_no_device_is_allocated_twice_and_every_loan_ends(seed: int) -> None:
    world = World(seed)

    async def main() -> None:
        async with asyncio.timeout(30_000):
            for _ in range(3):
                async with controlling(world.cluster, lending=LendingMode.ON):
                    await asyncio.sleep(FIRST_READ)
                    for _ in range(40):
                        world.step()
                        await asyncio.sleep(world.rng.choice([0.1, 1.0, 5.0, 20.0]))
                        assert not doubles(world.cluster), seed
            async with controlling(world.cluster, lending=LendingMode.ON):
                for one in world.cluster.all(PODS):
                    world.cluster.remove(PODS, one.metadata.name, NS)
                await asyncio.sleep(FIRST_READ + 2 * BACK)
                assert not bare(world.cluster), seed

    virtual_time.run(main())
