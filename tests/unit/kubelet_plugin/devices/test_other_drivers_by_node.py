"""``--publish=node`` beside another DRA driver: the agent withholds what that one publishes, and says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import builders
import pytest
from fake_client import FakeClient
from node_agent import DRIVER, NODE, configuration, eventually

from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory, inventory_name
from dra_driver.api.own.policy import PUBLISH
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.ownership import PoolID
from dra_driver.publishing import LEAVING_SECONDS
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.other_drivers import OtherDrivers
from kubelet_plugin.devices.publishing import LOOK_AT_NODE_SECONDS, NodePublisher
from kubelet_plugin.usage.pod_resources import KubeletList

OTHER = "gpu.other.example"
NAME = inventory_name(NODE, DRIVER)
BUS_ID = "resource.kubernetes.io/pciBusID"
ADDRESSES = ("0000:3b:00.0", "0000:5e:00.0")
BOTH = {"gpu-0", "gpu-1"}
FIRST_WITHHELD = ({"gpu-1"}, "OtherDriverPresent")


class Clock:
    seconds = 1_800_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def other_slice(*addresses: str, node: str = NODE) -> dict[str, Any]:
    devices = [
        builders.device(f"dev-{i}", attributes={BUS_ID: a, "note": "x" * 60}) for i, a in enumerate(addresses)
    ]
    return builders.resource_slice(node, *devices, driver=OTHER, name=f"other-{node}")


class Agent:
    """The publisher of one node; each round is one call."""

    def __init__(self) -> None:
        self.cluster = FakeClient()
        self.clock = Clock()
        self.told: list[tuple[str, str]] = []
        self.listed: KubeletList | None = KubeletList()
        self.changes = 0
        self.cluster.put(NODES, builders.node(NODE, uid="node-uid"))
        devices = [
            builders.device(f"gpu-{i}", attributes={BUS_ID: a.upper()}) for i, a in enumerate(ADDRESSES)
        ]
        self.cluster.put(
            DEVICE_INVENTORIES, builders.inventory(NODE, *devices, driver=DRIVER, publisher="node")
        )

    def start(self) -> None:
        """A new process."""
        registration = RegistrationState(lambda: True)
        registration.confirmed()
        self.others = OtherDrivers(self.cluster, DriverName(DRIVER), NODE, self._list)
        self.publisher = NodePublisher(
            self.cluster,
            DriverName(DRIVER),
            NODE,
            registration,
            others=self.others,
            clock=self.clock,
            report=lambda kind, text: self.told.append((kind, text)),
        )

    async def _list(self) -> KubeletList | None:
        return self.listed

    async def round(self) -> tuple[set[str], str]:
        """Names of the devices in the slices, and the reason of the condition."""
        await asyncio.sleep(0.02)
        own = [s for s in self.cluster.all(RESOURCE_SLICES) if s.spec.driver == DRIVER]
        await self.publisher.publish(self.inventory, own)
        own = [s for s in self.cluster.all(RESOURCE_SLICES) if s.spec.driver == DRIVER]
        devices = {d.name for s in own for d in s.spec.devices}
        return devices, next((c.reason for c in self.inventory.status.conditions), "")

    def changed(self) -> None:
        self.changes += 1

    @property
    def inventory(self) -> DeviceInventory:
        found: DeviceInventory = self.cluster.obj(DEVICE_INVENTORIES, NAME)
        return found


def run(agent: Agent, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        agent.start()
        task = asyncio.create_task(agent.others.run(agent.changed))
        await eventually(lambda: agent.others.known)
        await scenario()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_what_another_driver_publishes_is_withheld_until_it_has_gone() -> None:
    agent = Agent()
    agent.cluster.put(RESOURCE_SLICES, other_slice(ADDRESSES[0]))
    agent.cluster.put(RESOURCE_SLICES, other_slice(*ADDRESSES, node="another-node"))

    async def scenario() -> None:
        assert await agent.round() == FIRST_WITHHELD
        assert agent.publisher.again == LOOK_AT_NODE_SECONDS
        ((kind, text),) = agent.told
        assert kind == "OtherDriverPresent"
        for word in (OTHER, "1 device (gpu-0)", "--beside-other-driver=publish"):
            assert word in text
        agent.cluster.remove(RESOURCE_SLICES, f"other-{NODE}")
        assert await agent.round() == FIRST_WITHHELD
        agent.clock.seconds += LEAVING_SECONDS - 1
        assert await agent.round() == FIRST_WITHHELD
        agent.clock.seconds += 1
        assert await agent.round() == (BOTH, "PublishedByNode")
        assert agent.inventory.status.publication.other_drivers == ()

    run(agent, scenario)


@pytest.mark.parametrize("known", [True, False])
def test_what_pods_have_of_a_driver_that_is_gone_stays_withheld_after_a_restart(known: bool) -> None:
    agent = Agent()
    agent.cluster.put(RESOURCE_SLICES, other_slice(ADDRESSES[0]))
    pool = PoolID(DriverName(OTHER), PoolName(NODE))

    async def noted() -> None:
        assert await agent.round() == FIRST_WITHHELD
        agent.cluster.remove(RESOURCE_SLICES, f"other-{NODE}")

    async def restarted() -> None:
        # A kubelet that does not answer says nothing about its pods.
        agent.listed = KubeletList(others=frozenset({(pool, "dev-0")})) if known else None
        for _ in range(5):
            assert await agent.round() == FIRST_WITHHELD
            agent.clock.seconds += LEAVING_SECONDS
        assert "claims still have, or may have" in agent.inventory.status.conditions[0].message
        agent.listed = KubeletList()
        assert await agent.round() == (BOTH, "PublishedByNode")

    run(agent, noted)
    run(agent, restarted)


def test_what_pods_have_is_no_device_of_ours_where_a_slice_describes_it() -> None:
    agent = Agent()
    agent.cluster.put(RESOURCE_SLICES, other_slice("0000:99:00.0", ADDRESSES[0]))
    pool = PoolID(DriverName(OTHER), PoolName(NODE))
    agent.listed = KubeletList(others=frozenset({(pool, "dev-0")}))

    async def scenario() -> None:
        assert await agent.round() == FIRST_WITHHELD
        agent.cluster.put(RESOURCE_SLICES, other_slice("0000:99:00.0"))
        assert await agent.round() == FIRST_WITHHELD
        agent.clock.seconds += LEAVING_SECONDS
        assert await agent.round() == (BOTH, "PublishedByNode")

    run(agent, scenario)


def test_a_device_that_is_described_wakes_the_agent_and_what_does_not_identify_one_is_not_kept() -> None:
    agent = Agent()

    async def scenario() -> None:
        assert await agent.round() == (BOTH, "")
        agent.cluster.put(RESOURCE_SLICES, other_slice(ADDRESSES[0]))
        await eventually(lambda: agent.changes == 1)
        # The same devices with other facts, as often as one likes.
        for i in range(5):
            devices = [{"name": "dev-0", "attributes": {BUS_ID: {"string": ADDRESSES[0]}, "i": {"int": i}}}]
            agent.cluster.edit(RESOURCE_SLICES, f"other-{NODE}", {"spec": {"devices": devices}})
        await asyncio.sleep(0.05)
        assert agent.changes == 1
        assert await agent.round() == FIRST_WITHHELD

    run(agent, scenario)


def test_the_flag_needs_an_agent_that_publishes(tmp_path: Path) -> None:
    (found,) = configuration(tmp_path, beside_other_driver=PUBLISH).findings()
    assert "--beside-other-driver publish: needs --publish=node" in found
    assert "besideOtherDriver" in found
    assert configuration(tmp_path, beside_other_driver=PUBLISH, publish="node").findings() == ()
