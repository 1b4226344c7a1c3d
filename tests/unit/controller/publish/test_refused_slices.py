"""Slices that the API server does not store as they are sent: the inventory says so, until they are."""

from __future__ import annotations

import asyncio
from typing import Any

import virtual_time
from fake_client import FakeClient, error_of
from test_publisher_epochs import NAME, Harness, Scenario, cluster_with_node, publishing

from dra_driver.api.core import EVENTS
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_SLICES, Condition
from dra_driver.sim.apiserver.objects.status import Causes, StatusError

SECONDS = 60.0


def run(scenario: Scenario, cluster: FakeClient) -> None:
    async def main() -> None:
        async with asyncio.timeout(1000), publishing(cluster) as harness:
            await scenario(harness)

    virtual_time.run(main())


def condition(h: Harness) -> Condition:
    (found,) = h.cluster.obj(DEVICE_INVENTORIES, NAME).status.conditions
    return found


def refuse(verb: str, kind: str, name: str, _subresource: str) -> None:
    """As a server that knows a rule which we do not."""
    if kind == "ResourceSlice" and verb in ("create", "replace"):
        causes = Causes()
        causes.invalid("spec.devices", 3, "not on this server")
        raise error_of(StatusError.invalid(kind, "resource.k8s.io", name, causes))


def test_a_refused_slice_is_told_once_and_forgotten_when_it_is_stored() -> None:
    cluster = cluster_with_node()
    cluster.before = refuse

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(SECONDS)
        said = condition(h)
        assert (said.type, said.status, said.reason) == ("Published", "False", "SliceRefused")
        assert "not on this server" in said.message
        assert not h.cluster.all(RESOURCE_SLICES)
        assert "SliceRefused" in {e.reason for e in h.cluster.all(EVENTS)}
        before = sum(w.kind == "DeviceInventory" for w in h.cluster.writes)
        await asyncio.sleep(SECONDS)
        assert sum(w.kind == "DeviceInventory" for w in h.cluster.writes) == before, "it is told again"
        cluster.before = lambda *_: None
        await asyncio.sleep(SECONDS)
        assert (condition(h).status, condition(h).reason) == ("True", "Published")
        assert h.cluster.all(RESOURCE_SLICES)

    run(scenario, cluster)


def test_what_was_published_before_is_not_said_to_be_up_to_date_when_a_change_is_refused() -> None:
    cluster = cluster_with_node()

    async def scenario(h: Harness) -> None:
        assert condition(h).status == "True"
        cluster.before = refuse
        h.discover(3)
        await asyncio.sleep(SECONDS)
        assert (condition(h).status, condition(h).reason) == ("False", "SliceRefused")
        cluster.before = lambda *_: None
        h.discover(4)
        await asyncio.sleep(SECONDS)
        assert condition(h).status == "True"
        assert sum(len(s.spec.devices) for s in h.cluster.all(RESOURCE_SLICES)) == 4

    run(scenario, cluster)


def test_a_slice_that_is_stored_without_what_was_sent_is_told_of() -> None:
    cluster = cluster_with_node()

    def strip(raw: dict[str, Any]) -> None:
        if raw["kind"] == "ResourceSlice" and raw["metadata"].get("name"):
            raw["spec"]["devices"] = raw["spec"]["devices"][:1]

    cluster.strip = strip

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(SECONDS)
        assert (condition(h).status, condition(h).reason) == ("False", "SliceRefused")
        assert "without fields that were sent" in condition(h).message

    run(scenario, cluster)
