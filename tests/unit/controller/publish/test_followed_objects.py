"""What the publisher's helpers keep of claims, templates, classes and inventories, and when they report."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER
from fake_client import FakeClient
from tolerations import TAINT

from controller.allocate.answers.journal import Journal
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.publish.dropped import DroppedCapacity
from controller.publish.extended_resources import ExtendedResources
from controller.publish.known_claims import KnownClaims
from controller.publish.same_uuids import SameUuids
from controller.publish.tolerators import Tolerators
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, ObjectKey, PoolName, Uid
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.api.server.watch import ObjectList, Unreadable
from dra_driver.kube import EventRecorder, Informer, SystemClock
from dra_driver.ownership import PoolID
from dra_driver.resourceclaim import LAST_APPLIED

NS = builders.NAMESPACE


class Events(EventRecorder):
    """Notes the Events that are asked for, also those that would be written together or later."""

    def __init__(self, cluster: FakeClient) -> None:
        super().__init__(cluster, "test", SystemClock())
        self.asked: list[tuple[str, str, str]] = []

    def event(self, resource: Any, object_: Any, type_: Any, reason: str, message: str, **_: Any) -> None:
        assert message
        self.asked.append((reason, resource.kind, object_.metadata.name))


class World:
    """Informers that follow a cluster."""

    def __init__(self, cluster: FakeClient) -> None:
        self.cluster = cluster
        self.claims = Informer(cluster, RESOURCE_CLAIMS)
        self.templates = Informer(cluster, RESOURCE_CLAIM_TEMPLATES)
        self.classes = Informer(cluster, DEVICE_CLASSES)
        self.recorder = Events(cluster)

    def events(self) -> list[tuple[str, str, str]]:
        return sorted(self.recorder.asked)


@contextlib.asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    parts = (world.claims, world.templates, world.classes)
    tasks = [asyncio.create_task(part.run()) for part in parts]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


# --- claims and templates that tolerate the taint -----------------------------------------------------------


def template(name: str, spec: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": NS, **meta}, "spec": {"spec": spec}}


def test_claims_and_templates_that_tolerate_the_taint_have_an_event_each_until_they_are_gone() -> None:
    cluster, told = FakeClient(), list[int]()
    world = World(cluster)
    tolerators = Tolerators(
        [DriverName(DRIVER)],
        world.claims,
        world.classes,
        lambda: told.append(tolerators.count()),
        world.templates,
        world.recorder,
    )
    asked = builders.request("r", tolerations=[{"key": TAINT.key, "operator": "Exists"}])
    cluster.put(RESOURCE_CLAIMS, builders.claim("c", asked))
    cluster.put(RESOURCE_CLAIM_TEMPLATES, template("t", {"devices": {"requests": [asked]}}))
    cluster.put(RESOURCE_CLAIMS, builders.claim("plain"))

    async def scenario() -> None:
        async with running(world):
            # Without its class nothing is allocated.
            assert (tolerators.count(), tolerators.refusal(), world.events()) == (0, "", [])
            cluster.put(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
            await asyncio.sleep(1)
            both = [("ToleratesControllerTaint", "ResourceClaim", "c")]
            both.append(("ToleratesControllerTaint", "ResourceClaimTemplate", "t"))
            assert world.events() == both
            assert TAINT.key in tolerators.refusal()
            # The class is written again, and means the same.
            expression = f'"{DRIVER}" == device.driver'
            cluster.put(DEVICE_CLASSES, builders.device_class("gpu", expression))
            await asyncio.sleep(1)
            assert world.events() == both
            cluster.remove(RESOURCE_CLAIMS, "c", NS)
            await asyncio.sleep(1)
            assert tolerators.found() == (f"template {NS}/t",)
            cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", NS)
            await asyncio.sleep(1)
            assert tolerators.refusal() == ""
            cluster.remove(DEVICE_CLASSES, "gpu")
            await asyncio.sleep(1)
            assert told == [2, 0]
            assert not tolerators._suspects

    virtual_time.run(scenario())


def test_pools_are_looked_at_for_the_first_claim_and_after_the_last_one() -> None:
    cluster, told = FakeClient(), list[int]()
    world = World(cluster)
    tolerators = Tolerators(
        [DriverName(DRIVER)],
        world.claims,
        world.classes,
        lambda: told.append(tolerators.count()),
        recorder=world.recorder,
    )
    everything = [{"operator": "Exists"}]
    cluster.put(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    cluster.put(DEVICE_CLASSES, builders.device_class("nic", 'device.driver == "nic.example"'))

    async def put(name: str, *requests: dict[str, Any]) -> list[int]:
        cluster.put(RESOURCE_CLAIMS, builders.claim(name, *requests))
        await asyncio.sleep(1)
        return told

    async def scenario() -> None:
        async with running(world):
            theirs = builders.request("r", "nic", tolerations=everything)
            # One request tolerates the taint, and the other one asks for our devices.
            assert await put("nic", theirs, builders.request("s")) == []
            for number, name in enumerate(("a", "b", "c"), 1):
                assert await put(name, builders.request("r", tolerations=everything)) == [1]
                assert len(world.events()) == tolerators.count() == number
            for name in ("a", "b", "c", "nic"):
                cluster.remove(RESOURCE_CLAIMS, name, NS)
                await asyncio.sleep(1)
            assert told == [1, 0]
            await put("d", builders.request("r", tolerations=everything))
            cluster.remove(DEVICE_CLASSES, "gpu")
            await asyncio.sleep(1)
            assert told == [1, 0, 1, 0]

    virtual_time.run(scenario())


# --- capacity that the API server has dropped ---------------------------------------------------------------


def dropped(name: str, kind: str, *, capacity: bool = True) -> dict[str, Any]:
    """A claim or a template from which capacity was dropped, or one that never asked for any."""
    spec = {"devices": {"requests": [builders.request("r")]}}
    request = builders.request("r", memory="1Gi") if capacity else builders.request("r")
    asked = {"devices": {"requests": [request]}}
    of_template = kind == "ResourceClaimTemplate"
    note = json.dumps({"spec": {"spec": asked} if of_template else asked})
    made = template(name, spec) if of_template else {**builders.claim(name), "spec": spec}
    made["metadata"]["annotations"] = {LAST_APPLIED: note}
    return made


@pytest.mark.parametrize("resource", [RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES], ids=lambda r: r.kind)
def test_dropped_capacity_is_reported_once_for_as_long_as_it_is_so(resource: Any) -> None:
    cluster = FakeClient()
    world = World(cluster)
    found = DroppedCapacity(world.claims, world.templates, world.recorder)
    for name in ("a", "b"):
        cluster.put(resource, dropped(name, resource.kind))

    async def change(body: dict[str, Any]) -> tuple[int, int]:
        cluster.put(resource, body)
        await asyncio.sleep(1)
        return found.count(), len(world.events())

    async def scenario() -> None:
        async with running(world):
            assert found.count() == 2
            assert world.events() == [("CapacityDropped", resource.kind, name) for name in ("a", "b")]
            # It is so still, in other words.
            more = dropped("a", resource.kind)
            more["metadata"]["annotations"][LAST_APPLIED] += " "
            assert await change(more) == (2, 2)
            # It was applied anew without capacity, and with it.
            assert await change(dropped("a", resource.kind, capacity=False)) == (1, 2)
            assert await change(more) == (2, 3)
            # The server keeps it by now, and the object was made anew.
            asked = [builders.request("r", memory="1Gi")]
            kept = {**more, "spec": template("a", {"devices": {"requests": asked}})["spec"]}
            if resource is RESOURCE_CLAIMS:
                kept["spec"] = kept["spec"]["spec"]
            assert await change(kept) == (1, 3)
            assert await change(more) == (2, 4)
            cluster.remove(resource, "a", NS)
            await asyncio.sleep(1)
            assert found.count() == 1

    virtual_time.run(scenario())


def test_a_claim_and_a_template_of_one_name_count_as_two() -> None:
    cluster = FakeClient()
    world = World(cluster)
    found = DroppedCapacity(world.claims, world.templates, world.recorder)
    for resource in (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES):
        cluster.put(resource, dropped("a", resource.kind))

    async def scenario() -> None:
        async with running(world):
            assert (found.count(), len(world.events())) == (2, 2)
            cluster.remove(RESOURCE_CLAIMS, "a", NS)
            await asyncio.sleep(1)
            assert found.count() == 1

    virtual_time.run(scenario())


# --- what of the API server is known ------------------------------------------------------------------------


def allocated(name: str, pool: str, **more: Any) -> dict[str, Any]:
    return {
        **builders.claim(name, uid=f"uid-{name}"),
        "status": builders.allocation(builders.result(pool, "gpu-0", **more)),
    }


def test_a_pool_waits_for_its_own_claims_alone() -> None:
    cluster = FakeClient()
    claims = Informer(cluster, RESOURCE_CLAIMS)
    known = KnownClaims(cluster, AssumeCache(claims, Journal(), Signal()))
    n1, n2 = (PoolID(DriverName(DRIVER), PoolName(name)) for name in ("n1", "n2"))

    async def scenario() -> None:
        assert await known.are_known(n1)
        cluster.put(RESOURCE_CLAIMS, builders.claim("free"))
        assert await known.are_known()
        cluster.put(RESOURCE_CLAIMS, allocated("c", "n1"))
        assert (await known.are_known(n1), await known.are_known(n2)) == (False, True)
        assert not await known.are_known()
        assert await KnownClaims(cluster, None).are_known(n1)
        task = asyncio.create_task(claims.run())
        await claims.synced.wait()
        assert await known.are_known(n1)
        assert await known.are_known()
        cluster.quiet.add(RESOURCE_CLAIMS.kind)
        cluster.put(RESOURCE_CLAIMS, allocated("d", "n1"))
        assert (await known.are_known(n1), await known.are_known()) == (False, False)
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(scenario())


class Slow(FakeClient):
    """Whatever happens meanwhile, a list of claims is answered after that."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    async def list(self, *args: Any, **more: Any) -> ObjectList[Any]:
        found = await super().list(*args, **more)
        self.meanwhile()
        await asyncio.sleep(1.0)
        return found


@pytest.mark.parametrize("seen", [True, False])
def test_a_claim_that_goes_while_claims_are_read_is_not_waited_for(seen: bool) -> None:
    """Of ten thousands of claims some go in the seconds that a read takes, each time."""
    cluster = Slow()
    claims = Informer(cluster, RESOURCE_CLAIMS)
    known = KnownClaims(cluster, AssumeCache(claims, Journal(), Signal()))

    def go() -> None:
        if not seen:
            cluster.quiet.add(RESOURCE_CLAIMS.kind)
            cluster.put(RESOURCE_CLAIMS, allocated("d", "n1"))
        cluster.remove(RESOURCE_CLAIMS, "c", builders.NAMESPACE)

    async def scenario() -> None:
        task = asyncio.create_task(claims.run())
        await claims.synced.wait()
        cluster.put(RESOURCE_CLAIMS, allocated("c", "n1"))
        await asyncio.sleep(1.0)
        cluster.meanwhile = go
        if not seen:
            # One that the watch has not shown yet is in the list.
            go()
            cluster.meanwhile = lambda: None
        assert await known.are_known() is seen
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(scenario())


class Unreadables(FakeClient):
    """Lists claims of which some cannot be read."""

    unreadable: tuple[Unreadable, ...] = ()

    async def list(self, *args: Any, **more: Any) -> ObjectList[Any]:
        found = await super().list(*args, **more)
        return ObjectList(found.items, found.resource_version, self.unreadable)


def test_a_claim_of_which_it_is_not_known_what_it_has_is_waited_for() -> None:
    cluster = Unreadables()
    known = KnownClaims(cluster, AssumeCache(Informer(cluster, RESOURCE_CLAIMS), Journal(), Signal()))
    # Of the first one the devices can be read: it is among the claims.
    one, other = (
        Unreadable(ObjectKey(NS, name), Uid(name), "a number", holds_unknown=name == "b") for name in "ab"
    )

    async def scenario() -> None:
        cluster.unreadable = (one,)
        assert await known.are_known(PoolID(DriverName(DRIVER), PoolName("n1")))
        cluster.unreadable = (one, other)
        assert not await known.are_known(PoolID(DriverName(DRIVER), PoolName("n1")))

    virtual_time.run(scenario())


# --- classes that serve extended resources ------------------------------------------------------------------


def serving(resource: str | None, name: str = "gpu") -> dict[str, Any]:
    more = {"extendedResourceName": resource} if resource else {}
    return builders.device_class(name, f'device.driver == "{DRIVER}"', **more)


def counting(**capacity: str) -> Node:
    """A Node; ``of_ours`` and ``of_theirs`` are names that only classes can make matter."""
    names = {"cpu": "cpu", "nvidia": "nvidia.com/gpu", "of_ours": "example.com/gpu", "of_theirs": "x.com/y"}
    found = {names[name]: amount for name, amount in capacity.items()}
    node: Node = codec.convert(Node, {**builders.node("n1"), "status": {"capacity": found}})
    return node


def test_a_node_is_looked_at_for_resources_that_classes_serve() -> None:
    cluster, told = FakeClient(), list[int]()
    world = World(cluster)
    found = ExtendedResources(world.classes, lambda: told.append(len(found.classes)))

    async def change(body: dict[str, Any]) -> list[int]:
        cluster.put(DEVICE_CLASSES, body)
        await asyncio.sleep(1)
        return told

    async def scenario() -> None:
        async with running(world):
            assert await change(serving(None, "plain")) == []
            bare, ours = counting(cpu="8"), counting(cpu="8", of_ours="1")
            assert found.concerns(bare, counting(cpu="8", nvidia="1"))
            assert not found.concerns(bare, counting(cpu="9"))
            assert not found.concerns(bare, ours)
            assert await change(serving("example.com/gpu")) == [1]
            assert found.concerns(bare, ours)
            assert found.concerns(ours, counting(cpu="8", of_ours="2"))
            assert not found.concerns(ours, counting(cpu="9", of_ours="1"))
            assert not found.concerns(ours, counting(cpu="8", of_ours="1", of_theirs="1"))
            # Written again as it is, then with another name, then with none.
            again = serving("example.com/gpu")
            again["metadata"]["labels"] = {"a": "b"}
            assert await change(again) == [1]
            assert await change(serving("x.com/y")) == [1, 1]
            assert not found.concerns(bare, ours)
            assert await change(serving(None)) == [1, 1, 0]
            assert await change(serving("example.com/gpu")) == [1, 1, 0, 1]
            cluster.remove(DEVICE_CLASSES, "plain")
            cluster.remove(DEVICE_CLASSES, "gpu")
            await asyncio.sleep(1)
            assert told == [1, 1, 0, 1, 0]
            assert not found.concerns(bare, ours)

    virtual_time.run(scenario())


# --- one UUID on several nodes ------------------------------------------------------------------------------


def described(name: str, **uuids: str) -> DeviceInventory:
    devices = [builders.device(device, attributes={"uuid": uuid}) for device, uuid in uuids.items()]
    devices.append(builders.device("bare", attributes={"type": "gpu"}))
    found: DeviceInventory = codec.convert(DeviceInventory, builders.inventory(name, *devices))
    return found


def names(*nodes: str) -> frozenset[str]:
    return frozenset(f"{node}.{DRIVER}" for node in nodes)


def test_what_is_doubtful_is_named_in_order_and_the_rest_is_counted() -> None:
    index = SameUuids()
    index.put(described("n1", a="1", b="2", c="3", d="4", own="0"))
    index.put(described("n3", a="1", d="4"))
    index.put(described("n2", d="4", c="3", a="1"))
    (text,) = index.doubts(f"n1.{DRIVER}")
    assert text.endswith(f", d (also in n2.{DRIVER})")
    index.put(described("n2", d="4", c="3", a="1", b="2"))
    (text,) = index.doubts(f"n1.{DRIVER}")
    assert text.endswith(
        f"a (also in n2.{DRIVER}), b (also in n2.{DRIVER}), c (also in n2.{DRIVER}) and 1 more"
    )
    index.remove(f"n2.{DRIVER}")
    (text,) = index.doubts(f"n1.{DRIVER}")
    assert text.endswith(f": a (also in n3.{DRIVER}), d (also in n3.{DRIVER})")
    assert index.doubts(f"n2.{DRIVER}") == ()


def test_one_uuid_of_very_many_nodes_has_some_of_them_looked_at() -> None:
    index = SameUuids()
    for i in range(70):
        index.put(described(f"n{i:02}", a="1"))
    assert index.put(described("z", a="1")) == names(*(f"n{i:02}" for i in range(64)))
    assert index.put(described("z")) == names(*(f"n{i:02}" for i in range(64)))


def test_two_devices_of_one_node_with_one_uuid_are_no_matter_of_two_nodes() -> None:
    index = SameUuids()
    assert index.put(described("n1", a="1", b="1")) == frozenset()
    assert index.doubts(f"n1.{DRIVER}") == ()


def test_the_same_uuid_of_another_driver_is_another_device() -> None:
    index = SameUuids()
    index.put(described("n1", a="1"))
    other = builders.inventory("n1", builders.device("a", attributes={"uuid": "1"}), driver="nic.example")
    assert index.put(codec.convert(DeviceInventory, other)) == frozenset()
    assert index.doubts("n1.nic.example") == ()
