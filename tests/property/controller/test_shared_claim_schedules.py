"""Random schedules of pods that share claims, beside a kube-scheduler that deallocates them.

Pods come and go, with claims of their own and of others, gated or not, of several priorities; the controller
and kube-scheduler end and start again. Once nobody disturbs them any more, nothing is written, and every pod
that can run with what is free is bound, but for those that kube-scheduler would take the claims from.

The default run plays some schedules; ``DRA_SHARED_SCHEDULES=500`` plays that many.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import builders
import pytest
import virtual_time
from builders import PROTECTED
from controller_harness import OURS, inline
from examples import seeds
from fake_client import FakeClient
from slow_scheduler import SlowScheduler

from controller.app import Controller
from controller.config import ControllerConfig, Timings
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.meta import Uid
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.kube import DelegatingClient
from dra_driver.ownership import is_controller_taint
from dra_driver.resourceclaim import pod_claims
from dra_driver.sim.controlplane.scheduler import Scheduler
from dra_driver.structured import Allocated, AllocatedState, Snapshot, allocate

NS = "default"
NODE_NAMES = ("n1", "n2")
CPUS = 64
# With back-off as it is by default, a loop of futile allocations would be slow enough to look like peace.
QUICK = Timings(avoid=0.2, longest_avoid=0.6, unused=0.3)


class SimulatedCluster:
    """The objects, and what users do."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cluster = FakeClient()
        self._made = 0
        self.cluster.put(DEVICE_CLASSES, builders.device_class("gpu"))
        for name in NODE_NAMES:
            room = {"cpu": str(CPUS), "memory": "64Gi", "pods": "110"}
            self.cluster.put(NODES, builders.node(name, allocatable=room))
            devices = [builders.device(f"gpu-{i}", "40Gi", taints=[PROTECTED]) for i in range(2)]
            self.cluster.put(RESOURCE_SLICES, builders.resource_slice(name, *devices))

    def act(self) -> None:
        pods = self.cluster.all(PODS)
        running = [p for p in pods if p.spec.node_name]
        roll = self.rng.random()
        if roll < 0.55:
            self._create()
        elif roll < 0.75 and pods:
            self._delete(self.rng.choice(pods))
        elif running:
            self._delete(self.rng.choice(running))

    def _create(self) -> None:
        rng = self.rng
        self._made += 1
        name = f"p{self._made}"
        claims: list[str] = []
        for i in range(rng.choice((1, 1, 1, 2))):
            known = [c.metadata.name for c in self.cluster.all(RESOURCE_CLAIMS)]
            if known and rng.random() < 0.4:
                claim = rng.choice(known)
            else:
                claim = f"c{name}-{i}"
                count = rng.choice((1, 1, 1, 2))
                self.cluster.put(RESOURCE_CLAIMS, builders.claim(claim, builders.request(count=count)))
            if claim not in claims:
                claims.append(claim)
        cpu = "40" if rng.random() < 0.3 else ""
        priority = rng.choice((0, 0, 0, -10, 1000))
        gated = rng.random() < 0.85
        # The stand-in kube-scheduler does not preempt.
        pod = builders.pod(name, *claims, gated=gated, priority=priority, preemptionPolicy="Never", cpu=cpu)
        self.cluster.put(PODS, pod)

    def _delete(self, pod: Pod) -> None:
        self.cluster.remove(PODS, pod.metadata.name, NS)
        later = self.rng.uniform(0, 0.5)
        asyncio.get_running_loop().call_later(later, self._end_reservations, pod.metadata.uid)

    def _end_reservations(self, pod: Uid) -> None:
        """Do what kube-controller-manager does for a pod that is gone."""
        for claim in self.cluster.all(RESOURCE_CLAIMS):
            left = [r for r in claim.status.reserved_for if r.uid != pod]
            if len(left) < len(claim.status.reserved_for):
                raw = [{"resource": "pods", "name": r.name, "uid": r.uid} for r in left]
                status: dict[str, Any] = {"reservedFor": raw or None}
                if not left:
                    status["allocation"] = None
                self.cluster.edit(RESOURCE_CLAIMS, claim.metadata.name, {"status": status}, NS)

    def end_all_reservations(self) -> None:
        """End those that a kube-scheduler has made for pods that were gone by then."""
        there = {p.metadata.uid for p in self.cluster.all(PODS)}
        for claim in self.cluster.all(RESOURCE_CLAIMS):
            for reference in claim.status.reserved_for:
                if reference.uid not in there:
                    self._end_reservations(reference.uid)

    # --- in the end -----------------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        claims = {c.metadata.name: c for c in self.cluster.all(RESOURCE_CLAIMS)}
        snapshot = Snapshot.build(
            slices=self.cluster.all(RESOURCE_SLICES),
            classes=self.cluster.all(DEVICE_CLASSES),
            nodes=self.cluster.all(NODES),
            allocated=AllocatedState.from_claims(claims.values()),
        )
        for pod in self.cluster.all(PODS):
            mine = [claims[used.key.name] for used in pod_claims(pod) if used.key is not None]
            if any(c.status.allocation is None for c in mine):
                nodes = self._nodes(pod, claims)
                found = allocate(snapshot, mine, nodes=nodes, ignore_taint=is_controller_taint)
                if isinstance(found, Allocated):
                    yield f"{pod.metadata.name} fits on {found.node} and waits"
            elif not pod.spec.node_name and self._room_with_claims(pod, claims):
                yield f"{pod.metadata.name} has its devices and is not bound"

    def _nodes(self, pod: Pod, claims: dict[str, ResourceClaim]) -> set[str]:
        """Nodes with room for the pod, and for those before it that kube-scheduler tries with its claims."""
        mine, nodes = _pending(pod, claims), self._room(pod)
        for other in self.cluster.all(PODS):
            theirs = _pending(other, claims)
            seen = not (other.spec.node_name or other.spec.scheduling_gates)
            if seen and theirs & mine and _queued(other) < _queued(pod):
                nodes &= self._room_with_claims(other, claims) if theirs <= mine else set()
        return nodes

    def _room_with_claims(self, pod: Pod, claims: dict[str, ResourceClaim]) -> set[str]:
        """Nodes with room for the pod on which all its allocated claims are."""
        mine = [claims[used.key.name] for used in pod_claims(pod) if used.key is not None]
        held = [c.status.allocation for c in mine if c.status.allocation is not None]
        pools = {str(r.pool) for a in held for r in a.devices.results}
        return {n for n in self._room(pod) if pools <= {n}}

    def _room(self, pod: Pod) -> set[str]:
        taken = dict.fromkeys(NODE_NAMES, 0)
        for other in self.cluster.all(PODS):
            if other.spec.node_name:
                taken[other.spec.node_name] += _cpus(other)
        return {n for n in NODE_NAMES if taken[n] + _cpus(pod) <= CPUS}


def _pending(pod: Pod, claims: dict[str, ResourceClaim]) -> set[str]:
    names = {used.key.name for used in pod_claims(pod) if used.key is not None}
    return {name for name in names if claims[name].status.allocation is None}


def _queued(pod: Pod) -> tuple[Any, ...]:
    """Where kube-scheduler's queue has a pod: by priority, then by age."""
    return -pod.spec.priority, pod.metadata.creation_timestamp or "", pod.key


def _cpus(pod: Pod) -> int:
    return sum(q.value() for c in pod.spec.containers for k, q in c.resources.requests.items() if k == "cpu")


class Cast:
    """A controller and a kube-scheduler that end and start again."""

    def __init__(self, world: SimulatedCluster) -> None:
        self._world = world
        self._slow = SlowScheduler(world.cluster, world.rng)
        self._slow.longest = world.rng.choice([0.0, 0.02, 0.1, 0.5])
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.start_controller()
        self.start_scheduler()

    def start_controller(self) -> None:
        # Devices that are set aside for one pod would keep others from resting with all that fits.
        config = ControllerConfig(drivers=(OURS,), leader_elect=False, timings=QUICK, starvation_seconds=0)
        client = DelegatingClient(self._world.cluster)
        controller = Controller(client, config, virtual_time.LoopClock(), answers_of=inline)
        self._tasks["controller"] = asyncio.create_task(controller.run())

    def start_scheduler(self) -> None:
        rng = self._world.rng
        self.scheduler = Scheduler(self._slow, backoff=rng.choice([0.05, 1.0]))
        self.scheduler.slow_binding = rng.choice([0.0, 0.0, 0.2, 1.0, 3.0])
        self._tasks["scheduler"] = asyncio.create_task(self.scheduler.run())

    async def stop(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
            await asyncio.wait({self._tasks[name]})

    def disturb_no_more(self) -> None:
        self._slow.longest = 0.0
        self.scheduler.slow_binding = self._world.rng.choice([0.0, 0.3])


async def play(seed: int) -> None:
    rng = random.Random(seed)
    world = SimulatedCluster(rng)
    cast = Cast(world)
    loop = asyncio.get_running_loop()
    end = loop.time() + rng.uniform(3, 10)
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(0, 0.3))
        world.act()
        if rng.random() < 0.1:
            await cast.stop("controller")
            await asyncio.sleep(rng.uniform(0, 0.3))
            cast.start_controller()
        if rng.random() < 0.03:
            await cast.stop("scheduler")
            cast.start_scheduler()
    cast.disturb_no_more()
    await asyncio.sleep(5)
    world.end_all_reservations()
    deadline = loop.time() + 240
    problems = ["nothing was looked at"]
    while problems and loop.time() < deadline:
        version = world.cluster.registry.store.version
        await asyncio.sleep(5)
        problems = list(world.unsettled())
        if version != world.cluster.registry.store.version:
            problems.append("something is still written")
    await cast.stop("controller", "scheduler")
    assert not problems, problems


@pytest.mark.parametrize("seed", seeds("DRA_SHARED_SCHEDULES", 12, first=2))
def test_pods_that_share_claims_come_to_rest_with_all_that_fits(seed: int) -> None:
    virtual_time.run(play(seed))


def test_no_claim_is_allocated_again_and_again_beside_a_pod_that_fits_nowhere() -> None:
    async def scenario() -> None:
        world = SimulatedCluster(random.Random(0))
        cluster = world.cluster
        cluster.put(RESOURCE_CLAIMS, builders.claim("shared"))
        cluster.put(RESOURCE_CLAIMS, builders.claim("impossible", builders.request(count=5)))
        cluster.put(PODS, builders.pod("a", "shared", "impossible", priority=1))
        cluster.put(PODS, builders.pod("b", "shared"))
        cast = Cast(world)
        cast.disturb_no_more()
        cast.scheduler.slow_binding = 0.3
        made = cluster.obj(RESOURCE_CLAIMS, "shared", NS)
        await asyncio.sleep(60)
        assert cluster.obj(RESOURCE_CLAIMS, "shared", NS) == made
        cluster.remove(PODS, "a", NS)
        await asyncio.sleep(30)
        assert cluster.obj(PODS, "b", NS).spec.node_name
        await cast.stop("controller", "scheduler")

    virtual_time.run(scenario())
