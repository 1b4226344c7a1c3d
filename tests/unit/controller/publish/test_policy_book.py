"""Which policies count for a node and a driver, when statuses are written, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import builders
import virtual_time
from builders import DRIVER
from fake_client import FakeClient

from controller.config import Timings
from controller.publish.policies import MANY_PARTITIONED_NODES, PolicyBook
from dra_driver.api import codec
from dra_driver.api.core import EVENTS, Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import DEVICE_POLICIES, DevicePolicy
from dra_driver.kube import EventRecorder, Informer, SystemClock
from dra_driver.ownership import PoolAllocator, PoolID
from dra_driver.resourceslice import DesiredPool, PolicyOutcome
from dra_driver.structured import NodePolicy, PoolPolicy, Strategy

SETTLE = 0.5


class World:
    """The book of a cluster's policies, whose statuses are written."""

    def __init__(self, **default: Any) -> None:
        self.cluster = FakeClient()
        self.policies = Informer(self.cluster, DEVICE_POLICIES)
        self.recorder = EventRecorder(self.cluster, "test", SystemClock())
        self.book = PolicyBook(
            self.cluster,
            SystemClock(),
            self.recorder,
            self.policies,
            timings=Timings(settle=SETTLE),
            **default,
        )

    async def put(self, name: str, generation: int = 1, **spec: Any) -> None:
        body = {"metadata": {"name": name, "generation": generation}, "spec": spec}
        self.cluster.put(DEVICE_POLICIES, body)
        await asyncio.sleep(0.1)

    def record(self, node: str, driver: str = DRIVER, **desired: Any) -> bool:
        pool = DesiredPool(
            driver=DriverName(driver),
            pool=PoolName(node),
            node_name=node,
            **{"allocator": PoolAllocator.CONTROLLER, "slices": (), **desired},
        )
        return self.book.record(inventory(node, driver), pool)

    async def statuses(self, seconds: float = 2 * SETTLE) -> int:
        """Return how many statuses are written in the next moments."""
        before = len(self.cluster.writes)
        await asyncio.sleep(seconds)
        return sum(w.kind == DEVICE_POLICIES.kind for w in self.cluster.writes[before:])

    def policy(self, name: str = "p") -> DevicePolicy:
        return self.cluster.obj(DEVICE_POLICIES, name)

    def condition(self, type_: str, name: str = "p") -> tuple[str, str]:
        (found,) = [c for c in self.policy(name).status.conditions if c.type == type_]
        return found.reason, found.message


def inventory(node: str, driver: str = DRIVER) -> DeviceInventory:
    found: DeviceInventory = codec.convert(DeviceInventory, builders.inventory(node, driver=driver))
    return found


def matches(devices: int = 1, name: str = "p", **more: Any) -> dict[str, PolicyOutcome]:
    return {name: PolicyOutcome(devices=devices, **more)}


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], **default: Any) -> None:
    async def main() -> None:
        world = World(**default)
        tasks = [asyncio.create_task(p.run()) for p in (world.policies, world.recorder, world.book)]
        try:
            await asyncio.sleep(1)
            await scenario(world)
        finally:
            world.book.queue.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    virtual_time.run(main())


def zone(name: str) -> dict[str, Any]:
    expressions = [{"key": "zone", "operator": "In", "values": [name]}]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}


def test_policies_count_for_the_nodes_that_they_select_in_their_order() -> None:
    node = codec.convert(Node, builders.node("n1", labels={"zone": "a"}))

    async def scenario(world: World) -> None:
        def found() -> list[str]:
            return [p.metadata.name for p in world.book.for_node(node)]

        assert found() == []
        await world.put("b")
        await world.put("a")
        assert not world.book.looks_at_labels
        assert found() == ["a", "b"]
        await world.put("here", nodeSelector=zone("a"))
        await world.put("there", nodeSelector=zone("b"), priority=9)
        assert world.book.looks_at_labels
        assert found() == ["a", "b", "here"]
        await world.put("here", generation=2, nodeSelector=zone("a"), priority=1)
        assert found() == ["here", "a", "b"]
        world.cluster.remove(DEVICE_POLICIES, "here")
        await asyncio.sleep(0.1)
        assert found() == ["a", "b"]

    run(scenario)


def test_a_policy_wants_the_controller_for_its_driver() -> None:
    async def scenario(world: World) -> None:
        ours = [DriverName(DRIVER)]
        await world.put("a", allocator="scheduler", driver=DRIVER)
        await world.put("b", allocator="controller", driver="nic.example")
        assert not world.book.wants_controller(ours)
        assert world.book.wants_controller([DriverName("nic.example")])
        await world.put("c", allocator="controller", driver=DRIVER)
        assert world.book.wants_controller(ours)
        world.cluster.remove(DEVICE_POLICIES, "c")
        await world.put("d", allocator="controller")
        assert world.book.wants_controller(ours)

    run(scenario)


def test_a_status_is_written_a_moment_after_a_change_that_it_is_about() -> None:
    async def scenario(world: World) -> None:
        await world.put("p")
        assert await world.statuses(SETTLE / 2) == 0
        assert await world.statuses() == 1
        assert world.condition("Applied") == ("NothingMatches", "0 devices on 0 nodes")
        for node in ("n1", "n2"):
            world.record(node, outcomes=matches(2))
        assert await world.statuses(SETTLE / 2) == 0
        assert await world.statuses() == 1
        assert world.condition("Applied") == ("Applied", "4 devices on 2 nodes")
        # The same again, and what says nothing of the policy.
        world.record("n1", outcomes=matches(2))
        world.record("n1", outcomes=matches(2), strategy="first-fit")
        world.record("n3", outcomes=matches(name="gone"))
        assert await world.statuses() == 0
        await world.put("p", generation=2)
        assert await world.statuses() == 1
        assert world.policy().status.observed_generation == 2
        world.record("n1")
        assert await world.statuses() == 1
        assert (world.policy().status.nodes, world.policy().status.devices) == (1, 2)
        world.book.forget(inventory("n2"))
        assert await world.statuses() == 1
        assert (world.policy().status.nodes, world.policy().status.devices) == (0, 0)
        assert world.book.forget(inventory("n2")) is False

    run(scenario)


def test_a_pool_without_devices_of_the_policy_is_no_node_of_it() -> None:
    async def scenario(world: World) -> None:
        await world.put("p")
        world.record("n1", outcomes=matches(1))
        world.record("n2", outcomes=matches(0))
        await world.statuses()
        assert world.condition("Applied") == ("Applied", "1 device on 1 node")

    run(scenario)


def test_how_devices_are_chosen_is_another_answer_only_where_it_differs_from_the_default() -> None:
    pool = PoolID(DriverName(DRIVER), PoolName("n1"))
    default = PoolPolicy(Strategy.BEST_FIT, NodePolicy.SPREAD)

    async def scenario(world: World) -> None:
        assert world.book.rule(pool) == default
        assert not world.record("n1")
        assert not world.record("n1", strategy="best-fit", node_policy="spread")
        assert world.record("n1", strategy="first-fit")
        assert world.book.rule(pool) == PoolPolicy(Strategy.FIRST_FIT, NodePolicy.SPREAD)
        assert not world.record("n1", strategy="first-fit")
        assert world.record("n1", node_policy="pack")
        assert world.book.rule(pool) == PoolPolicy(Strategy.BEST_FIT, NodePolicy.PACK)
        assert world.record("n1")
        assert world.record("n1", strategy="first-fit")
        assert world.book.forget(inventory("n1"))
        assert world.book.rule(pool) == default
        assert not world.book._rules
        assert not world.book._pools

    run(scenario, default=default)


def test_a_strategy_does_nothing_where_kube_scheduler_allocates() -> None:
    async def scenario(world: World) -> None:
        await world.put("p", strategy="first-fit")
        await world.put("q", nodePolicy="pack")
        await world.put("plain", hide=True)
        every = {**matches(), **matches(name="q"), **matches(name="plain")}
        world.record("n1", outcomes=every, allocator=PoolAllocator.SCHEDULER)
        world.record("n2", outcomes=every)
        world.record("n3", allocator=PoolAllocator.SCHEDULER)
        await world.statuses()
        for name in ("p", "q"):
            assert (
                "strategy and nodePolicy have no effect on 1 of the nodes"
                in world.condition("Applied", name)[1]
            )
        assert world.condition("Applied", "plain") == ("Applied", "2 devices on 2 nodes")
        # The pool changes hands, and nothing else does.
        world.record("n1", outcomes=every)
        await world.statuses()
        assert world.condition("Applied") == ("Applied", "2 devices on 2 nodes")

    run(scenario)


def test_many_nodes_with_partitions_of_kube_schedulers_are_a_warning() -> None:
    profiles = {"profiles": ["1g.10gb"]}

    async def scenario(world: World) -> None:
        await world.put("p", partitions=profiles)
        await world.put("other", hide=True)
        both = {**matches(), **matches(name="other")}
        cut: dict[str, Any] = {"outcomes": both, "allocator": PoolAllocator.SCHEDULER, "partitioned": True}
        for i in range(MANY_PARTITIONED_NODES):
            world.record(f"n{i}", **cut)
        world.record("ours", outcomes=both, partitioned=True)
        world.record("whole", outcomes=both, allocator=PoolAllocator.SCHEDULER)
        world.record("not-selected", partitioned=True, allocator=PoolAllocator.SCHEDULER)
        await world.statuses()
        assert world.condition("Applied")[0] == "Applied"
        world.record("whole", **cut)
        await world.statuses()
        assert world.condition("Applied")[0] == "ManyPartitionedNodes"
        assert f"{MANY_PARTITIONED_NODES + 1} nodes have partitions" in world.condition("Applied")[1]
        assert world.condition("Applied", "other")[0] == "Applied"
        assert [(e.type, e.reason) for e in world.cluster.all(EVENTS)] == [
            ("Warning", "ManyPartitionedNodes")
        ]

    run(scenario)


def test_problems_and_what_waits_are_named_by_node_up_to_a_number() -> None:
    async def scenario(world: World) -> None:
        await world.put("p")
        for i in range(8):
            world.record(f"n{i}", outcomes=matches(problems=("broken",), pending=("waits",)))
        await world.statuses()
        assert world.condition("Pending") == (
            "DevicesInUse",
            "; ".join(f"waits (node n{i})" for i in range(8)),
        )
        reason, text = world.condition("Applied")
        assert (reason, "more" in text) == ("Invalid", False)
        world.record("n8", outcomes=matches(problems=("broken",), pending=("waits",)))
        await world.statuses()
        assert world.condition("Pending")[1].endswith("waits (node n7); and 1 more")
        world.record("n8", outcomes=matches(pending=("waits",)))
        for i in range(8):
            world.record(f"n{i}", outcomes=matches())
        await world.statuses()
        assert world.condition("Applied")[0] == "Applied"
        assert world.condition("Pending")[1] == "waits (node n8)"
        assert {e.reason for e in world.cluster.all(EVENTS)} == {"Invalid"}

    run(scenario)
