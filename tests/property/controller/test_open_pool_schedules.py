"""Open pools in any order: pods, late writes of kube-scheduler, leaders that are killed, a policy that goes.

The whole controller on an API server that evaluates the policy. kube-scheduler decides on what it sees at one
time, and writes that at another. A device that two claims have counts as a fault, unless one of them was
written by kube-scheduler, while nobody refused it, just before or any time after the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import controller_harness as harness
import pytest
import virtual_time
from builders import DRIVER, NAMESPACE, request
from controller_harness import Harness
from examples import examples
from fake_client import unreachable
from hypothesis import given, settings
from hypothesis import strategies as st
from open_cluster import PolicedCluster, cluster_of

from dra_driver.api.core import CONFIG_MAPS, PODS
from dra_driver.api.names import GRANTS, SYSTEM_NAMESPACE
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.server.admission import VALIDATING_POLICIES
from dra_driver.ownership import PoolAllocator, bare_devices

NODES = ("n1", "n2")
GPUS = 2
# kube-scheduler's, in seconds; less than the time to drain.
LATEST_WRITE = 10.0
# The controller looks every 10 s.
NOTICED = 12.0


class World:
    """The cluster, and those who work on it."""

    def __init__(self, chance: random.Random, *, gaps: bool) -> None:
        self.chance = chance
        self.gaps = gaps
        self.cluster = cluster_of(*NODES, gpus=GPUS)
        self.names = iter(range(10_000))
        # What kube-scheduler has decided and not written: when, claim, node, device.
        self.decided: list[tuple[float, str, str, str]] = []
        # When others were last refused.
        self.refused_at = 0.0
        # Claims that it could write because nobody refused that, and when, until the controller knows them.
        self.loose: dict[str, float] = {}

    def asks(self) -> None:
        """Make a pod with a claim; some come without the gate."""
        if len(self.cluster.all(PODS)) < 2 * len(NODES) * GPUS:
            name = f"c{next(self.names)}"
            harness.claim(self.cluster, name, request())
            harness.pod(self.cluster, f"p-{name}", name, gated=self.chance.random() < 0.7)

    def ends(self) -> None:
        """Delete a pod and its claim."""
        pods = self.cluster.all(PODS)
        if pods:
            name = self.chance.choice(pods).metadata.name
            self.cluster.remove(PODS, name, NAMESPACE)
            self.cluster.remove(RESOURCE_CLAIMS, name.removeprefix("p-"), NAMESPACE)
            self.loose.pop(name.removeprefix("p-"), None)

    def decides(self) -> None:
        """Do as kube-scheduler: choose a device that looks free for a claim that has none."""
        held = {
            (r.pool, r.device)
            for c in self.cluster.all(RESOURCE_CLAIMS)
            if c.status.allocation is not None
            for r in c.status.allocation.devices.results
        }
        free = [
            (s.spec.node_name or "", name)
            for s in self.cluster.all(RESOURCE_SLICES)
            if s.spec.driver == DRIVER
            for name in bare_devices(s)
            if (s.spec.pool.name, name) not in held
        ]
        waiting = [
            c.metadata.name
            for c in self.cluster.all(RESOURCE_CLAIMS)
            if c.metadata.namespace == NAMESPACE and c.status.allocation is None
        ]
        if free and waiting:
            now = asyncio.get_running_loop().time()
            self.decided.append((now, self.chance.choice(waiting), *self.chance.choice(free)))

    def writes(self) -> None:
        """Write one of kube-scheduler's decisions: however old it is, while it is refused.

        Otherwise only what is younger than the time to drain, on which tainted pools rest.
        """
        if not self.decided:
            return
        self.look()
        at, claim, node, device = self.decided.pop(self.chance.randrange(len(self.decided)))
        now, exists = asyncio.get_running_loop().time(), self.cluster.find(RESOURCE_CLAIMS, claim, NAMESPACE)
        if exists is None or (self.refused_at < now and at < now - LATEST_WRITE):
            return
        if self.cluster.take(claim, node, device):
            assert self.gaps, "kube-scheduler was not refused"
            # By then the controller has noticed that nobody refuses it.
            if now - self.refused_at < NOTICED:
                self.loose[claim] = now

    def look(self) -> None:
        """See whether others are refused right now."""
        installed = self.cluster.find(VALIDATING_POLICIES, GRANTS) is not None
        if installed and self.cluster.grants().default is PoolAllocator.CONTROLLER:
            self.refused_at = asyncio.get_running_loop().time()

    def binds(self) -> None:
        """Bind the pods that have devices."""
        harness.bind_pods(self.cluster)

    def policy_goes(self) -> None:
        """Delete the policy."""
        with contextlib.suppress(KeyError):
            self.cluster.uninstall()

    def policy_comes(self) -> None:
        """Install what is missing."""
        self.cluster.install()

    def meddles(self) -> None:
        """Write the object as somebody else: all devices are everybody's."""
        with contextlib.suppress(KeyError):
            data = {"_default": "scheduler"}
            self.cluster.edit(CONFIG_MAPS, GRANTS, {"data": data}, SYSTEM_NAMESPACE)

    def is_deaf(self) -> None:
        """Have one write of the object go through without an answer."""

        def after(_verb: str, kind: str, name: str, _subresource: str) -> None:
            if (kind, name) == (CONFIG_MAPS.kind, GRANTS):
                self.cluster.after = lambda *_: None
                unreachable()

        self.cluster.after = after

    def check(self) -> None:
        """Fail where a device is in two claims that the policy could have kept apart."""
        self.look()
        held: dict[tuple[str, str], list[str]] = {}
        for claim in self.cluster.all(RESOURCE_CLAIMS):
            if claim.status.allocation is not None:
                for r in claim.status.allocation.devices.results:
                    held.setdefault((r.pool, r.device), []).append(claim.metadata.name)
        now = asyncio.get_running_loop().time()
        for device, claims in held.items():
            assert len(claims) - len(self.loose.keys() & set(claims)) <= 1, (device, claims)
            if len(claims) == 1 and self.loose.get(claims[0], now) < now - 1.0:
                del self.loose[claims[0]]


async def schedule(chance: random.Random, steps: int, *, policy: bool) -> None:
    world = World(chance, gaps=policy)
    actions = [world.asks] * 4 + [world.decides, world.writes] * 3
    actions += [world.ends, world.binds, world.is_deaf]
    if policy:
        actions += [world.policy_goes, world.policy_comes, world.meddles, world.asks, world.decides]
    for _ in range(chance.randint(2, 3)):
        # Each leader works for a while, and is killed at any instruction.
        async with harness.controlling(world.cluster, open_pools=True):
            for _ in range(steps):
                chance.choice(actions)()
                world.check()
                await asyncio.sleep(chance.choice((0.0, 0.01, 0.3, 2.0, 6.0)))
                world.check()
    world.cluster.install()
    world.cluster.after = lambda *_: None
    async with harness.controlling(world.cluster, open_pools=True) as h:
        await settles(h, world)


async def settles(h: Harness, world: World) -> None:
    """Left alone, every pool is open again and devices go to those who wait."""
    cluster: PolicedCluster = world.cluster
    for pod in cluster.all(PODS):
        cluster.remove(PODS, pod.metadata.name, NAMESPACE)
        cluster.remove(RESOURCE_CLAIMS, pod.metadata.name.removeprefix("p-"), NAMESPACE)
    async with asyncio.timeout(200):
        while {cluster.record(node) for node in NODES} != {"open"}:
            await asyncio.sleep(0.5)
    names = [f"last-{i}" for i in range(len(NODES) * GPUS)]
    for name in names:
        harness.claim(cluster, name, request())
        harness.pod(cluster, f"p-{name}", name)
    async with asyncio.timeout(100):
        while not all(map(h.devices, names)):
            harness.bind_pods(cluster)
            await asyncio.sleep(0.5)
    assert not cluster.doubles()


def run(seed: int, *, policy: bool) -> None:
    async def main() -> None:
        async with asyncio.timeout(20_000):
            await schedule(random.Random(seed), 25, policy=policy)

    virtual_time.run(main())


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_while_the_policy_is_there_no_device_is_in_two_claims(seed: int) -> None:
    run(seed, policy=False)


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_wherever_the_policy_goes_no_device_is_in_two_claims_that_it_would_have_kept_apart(seed: int) -> None:
    run(seed, policy=True)
