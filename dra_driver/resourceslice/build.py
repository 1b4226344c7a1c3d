"""``build_slices``: one inventory → the complete set of slices of its pool."""

from __future__ import annotations

from typing import Final

from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import Device, DeviceTaint
from dra_driver.resourceslice.devices import clean_devices, controller_taint, health_taints
from dra_driver.resourceslice.types import (
    DesiredPool,
    PoolAllocator,
    PublishOptions,
    ServerFeatures,
    SliceContent,
)

__all__ = ["build_slices"]

# Limits of resource.k8s.io/v1: devices in a slice; the smaller one as soon as any of them has taints,
# consumes counters or has list-valued attributes.
MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_TAINTS: Final = 64


def build_slices(
    inventory: DeviceInventory,
    *,
    options: PublishOptions | None = None,
    features: ServerFeatures | None = None,
) -> DesiredPool:
    """The slices that should exist for an inventory.

    Devices come smallest memory first and healthy before unhealthy, because kube-scheduler takes the first
    that fits: a claim for 32Gi then gets 40Gi before 80Gi. Without taints on the server, unhealthy devices
    are left out instead, and the pool cannot be allocated by the controller.

    Args:
        inventory: what the node's plugin found; not trusted.
        options: None: the defaults.
        features: None: a server that keeps every field.
    """
    options = options or PublishOptions()
    features = features or ServerFeatures()
    allocator = options.allocator if features.taints else PoolAllocator.SCHEDULER
    devices, problems = clean_devices(inventory.spec.devices)
    health = {d.name: health_taints(d.health) for d in inventory.spec.devices}
    if not features.taints:
        problems += [
            f"device {d.name}: left out, {health[d.name][0].value}" for d in devices if health[d.name]
        ]
        devices = [d for d in devices if not health[d.name]]
    devices.sort(key=lambda d: (bool(health[d.name]), _memory(d), d.name))
    if features.taints:
        protect = (controller_taint(),) if allocator is PoolAllocator.CONTROLLER else ()
        devices = [_with_taints(d, (*protect, *health[d.name])) for d in devices]
    if inventory.spec.truncated:
        problems.append(f"{inventory.spec.truncated} devices did not fit into the inventory")
    return DesiredPool(
        driver=inventory.spec.driver,
        pool=PoolName(inventory.spec.node_name),
        node_name=inventory.spec.node_name,
        allocator=allocator,
        slices=_split(devices),
        problems=tuple(problems),
    )


def _memory(device: Device) -> int:
    capacity = device.capacity.get("memory")
    return capacity.value.nano if capacity is not None else 0


def _with_taints(device: Device, taints: tuple[DeviceTaint, ...]) -> Device:
    if not taints:
        return device
    return Device(name=device.name, attributes=device.attributes, capacity=device.capacity, taints=taints)


def _split(devices: list[Device]) -> tuple[SliceContent, ...]:
    limited = any(d.taints or d.consumes_counters for d in devices)
    size = MAX_DEVICES_WITH_TAINTS if limited else MAX_DEVICES
    # A pool without devices still has one slice: none at all would read as "not published yet".
    return tuple(
        SliceContent(devices=tuple(devices[i : i + size])) for i in range(0, max(len(devices), 1), size)
    )
