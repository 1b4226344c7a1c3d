"""Random faults, restarts and other writers: the invariants of allocation hold all the time.

No device in two claims at any moment; when the faults end, as many claims as there are devices are allocated
and nothing more is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import builders
import pytest
import virtual_time
from builders import DRIVER, PROTECTED
from builders import NAMESPACE as NS
from fake_client import FakeClient, unreachable
from inline_answers import inline

from controller.app import Controller
from controller.config import ControllerConfig, Timings
from dra_driver.api.core import NODES, PODS
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import Conflict, ServerBusy

DEVICES_PER_NODE = 3
PODS_TOTAL = 9


def build() -> FakeClient:
    cluster = FakeClient()
    cluster.put(DEVICE_CLASSES, builders.device_class())
    for name in ("n1", "n2"):
        cluster.put(NODES, builders.node(name))
        devices = [builders.device(f"gpu-{i}", taints=[PROTECTED]) for i in range(DEVICES_PER_NODE)]
        cluster.put(RESOURCE_SLICES, builders.resource_slice(name, *devices))
    return cluster


def add_pod(cluster: FakeClient, name: str) -> None:
    cluster.put(RESOURCE_CLAIMS, builders.claim(name))
    cluster.put(PODS, builders.pod(name, name, gated=True))


def held(cluster: FakeClient) -> list[tuple[str, str]]:
    return [
        (r.pool, r.device)
        for claim in cluster.all(RESOURCE_CLAIMS)
        if claim.status.allocation is not None
        for r in claim.status.allocation.devices.results
    ]


class Faults:
    def __init__(self, cluster: FakeClient, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.violations: list[str] = []
        cluster.before, cluster.after = self.before, self.after

    def before(self, verb: str, kind: str, name: str, subresource: str) -> None:
        roll = self.chance.random()
        if verb in ("watch", "list"):
            if roll < 0.05:
                unreachable()
            return
        if roll < 0.06:
            raise ServerBusy("busy", code=503)
        if roll < 0.12:
            unreachable()
        if roll < 0.18 and verb == "patch":
            raise Conflict("somebody was faster", code=409)
        if roll < 0.26 and verb == "patch" and kind == "ResourceClaim":
            label = {"metadata": {"labels": {"touched": str(self.chance.random())}}}
            if name in {c.metadata.name for c in self.cluster.all(RESOURCE_CLAIMS)}:
                self.cluster.edit(RESOURCE_CLAIMS, name, label, NS)

    def after(self, verb: str, kind: str, name: str, subresource: str) -> None:
        now = held(self.cluster)
        if len(now) != len(set(now)):
            self.violations.append(f"{verb} {kind} {name}: {sorted(now)}")
        if self.chance.random() < 0.08:
            unreachable()

    def others(self) -> None:
        """What kube-scheduler, users and the network do meanwhile."""
        roll = self.chance.random()
        allocated = [c for c in self.cluster.all(RESOURCE_CLAIMS) if c.status.allocation is not None]
        if roll < 0.15:
            self.cluster.quiet ^= {"ResourceClaim"}
            self.cluster.wake()
        elif roll < 0.25:
            self.cluster.expire()
        elif roll < 0.4 and allocated:
            name = self.chance.choice(allocated).metadata.name
            self.cluster.edit(RESOURCE_CLAIMS, name, {"status": {"allocation": None}}, NS)

    def stop(self) -> None:
        self.cluster.before = self.cluster.after = lambda *_: None
        self.cluster.quiet.clear()
        self.cluster.wake()


@contextlib.asynccontextmanager
async def controller(cluster: FakeClient) -> AsyncIterator[None]:
    timings = Timings(avoid=0.1, longest_avoid=0.3)
    config = ControllerConfig(drivers=(DRIVER,), leader_elect=False, timings=timings)
    task = asyncio.create_task(Controller(cluster, config, answers_of=inline).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def quiet(cluster: FakeClient, seconds: float) -> None:
    count = -1
    while count != len(cluster.writes):
        count = len(cluster.writes)
        await asyncio.sleep(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_invariants_hold_under_random_faults(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        cluster = build()
        faults = Faults(cluster, chance)
        names = iter(range(PODS_TOTAL))
        for _ in range(4):  # restarts
            async with controller(cluster):
                for _ in range(chance.randint(3, 10)):
                    await asyncio.sleep(chance.random() * 0.08)
                    faults.others()
                    number = next(names, None)
                    if number is not None:
                        add_pod(cluster, f"p{number}")
        for number in names:
            add_pod(cluster, f"p{number}")
        faults.stop()
        async with controller(cluster):
            await asyncio.sleep(0.5)
            await quiet(cluster, 0.8)
            assert faults.violations == []
            now = held(cluster)
            assert len(now) == len(set(now)) == 2 * DEVICES_PER_NODE
            ungated = [p for p in cluster.all(PODS) if not p.spec.scheduling_gates]
            assert len(ungated) >= 2 * DEVICES_PER_NODE

    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main()

    virtual_time.run(bounded())
