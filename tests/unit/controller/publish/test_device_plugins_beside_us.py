"""A device plugin that hands out the same devices: they are withheld with the reason, and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER, request
from builders import NAMESPACE as NS
from fake_client import FakeClient
from running_controller import running

from controller.config import ControllerConfig
from controller.publish.extended_resources import ExtendedResources
from controller.publish.gates import PoolGates
from controller.publish.publisher import POOL_INDEX, Publisher, pool_of
from dra_driver.api import codec
from dra_driver.api.core import EVENTS, NODES, PODS, Node
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.kube import EventRecorder, Informer
from dra_driver.ownership import PoolAllocator
from dra_driver.publishing import conditions

GPU = "nvidia.com/gpu"
OWN = "example.com/gpu"


def device_class(vendor: str, resource: str | None) -> dict[str, Any]:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].vendor == "{vendor}"'
    more = {"extendedResourceName": resource} if resource else {}
    return builders.device_class(f"{vendor}.{DRIVER}", expression, **more)


def put_node(made: FakeClient, name: str, vendors: tuple[str, ...], **capacity: str) -> None:
    counted = {"cpu": "8", "pods": "110", **capacity}
    made.put(NODES, {**builders.node(name, uid=f"uid-{name}"), "status": {"capacity": counted}})
    devices = [
        builders.device(f"gpu-{i}", attributes={"type": "gpu", "vendor": v}) for i, v in enumerate(vendors)
    ]
    made.put(DEVICE_INVENTORIES, builders.inventory(name, *devices))


def cluster(
    capacity: Mapping[str, str] | None = None, *, vendors: tuple[str, ...] = ("nvidia", "nvidia")
) -> FakeClient:
    """Two nodes with the same devices; only ``n1`` counts resources of device plugins."""
    made = FakeClient()
    put_node(made, "n1", vendors, **(capacity or {}))
    put_node(made, "n2", vendors)
    made.put(DEVICE_CLASSES, device_class("nvidia", None))
    return made


def count(made: FakeClient, amount: str | None, resource: str = GPU) -> None:
    made.edit(NODES, "n1", {"status": {"capacity": {resource: amount}}})


def published(made: FakeClient, node: str = "n1") -> tuple[str, str, int]:
    """Status and reason of the condition, and the number of devices in slices."""
    found = {c.type: c for c in made.obj(DEVICE_INVENTORIES, inventory_name(node, DRIVER)).status.conditions}
    slices = [s for s in made.all(RESOURCE_SLICES) if s.spec.node_name == node]
    devices = sum(len(s.spec.devices) for s in slices)
    condition = found.get("Published")
    return (condition.status, condition.reason, devices) if condition else ("", "", devices)


def message(made: FakeClient, node: str = "n1") -> str:
    present = made.obj(DEVICE_INVENTORIES, inventory_name(node, DRIVER)).status.conditions
    (condition,) = (c for c in present if c.type == conditions.PUBLISHED)
    return str(condition.message)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def becomes(made: FakeClient, *expected: object, node: str = "n1") -> None:
    await until(lambda: published(made, node) == expected)


async def settled(made: FakeClient) -> None:
    """Until nothing has been written for a while."""
    writes = -1
    while writes != len(made.writes):
        writes = len(made.writes)
        await asyncio.sleep(0.2)


def run(
    made: FakeClient,
    scenario: Callable[[], Awaitable[None]],
    allocator: PoolAllocator = PoolAllocator.SCHEDULER,
) -> None:
    """With the whole controller."""

    async def main() -> None:
        async with running(made, drivers=(DRIVER,), allocator=allocator):
            await scenario()

    virtual_time.run(main())


def run_publisher(
    made: FakeClient, scenario: Callable[[Publisher], Awaitable[None]], *, leaving_seconds: float
) -> None:
    """With the publisher alone, for which device plugins leave in so many seconds."""

    async def main() -> None:
        inventories = Informer(made, DEVICE_INVENTORIES)
        slices = Informer(made, RESOURCE_SLICES, indices={POOL_INDEX: pool_of})
        nodes, classes = Informer(made, NODES), Informer(made, DEVICE_CLASSES)
        recorder = EventRecorder(made, "test", virtual_time.LoopClock())
        publisher = Publisher(
            made,
            ControllerConfig(drivers=(DRIVER,), allocator=PoolAllocator.SCHEDULER),
            virtual_time.LoopClock(),
            recorder,
            inventories=inventories,
            slices=slices,
            nodes=nodes,
            gates=PoolGates(virtual_time.LoopClock(), inventories=inventories, slices=slices),
            extended_resources=ExtendedResources(
                classes,
                changed=lambda: publisher.look_at_all(),  # noqa: PLW0108 - made here
                leaving=leaving_seconds,
            ),
        )
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            informers: tuple[Informer[Any], ...] = (inventories, slices, nodes, classes)
            tasks = [group.create_task(i.run()) for i in informers]
            tasks.append(group.create_task(recorder.run()))
            for informer in informers:
                await informer.synced.wait()
            tasks.append(group.create_task(publisher.run()))
            await scenario(publisher)
            publisher.queue.close()
            for task in tasks:
                task.cancel()

    virtual_time.run(main())


# --- by default ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", list(PoolAllocator))
def test_gpus_that_a_device_plugin_hands_out_are_withheld_though_no_class_serves_them(
    allocator: PoolAllocator,
) -> None:
    made = cluster({GPU: "2"})

    async def scenario() -> None:
        await becomes(made, "False", "DevicePluginPresent", 0)
        for word in (f"2 {GPU}", "n1", "2 NVIDIA GPUs", "Remove the device plugin", "besideDevicePlugin"):
            assert word in message(made)
        await until(
            lambda: any(e.reason == "DevicePluginPresent" and e.type == "Warning" for e in made.all(EVENTS))
        )
        # The other node keeps its devices, and says nothing.
        await becomes(made, "True", "Published", 2, node="n2")

    run(made, scenario, allocator)


def test_devices_of_another_vendor_stay() -> None:
    made = cluster({GPU: "2"}, vendors=("nvidia", "amd", "nvidia"))

    async def scenario() -> None:
        await becomes(made, "True", "DevicePluginPresent", 1)
        (slice_,) = [s for s in made.all(RESOURCE_SLICES) if s.spec.node_name == "n1"]
        assert [d.name for d in slice_.spec.devices] == ["gpu-1"]
        assert "1 device in 1 ResourceSlice" in message(made)
        assert "2 NVIDIA GPUs" in message(made)

    run(made, scenario)


def test_a_class_with_a_well_known_name_withdraws_nothing() -> None:
    made = cluster({GPU: "1"}, vendors=("nvidia", "amd"))
    every = device_class("nvidia", GPU)
    every["spec"]["selectors"][0]["cel"]["expression"] = "true"
    made.put(DEVICE_CLASSES, every)

    async def scenario() -> None:
        await becomes(made, "True", "DevicePluginPresent", 1)
        await becomes(made, "True", "Published", 2, node="n2")

    run(made, scenario)


def test_a_class_says_what_a_name_of_its_own_stands_for() -> None:
    made = cluster({OWN: "2"})

    async def scenario() -> None:
        await becomes(made, "True", "Published", 2)
        made.edit(DEVICE_CLASSES, f"nvidia.{DRIVER}", {"spec": {"extendedResourceName": OWN}})
        await becomes(made, "False", "DevicePluginPresent", 0)
        for word in (OWN, "n1", f"the 2 devices of DeviceClass nvidia.{DRIVER}"):
            assert word in message(made)
        made.edit(DEVICE_CLASSES, f"nvidia.{DRIVER}", {"spec": {"extendedResourceName": None}})
        await becomes(made, "True", "Published", 2)
        made.put(DEVICE_CLASSES, device_class("nvidia", OWN))
        await becomes(made, "False", "DevicePluginPresent", 0)
        made.remove(DEVICE_CLASSES, f"nvidia.{DRIVER}")
        await becomes(made, "True", "Published", 2)

    run(made, scenario)


def test_an_admin_publishes_them_all_the_same() -> None:
    made = cluster({GPU: "2"})

    async def scenario() -> None:
        await becomes(made, "False", "DevicePluginPresent", 0)
        first = [{"cel": {"expression": f'device.attributes["{DRIVER}"].vendor == "nvidia"'}}]
        spec = {"besideDevicePlugin": "publish", "deviceSelectors": first}
        made.put(DEVICE_POLICIES, {"metadata": {"name": "migrating", "generation": 1}, "spec": spec})
        await becomes(made, "True", "Published", 2)
        made.remove(DEVICE_POLICIES, "migrating")
        await becomes(made, "False", "DevicePluginPresent", 0)

    run(made, scenario)


# --- device plugins that come and go ------------------------------------------------------------------------


def test_a_device_plugin_that_comes_later_takes_the_devices_back_until_it_has_gone() -> None:
    made = cluster()

    async def scenario(_: Publisher) -> None:
        await becomes(made, "True", "Published", 2)
        count(made, "2")
        await becomes(made, "False", "DevicePluginPresent", 0)
        noted = made.obj(DEVICE_INVENTORIES, inventory_name("n1", DRIVER)).status.publication
        assert noted.withheld_for == (GPU,)
        # The kubelet leaves the resource with 0 when its plugin is gone.
        count(made, "0")
        await becomes(made, "True", "Published", 2)
        count(made, "2")
        await becomes(made, "False", "DevicePluginPresent", 0)
        count(made, None)
        await becomes(made, "True", "Published", 2)
        noted = made.obj(DEVICE_INVENTORIES, inventory_name("n1", DRIVER)).status.publication
        assert noted.withheld_for == ()

    run_publisher(made, scenario, leaving_seconds=0.05)


def test_a_kubelet_that_restarts_does_not_give_the_devices_away() -> None:
    """It counts 0 until the device plugin has registered again."""
    made = cluster({GPU: "2"})

    async def scenario(publisher: Publisher) -> None:
        await becomes(made, "False", "DevicePluginPresent", 0)
        count(made, "0")
        # The kubelet has wiped the slices, our plugin has registered again.
        name = inventory_name("n1", DRIVER)
        for s in made.all(RESOURCE_SLICES):
            if s.spec.node_name == "n1":
                made.remove(RESOURCE_SLICES, s.metadata.name)
        made.edit(DEVICE_INVENTORIES, name, {"status": {"registration": {"epoch": 2}}})
        await until(lambda: made.obj(DEVICE_INVENTORIES, name).status.publication.epoch == 2)
        assert published(made) == ("False", "DevicePluginPresent", 0)
        assert "until a moment ago" in message(made)
        publisher.look_at_all()
        await settled(made)
        assert published(made) == ("False", "DevicePluginPresent", 0)
        count(made, "2")
        await until(lambda: "hands out 2" in message(made))
        assert published(made) == ("False", "DevicePluginPresent", 0)

    run_publisher(made, scenario, leaving_seconds=3600)
    # Nor does a controller that starts in that time.
    count(made, "0")

    async def once_more(_: Publisher) -> None:
        await until(lambda: "until a moment ago" in message(made))
        assert published(made) == ("False", "DevicePluginPresent", 0)

    run_publisher(made, once_more, leaving_seconds=3600)


def test_a_heartbeat_of_a_node_costs_nothing() -> None:
    made = cluster()

    async def scenario(publisher: Publisher) -> None:
        await becomes(made, "True", "Published", 2)
        await becomes(made, "True", "Published", 2, node="n2")
        await settled(made)
        looked: list[str] = []
        made.before = lambda verb, kind, name, _: looked.append(f"{verb} {kind} {name}")
        made.edit(NODES, "n1", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        made.edit(NODES, "n1", {"status": {"capacity": {"cpu": "16", "nvidia.com/hostdev": "4"}}})
        made.edit(NODES, "n1", {"status": {"capacity": {GPU: "0"}}})
        await settled(made)
        assert publisher.queue.idle
        assert [call for call in looked if not call.startswith("watch")] == []

    run_publisher(made, scenario, leaving_seconds=3600)


def test_only_resources_that_matter_make_a_node_worth_looking_at() -> None:
    asked = ExtendedResources(Informer(FakeClient(), DEVICE_CLASSES), lambda: None)

    def node(**capacity: str) -> Node:
        return codec.convert(Node, {"metadata": {"name": "n1"}, "status": {"capacity": capacity}})

    none = node(cpu="8")
    assert not asked.concerns(none, node(cpu="9", memory="1Ti"))
    assert not asked.concerns(none, node(**{"cpu": "8", GPU: "0"}))
    assert not asked.concerns(none, node(**{"cpu": "8", OWN: "1"}))
    assert asked.concerns(none, node(**{"cpu": "8", GPU: "1"}))
    assert asked.concerns(node(**{GPU: "8"}), node(**{GPU: "7"}))


# --- claims in use ------------------------------------------------------------------------------------------


def put_claim(made: FakeClient, name: str, device: str = "") -> None:
    asked = request("r", f"nvidia.{DRIVER}")
    found = builders.allocation(builders.result("n1", device, request="r")) if device else {}
    status = {**found, **builders.reserved(name)} if device else {}
    made.put(RESOURCE_CLAIMS, builders.claim(name, asked, status=status))
    body = builders.pod(name, name, uid=f"uid-{name}", gated=not device)
    if device:
        body["spec"]["nodeName"] = "n1"
    made.put(PODS, {**body, "status": {"phase": "Running" if device else "Pending"}})


def device_of(made: FakeClient, name: str) -> str:
    allocation = made.obj(RESOURCE_CLAIMS, name, NS).status.allocation
    return str(allocation.devices.results[0].device) if allocation else ""


def test_claims_in_use_keep_their_devices_and_nothing_new_is_allocated() -> None:
    made = FakeClient()
    put_node(made, "n1", ("nvidia", "nvidia"))
    made.put(DEVICE_CLASSES, device_class("nvidia", None))
    put_claim(made, "holds", "gpu-0")

    async def scenario() -> None:
        await becomes(made, "True", "Published", 2)
        before = made.raw(RESOURCE_CLAIMS, "holds", NS)
        count(made, "2")
        await becomes(made, "False", "DevicePluginPresent", 0)
        put_claim(made, "waits")
        await until(lambda: any(e.reason == "FailedAllocation" for e in made.all(EVENTS)))
        assert device_of(made, "waits") == ""
        assert made.raw(RESOURCE_CLAIMS, "holds", NS) == before
        made.put(
            DEVICE_POLICIES,
            {"metadata": {"name": "p", "generation": 1}, "spec": {"besideDevicePlugin": "publish"}},
        )
        await until(lambda: device_of(made, "waits"))
        assert (device_of(made, "holds"), device_of(made, "waits")) == ("gpu-0", "gpu-1")

    run(made, scenario, PoolAllocator.CONTROLLER)


# --- extended resources on pools of the controller ----------------------------------------------------------


def test_an_extended_resource_on_a_pool_of_the_controller_is_told() -> None:
    made = cluster()
    made.put(DEVICE_CLASSES, device_class("nvidia", GPU))

    async def scenario() -> None:
        await becomes(made, "True", "ExtendedResourceConflict", 2)
        for word in (GPU, f"nvidia.{DRIVER}", "none of its 2 devices", "allocator: scheduler"):
            assert word in message(made)
        made.edit(DEVICE_CLASSES, f"nvidia.{DRIVER}", {"spec": {"extendedResourceName": None}})
        await becomes(made, "True", "Published", 2)

    run(made, scenario, PoolAllocator.CONTROLLER)
    other = cluster(vendors=("amd", "amd"))
    other.put(DEVICE_CLASSES, device_class("nvidia", GPU))

    async def untouched() -> None:
        await becomes(other, "True", "Published", 2)

    run(other, untouched, PoolAllocator.CONTROLLER)
