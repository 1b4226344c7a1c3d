"""``--publish=node`` beside a device plugin: the agent withholds what the plugin hands out, and says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from fake_client import FakeClient
from node_agent import DRIVER, NODE, Backend, configuration, device, eventually

from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory, inventory_name
from dra_driver.api.own.policy import PUBLISH, WITHHOLD
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.errors import DraError, Forbidden
from dra_driver.publishing import LEAVING_SECONDS, conditions
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.inventory import InventoryKeeper
from kubelet_plugin.devices.publishing import LOOK_AT_NODE_SECONDS, NodePublisher
from kubelet_plugin.devices.table import DeviceTable

GPU = "nvidia.com/gpu"
NAME = inventory_name(NODE, DRIVER)


class Clock:
    seconds = 1_800_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


class Agent:
    """The publisher of one node; each round is one call."""

    def __init__(self, *vendors: str, beside: str = WITHHOLD, **capacity: str) -> None:
        self.cluster = FakeClient()
        self.clock = Clock()
        self.told: list[tuple[str, str]] = []
        node = {
            "metadata": {"name": NODE, "uid": "node-uid"},
            "status": {"capacity": {"cpu": "8", **capacity}},
        }
        self.cluster.put(NODES, node)
        devices = [
            {"name": f"gpu-{i}", "attributes": {"type": {"string": "gpu"}, "vendor": {"string": v}}}
            for i, v in enumerate(vendors)
        ]
        self.cluster.put(
            DEVICE_INVENTORIES,
            {
                "metadata": {"name": NAME},
                "spec": {"nodeName": NODE, "driver": DRIVER, "devices": devices, "publisher": "node"},
                "status": {"registration": {"registered": True, "epoch": 1}},
            },
        )
        self.start(beside)

    def start(self, beside: str = WITHHOLD) -> None:
        """A new process."""
        registration = RegistrationState(lambda: True)
        registration.confirmed()
        self.publisher = NodePublisher(
            self.cluster,
            DriverName(DRIVER),
            NODE,
            registration,
            beside_device_plugin=beside,
            clock=self.clock,
            report=lambda kind, text: self.told.append((kind, text)),
        )

    def count(self, amount: str | None) -> None:
        self.cluster.edit(NODES, NODE, {"status": {"capacity": {GPU: amount}}}, as_is=True)

    def epoch(self, number: int) -> None:
        """The kubelet has wiped the slices and has registered the plugin again."""
        for slice_ in self.cluster.all(RESOURCE_SLICES):
            self.cluster.remove(RESOURCE_SLICES, slice_.metadata.name)
        self.cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"registration": {"epoch": number}}})

    async def round(self) -> tuple[set[str], str]:
        """Names of the devices in the slices, and the reason of the condition."""
        await self.publisher.publish(self.inventory, self.cluster.all(RESOURCE_SLICES))
        devices = {d.name for s in self.cluster.all(RESOURCE_SLICES) for d in s.spec.devices}
        return devices, next((c.reason for c in self.inventory.status.conditions), "")

    @property
    def inventory(self) -> DeviceInventory:
        found: DeviceInventory = self.cluster.obj(DEVICE_INVENTORIES, NAME)
        return found


WITHHELD: tuple[set[str], str] = (set(), "DevicePluginPresent")
BOTH = {"gpu-0", "gpu-1"}


def test_devices_of_a_device_plugin_are_withheld_and_people_are_told_once() -> None:
    agent = Agent("nvidia", "nvidia", **{GPU: "2"})

    async def scenario() -> None:
        assert await agent.round() == WITHHELD
        assert agent.publisher.again == LOOK_AT_NODE_SECONDS
        (told,) = agent.told
        assert told[0] == "DevicePluginPresent"
        for word in (f"2 {GPU}", NODE, "2 NVIDIA GPUs", "--beside-device-plugin=publish"):
            assert word in told[1]
        assert agent.inventory.status.publication.withheld_for == (GPU,)
        writes = len(agent.cluster.writes)
        assert await agent.round() == WITHHELD
        assert (len(agent.told), len(agent.cluster.writes)) == (1, writes)

    asyncio.run(scenario())


def test_devices_of_another_vendor_are_published() -> None:
    agent = Agent("nvidia", "amd", **{GPU: "1"})

    async def scenario() -> None:
        assert await agent.round() == ({"gpu-1"}, "DevicePluginPresent")
        (condition,) = agent.inventory.status.conditions
        assert condition.status == "True"
        assert "1 device in 1 ResourceSlice" in condition.message

    asyncio.run(scenario())


def test_a_device_plugin_that_comes_is_seen_and_one_that_goes_is_waited_for() -> None:
    agent = Agent("nvidia", "nvidia")

    async def scenario() -> None:
        assert await agent.round() == (BOTH, "")
        # Nothing tells of a change of the Node: it is read again.
        assert agent.publisher.again == LOOK_AT_NODE_SECONDS
        agent.count("2")
        assert await agent.round() == WITHHELD
        agent.count("0")
        assert await agent.round() == WITHHELD
        agent.clock.seconds += LEAVING_SECONDS - 5
        assert await agent.round() == WITHHELD
        assert agent.publisher.again == 5
        agent.clock.seconds += 5
        assert await agent.round() == (BOTH, "PublishedByNode")
        assert agent.inventory.status.publication.withheld_for == ()
        assert conditions.same(agent.inventory.status.conditions, conditions.left_to_node())

    asyncio.run(scenario())


def test_after_restarts_of_kubelet_and_agent_the_devices_stay_withheld() -> None:
    agent = Agent("nvidia", "nvidia", **{GPU: "2"})

    async def scenario() -> None:
        assert await agent.round() == WITHHELD
        agent.count("0")
        agent.epoch(2)
        agent.start()
        assert await agent.round() == WITHHELD
        agent.clock.seconds += 1
        agent.count("2")
        assert await agent.round() == WITHHELD

    asyncio.run(scenario())


def test_an_admin_publishes_them_all_the_same() -> None:
    agent = Agent("nvidia", "nvidia", **{GPU: "2"})

    async def scenario() -> None:
        assert await agent.round() == WITHHELD
        agent.start(PUBLISH)
        assert await agent.round() == (BOTH, "PublishedByNode")

    asyncio.run(scenario())


def test_a_node_that_cannot_be_read_changes_nothing() -> None:
    agent = Agent("nvidia", "nvidia")

    async def scenario() -> None:
        assert await agent.round() == (BOTH, "")
        agent.count("as many as you like")
        with pytest.raises(DraError, match="as many as you like"):
            await agent.round()
        agent.count("2")
        assert await agent.round() == WITHHELD

    asyncio.run(scenario())


def test_the_agent_looks_again_though_nothing_has_changed() -> None:
    class Often(NodePublisher):
        rounds = 0

        async def publish(
            self, inventory: DeviceInventory, slices: Iterable[ResourceSlice]
        ) -> DeviceInventory:
            self.rounds += 1
            self.again = 0.001
            return inventory

    async def main() -> None:
        kube = FakeClient()
        kube.put(NODES, {"metadata": {"name": NODE}})
        registration = RegistrationState(lambda: True)
        publisher = Often(kube, DriverName(DRIVER), NODE, registration)
        table = DeviceTable([Backend([device(0)])])
        await table.scan()
        keeper = InventoryKeeper(
            client=kube,
            node_name=NODE,
            driver=DRIVER,
            table=table,
            registration=registration,
            publisher=publisher,
        )
        task = asyncio.create_task(keeper.run())
        await eventually(lambda: publisher.rounds > 20)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_the_flag_needs_an_agent_that_publishes(tmp_path: Path) -> None:
    (found,) = configuration(tmp_path, beside_device_plugin=PUBLISH).findings()
    assert "--beside-device-plugin publish: needs --publish=node" in found
    assert "besideDevicePlugin" in found
    assert configuration(tmp_path, beside_device_plugin=PUBLISH, publish="node").findings() == ()


def test_an_api_server_that_does_not_say_what_it_keeps_is_shown_until_it_does() -> None:
    agent = Agent("nvidia")

    def refuse(verb: str, kind: str, *_: str) -> None:
        if (verb, kind) == ("dry-run", "ResourceSlice"):
            raise Forbidden("no right", code=403)

    async def scenario() -> None:
        agent.cluster.before = refuse
        for _ in range(3):
            with pytest.raises(Forbidden):
                await agent.round()
        (condition,) = agent.inventory.status.conditions
        assert (condition.status, condition.reason) == ("False", "ServerNotAsked")
        assert condition.message.endswith("so nothing is published: no right")
        assert agent.told == [("ServerNotAsked", condition.message)]
        assert len(agent.cluster.writes) == 1
        agent.cluster.before = lambda *_: None
        assert await agent.round() == ({"gpu-0"}, "PublishedByNode")
        assert len(agent.told) == 1

    asyncio.run(scenario())
