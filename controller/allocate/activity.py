"""Which devices are busy without a claim that says so, as nodes tell: idle ones are allocated first.

It never stands in a ResourceSlice, which would be written again and again: the allocator's view of a slice
gets an attribute that the slice itself does not have.
"""

from __future__ import annotations

import msgspec

from dra_driver.api.inventory import DeviceInventory, inventory_name
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import Device, DeviceAttribute, ResourceSlice
from dra_driver.kube import Changes, Informer
from dra_driver.ownership import PoolID

__all__ = ["BUSY_ATTRIBUTE", "BusyDevices"]

# The allocator knows it by its last part; the domain keeps it apart from what drivers publish.
BUSY_ATTRIBUTE = "allocator.dra-driver.dev/busy"
_BUSY = DeviceAttribute(bool_value=True)


class BusyDevices:
    """Follows the inventories.

    Args:
        inventories: what nodes tell; None: nobody does.
    """

    def __init__(self, inventories: Informer[DeviceInventory] | None) -> None:
        self._changes = (
            None
            if inventories is None
            else Changes(inventories, lambda old, new: old.status.activity.busy == new.status.activity.busy)
        )
        self._busy: dict[PoolID, frozenset[str]] = {}
        # Inventory → its pool, for those that are gone.
        self._pools: dict[str, PoolID] = {}

    def __bool__(self) -> bool:
        """Whether there is something new."""
        return bool(self._changes)

    def take(self) -> set[PoolID]:
        """Takes in what is new; gives the pools whose busy devices are others than before."""
        if self._changes is None:
            return set()
        changed, removed = self._changes.take()
        busy: dict[PoolID, frozenset[str]] = {}
        for inventory in changed:
            spec = inventory.spec
            if inventory.metadata.name != inventory_name(spec.node_name, spec.driver):
                continue  # A node describes only itself.
            pool = PoolID(spec.driver, PoolName(spec.node_name))
            self._pools[inventory.metadata.name] = pool
            busy[pool] = frozenset(inventory.status.activity.busy)
        for name in removed:
            if (gone := self._pools.pop(name, None)) is not None:
                busy[gone] = frozenset()
        different = {pool for pool, devices in busy.items() if self._busy.get(pool, frozenset()) != devices}
        for pool, devices in busy.items():
            if devices:
                self._busy[pool] = devices
            else:
                self._busy.pop(pool, None)
        return different

    def marked(self, slice_: ResourceSlice) -> ResourceSlice:
        """The slice as the allocator shall see it."""
        busy = self._busy.get(PoolID(slice_.spec.driver, slice_.spec.pool.name))
        if not busy or not any(d.name in busy for d in slice_.spec.devices):
            return slice_
        devices = tuple(_marked(d) if d.name in busy else d for d in slice_.spec.devices)
        return msgspec.structs.replace(slice_, spec=msgspec.structs.replace(slice_.spec, devices=devices))


def _marked(device: Device) -> Device:
    return msgspec.structs.replace(device, attributes={**device.attributes, BUSY_ATTRIBUTE: _BUSY})
