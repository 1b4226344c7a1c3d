"""Random faults, restarts and other writers: the invariants of allocation hold all the time.

No device in two claims at any moment; when the faults end, as many claims as there are devices are allocated
and nothing more is written.
"""

import asyncio
import contextlib
import random

import pytest
from support import virtual_time
from support.fake_cluster import FakeCluster, unreachable

from controller.app import Controller
from controller.config import ControllerConfig, Timings
from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import ALLOCATION_GATE, CONTROLLER_TAINT
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import Conflict, ServerBusy

NS = "default"
DEVICES_PER_NODE = 3
PODS_TOTAL = 9


def build() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
    taint = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}
    for name in ("n1", "n2"):
        cluster.put(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        spec = {
            "driver": "gpu.example.com",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{i}", "taints": [taint]} for i in range(DEVICES_PER_NODE)],
        }
        cluster.put(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})
    return cluster


def add_pod(cluster: FakeCluster, name: str) -> None:
    request = {
        "name": "r",
        "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
    }
    meta = {"name": name, "namespace": NS}
    cluster.put(
        RESOURCE_CLAIMS,
        {"metadata": dict(meta), "spec": {"devices": {"requests": [request]}}, "status": {}},
    )
    cluster.put(
        PODS,
        {
            "metadata": dict(meta),
            "spec": {
                "containers": [{"name": "c"}],
                "resourceClaims": [{"name": "r", "resourceClaimName": name}],
                "schedulingGates": [{"name": ALLOCATION_GATE}],
            },
            "status": {"phase": "Pending"},
        },
    )


def held(cluster: FakeCluster) -> list[tuple[str, str]]:
    return [
        (r.pool, r.device)
        for claim in cluster.all(RESOURCE_CLAIMS)
        if claim.status.allocation is not None
        for r in claim.status.allocation.devices.results
    ]


class Faults:
    def __init__(self, cluster: FakeCluster, chance: random.Random) -> None:
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
async def controller(cluster: FakeCluster):
    timings = Timings(avoid=0.1, longest_avoid=0.3)
    config = ControllerConfig(drivers=("gpu.example.com",), leader_elect=False, timings=timings)
    task = asyncio.create_task(Controller(cluster, config).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def quiet(cluster: FakeCluster, seconds: float) -> None:
    count = -1
    while count != len(cluster.writes):
        count = len(cluster.writes)
        await asyncio.sleep(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_invariants_hold_under_random_faults(seed):
    async def main():
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

    async def bounded():
        async with asyncio.timeout(40):
            await main()

    virtual_time.run(bounded())
