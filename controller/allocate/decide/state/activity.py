"""Which devices are busy without a claim that says so, as nodes report: idle ones are allocated first.

Utilisation is never published in a ResourceSlice, which would be written again and again: the allocator's
view of a slice gets an attribute that the slice itself does not have.
"""

from __future__ import annotations

import msgspec

from dra_driver.api.resource import Device, DeviceAttribute, ResourceSlice
from dra_driver.ownership import PoolID, pool_of_slice

__all__ = ["BUSY_ATTRIBUTE", "BusyDevices"]

# The allocator knows it by its last part; the domain keeps it apart from what drivers publish.
BUSY_ATTRIBUTE = "allocator.dra-driver.dev/busy"
_BUSY = DeviceAttribute(bool_value=True)


class BusyDevices:
    """The busy devices of each pool."""

    def __init__(self) -> None:
        self._busy: dict[PoolID, frozenset[str]] = {}
        # Pools whose busy devices are others than when they were last taken.
        self._changed: set[PoolID] = set()

    def __bool__(self) -> bool:
        """Return whether there is something new."""
        return bool(self._changed)

    def put(self, pool: PoolID, devices: frozenset[str]) -> None:
        """Take in which devices of a pool are busy now."""
        if self._busy.get(pool, frozenset()) == devices:
            return
        self._changed.add(pool)
        if devices:
            self._busy[pool] = devices
        else:
            del self._busy[pool]

    def take(self) -> set[PoolID]:
        """Return the pools whose busy devices are others than when this was last called."""
        changed, self._changed = self._changed, set()
        return changed

    def marked(self, slice_: ResourceSlice) -> ResourceSlice:
        """Return the slice as the allocator shall see it."""
        busy = self._busy.get(pool_of_slice(slice_))
        if not busy or not any(d.name in busy for d in slice_.spec.devices):
            return slice_
        devices = tuple(_marked(d) if d.name in busy else d for d in slice_.spec.devices)
        return msgspec.structs.replace(slice_, spec=msgspec.structs.replace(slice_.spec, devices=devices))


def _marked(device: Device) -> Device:
    return msgspec.structs.replace(device, attributes={**device.attributes, BUSY_ATTRIBUTE: _BUSY})
