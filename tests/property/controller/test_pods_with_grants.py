"""Random orders of pods, late writes of kube-scheduler and kills of a controller that grants devices."""

from __future__ import annotations

import asyncio
import random

import pytest
import virtual_time
from builders import request
from controller_harness import NS, claim, controlling
from examples import NIGHTLY
from granting_cluster import (
    BACK,
    HIDDEN,
    IN_FORCE,
    Decided,
    cluster_of,
    decide,
    doubles,
    granted,
    pod,
    report,
    waiting,
    write,
)
from open_cluster import PolicedCluster

from dra_driver.api.core import PODS, Pod
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.resourceclaim import pod_claims

KINDS = ("ours", "hidden", "near", "shared", "extended", "two", "mixed")
NODES = ("n1", "n2", "n3", "n4")
# A term that the controller does not look at, and that is always met.
NEAR = {
    "topologyKey": "kubernetes.io/hostname",
    "namespaceSelector": {"matchLabels": {"team": "a"}},
    "labelSelector": {"matchLabels": {"app": "none"}},
}


class SimulatedCluster:
    """Four nodes with two GPUs each; kube-scheduler writes some of its decisions late."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster: PolicedCluster = cluster_of(*NODES)
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
            case "hidden":
                # Our choice comes back, and grants do as well, until kube-scheduler says what it has chosen.
                claim(self.cluster, name)
                nodes = ",".join(self.rng.sample(NODES, self.rng.randrange(3)))
                pod(self.cluster, name, name, metadata={"annotations": {HIDDEN: nodes}})
            case "near":
                claim(self.cluster, name)
                anti = {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}
                pod(self.cluster, name, name, affinity={"podAntiAffinity": anti})
            case "shared":
                names = [
                    c.metadata.name for c in self.cluster.all(RESOURCE_CLAIMS) if c.key.name[-1].isdigit()
                ]
                if names:
                    pod(self.cluster, name, self.rng.choice(names))
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

    def has_claims(self, pod: Pod) -> bool:
        """Return whether the claims of a pod are there: one that it shares may have gone with its maker."""
        return all(self.cluster.find(RESOURCE_CLAIMS, u.key.name, NS) for u in pod_claims(pod) if u.key)

    def decide(self, *, at_once: bool) -> None:
        busy = {one.pod.metadata.uid for one in self.late}
        pods = [p for p in waiting(self.cluster) if p.metadata.uid not in busy and self.has_claims(p)]
        if not pods:
            return
        asked = self.rng.choice(pods)
        found = decide(self.cluster, asked, self.late)
        if found is None:
            report(self.cluster, asked.metadata.name)
            return
        if at_once:
            write(self.cluster, found)
        else:
            self.late.append(found)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 12), *(pytest.param(seed, 40, marks=NIGHTLY[: 1 if seed < 40 else 2]) for seed in range(100))],
)
def test_no_device_is_allocated_twice_and_every_grant_ends(seed: int, steps: int) -> None:
    world = SimulatedCluster(seed)

    async def main() -> None:
        async with asyncio.timeout(30_000):
            for _ in range(3):
                async with controlling(world.cluster, open_pools=True):
                    await asyncio.sleep(IN_FORCE)
                    for _ in range(steps):
                        world.step()
                        await asyncio.sleep(world.rng.choice([0.1, 1.0, 5.0, 20.0]))
                        assert not doubles(world.cluster), seed
            async with controlling(world.cluster, open_pools=True):
                for one in world.cluster.all(PODS):
                    world.cluster.remove(PODS, one.metadata.name, NS)
                await asyncio.sleep(IN_FORCE + 2 * BACK)
                assert not granted(world.cluster), seed

    virtual_time.run(main())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40))])
def test_every_pod_that_fits_somewhere_is_served_in_the_end(seed: int) -> None:
    """Pods that came back, grants in vain and our own choice take turns: none of them goes on for ever."""
    world = SimulatedCluster(seed)
    rng, cluster = world.rng, world.cluster
    for i in range(8):
        claim(cluster, f"p{i}")
        node = f"n{i // 2 + 1}"
        pod(cluster, f"p{i}", f"p{i}", metadata={"annotations": {HIDDEN: node}} if rng.random() < 0.7 else {})

    async def main() -> None:
        async with asyncio.timeout(7_200), controlling(cluster, open_pools=True):
            await asyncio.sleep(IN_FORCE)
            while any(not p.spec.node_name for p in cluster.all(PODS)):
                await asyncio.sleep(rng.choice([0.1, 0.5, 2.0]))
                world.decide(at_once=rng.random() < 0.8)
                if world.late and rng.random() < 0.5:
                    write(cluster, world.late.pop(0))
                assert not doubles(cluster), seed
                for one in cluster.all(PODS):
                    wishes = HIDDEN in (one.metadata.annotations or {})
                    if one.spec.node_name and not wishes and rng.random() < 0.02:
                        # Others need the devices that pods without a wish have taken.
                        cluster.remove(PODS, one.metadata.name, NS)
                        cluster.remove(RESOURCE_CLAIMS, one.metadata.name, NS)

    virtual_time.run(main())
