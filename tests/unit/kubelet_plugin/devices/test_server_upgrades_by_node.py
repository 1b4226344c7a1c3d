"""``--publish=node`` while the API server is upgraded or taken back: the agent is not started anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_client import FakeClient
from node_agent import DRIVER, NODE

from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.own.policy import PUBLISH, WITHHOLD
from dra_driver.api.resource import RESOURCE_SLICES
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.publishing import NodePublisher

NAME = inventory_name(NODE, DRIVER)


class Clock:
    seconds = 1_800_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def without_taints(raw: dict[str, Any]) -> None:
    for each in raw["spec"].get("devices", ()) if raw["kind"] == "ResourceSlice" else ():
        each.pop("taints", None)


@pytest.mark.parametrize("beside", [WITHHOLD, PUBLISH])
def test_a_sick_device_is_left_out_or_tainted_as_the_server_lets_it(beside: str) -> None:
    cluster, clock = FakeClient(), Clock()
    cluster.put(NODES, {"metadata": {"name": NODE, "uid": "node-uid"}})
    sick = {"name": "gpu-0", "health": [{"reason": "XidError", "severity": "failed"}]}
    spec = {"nodeName": NODE, "driver": DRIVER, "devices": [sick, {"name": "gpu-1"}], "publisher": "node"}
    status = {"registration": {"registered": True, "epoch": 1}}
    cluster.put(DEVICE_INVENTORIES, {"metadata": {"name": NAME}, "spec": spec, "status": status})
    registration = RegistrationState(lambda: True)
    registration.confirmed()
    publisher = NodePublisher(
        cluster, DriverName(DRIVER), NODE, registration, beside_device_plugin=beside, clock=clock
    )

    async def published() -> set[str]:
        """Names of the devices after as many rounds as the agent asks for in a quarter of an hour."""
        end = clock.seconds + 900
        while clock.seconds < end:
            slices = cluster.all(RESOURCE_SLICES)
            await publisher.publish(cluster.obj(DEVICE_INVENTORIES, NAME), slices)
            assert publisher.again, "it is not looked at again"
            clock.seconds += publisher.again
        return {d.name for s in cluster.all(RESOURCE_SLICES) for d in s.spec.devices}

    async def scenario() -> None:
        cluster.strip = without_taints
        assert await published() == {"gpu-1"}
        cluster.strip = None
        assert await published() == {"gpu-0", "gpu-1"}
        cluster.strip = without_taints
        assert await published() == {"gpu-1"}

    asyncio.run(scenario())
