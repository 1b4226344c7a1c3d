"""Random days with pods that kube-scheduler in the end has no node for: nothing stays allocated for them.

Pods come and go, with claims of their own and of others, alone and in groups; answers of the API server are
lost, pools are away for a while, claims are deleted, the controller starts again. Then nothing changes any
more but that kube-scheduler reports that no node suits the pods which it has not bound: their devices are
free but for rare attempts, and few writes are made.

The default run plays one schedule; ``DRA_IN_VAIN_SCHEDULES=500`` plays that many.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import builders
import pytest
import virtual_time
from builders import PROTECTED
from controller_harness import NS, OURS, bind, inline
from fake_client import FakeClient, unreachable

from controller.allocate.decide import is_finished
from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import ServerBusy
from dra_driver.resourceclaim import pod_claims

SCHEDULES = int(os.environ.get("DRA_IN_VAIN_SCHEDULES", "1"))
NODE_NAMES = ("n1", "n2")
NOWHERE = "0/2 nodes are available: 2 node(s) didn't satisfy existing rules."
NOT_HERE = "0/2 nodes are available: 1 Too many pods, 1 resourceclaim not available on the node."
MISSING = "0/2 nodes are available: 1 Too many pods, 1 cannot allocate all claims."


class SimulatedCluster:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.made, self.faulty = rng, 0, True
        self.cluster = cluster = FakeClient()
        cluster.put(DEVICE_CLASSES, builders.device_class("gpu"))
        for name in NODE_NAMES:
            cluster.put(NODES, builders.node(name))
            self.publish(name)
        cluster.after = self._after
        cluster.before = self._before

    def publish(self, name: str) -> None:
        devices = [builders.device(f"gpu-{i}", taints=[PROTECTED]) for i in range(3)]
        self.cluster.put(RESOURCE_SLICES, builders.resource_slice(name, *devices))

    def _before(self, verb: str, *_: str) -> None:
        if self.faulty and verb == "patch" and self.rng.random() < 0.06:
            raise ServerBusy("busy", code=503)

    def _after(self, verb: str, *_: str) -> None:
        if self.faulty and verb == "patch" and self.rng.random() < 0.1:
            unreachable()  # what was written is not known

    def act(self) -> None:
        rng, roll = self.rng, self.rng.random()
        pods = self.cluster.all(PODS)
        waiting = [p for p in pods if not (p.spec.node_name or p.spec.scheduling_gates)]
        if roll < 0.4 or not pods:
            self._create()
        elif roll < 0.55:
            self._delete(rng.choice(pods))
        elif roll < 0.6 and (claims := self.cluster.all(RESOURCE_CLAIMS)):
            free = [c for c in claims if not c.status.allocation]
            if free:
                self.cluster.remove(RESOURCE_CLAIMS, rng.choice(free).metadata.name, NS)
        elif roll < 0.67:
            name = rng.choice(NODE_NAMES)
            slices = [s for s in self.cluster.all(RESOURCE_SLICES) if s.spec.node_name == name]
            for slice_ in slices:
                self.cluster.remove(RESOURCE_SLICES, slice_.metadata.name)
            if not slices:
                self.publish(name)
        elif waiting:
            self._look(rng.choice(waiting), rng.choice((NOWHERE, NOWHERE, NOT_HERE, MISSING, "")))

    def _create(self) -> None:
        rng = self.rng
        self.made += 1
        group = f"g{self.made}" if rng.random() < 0.3 else ""
        labels = {GROUP_LABEL: group, GROUP_SIZE_LABEL: "2"} if group else {}
        for member in range(2 if group else 1):
            name = f"p{self.made}-{member}"
            claims: list[str] = []
            for i in range(rng.choice((1, 1, 2))):
                known = [c.metadata.name for c in self.cluster.all(RESOURCE_CLAIMS)]
                claim = rng.choice(known) if known and rng.random() < 0.4 else f"c{name}-{i}"
                if claim not in known:
                    self.cluster.put(RESOURCE_CLAIMS, builders.claim(claim))
                if claim not in claims:
                    claims.append(claim)
            gated = rng.random() < 0.7
            self.cluster.put(PODS, builders.pod(name, *claims, gated=gated, metadata={"labels": labels}))

    def _delete(self, pod: Pod) -> None:
        self.cluster.remove(PODS, pod.metadata.name, NS)
        for claim in self.cluster.all(RESOURCE_CLAIMS):  # as kube-controller-manager
            left = [r for r in claim.status.reserved_for if r.uid != pod.metadata.uid]
            if len(left) < len(claim.status.reserved_for):
                raw = [{"resource": "pods", "name": r.name, "uid": r.uid} for r in left]
                status = {"reservedFor": raw} if raw else {"reservedFor": None, "allocation": None}
                self.cluster.edit(RESOURCE_CLAIMS, claim.metadata.name, {"status": status}, NS)

    def _look(self, pod: Pod, message: str) -> None:
        """Do as kube-scheduler: bind a pod that has its devices on one node, or report."""
        found = [self.cluster.find(RESOURCE_CLAIMS, u.key.name, NS) for u in pod_claims(pod) if u.key]
        allocations = [c.get("status", {}).get("allocation") if c else None for c in found]
        nodes = {a["devices"]["results"][0]["pool"] if a else "" for a in allocations}
        if not message:
            if len(nodes) == 1 and "" not in nodes:
                bind(self.cluster, pod, nodes.pop())
            return
        report = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        conditions = [dict(c) for c in pod.status.conditions]
        others = [c for c in conditions if c["type"] != "PodScheduled"]
        if report in conditions and not pod.status.nominated_node_name:
            return
        status = {"conditions": [*others, report], "nominatedNodeName": None}
        self.cluster.edit(PODS, pod.metadata.name, {"status": status}, NS)

    def report_all(self) -> None:
        for pod in self.cluster.all(PODS):
            if not (pod.spec.node_name or pod.spec.scheduling_gates or is_finished(pod)):
                self._look(pod, NOWHERE)

    def held(self) -> set[str]:
        return {
            c.metadata.name
            for c in self.cluster.all(RESOURCE_CLAIMS)
            if c.status.allocation is not None and not c.status.reserved_for
        }


async def play(seed: int) -> None:
    rng = random.Random(seed)
    world = SimulatedCluster(rng)
    loop = asyncio.get_running_loop()

    def start() -> asyncio.Task[None]:
        config = ControllerConfig(drivers=(OURS,), leader_elect=False, starvation_seconds=0)
        clock = virtual_time.LoopClock()
        return asyncio.create_task(Controller(world.cluster, config, clock, answers_of=inline).run())

    task = start()

    async def stop() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    end = loop.time() + rng.uniform(5, 60)
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(0, rng.choice((0.1, 1, 3))))
        world.act()
        if rng.random() < 0.05:
            await stop()
            task = start()
    world.faulty = False
    for name in NODE_NAMES:
        if not any(s.spec.node_name == name for s in world.cluster.all(RESOURCE_SLICES)):
            world.publish(name)
    for second in range(1500):
        await asyncio.sleep(1)
        if second % 3 == 0:
            world.report_all()
    writes = len(world.cluster.writes)
    always = world.held()
    for _ in range(400):
        await asyncio.sleep(3)
        world.report_all()
        always &= world.held()
    await stop()
    assert not always, f"held all the time: {sorted(always)}"
    number = len(world.cluster.writes) - writes
    waiting = sum(not p.spec.node_name for p in world.cluster.all(PODS))
    assert number <= 60 * waiting, f"{number} writes for {waiting} pods in twenty minutes"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_nothing_stays_allocated_for_pods_that_no_node_suits(seed: int) -> None:
    virtual_time.run(play(seed))
