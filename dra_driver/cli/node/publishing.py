"""The devices of this machine as the ResourceSlices that a controller would publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.names import DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME
from dra_driver.api.own.inventory import DeviceInventory, DeviceInventorySpec, InventoryDevice
from dra_driver.api.resource import RESOURCE_SLICES, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_driver.discovery import NIC_BACKENDS
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice import PublishOptions, build_slices

__all__ = ["slice_list"]

# Without the taint by which a controller keeps kube-scheduler away: there is no cluster.
_OPTIONS: Final = PublishOptions(allocator=PoolAllocator.SCHEDULER)


def slice_list(node: str, found: Mapping[str, Sequence[InventoryDevice]]) -> dict[str, Any]:
    """Return a list of ResourceSlices, as kubectl exports one.

    Args:
        node: name of the node, and of its pools.
        found: name of a backend → its devices.
    """
    by_driver: dict[DriverName, list[InventoryDevice]] = {}
    for backend, devices in found.items():
        driver = DriverName(RDMA_DRIVER_NAME if backend in NIC_BACKENDS else DEFAULT_DRIVER_NAME)
        by_driver.setdefault(driver, []).extend(devices)
    items = [
        codec.plain(one) for driver, devices in by_driver.items() for one in _slices(node, driver, devices)
    ]
    kind = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind}
    return {"apiVersion": "v1", "kind": "List", "items": [kind | item for item in items]}


def _slices(node: str, driver: DriverName, devices: Sequence[InventoryDevice]) -> list[ResourceSlice]:
    spec = DeviceInventorySpec(node_name=node, driver=driver, devices=tuple(devices))
    contents = build_slices(DeviceInventory(spec=spec), options=_OPTIONS).slices
    pool = ResourcePool(name=PoolName(node), generation=1, resource_slice_count=len(contents))
    return [
        ResourceSlice(
            metadata=ObjectMeta(name=f"{node}-{driver}-{number}"),
            spec=ResourceSliceSpec(
                driver=driver,
                pool=pool,
                node_name=node,
                devices=content.devices,
                shared_counters=content.shared_counters,
            ),
        )
        for number, content in enumerate(contents)
    ]
