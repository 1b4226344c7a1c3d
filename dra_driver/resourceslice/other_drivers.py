"""Devices that another DRA driver publishes for the same node: allocated by both, they are given away twice.

Two drivers describe one device if they give it the same PCI address or the same UUID. The name of the
attribute counts, in whatever domain a driver puts it: ``pciBusID`` of ``resource.kubernetes.io`` is the
standard one, ``pciAddress`` and ``pciAddr`` are names that drivers used before it. A partition counts by the
address of its device and by ``parentUUID``, because a part cannot be allocated beside the whole. ``pcieRoot``
says which devices are near to each other, not which they are.

An address is one of a node, so only slices for that node count (``controller/publish/other_drivers.py``).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import Device, DeviceAttribute

__all__ = ["OtherDriver", "Presence", "identities", "is_of_one_node", "share_a_device"]

_ADDRESSES: Final = frozenset({"pcibusid", "pciaddress", "pciaddr"})
_UUIDS: Final = frozenset({"uuid", "parentuuid"})
# Libraries of vendors write the domain with four digits or with eight, and tools leave it out.
_ADDRESS: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_AT: Final = "at "


class Presence(enum.Enum):
    """Why devices are withheld because of another driver."""

    PUBLISHES = "it publishes them"
    HOLDS = "it does not, but claims have, or may have, devices of it"
    LEAVES = "it did until a moment ago"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDriver:
    """Devices of a pool that another driver has, too.

    Attributes:
        driver: the other one.
        pools: of it.
        presence: how it has them.
        devices: names of ours.
    """

    driver: DriverName
    pools: tuple[PoolName, ...]
    presence: Presence
    devices: frozenset[str]


def identities(attributes: Mapping[str, DeviceAttribute]) -> frozenset[str]:
    """Return what identifies a device, the same for whatever describes the same device of a node.

    Args:
        attributes: of a device in a slice or an inventory, of any driver.
    """
    found: set[str] = set()
    for name, attribute in attributes.items():
        kind = name.rpartition("/")[2].lower()
        if kind in _ADDRESSES:
            found.update(filter(None, map(_address, _texts(attribute))))
        elif kind in _UUIDS:
            found.update(filter(None, map(_uuid, _texts(attribute))))
    return frozenset(found)


def is_of_one_node(identity: str) -> bool:
    """Whether an identity means something on one node only: a PCI address does, a UUID is the only one."""
    return identity.startswith(_AT)


def share_a_device(
    some: Iterable[InventoryDevice | Device], others: Iterable[InventoryDevice | Device]
) -> bool:
    """Whether two drivers describe one device of a node."""
    known = {identity for device in some for identity in identities(device.attributes)}
    return any(not known.isdisjoint(identities(device.attributes)) for device in others)


def _texts(attribute: DeviceAttribute) -> Iterable[str]:
    return (attribute.string_value or "", *(attribute.strings or ()))


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text.strip().lower())
    if found is None:
        return ""
    domain, bus, slot, function = found.groups(default="0")
    return f"{_AT}{int(domain, 16):04x}:{bus}:{slot}.{function}"


def _uuid(text: str) -> str:
    bare = text.strip().lower().removeprefix("gpu-")
    # What has no UUID is given one of zeros by some firmware.
    return f"uuid {bare}" if bare.strip("0-") else ""
