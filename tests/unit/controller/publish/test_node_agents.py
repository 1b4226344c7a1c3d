"""Node agents that end without a word: what the controller shows of them, when, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import builders
import controller_harness
import pytest
import virtual_time
from builders import DRIVER, device
from controller_harness import Harness
from fake_client import FakeClient
from virtual_time import LoopClock

from controller.config import Timings
from controller.publish.agents import NodeAgents
from controller.publish.publisher import POOL_INDEX, pool_of
from dra_driver.api.core import EVENTS, NODES
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_SLICES, Condition
from dra_driver.kube import EventRecorder, Informer
from dra_driver.ownership import AGENT_CONDITION, AgentState, slice_name

NAME = f"n1.{DRIVER}"
SECONDS = 20.0


def ready(status: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


class Cluster(FakeClient):
    """Nodes whose pools are published."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__()
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        for node in self.nodes:
            self.put(NODES, builders.node(node, uid=f"uid-{node}"))
            self.put(DEVICE_INVENTORIES, builders.inventory(node, device("gpu-0", "40Gi")))
            self.register(node, epoch=1)

    def register(self, node: str = "n1", *, epoch: int) -> None:
        """What agent, publisher and API server do when an agent starts."""
        if self.find(RESOURCE_SLICES, slice_name(node, DRIVER, 0)) is None:
            body = builders.resource_slice(node, device("gpu-0", "40Gi"))
            body["metadata"]["name"] = slice_name(node, DRIVER, 0)
            self.put(RESOURCE_SLICES, body)
        publication = {
            "epoch": epoch,
            "attempted": epoch,
            "slices": [slice_name(node, DRIVER, 0)],
            "devices": 1,
        }
        registration = {"registered": True, "epoch": epoch}
        status = {"registration": registration, "publication": publication}
        self.edit(DEVICE_INVENTORIES, f"{node}.{DRIVER}", {"status": status})

    def kill(self, node: str = "n1") -> None:
        """What the kubelet does half a minute after an agent was killed."""
        self.remove(RESOURCE_SLICES, slice_name(node, DRIVER, 0))

    def condition(self, node: str = "n1") -> Condition | None:
        present = self.obj(DEVICE_INVENTORIES, f"{node}.{DRIVER}").status.conditions
        return next((c for c in present if c.type == AGENT_CONDITION), None)

    def shown(self, node: str = "n1") -> tuple[str, str] | None:
        found = self.condition(node)
        return (found.status, found.reason) if found is not None else None

    def events(self) -> list[tuple[str, str]]:
        return sorted((e.reason, e.involved_object.name) for e in self.all(EVENTS))

    def written(self) -> int:
        return sum(w.kind == "DeviceInventory" for w in self.writes)


@contextlib.asynccontextmanager
async def watching(cluster: Cluster) -> AsyncIterator[NodeAgents]:
    inventories, nodes = Informer(cluster, DEVICE_INVENTORIES), Informer(cluster, NODES)
    slices = Informer(cluster, RESOURCE_SLICES, indices={POOL_INDEX: pool_of})
    recorder = EventRecorder(cluster, "test", LoopClock(), per_second=1.0)
    agents = NodeAgents(
        cluster,
        LoopClock(),
        recorder,
        [DriverName(DRIVER)],
        inventories=inventories,
        nodes=nodes,
        slices=slices,
        slices_of=lambda pool: slices.by_index(POOL_INDEX, pool),
        seconds=SECONDS,
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(i.run()) for i in (inventories, nodes, slices)]
        tasks.append(group.create_task(recorder.run()))
        for informer in (inventories, nodes, slices):
            await informer.synced.wait()
        tasks.append(group.create_task(agents.run()))
        try:
            yield agents
        finally:
            agents.queue.close()
            for task in tasks:
                task.cancel()


def play(cluster: Cluster, scenario: Callable[[NodeAgents], Awaitable[None]]) -> None:
    async def main() -> None:
        async with watching(cluster) as agents:
            await asyncio.sleep(1)
            await scenario(agents)

    virtual_time.run(main())


def test_an_agent_that_was_killed_is_shown_as_gone_and_as_back_when_it_is() -> None:
    cluster = Cluster()

    async def scenario(agents: NodeAgents) -> None:
        assert cluster.shown() == ("True", "Registered")
        assert cluster.events() == []
        cluster.kill()
        await asyncio.sleep(SECONDS - 1)
        assert cluster.shown() == ("True", "Registered")
        await asyncio.sleep(2)
        assert cluster.shown() == ("False", "AgentGone")
        assert cluster.events() == [("AgentGone", "n1")]
        assert (agents.count(AgentState.GONE), agents.count(AgentState.REGISTERED)) == (1, 0)
        cluster.register(epoch=2)
        await asyncio.sleep(5)
        assert cluster.shown() == ("True", "Registered")
        assert cluster.events() == [("AgentBack", "n1"), ("AgentGone", "n1")]
        assert (agents.count(AgentState.GONE), agents.count(AgentState.REGISTERED)) == (0, 1)

    play(cluster, scenario)


def test_an_agent_that_says_that_it_ends_is_shown_as_not_registered() -> None:
    cluster = Cluster()

    async def scenario(agents: NodeAgents) -> None:
        cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"registration": {"registered": False}}})
        await asyncio.sleep(SECONDS + 1)
        assert cluster.shown() == ("False", "NotRegistered")
        assert cluster.events() == [("NotRegistered", "n1")]
        assert agents.count(AgentState.NOT_REGISTERED) == 1

    play(cluster, scenario)


def test_an_agent_that_never_came_is_shown_as_not_registered() -> None:
    cluster = Cluster(0)
    cluster.put(NODES, builders.node("n1", uid="uid-n1"))
    cluster.put(DEVICE_INVENTORIES, builders.inventory("n1", registered=False, epoch=0))

    async def scenario(_: NodeAgents) -> None:
        assert cluster.shown() is None
        await asyncio.sleep(SECONDS)
        assert cluster.shown() == ("False", "NotRegistered")

    play(cluster, scenario)


def test_of_a_node_that_is_not_ready_nothing_is_known_and_no_event_says_so_again() -> None:
    cluster = Cluster()

    async def scenario(agents: NodeAgents) -> None:
        cluster.edit(NODES, "n1", ready("Unknown"))
        await asyncio.sleep(SECONDS + 1)
        assert cluster.shown() == ("Unknown", "NodeNotReady")
        assert agents.count(AgentState.NODE_NOT_READY) == 1
        cluster.edit(NODES, "n1", ready("True"))
        await asyncio.sleep(5)
        assert cluster.shown() == ("True", "Registered")
        assert cluster.events() == []

    play(cluster, scenario)


def test_a_restart_of_an_agent_shows_nothing() -> None:
    cluster = Cluster()

    async def scenario(_: NodeAgents) -> None:
        written = cluster.written()
        for epoch in range(2, 12):
            cluster.kill()
            await asyncio.sleep(SECONDS - 1)
            cluster.register(epoch=epoch)
            await asyncio.sleep(0.5)
        assert cluster.shown() == ("True", "Registered")
        assert (cluster.written(), cluster.events()) == (written, [])

    play(cluster, scenario)


def test_an_agent_that_comes_and_goes_costs_a_write_each_time_that_it_stays_away() -> None:
    cluster = Cluster()

    async def scenario(_: NodeAgents) -> None:
        written = cluster.written()
        for epoch in range(2, 12):
            cluster.kill()
            await asyncio.sleep(SECONDS + 1)
            cluster.register(epoch=epoch)
            await asyncio.sleep(6)
        assert cluster.written() - written == 20
        assert len(cluster.events()) == 2

    play(cluster, scenario)


def test_a_controller_that_starts_shows_nothing_new_in_the_first_seconds() -> None:
    cluster = Cluster(2)
    play(cluster, lambda _: asyncio.sleep(0))
    cluster.kill("n1")

    async def scenario(agents: NodeAgents) -> None:
        await asyncio.sleep(SECONDS - 2)
        assert cluster.shown("n1") == ("True", "Registered")
        await asyncio.sleep(2)
        assert cluster.shown("n1") == ("False", "AgentGone")
        assert cluster.shown("n2") == ("True", "Registered")

    play(cluster, scenario)
    written = cluster.written()

    async def next_one(agents: NodeAgents) -> None:
        await asyncio.sleep(2 * SECONDS)
        assert cluster.shown("n1") == ("False", "AgentGone")
        assert agents.count(AgentState.GONE) == agents.count(AgentState.REGISTERED) == 1
        assert cluster.written() == written
        assert cluster.events() == [("AgentGone", "n1")]

    play(cluster, next_one)


def test_it_is_not_shown_as_back_while_its_slices_are_being_published() -> None:
    cluster = Cluster()

    async def scenario(_: NodeAgents) -> None:
        cluster.kill()
        await asyncio.sleep(SECONDS + 10)
        cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"registration": {"epoch": 2}}})
        await asyncio.sleep(1)
        assert cluster.shown() == ("False", "AgentGone")
        # That they cannot be published is no reason to show for ever that it is gone.
        await asyncio.sleep(SECONDS)
        assert cluster.shown() == ("True", "Registered")

    play(cluster, scenario)


@pytest.mark.parametrize("gone", ["node", "inventory"])
def test_what_is_deleted_is_counted_no_more(gone: str) -> None:
    cluster = Cluster(2)

    async def scenario(agents: NodeAgents) -> None:
        cluster.kill("n1")
        await asyncio.sleep(SECONDS + 1)
        assert agents.count(AgentState.GONE) == 1
        if gone == "node":
            cluster.remove(NODES, "n1")
        else:
            cluster.remove(DEVICE_INVENTORIES, NAME)
        await asyncio.sleep(1)
        assert [agents.count(state) for state in AgentState] == [1, 0, 0, 0]

    play(cluster, scenario)


def test_an_inventory_that_is_not_of_its_node_says_nothing_about_an_agent() -> None:
    cluster = Cluster(0)
    cluster.put(NODES, builders.node("n1", uid="uid-n1"))
    cluster.put(DEVICE_INVENTORIES, builders.inventory("n1", node_uid="uid-n2", registered=False))

    async def scenario(agents: NodeAgents) -> None:
        await asyncio.sleep(2 * SECONDS)
        assert cluster.shown() is None
        assert not any(map(agents.count, AgentState))

    play(cluster, scenario)


def test_a_node_that_writes_the_condition_itself_does_not_make_the_controller_write_as_often() -> None:
    cluster = Cluster()
    lie = {"type": AGENT_CONDITION, "status": "False", "reason": "AgentGone", "message": ""}
    lie["lastTransitionTime"] = "2026-01-01T00:00:00Z"

    async def scenario(_: NodeAgents) -> None:
        written = cluster.written()
        for _i in range(1000):
            cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"conditions": [lie]}})
            await asyncio.sleep(0.1)
        assert 0 < cluster.written() - written <= 21

    play(cluster, scenario)


def test_thousands_of_nodes_cost_one_write_each_and_few_events() -> None:
    nodes = 2000
    cluster = Cluster(nodes)

    async def scenario(agents: NodeAgents) -> None:
        assert cluster.written() == nodes
        for node in cluster.nodes:
            cluster.kill(node)
        await asyncio.sleep(SECONDS + 5)
        assert agents.count(AgentState.GONE) == nodes
        assert cluster.written() == 2 * nodes
        assert len(cluster.events()) <= 330

    play(cluster, scenario)


def test_the_controller_has_this_part() -> None:
    cluster = FakeClient()
    controller_harness.classes(cluster)
    cluster.put(NODES, builders.node("n1", uid="uid-n1"))
    cluster.put(DEVICE_INVENTORIES, builders.inventory("n1", device("gpu-0", "40Gi")))

    async def scenario(h: Harness) -> None:
        def shown() -> list[str]:
            found = cluster.all(DEVICE_INVENTORIES)[0].status.conditions
            return [c.reason for c in found if c.type == AGENT_CONDITION]

        await asyncio.sleep(5)
        assert shown() == ["Registered"]
        for slice_ in cluster.all(RESOURCE_SLICES):
            cluster.remove(RESOURCE_SLICES, slice_.metadata.name)
        await asyncio.sleep(SECONDS + 1)
        assert shown() == ["AgentGone"]
        text = h.controller.metrics.text().decode()
        assert 'dra_driver_controller_agents{state="gone"} 1.0' in text
        assert 'dra_driver_controller_agents{state="registered"} 0.0' in text

    async def main() -> None:
        timings = Timings(agent=SECONDS)
        clock = controller_harness.GoingClock()
        async with controller_harness.controlling(cluster, clock=clock, timings=timings) as harness:
            await scenario(harness)

    virtual_time.run(main())


def test_an_agent_that_is_away_for_another_reason_is_not_shown_before_that_has_lasted() -> None:
    cluster = Cluster()

    async def scenario(_: NodeAgents) -> None:
        cluster.kill()
        await asyncio.sleep(SECONDS - 5)
        cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"registration": {"registered": False}}})
        await asyncio.sleep(SECONDS - 5)
        assert cluster.shown() == ("True", "Registered")
        await asyncio.sleep(6)
        assert cluster.shown() == ("False", "NotRegistered")

    play(cluster, scenario)


def test_a_gone_agent_whose_node_is_not_ready_is_not_reported_as_back() -> None:
    cluster = Cluster()

    async def scenario(_: NodeAgents) -> None:
        cluster.kill()
        await asyncio.sleep(SECONDS + 1)
        cluster.edit(NODES, "n1", ready("Unknown"))
        await asyncio.sleep(SECONDS + 6)
        assert cluster.shown() == ("Unknown", "NodeNotReady")
        assert cluster.events() == [("AgentGone", "n1")]

    play(cluster, scenario)
