"""What a loan may cost kube-scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import builders
import msgspec
import virtual_time
from builders import NAMESPACE
from fake_client import FakeClient
from lending_cluster import cluster_of, pod

from controller.allocate.decide import Lend, LentNode, PodID
from controller.allocate.lending import CounterPools, Ending, LoanLimits
from controller.allocate.signal import Signal
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey, PoolName
from dra_driver.api.names import COUNTERS_ANNOTATION
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID


class SimulatedCluster:
    """A cluster with pools that have counters, and the limits."""

    def __init__(self, budget: float, pools: int = 0) -> None:
        self.cluster: FakeClient = cluster_of("n1")
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
        self.limits = LoanLimits(
            budget, self.counted, lambda: "", Signal(), self.pods, self.ended, self.looked.append
        )

    def pod(self, name: str, *, gated: bool = True) -> Pod:
        if self.cluster.find(PODS, name, NAMESPACE) is None:
            pod(self.cluster, name, amount=1, gated=gated)
        return self.cluster.obj(PODS, name, NAMESPACE)

    def refusal(self, name: str, nodes: int = 1, *, gated: bool = True) -> str:
        return self.limits.refusal(self.pod(name, gated=gated), Lend((LentNode("n1", ()),), suitable=nodes))[
            0
        ]


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


def test_a_loan_that_would_cost_too_much_if_it_were_in_vain_is_refused() -> None:
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


def test_a_pod_that_gets_what_was_lent_costs_nothing_more() -> None:
    world = SimulatedCluster(1.0)

    async def scenario() -> None:
        one = world.pod("one", gated=False)
        assert world.refusal("one", 30_000, gated=False) == ""
        assert world.refusal("two", 1)
        world.ended.send(PodID(one.key, one.metadata.uid), ("n1",), Ending.ALLOCATED)
        assert world.refusal("two", 1) == ""

    run(world, scenario)


def test_withheld_counters_cost_nothing_until_something_of_their_pool_is_lent() -> None:
    world = SimulatedCluster(1.0, pools=500)
    for i in range(500):
        withhold(world, i)
    lend = Lend((LentNode("n1", ((PoolID(builders.DRIVER, PoolName("m0")), ("c",)),)),), suitable=5_000)

    async def scenario() -> None:
        assert len(world.counted) == 0
        assert world.limits.refusal(world.pod("first"), lend) == ("", 0.0)
        for i in range(20):
            withhold(world, i, withheld=False)
        await asyncio.sleep(1.0)
        assert len(world.counted) == 20
        why, again = world.limits.refusal(world.pod("second"), lend)
        assert "because of 20 pools with counters" in why
        assert again == 30.0
        assert not world.looked
        withhold(world, 1)
        await asyncio.sleep(1.0)
        assert world.looked == [world.pod("second").key]  # not after 30 s

    run(world, scenario)


def withhold(world: SimulatedCluster, number: int, *, withheld: bool = True) -> None:
    name = builders.resource_slice(f"m{number}")["metadata"]["name"]
    slice_ = world.cluster.obj(RESOURCE_SLICES, name)
    annotations = {COUNTERS_ANNOTATION: ""} if withheld else None
    meta = msgspec.structs.replace(slice_.metadata, annotations=annotations)
    world.cluster.put(RESOURCE_SLICES, msgspec.structs.replace(slice_, metadata=meta).as_stored())
