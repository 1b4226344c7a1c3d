"""The fake of the API server: its rules for writes, and the ways in which tests make it go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import builders
import pytest
from fake_client import Call, FakeClient, unreachable

from dra_driver.api.core import NODES, PODS
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.server.watch import WatchEventType
from dra_driver.errors import ApiUnavailable, Conflict, Gone, Invalid, NotFound

CREATED = Call("create", "ResourceSlice", "n1-gpu.example.com", "")


def run(scenario: Callable[[FakeClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario(FakeClient())

    asyncio.run(main())


def test_writes_are_validated_and_an_old_version_is_a_conflict() -> None:
    async def scenario(client: FakeClient) -> None:
        node = await client.create(NODES, builders.node("n"))
        with pytest.raises(Conflict) as exists:
            await client.create(NODES, builders.node("n"))
        assert exists.value.reason == "AlreadyExists"
        with pytest.raises(Invalid, match="RFC 1123"):
            await client.create(NODES, builders.node("No name"))
        client.edit(NODES, "n", {"metadata": {"labels": {"a": "b"}}})
        patch = {"metadata": {"resourceVersion": node.metadata.resource_version, "labels": {"c": "d"}}}
        with pytest.raises(Conflict):
            await client.merge_patch(NODES, "n", patch)
        with pytest.raises(Conflict):
            await client.delete(NODES, "n", uid="another")
        with pytest.raises(NotFound):
            await client.get(NODES, "m")

    run(scenario)


def test_status_has_an_endpoint_of_its_own() -> None:
    async def scenario(client: FakeClient) -> None:
        client.put(DEVICE_INVENTORIES, builders.inventory("n"))
        both = {
            "spec": {"devices": [builders.device("gpu-0", attributes={"type": "gpu"})]},
            "status": {"registration": {"registered": True, "epoch": 2}},
        }
        name = "n.gpu.example.com"
        after = await client.merge_patch(DEVICE_INVENTORIES, name, both)
        assert (len(after.spec.devices), after.status.registration.epoch) == (1, 1)
        after = await client.merge_patch(DEVICE_INVENTORIES, name, both, subresource="status")
        assert after.status.registration.epoch == 2

    run(scenario)


def test_applied_fields_have_owners() -> None:
    async def scenario(client: FakeClient) -> None:
        client.put(NODES, builders.node("n"))
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}}}
        await client.apply(NODES, body, field_manager="one")
        other = {**body, "metadata": {"name": "n", "labels": {"a": "c"}}}
        with pytest.raises(Conflict, match='conflict with "one"'):
            await client.apply(NODES, other, field_manager="two")
        await client.apply(NODES, other, field_manager="two", force=True)
        assert client.raw(NODES, "n")["metadata"]["labels"]["a"] == "c"

    run(scenario)


def test_lists_and_watches_select() -> None:
    async def scenario(client: FakeClient) -> None:
        client.put(PODS, builders.pod("a", nodeName="n1"))
        client.put(PODS, builders.pod("b", nodeName="n2", metadata={"labels": {"x": "y"}}))
        found = await client.list(PODS, field_selector="spec.nodeName=n2")
        assert [p.metadata.name for p in found.items] == ["b"]
        assert [p.metadata.name for p in (await client.list(PODS, label_selector="!x")).items] == ["a"]
        events = client.watch(PODS, resource_version=found.resource_version, label_selector="x=y")
        client.edit(PODS, "b", {"metadata": {"labels": {"x": "z"}}}, builders.NAMESPACE)
        assert (await anext(events)).type is WatchEventType.DELETED  # it has left the selection
        client.expire()
        with pytest.raises(Gone):
            await anext(events)

    run(scenario)


def test_faults() -> None:
    async def scenario(client: FakeClient) -> None:
        body = builders.resource_slice("n1", builders.device("gpu-0", taints=[builders.PROTECTED]))
        client.strip = lambda raw: raw["spec"]["devices"][0].pop("taints", None)
        client.after = unreachable
        with pytest.raises(ApiUnavailable):
            await client.create(RESOURCE_SLICES, body)
        assert client.writes == [CREATED]  # done, but not answered
        assert client.all(RESOURCE_SLICES)[0].spec.devices[0].taints == ()
        client.after, client.before = lambda *_: None, unreachable
        with pytest.raises(ApiUnavailable):
            await client.delete(RESOURCE_SLICES, CREATED.name)
        client.before = lambda *_: None
        version = (await client.list(RESOURCE_CLAIMS)).resource_version
        waiting = asyncio.create_task(anext(client.watch(RESOURCE_CLAIMS, resource_version=version)))
        client.quiet = {"ResourceClaim"}
        client.put(RESOURCE_CLAIMS, builders.claim("c"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        client.quiet.clear()
        client.wake()
        assert (await waiting).object.metadata.name == "c"
        client.down = True
        with pytest.raises(ApiUnavailable):
            await client.get(RESOURCE_CLAIMS, "c", builders.NAMESPACE)
        assert client.find(RESOURCE_CLAIMS, "c", builders.NAMESPACE)

    run(scenario)
