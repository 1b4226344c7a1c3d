"""What a grant may cost kube-scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import builders
import virtual_time
from builders import NAMESPACE
from fake_client import FakeClient

from controller.allocate.decide import GrantDevices, GrantedNode, PodID
from controller.allocate.granting import CounterPools, Ending, GrantLimits
from controller.allocate.signal import Signal
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.kube import Informer


class SimulatedCluster:
    """A cluster with pools that have counters, and the limits."""

    def __init__(self, budget: float, pools: int = 0) -> None:
        self.cluster = FakeClient()
        counters = [{"name": "c", "counters": {"memory": {"value": "1"}}}]
        for i in range(pools):
            raw = builders.resource_slice(f"m{i}")
            raw["spec"] |= {"devices": [], "sharedCounters": counters}
            self.cluster.put(RESOURCE_SLICES, raw)
        self.ended: Signal[[PodID, tuple[str, ...], Ending]] = Signal()
        self.pods = Informer(self.cluster, PODS)
        self.slices = Informer(self.cluster, RESOURCE_SLICES)
        self.looked: list[ObjectKey] = []
        self.counted = CounterPools(self.slices)
        self.limits = GrantLimits(budget, self.counted, self.pods, self.ended, self.looked.append)

    def pod(self, name: str, *, gated: bool = True, namespace: str = NAMESPACE) -> Pod:
        if self.cluster.find(PODS, name, namespace) is None:
            body = builders.pod(name, uid=f"uid-{name}", gated=gated, namespace=namespace)
            self.cluster.put(PODS, body)
        return self.cluster.obj(PODS, name, namespace)

    def refusal(self, name: str, nodes: int = 1, *, gated: bool = True, namespace: str = NAMESPACE) -> str:
        decision = GrantDevices((GrantedNode("n1", ()),), suitable=nodes)
        return self.limits.refusal(self.pod(name, gated=gated, namespace=namespace), decision)[0]


def run(world: SimulatedCluster, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(i.run()) for i in (world.pods, world.slices)]
        await asyncio.sleep(1.0)
        await scenario()
        for task in tasks:
            task.cancel()

    virtual_time.run(main())


def test_without_counters_every_fleet_is_cheap() -> None:
    world = SimulatedCluster(1.0)

    async def scenario() -> None:
        assert world.refusal("p", 5_000) == ""
        assert len(world.counted) == 0

    run(world, scenario)


def test_a_look_at_one_node_that_costs_too_much_is_refused() -> None:
    world = SimulatedCluster(0.000_3, pools=60)

    async def scenario() -> None:
        assert len(world.counted) == 60
        assert "60 pools with counters" in world.refusal("p")
        for i in range(40):
            world.cluster.remove(RESOURCE_SLICES, builders.resource_slice(f"m{i}")["metadata"]["name"])
        await asyncio.sleep(1.0)
        assert len(world.counted) == 20
        assert world.refusal("p") == ""

    run(world, scenario)


def test_a_grant_that_would_cost_too_much_if_it_were_in_vain_is_refused() -> None:
    world = SimulatedCluster(1.0, pools=500)

    async def scenario() -> None:
        assert "the 500 nodes that suit the pod" in world.refusal("anywhere", 500)
        assert world.refusal("on-few", 100) == ""
        assert world.refusal("tried-anyway", 500, gated=False) == ""

    run(world, scenario)


def test_no_more_gates_are_lifted_while_pods_without_one_cost_too_much() -> None:
    world = SimulatedCluster(1.5)

    async def scenario() -> None:
        first = world.pod("first")
        assert world.refusal("first", 30_000) == ""
        assert world.refusal("second", 10_000) == ""  # kube-scheduler tries the nominated node alone
        world.ended.send(PodID(first.key, first.metadata.uid), ("n1",), Ending.REFUSED)
        assert "1 pod without the gate could not be placed" in world.refusal("second", 10_000)
        assert world.refusal("on-one-node", 1) == ""
        assert world.refusal("other", 30_000, gated=False) == ""  # kube-scheduler tries it anyway
        assert "2 pods without the gate" in world.refusal("second", 1)
        bound = {"spec": {"nodeName": "n1"}}
        world.cluster.edit(PODS, "first", bound, NAMESPACE)
        await asyncio.sleep(1.0)
        assert "1 pod without the gate" in world.refusal("second", 10_000)
        world.cluster.remove(PODS, "other", NAMESPACE)
        await asyncio.sleep(1.0)
        assert world.refusal("second", 10_000) == ""

    run(world, scenario)


def test_what_pods_of_other_namespaces_cost_refuses_nobody_who_has_none_of_these() -> None:
    """Whoever makes pods can have some that kube-scheduler never places."""
    world = SimulatedCluster(1.0)

    async def scenario() -> None:
        assert world.refusal("hostile", 30_000, gated=False) == ""
        assert world.refusal("hostile-too", 1)
        quiet = world.pod("quiet", namespace="quiet")
        assert world.refusal("quiet", 20_000, namespace="quiet") == ""
        assert "the 30000 nodes that suit" in world.refusal("large", 30_000, namespace="quiet")
        world.ended.send(PodID(quiet.key, quiet.metadata.uid), ("n1",), Ending.REFUSED)
        assert "2 pods without the gate" in world.refusal("second", 1, namespace="quiet")

    run(world, scenario)


def test_a_pod_that_gets_what_was_granted_costs_nothing_more() -> None:
    world = SimulatedCluster(1.0)

    async def scenario() -> None:
        one = world.pod("one", gated=False)
        assert world.refusal("one", 30_000, gated=False) == ""
        assert world.refusal("two", 1)
        world.ended.send(PodID(one.key, one.metadata.uid), ("n1",), Ending.ALLOCATED)
        assert world.refusal("two", 1) == ""

    run(world, scenario)


def test_a_pod_that_was_refused_is_looked_at_when_fewer_pools_have_counters() -> None:
    world = SimulatedCluster(1.0, pools=500)

    async def scenario() -> None:
        assert world.refusal("p", 500)
        assert not world.looked
        world.cluster.remove(RESOURCE_SLICES, builders.resource_slice("m1")["metadata"]["name"])
        await asyncio.sleep(1.0)
        assert world.looked == [world.pod("p").key]  # not after 30 s
        world.cluster.put(RESOURCE_SLICES, builders.resource_slice("m2"))  # it has no counters any more
        await asyncio.sleep(1.0)
        assert len(world.counted) == 498
        assert world.looked == [world.pod("p").key]

    run(world, scenario)
