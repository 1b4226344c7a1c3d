"""A device plugin that hands out the same devices: the pool is withheld with the reason, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from support.fake_cluster import FakeCluster

from controller.config import ControllerConfig
from controller.device_plugins import DevicePlugins
from controller.publisher import POOL_INDEX, Publisher, pool_of
from dra_driver.api.core import EVENTS, NODES
from dra_driver.api.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.meta import DriverName
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES
from dra_driver.kube import EventRecorder, Informer, SystemClock
from dra_driver.resourceslice import PoolAllocator

DRIVER = DriverName("gpu.example.com")
NAME = inventory_name("n1", DRIVER)
RESOURCE = "nvidia.com/gpu"


def device_class(vendor: str, resource: str | None) -> dict[str, Any]:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].vendor == "{vendor}"'
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if resource:
        spec["extendedResourceName"] = resource
    return {"metadata": {"name": f"{vendor}.{DRIVER}"}, "spec": spec}


def cluster(capacity: str | None, *, resource: str | None = RESOURCE, vendor: str = "nvidia") -> FakeCluster:
    made = FakeCluster()
    counted = {} if capacity is None else {RESOURCE: capacity}
    node = {"metadata": {"name": "n1", "uid": "node-uid"}, "status": {"capacity": {"cpu": "8", **counted}}}
    made.put(NODES, node)
    made.put(DEVICE_CLASSES, device_class("nvidia", resource))
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}
    devices = [{"name": f"gpu-{i}", "attributes": {"vendor": {"string": vendor}}} for i in range(2)]
    made.put(
        DEVICE_INVENTORIES,
        {
            "metadata": {"name": NAME, "ownerReferences": [owner]},
            "spec": {"nodeName": "n1", "driver": DRIVER, "devices": devices},
            "status": {"registration": {"registered": True, "epoch": 1}},
        },
    )
    return made


def run(
    made: FakeCluster,
    scenario: Callable[[], Awaitable[None]],
    allocator: PoolAllocator = PoolAllocator.SCHEDULER,
) -> None:
    async def main() -> None:
        inventories = Informer(made, DEVICE_INVENTORIES)
        slices = Informer(made, RESOURCE_SLICES, indices={POOL_INDEX: pool_of})
        nodes, classes = Informer(made, NODES), Informer(made, DEVICE_CLASSES)
        recorder = EventRecorder(made, "test", SystemClock())
        publisher = Publisher(
            made,
            ControllerConfig(drivers=(DRIVER,), allocator=allocator),
            SystemClock(),
            recorder,
            inventories=inventories,
            slices=slices,
            nodes=nodes,
            device_plugins=DevicePlugins(classes, changed=lambda: publisher.all_again()),  # noqa: PLW0108 - made here
        )
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            informers: tuple[Informer[Any], ...] = (inventories, slices, nodes, classes)
            tasks = [group.create_task(i.run()) for i in informers]
            tasks.append(group.create_task(recorder.run()))
            for informer in informers:
                await informer.synced.wait()
            tasks.append(group.create_task(publisher.run()))
            await scenario()
            publisher.queue.close()
            for task in tasks:
                task.cancel()

    asyncio.run(main())


def published(made: FakeCluster) -> tuple[str, str, int]:
    """Status and reason of the condition, and the number of devices in slices."""
    conditions = {c.type: c for c in made.obj(DEVICE_INVENTORIES, NAME).status.conditions}
    devices = sum(len(s.spec.devices) for s in made.all(RESOURCE_SLICES))
    found = conditions.get("Published")
    return (found.status, found.reason, devices) if found else ("", "", devices)


async def becomes(made: FakeCluster, *expected: object) -> None:
    while published(made) != expected:
        await asyncio.sleep(0.01)


def test_devices_that_a_device_plugin_hands_out_are_withheld_until_it_is_gone() -> None:
    made = cluster("2")

    async def scenario() -> None:
        await becomes(made, "False", "DevicePluginPresent", 0)
        (condition,) = made.obj(DEVICE_INVENTORIES, NAME).status.conditions
        for word in (RESOURCE, "n1", f"nvidia.{DRIVER}", "2 of the 2 devices", "extendedResourceName"):
            assert word in condition.message
        while not any(e.reason == "DevicePluginPresent" and e.type == "Warning" for e in made.all(EVENTS)):
            await asyncio.sleep(0.01)
        # The kubelet leaves the resource with 0 when its plugin is gone.
        made.edit(NODES, "n1", {"status": {"capacity": {RESOURCE: "0"}}})
        await becomes(made, "True", "Published", 2)

    run(made, scenario)


def test_a_device_plugin_that_comes_later_takes_the_devices_back() -> None:
    made = cluster(None)

    async def scenario() -> None:
        await becomes(made, "True", "Published", 2)
        made.edit(NODES, "n1", {"status": {"capacity": {RESOURCE: "2"}}})
        await becomes(made, "False", "DevicePluginPresent", 0)
        made.edit(DEVICE_CLASSES, f"nvidia.{DRIVER}", {"spec": {"extendedResourceName": None}})
        await becomes(made, "True", "Published", 2)
        made.put(DEVICE_CLASSES, device_class("nvidia", RESOURCE))
        await becomes(made, "False", "DevicePluginPresent", 0)

    run(made, scenario)


def test_resources_that_no_class_serves_or_of_other_devices_concern_nobody() -> None:
    for made in (
        cluster("2", resource=None),
        cluster("2", resource="example.com/gpu"),
        cluster("2", vendor="amd"),
    ):

        async def scenario(made: FakeCluster = made) -> None:
            await becomes(made, "True", "Published", 2)

        run(made, scenario)


def test_an_extended_resource_on_a_pool_of_the_controller_is_told() -> None:
    made = cluster(None)

    async def scenario() -> None:
        await becomes(made, "True", "ExtendedResourceConflict", 2)
        (condition,) = made.obj(DEVICE_INVENTORIES, NAME).status.conditions
        for word in (RESOURCE, f"nvidia.{DRIVER}", "none of its 2 devices", "allocator: scheduler"):
            assert word in condition.message
        made.edit(DEVICE_CLASSES, f"nvidia.{DRIVER}", {"spec": {"extendedResourceName": None}})
        await becomes(made, "True", "Published", 2)

    run(made, scenario, PoolAllocator.CONTROLLER)
    other = cluster(None, vendor="amd")

    async def untouched() -> None:
        await becomes(other, "True", "Published", 2)

    run(other, untouched, PoolAllocator.CONTROLLER)
