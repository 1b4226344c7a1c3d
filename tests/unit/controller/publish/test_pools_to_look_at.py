"""What makes the publisher look at a pool; how many it works on; and what it says of server and allocator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import msgspec
import pytest
import virtual_time
from builders import DRIVER, device
from fake_client import FakeClient
from virtual_time import LoopClock

from controller.allocate.answers.journal import Journal
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.config import ControllerConfig
from controller.publish.extended_resources import ExtendedResources
from controller.publish.gates import PoolGates
from controller.publish.policies import PolicyBook
from controller.publish.publisher import POOL_INDEX, Publisher, pool_of
from dra_driver.api import codec
from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName, PoolName, Resource
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocationResult,
    ResourceClaim,
)
from dra_driver.errors import Forbidden
from dra_driver.kube import EventRecorder, Informer
from dra_driver.ownership import PoolAllocator, PoolID
from dra_driver.publishing.freeze import FreezeState
from dra_driver.publishing.handover import Handover
from dra_driver.structured import Strategy

SECOND, THIRD = DriverName("nic.example.com"), DriverName("npu.example.com")
OTHER = "other.example.com"
GPU = "example.com/gpu"
ZONE_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}


def name_of(node: str, driver: str = DRIVER) -> str:
    return inventory_name(node, DriverName(driver))


def described(name: str, address: str) -> dict[str, Any]:
    """Return a device that stands for what is at a PCI address."""
    return device(name, attributes={"resource.kubernetes.io/pciBusID": address})


class HangingClient(FakeClient):
    """Counts creations of slices that are under way, and answers none."""

    def __init__(self) -> None:
        super().__init__()
        self.creating = 0

    async def create(self, resource: Resource[Any], *args: Any, **more: Any) -> Any:
        if resource is RESOURCE_SLICES and not more.get("dry_run"):
            self.creating += 1
            await asyncio.Event().wait()
        return await super().create(resource, *args, **more)


class World:
    """A publisher of three drivers whose loop does not run: a test sees what is due."""

    def __init__(self, cluster: FakeClient, **config: Any) -> None:
        self.cluster = cluster
        clock = LoopClock()
        inventories = Informer(cluster, DEVICE_INVENTORIES)
        slices = Informer(cluster, RESOURCE_SLICES, indices={POOL_INDEX: pool_of})
        nodes, classes = Informer(cluster, NODES), Informer(cluster, DEVICE_CLASSES)
        policies = Informer(cluster, DEVICE_POLICIES)
        recorder = EventRecorder(cluster, "test", clock)
        self.config = ControllerConfig(drivers=(DRIVER, SECOND, THIRD), **config)
        claims = Informer(cluster, RESOURCE_CLAIMS)
        self.cache = AssumeCache(claims, Journal(), Signal())
        self.gates = PoolGates(clock, inventories=inventories, slices=slices)
        book = PolicyBook(cluster, clock, recorder, policies, timings=self.config.timings)
        self.publisher = Publisher(
            cluster,
            self.config,
            clock,
            recorder,
            inventories=inventories,
            slices=slices,
            nodes=nodes,
            gates=self.gates,
            policies=book,
            assume_cache=self.cache,
            extended_resources=ExtendedResources(classes, lambda: None),
            rule_changed=lambda pool, rule: self.rules.append((pool.pool, rule.strategy)),
        )
        self.rules: list[tuple[str, Strategy]] = []
        self.informers: tuple[Informer[Any], ...] = (inventories, slices, nodes, classes, policies, claims)
        self.closes: tuple[Callable[[], None], ...] = (self.publisher.queue.close, book.queue.close)

    def inventory(self, node: str, *devices: dict[str, Any], driver: str = DRIVER, **more: Any) -> None:
        self.cluster.put(DEVICE_INVENTORIES, builders.inventory(node, *devices, driver=driver, **more))

    def slice(self, node: str, *devices: dict[str, Any], driver: str = DRIVER, **more: Any) -> None:
        self.cluster.put(RESOURCE_SLICES, builders.resource_slice(node, *devices, driver=driver, **more))

    def policy(self, **more: Any) -> None:
        self.cluster.put(DEVICE_POLICIES, {"metadata": {"name": "all"}, "spec": {}, **more})

    async def due(self) -> list[str]:
        """Wait until what is stored was seen; take out what is due, and return it."""
        await asyncio.sleep(0.01)
        queue, found = self.publisher.queue, []
        while len(queue):
            found.append(await queue.get())
            queue.done(found[-1])
        return sorted(found)


def play(
    scenario: Callable[[World], Awaitable[None]], cluster: FakeClient | None = None, **config: Any
) -> None:
    async def main() -> None:
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            world = World(cluster or FakeClient(), **config)
            tasks = [group.create_task(i.run()) for i in world.informers]
            for informer in world.informers:
                await informer.synced.wait()
            await world.due()
            await scenario(world)
            for close in world.closes:
                close()
            for task in tasks:
                task.cancel()

    virtual_time.run(main())


# --- inventories and slices ---------------------------------------------------------------------------------


def test_an_inventory_is_looked_at_when_it_comes_changes_and_goes_but_not_when_its_devices_are_busy() -> None:
    async def scenario(world: World) -> None:
        name = name_of("n1")
        world.inventory("n1", device("gpu-0"))
        assert await world.due() == [name]
        world.cluster.edit(DEVICE_INVENTORIES, name, {"spec": {"devices": [device("gpu-1")]}})
        assert await world.due() == [name]
        world.cluster.edit(DEVICE_INVENTORIES, name, {"status": {"registration": {"epoch": 2}}})
        assert await world.due() == [name]
        world.cluster.edit(DEVICE_INVENTORIES, name, {"status": {"utilization": [{"name": "gpu-1"}]}})
        world.cluster.edit(DEVICE_INVENTORIES, name, {"metadata": {"annotations": {"a": "b"}}})
        assert await world.due() == []

    play(scenario)


def test_a_slice_has_its_pool_looked_at_when_it_comes_changes_and_goes() -> None:
    async def scenario(world: World) -> None:
        world.slice("n1", device("gpu-0"))
        assert await world.due() == [name_of("n1")]
        world.slice("n1", device("gpu-0"), generation=2)
        assert await world.due() == [name_of("n1")]
        world.cluster.remove(RESOURCE_SLICES, f"n1-{DRIVER}")
        assert await world.due() == [name_of("n1")]

    play(scenario)


def test_a_slice_of_another_driver_or_of_no_node_concerns_no_pool_of_ours() -> None:
    async def scenario(world: World) -> None:
        world.inventory("n1", device("gpu-0"))
        world.inventory("n1", device("gpu-0"), driver=OTHER)
        await world.due()
        for driver, where in ((OTHER, {}), (DRIVER, {"nodeName": "", "allNodes": True})):
            world.slice("n1", device("gpu-0"), driver=driver, **where)
            assert await world.due() == []
            world.slice("n1", device("gpu-1"), driver=driver, **where)
            assert await world.due() == []
            world.cluster.remove(RESOURCE_SLICES, f"n1-{driver}")
            assert await world.due() == []

    play(scenario)


def test_a_slice_has_pools_of_our_other_drivers_looked_at_that_describe_one_of_its_devices() -> None:
    async def scenario(world: World) -> None:
        for node, address in (("n1", "0000:01:00.0"), ("n2", "0000:01:00.0")):
            world.inventory(node, described("npu-0", address), driver=THIRD)
        await world.due()
        of_slice, beside = name_of("n1"), name_of("n1", THIRD)
        world.slice("n1", described("gpu-0", "0000:02:00.0"))
        assert await world.due() == [of_slice]
        world.slice("n1", described("gpu-1", "0000:01:00.0"))
        assert await world.due() == sorted([of_slice, beside])
        # What it says of the same devices is nothing to the others.
        world.slice("n1", described("gpu-1", "0000:01:00.0"), generation=2)
        assert await world.due() == [of_slice]
        world.cluster.remove(RESOURCE_SLICES, f"n1-{DRIVER}")
        assert await world.due() == sorted([of_slice, beside])
        world.slice("n1", described("gpu-1", "0000:01:00.0"), generation=3)
        assert await world.due() == sorted([of_slice, beside])

    play(scenario)


def test_a_device_that_another_driver_withdraws_has_its_node_looked_at_after_ten_seconds() -> None:
    async def scenario(world: World) -> None:
        world.slice("n1", described("gpu-1", "0000:01:00.0"), driver=OTHER)
        assert await world.due() == OURS
        world.cluster.remove(RESOURCE_SLICES, f"n1-{OTHER}")
        await asyncio.sleep(9)
        assert await world.due() == []
        await asyncio.sleep(2)
        assert await world.due() == OURS

    play(scenario)


def test_inventories_with_a_uuid_in_common_are_looked_at_ten_seconds_after_one_has_changed() -> None:
    async def scenario(world: World) -> None:
        names = [name_of(f"n{i}") for i in range(3)]
        for i, name in enumerate(names):
            world.inventory(f"n{i}", device("gpu-0", attributes={"uuid": "GPU-1"}))
            await world.due()
            await world.publisher.reconcile(name)
            await asyncio.sleep(60)
        await world.due()
        world.cluster.edit(DEVICE_INVENTORIES, names[0], {"spec": {"devices": []}})
        await world.due()
        await world.publisher.reconcile(names[0])
        await world.due()
        await asyncio.sleep(9)
        assert await world.due() == []
        await asyncio.sleep(2)
        assert await world.due() == names[1:]

    play(scenario)


def test_nothing_is_kept_of_inventories_that_are_gone() -> None:
    async def scenario(world: World) -> None:
        world.cluster.put(NODES, builders.node("n1", uid="uid-n1"))
        await world.due()
        before = kept(world.publisher)
        assert not any(before.values())
        world.inventory("n1", device("gpu-0", attributes={"uuid": "GPU-1"}))
        await world.due()
        await world.publisher.reconcile(name_of("n1"))
        assert all(kept(world.publisher).values())
        world.cluster.remove(DEVICE_INVENTORIES, name_of("n1"))
        await world.due()
        assert kept(world.publisher) == before

    play(scenario)


def kept(publisher: Publisher) -> dict[str, int]:
    """Return of how many pools something is kept, by what it is."""
    assert publisher._policies is not None
    return {
        "resources that have gone": len(publisher._gone),
        "drivers that have gone": len(publisher._gone_drivers),
        "uuids": len(publisher._uuids._devices),
        "epochs": len(publisher._attempts._epochs),
        "policies": len(publisher._policies._pools),
    }


def test_an_inventory_that_is_gone_or_another_drivers_costs_no_more_than_a_look() -> None:
    async def scenario(world: World) -> None:
        world.inventory("n1", device("gpu-0", attributes={"uuid": "GPU-1"}), driver=OTHER)
        await world.due()
        await world.publisher.probe()
        calls = len(world.cluster.calls)
        for name in (name_of("n1", OTHER), name_of("gone")):
            await world.publisher.reconcile(name)
        assert len(world.cluster.calls) == calls
        assert not any(kept(world.publisher).values())

    play(scenario)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({}, True),
        ({"publication": {"devices": 0}}, False),
        ({"registration": {"registered": True}}, False),
    ],
    ids=["published", "nothing published", "registered"],
)
def test_of_a_driver_that_is_no_longer_there_it_is_shown_once_that_nothing_is_published(
    status: dict[str, Any], shown: bool
) -> None:
    async def scenario(world: World) -> None:
        name = name_of("n1", OTHER)
        world.inventory("n1", device("gpu-0"), driver=OTHER, registered=False)
        world.cluster.edit(DEVICE_INVENTORIES, name, {"status": {"publication": {"devices": 1}, **status}})
        await world.due()
        for _ in range(2):
            await world.publisher.reconcile(name)
            await world.due()
        writes = [w for w in world.cluster.writes if w.kind == "DeviceInventory"]
        assert len(writes) == int(shown)

    play(scenario)


# --- one look -----------------------------------------------------------------------------------------------


async def published(world: World, *devices: dict[str, Any]) -> int:
    """Look at a pool of a node that is there; return the number of devices in its slices."""
    world.cluster.put(NODES, builders.node("n1", uid="uid-n1"))
    world.inventory("n1", *devices)
    await world.due()
    await world.publisher.reconcile(name_of("n1"))
    await world.due()
    slices = [s for s in world.cluster.all(RESOURCE_SLICES) if s.spec.driver == DRIVER]
    return sum(len(s.spec.devices) for s in slices)


def test_a_pool_in_which_nothing_waits_is_not_looked_at_again_by_itself_or_because_devices_are_free() -> None:
    async def scenario(world: World) -> None:
        assert await published(world, device("gpu-0")) == 1
        await world.publisher.reconcile(name_of("n1"))
        await asyncio.sleep(60)
        world.publisher.look_at_pending()
        assert await world.due() == []

    play(scenario)


def allocators(world: World) -> set[str]:
    """Return who may allocate the devices that are published, by their taints."""
    devices = [d for s in world.cluster.all(RESOURCE_SLICES) for d in s.spec.devices]
    return {"controller" if any(t.key == CONTROLLER_TAINT for t in d.taints) else "anybody" for d in devices}


def test_a_pool_goes_to_kube_scheduler_only_when_no_allocation_is_being_written_any_more() -> None:
    async def scenario(world: World) -> None:
        await published(world, device("gpu-0"))
        world.policy(spec={"allocator": "scheduler"})
        claim = codec.convert(ResourceClaim, builders.claim("c", uid="uid-c"))
        raw = builders.allocation(builders.result("n1", "gpu-0"))["allocation"]
        world.cache.assume(claim, codec.convert(AllocationResult, raw))
        await looks(world, 60)
        assert allocators(world) == {"controller"}
        world.cache.release(claim)
        await looks(world, 60)
        assert allocators(world) == {"anybody"}

    play(scenario, allocator=PoolAllocator.CONTROLLER)


def test_a_pool_whose_last_write_is_not_shown_yet_is_not_opened_within_the_next_write() -> None:
    async def scenario(world: World) -> None:
        await published(world, device("gpu-0"))
        pool, during = PoolID(DRIVER, PoolName("n1")), []
        (slice_,) = world.cluster.all(RESOURCE_SLICES)
        later = msgspec.structs.replace(slice_.metadata, resource_version="999999")
        world.gates.begin(pool)
        world.gates.wrote(msgspec.structs.replace(slice_, metadata=later))
        world.gates.end(pool)
        assert world.gates.freeze(pool).state is FreezeState.UNSEEN

        def record(verb: str, kind: str, *_: str) -> None:
            if kind == "ResourceSlice" and verb != "dry-run":
                during.append(world.gates.freeze(pool).state)

        world.cluster.before = record
        assert await published(world, device("gpu-0"), device("gpu-1")) == 2
        assert set(during) == {FreezeState.WRITING}

    play(scenario)


async def looks(world: World, seconds: int) -> None:
    """Look at a pool every second."""
    for _ in range(seconds):
        await world.publisher.reconcile(name_of("n1"))
        await asyncio.sleep(1)


def test_whose_a_pool_is_stays_known_while_its_inventory_is_not_believed() -> None:
    async def scenario(world: World) -> None:
        await published(world, device("gpu-0"))
        pool = PoolID(DRIVER, PoolName("n1"))
        before = world.gates.handover(pool)
        assert before != Handover()
        world.cluster.edit(NODES, "n1", {"metadata": {"uid": "another"}})
        await looks(world, 4)
        assert world.gates.handover(pool) == before

    play(scenario, allocator=PoolAllocator.CONTROLLER)


def test_a_device_that_another_driver_offers_is_withheld() -> None:
    async def scenario(world: World) -> None:
        one, another = described("gpu-0", "0000:01:00.0"), described("gpu-1", "0000:02:00.0")
        world.slice("n1", one, driver=OTHER)
        assert await published(world, one, another) == 1

    play(scenario)


def test_a_pool_whose_node_is_not_there_has_no_policy() -> None:
    async def scenario(world: World) -> None:
        world.policy(spec={"nodeSelector": ZONE_A, "strategy": "first-fit"})
        world.inventory("n1", device("gpu-0"))
        await world.due()
        await world.publisher.reconcile(name_of("n1"))
        assert world.rules == []

    play(scenario)


@pytest.mark.parametrize("ends", ["the inventory goes", "the node publishes"])
def test_how_devices_of_a_pool_are_chosen_is_said_once_and_taken_back_at_its_end(ends: str) -> None:
    async def scenario(world: World) -> None:
        world.policy(spec={"strategy": "first-fit"})
        for _ in range(2):
            await published(world, device("gpu-0"))
        assert world.rules == [("n1", Strategy.FIRST_FIT)]
        if ends == "the inventory goes":
            world.cluster.remove(DEVICE_INVENTORIES, name_of("n1"))
            await world.due()
        else:
            world.cluster.edit(DEVICE_INVENTORIES, name_of("n1"), {"spec": {"publisher": "node"}})
            await world.due()
            await world.publisher.reconcile(name_of("n1"))
        assert world.rules[1:] == [("n1", Strategy.BEST_FIT)]

    play(scenario, allocator=PoolAllocator.SCHEDULER)


# --- nodes --------------------------------------------------------------------------------------------------

OURS = sorted(name_of("n1", driver) for driver in (DRIVER, SECOND, THIRD))


def test_a_node_has_its_pools_looked_at_when_it_comes_and_when_another_takes_its_name() -> None:
    async def scenario(world: World) -> None:
        world.cluster.put(NODES, builders.node("n1", uid="first"))
        assert await world.due() == OURS
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": {"a": "b"}}})
        assert await world.due() == []
        world.cluster.edit(NODES, "n1", {"metadata": {"uid": "second"}})
        assert await world.due() == OURS

    play(scenario)


@pytest.mark.parametrize("selecting", [None, "policy", "slice"])
def test_labels_of_a_node_concern_its_pools_where_something_selects_by_them(selecting: str | None) -> None:
    async def scenario(world: World) -> None:
        world.cluster.put(NODES, builders.node("n1"))
        if selecting == "policy":
            world.policy(spec={"nodeSelector": ZONE_A})
        elif selecting == "slice":
            one = device("gpu-0", attributes={"uuid": "GPU-1"})
            world.slice("rack", one, driver=OTHER, nodeName="", nodeSelector=ZONE_A)
        await world.due()
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": {"a": "b"}}})
        assert await world.due() == []
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": {"zone": "a"}}})
        assert await world.due() == (OURS if selecting else [])

    play(scenario)


def test_what_a_device_plugin_counts_on_a_node_concerns_its_pools() -> None:
    async def scenario(world: World) -> None:
        world.cluster.put(DEVICE_CLASSES, builders.device_class("gpu", extendedResourceName=GPU))
        world.cluster.put(NODES, builders.node("n1"))
        await world.due()
        world.cluster.edit(NODES, "n1", {"status": {"capacity": {"example.com/other": "1"}}})
        assert await world.due() == []
        world.cluster.edit(NODES, "n1", {"status": {"capacity": {GPU: "1"}}})
        assert await world.due() == OURS

    play(scenario)


# --- policies -----------------------------------------------------------------------------------------------


def test_a_policy_has_all_pools_looked_at_when_it_comes_changes_and_goes_but_not_for_its_status() -> None:
    async def scenario(world: World) -> None:
        for node in ("n1", "n2"):
            world.inventory(node, device("gpu-0"))
        await world.due()
        everything = [name_of("n1"), name_of("n2")]
        world.policy()
        assert await world.due() == everything
        world.cluster.edit(DEVICE_POLICIES, "all", {"status": {"nodes": 2}})
        assert await world.due() == []
        world.cluster.edit(DEVICE_POLICIES, "all", {"spec": {"priority": 7}})
        assert await world.due() == everything
        deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/keeps"]}
        world.cluster.edit(DEVICE_POLICIES, "all", {"metadata": deleted})
        assert await world.due() == everything
        world.cluster.remove(DEVICE_POLICIES, "all")
        assert await world.due() == everything

    play(scenario)


# --- the allocator, and the server --------------------------------------------------------------------------


def drop_taints(raw: dict[str, Any]) -> None:
    for found in raw["spec"].get("devices", ()) if raw["kind"] == "ResourceSlice" else ():
        found.pop("taints", None)


@pytest.mark.parametrize("configured", list(PoolAllocator))
def test_the_controller_allocates_where_it_is_configured_or_a_policy_of_our_drivers_says_so(
    configured: PoolAllocator,
) -> None:
    async def scenario(world: World) -> None:
        assert world.publisher.allocator is configured
        world.policy(spec={"allocator": "controller", "driver": OTHER})
        await world.due()
        assert world.publisher.allocator is configured
        world.policy(spec={"allocator": "controller", "driver": SECOND})
        await world.due()
        assert world.publisher.allocator is PoolAllocator.CONTROLLER
        assert world.publisher.features is None
        await world.publisher.probe()
        assert world.publisher.features is not None
        assert world.publisher.allocator is PoolAllocator.CONTROLLER

    play(scenario, allocator=configured)


def test_kube_scheduler_allocates_whatever_is_said_where_the_server_keeps_no_taints() -> None:
    async def scenario(world: World) -> None:
        world.policy(spec={"allocator": "controller"})
        await world.due()
        before = world.publisher.allocator
        await world.publisher.probe()
        assert (before, world.publisher.allocator) == (PoolAllocator.CONTROLLER, PoolAllocator.SCHEDULER)

    cluster = FakeClient()
    cluster.strip = drop_taints
    play(scenario, cluster, allocator=PoolAllocator.CONTROLLER)


def without_policies(world: World, allocator: PoolAllocator) -> Publisher:
    inventories, slices, nodes, *_ = world.informers
    clock, client = LoopClock(), world.cluster
    return Publisher(
        client,
        ControllerConfig(drivers=(DRIVER,), allocator=allocator),
        clock,
        EventRecorder(client, "test", clock),
        inventories=inventories,
        slices=slices,
        nodes=nodes,
        gates=PoolGates(clock, inventories=inventories, slices=slices),
    )


@pytest.mark.parametrize("configured", list(PoolAllocator))
def test_without_policies_the_configured_allocator_counts_and_labels_concern_nothing(
    configured: PoolAllocator,
) -> None:
    async def scenario(world: World) -> None:
        publisher = without_policies(world, configured)
        assert publisher.allocator is configured
        world.cluster.put(NODES, builders.node("n1"))
        await world.due()
        while len(publisher.queue):
            publisher.queue.done(await publisher.queue.get())
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": {"zone": "a"}}})
        await world.due()
        assert len(publisher.queue) == 0

    play(scenario)


async def refused(world: World) -> None:
    """Have the API server refuse to say what it keeps, until ``before`` is set anew."""

    def refuse(verb: str, *_: str) -> None:
        if verb == "dry-run":
            raise Forbidden("no right", code=403)

    world.cluster.before = refuse
    with pytest.raises(Forbidden):
        await world.publisher.probe()


def test_why_the_server_cannot_be_asked_is_known_until_it_answers() -> None:
    async def scenario(world: World) -> None:
        await refused(world)
        assert "no right" in world.publisher.unasked.problem
        world.cluster.before = lambda *_: None
        assert (await world.publisher.probe()).taints
        assert world.publisher.unasked.problem == ""

    play(scenario)


def told(cluster: FakeClient) -> list[str]:
    """Return the inventories on which it is shown that the server was not asked."""
    found = cluster.all(DEVICE_INVENTORIES)
    return [i.metadata.name for i in found if any(c.reason == "ServerNotAsked" for c in i.status.conditions)]


def test_that_the_server_cannot_be_asked_is_shown_on_every_inventory_of_our_drivers() -> None:
    async def scenario(world: World) -> None:
        for driver in (OTHER, DRIVER, SECOND, THIRD):
            world.inventory("n1", device("gpu-0"), driver=driver)
        await world.due()
        await refused(world)
        await world.publisher.show_unasked()
        assert sorted(told(world.cluster)) == OURS

    play(scenario)


def test_a_server_that_cannot_be_reached_is_not_asked_once_for_each_inventory() -> None:
    async def scenario(world: World) -> None:
        for node in ("n1", "n2", "n3"):
            world.inventory(node, device("gpu-0"))
        await world.due()
        await refused(world)
        before = len(world.cluster.calls)
        world.cluster.down = True
        await world.publisher.show_unasked()
        assert len(world.cluster.calls) - before == 1

    play(scenario)


@pytest.mark.parametrize("driver", [DRIVER, OTHER, None])
def test_a_look_that_cannot_ask_the_server_shows_that_on_the_inventory_if_it_is_ours(
    driver: str | None,
) -> None:
    async def scenario(world: World) -> None:
        name = name_of("n1", driver or DRIVER)
        if driver is not None:
            world.inventory("n1", device("gpu-0"), driver=driver)
        await world.due()
        await refused(world)
        with pytest.raises(Forbidden):
            await world.publisher.reconcile(name)
        assert told(world.cluster) == ([name] if driver == DRIVER else [])

    play(scenario)


# --- how many at a time -------------------------------------------------------------------------------------


def test_eight_pools_are_worked_on_at_a_time() -> None:
    cluster = HangingClient()

    async def scenario(world: World) -> None:
        for i in range(12):
            cluster.put(NODES, builders.node(f"n{i}", uid=f"uid-n{i}"))
            world.inventory(f"n{i}", device("gpu-0"))
        task = asyncio.create_task(world.publisher.run())
        await asyncio.sleep(5)
        assert cluster.creating == 8
        task.cancel()
        await asyncio.wait({task})

    play(scenario, cluster)
