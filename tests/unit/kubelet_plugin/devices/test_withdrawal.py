"""What an agent that ends says in its inventory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_client import FakeClient
from node_agent import DRIVER, NODE, device, eventually, running

from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.errors import ApiUnavailable, Conflict, DraError

NAME = inventory_name(NODE, DRIVER)


@pytest.mark.parametrize(
    "trouble", [Conflict("changed", code=409, reason="Conflict"), ApiUnavailable("connection reset")]
)
def test_an_agent_that_ends_says_so_in_spite_of_trouble(tmp_path: Path, trouble: DraError) -> None:
    async def main() -> None:
        kube = FakeClient()
        left = [trouble, trouble]

        def disturb(verb: str, kind: str, *_: str) -> None:
            if node.stop.is_set() and verb == "patch" and kind == "DeviceInventory" and left:
                raise left.pop()

        async with running(tmp_path, kube, [device(0)]) as node:
            await node.register()
            await eventually(lambda: kube.obj(DEVICE_INVENTORIES, NAME).status.registration.registered)
            kube.before = disturb
        assert left == []
        found = kube.obj(DEVICE_INVENTORIES, NAME)
        assert found.status.registration.registered is False

    asyncio.run(main())
