"""Devices that two nodes describe by one UUID: at most one of them can be right.

Nothing is allocated by a UUID, so the pools stay as they are. Both inventories say it in their condition;
which node is wrong only an administrator can tell.
"""

from __future__ import annotations

from typing import Final

from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventory

__all__ = ["SameUuids"]

# Of one inventory: devices that are named, other inventories that are looked at again because of it.
_NAMED: Final = 3
_MOST_OTHERS: Final = 64

_Identity = tuple[DriverName, str]


class SameUuids:
    """The UUIDs of all inventories that are believed."""

    def __init__(self) -> None:
        # Identity → inventories; inventory → identities, by the device.
        self._inventories: dict[_Identity, set[str]] = {}
        self._devices: dict[str, dict[_Identity, str]] = {}

    def put(self, inventory: DeviceInventory) -> frozenset[str]:
        """Take in an inventory; return others that have a UUID in common with it now, or no more."""
        return self._change(
            inventory.metadata.name,
            {
                (inventory.spec.driver, uuid): device.name
                for device in inventory.spec.devices
                if (attribute := device.attributes.get("uuid")) is not None
                and (uuid := attribute.string_value)
            },
        )

    def remove(self, name: str) -> frozenset[str]:
        """Forget an inventory that is gone; return others that had a UUID in common with it."""
        return self._change(name, {})

    def _change(self, name: str, now: dict[_Identity, str]) -> frozenset[str]:
        before = self._devices.get(name, {})
        others: set[str] = set()
        for identity in before.keys() - now.keys():
            holders = self._inventories[identity]
            holders.discard(name)
            others |= holders
            if not holders:
                del self._inventories[identity]
        for identity in now.keys() - before.keys():
            holders = self._inventories.setdefault(identity, set())
            others |= holders
            holders.add(name)
        if now:
            self._devices[name] = now
        else:
            self._devices.pop(name, None)
        return frozenset(sorted(others)[:_MOST_OTHERS])

    def doubts(self, name: str) -> tuple[str, ...]:
        """Return what is doubtful about an inventory, for people."""
        found = [
            (device, sorted(self._inventories[identity] - {name})[0])
            for identity, device in self._devices.get(name, {}).items()
            if len(self._inventories[identity]) > 1
        ]
        if not found:
            return ()
        shown = ", ".join(f"{device} (also in {other})" for device, other in sorted(found)[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        what = "devices have the same UUIDs as devices of another node, so one of the nodes is wrong"
        return (f"{what}: {shown}{more}",)
