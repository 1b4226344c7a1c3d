"""The node's part in claims that are gone: it removes from the list what it has not prepared, and no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from listing_kubelet import cgroup
from node_agent import DRIVER, NODE, add_claim, claim, device, eventually, inventory, running

from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.resource import RESOURCE_CLAIMS
from kubelet_plugin.claims.planning import Timing

NAME = inventory_name(NODE, DRIVER)
UNKNOWN = "11111111-2222-4333-8444-555555555555"


def ask(kube: FakeClient, *uids: str) -> None:
    """Do as the controller that has seen claims go."""
    listed = [{"uid": uid, "devices": [{"device": "gpu-0"}]} for uid in uids]
    kube.edit(DEVICE_INVENTORIES, NAME, {"status": {"goneClaims": listed}})


def listed(kube: FakeClient) -> list[str]:
    found = inventory(kube)
    assert found is not None
    return [c["uid"] for c in found["status"].get("goneClaims", ())]


class SlowToAnswer(FakeClient):
    """Reads a claim, and answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.go_on = asyncio.Event(), asyncio.Event()

    async def get(self, resource: Any, name: str, namespace: str = "") -> Any:
        found = await super().get(resource, name, namespace)
        if resource is RESOURCE_CLAIMS:
            self.read.set()
            await self.go_on.wait()
        return found


def registration(kube: FakeClient) -> Any:
    return ((inventory(kube) or {}).get("status") or {}).get("registration")


def test_the_agent_promises_to_keep_the_list_in_every_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            for epoch in (1, 2):
                await node.register()
                expected = {"registered": True, "epoch": epoch, "goneClaimsEpoch": epoch}
                await eventually(lambda e=expected: registration(kube) == e)
        # The one that ends has removed nothing, and the list is as true as before.
        assert kube.obj(DEVICE_INVENTORIES, NAME).status.registration.keeps_gone_claims

    asyncio.run(main())


def test_what_is_not_prepared_is_removed_at_once_and_what_is_when_it_is_unprepared(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", "gpu-0"))
        cgroup(tmp_path / "cgroup")
        async with running(tmp_path, kube, [device(0)]) as node:
            await node.register()
            await prepare(node, body)
            uid = body["metadata"]["uid"]
            kube.remove(RESOURCE_CLAIMS, "one", "ns")
            ask(kube, UNKNOWN, uid, "no/path")
            await eventually(lambda: listed(kube) == [uid])
            await unprepare(node, body)
            await eventually(lambda: listed(kube) == [])

    asyncio.run(main())


def test_a_claim_that_is_being_prepared_stays_until_that_has_failed(tmp_path: Path) -> None:
    """The agent may have read it just before it went."""

    async def main() -> None:
        kube = SlowToAnswer()
        body = add_claim(kube, claim("one", "gpu-0"))
        uid = body["metadata"]["uid"]
        short = Timing(budget=60.0, patience=0.1)
        async with running(tmp_path, kube, [device(0)], timing=short) as node:
            await node.register()
            call = asyncio.create_task(prepare(node, body))
            await kube.read.wait()
            kube.remove(RESOURCE_CLAIMS, "one", "ns")
            ask(kube, UNKNOWN, uid)
            await eventually(lambda: listed(kube) == [uid])
            kube.go_on.set()
            assert not (await call)[uid].error
            ask(kube, UNKNOWN, uid)
            await eventually(lambda: listed(kube) == [uid])

    asyncio.run(main())


def test_beside_another_instance_nothing_is_removed(tmp_path: Path) -> None:
    """It may be preparing the claim, and its record is all that this one sees of it."""

    async def main() -> None:
        kube = FakeClient()
        async with (
            running(tmp_path, kube, [device(0)], settings={"instance_id": "old"}),
            running(tmp_path, kube, [device(0)], settings={"instance_id": "new"}) as node,
        ):
            await node.register()
            await eventually(lambda: kube.obj(DEVICE_INVENTORIES, NAME).status.registration.registered)
            ask(kube, UNKNOWN)
            await eventually(lambda: node.plugin._use.asked == {UNKNOWN})
            assert listed(kube) == [UNKNOWN]

    asyncio.run(main())


def test_a_server_whose_definition_is_older_is_not_written_to_again_and_again(tmp_path: Path) -> None:
    def drop(body: dict[str, Any]) -> None:
        body.get("status", {}).get("registration", {}).pop("goneClaimsEpoch", None)
        body.get("status", {}).pop("goneClaims", None)

    async def main() -> None:
        kube = FakeClient()
        kube.strip = drop
        async with running(tmp_path, kube, [device(0)]) as node:
            await node.register()
            await eventually(lambda: kube.obj(DEVICE_INVENTORIES, NAME).status.registration.registered)
            await asyncio.sleep(0.2)
            before = len(kube.writes)
            for i in range(5):
                kube.edit(DEVICE_INVENTORIES, NAME, {"metadata": {"labels": {"touched": str(i)}}})
                await asyncio.sleep(0.05)
            own = [w for w in kube.writes[before:] if w.kind == "DeviceInventory" and w.verb == "patch"]
            assert len(own) <= 5
            assert not kube.obj(DEVICE_INVENTORIES, NAME).status.registration.keeps_gone_claims

    asyncio.run(main())
