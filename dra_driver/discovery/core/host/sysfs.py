"""Reading sysfs below a root of the caller's, whatever is there: missing, unreadable, garbage, endless.

Every function answers with None (or nothing) where a fact cannot be read; none raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.discovery.core.bus.pci import PciAddress, read_sysfs

__all__ = [
    "MAX_ENTRIES",
    "DrmNodes",
    "children",
    "driver_name",
    "drm_nodes",
    "entries",
    "key_values",
    "link_address",
    "link_target_name",
    "pci_addresses",
    "pci_function",
    "pci_id",
    "pcie_errors",
    "read_number",
    "read_sysfs",
]

# More than any directory that we look at has; a machine with many virtual functions has some thousands.
MAX_ENTRIES: Final = 16384

_NUMBER = re.compile(r"0x[0-9a-f]{1,16}|[0-9]{1,20}", re.ASCII | re.IGNORECASE)
_CARD = re.compile(r"card[0-9]{1,6}", re.ASCII)
_RENDER = re.compile(r"renderD([0-9]{1,6})", re.ASCII)
_PRINTABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,63}", re.ASCII)


def read_number(path: Path, base: int = 10) -> int | None:
    """Return a non-negative number below 2^64: decimal, ``0x…``, or bare hexadecimal where ``base`` is 16."""
    text = read_sysfs(path)
    if text is None:
        return None
    if base == 16 and re.fullmatch(r"[0-9a-f]{1,16}", text, re.ASCII | re.IGNORECASE):
        return int(text, 16)
    if _NUMBER.fullmatch(text) is None:
        return None
    number = int(text, 16) if text[:2].lower() == "0x" else int(text)
    return number if number < 2**64 else None


def entries(folder: Path) -> list[str] | None:
    """Return sorted names in the folder, at most ``MAX_ENTRIES``; None where it cannot be listed."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry, _ in zip(found, range(MAX_ENTRIES), strict=False))
    except OSError:
        return None


def children(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    """Return names in the folder that match, shorter ones first: ``card2`` comes before ``card10``."""
    names = [name for name in entries(folder) or () if pattern.fullmatch(name)]
    return sorted(names, key=lambda name: (len(name), name))


def link_target_name(path: Path) -> str | None:
    """Return the last component of what a symbolic link says; the target is never visited."""
    try:
        name = os.readlink(path).rstrip("/").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return None
    return name if _PRINTABLE.fullmatch(name) else None


def link_address(path: Path) -> PciAddress | None:
    """Return the PCI address that a symbolic link such as ``physfn`` or ``device`` names."""
    name = link_target_name(path)
    return None if name is None else PciAddress.parse(name)


def driver_name(function: Path) -> str | None:
    """Return the kernel driver that the PCI function is bound to; None where there is none."""
    return link_target_name(function / "driver")


def pci_function(sysfs_root: Path, address: PciAddress) -> Path:
    """Return the directory of the PCI function."""
    return sysfs_root / "bus" / "pci" / "devices" / str(address)


def pci_addresses(folder: Path) -> list[PciAddress] | None:
    """Return the PCI functions that a folder lists by address; None where it cannot be listed."""
    names = entries(folder)
    if names is None:
        return None
    return sorted({address for name in names if (address := PciAddress.parse(name)) is not None})


def pci_id(function: Path) -> str | None:
    """Return vendor and device id (``1002:74a1``)."""
    vendor, device = read_number(function / "vendor", 16), read_number(function / "device", 16)
    if vendor is None or device is None or max(vendor, device) > 0xFFFF:
        return None
    return f"{vendor:04x}:{device:04x}"


def key_values(text: str, separator: str | None = None) -> Mapping[str, int]:
    """Return the lines of a name and a non-negative decimal number; other lines are passed over."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(separator or " ")
        value = value.strip()
        if name and value.isascii() and value.isdigit() and len(value) <= 20:
            found[name] = int(value)
    return found


class DrmNodes:
    """Card and render node below the ``drm`` directory of a device; None where there is none.

    Attributes:
        card: for example ``card0``.
        render: for example ``renderD128``.
        minor: 128 of ``renderD128``.
    """

    def __init__(self, card: str | None, render: str | None) -> None:
        self.card = card
        self.render = render
        match = _RENDER.fullmatch(render or "")
        self.minor = int(match[1]) if match else None


def drm_nodes(device: Path) -> DrmNodes:
    """Return the DRM nodes of a device; the lowest where there are several."""
    cards, renders = children(device / "drm", _CARD), children(device / "drm", _RENDER)
    return DrmNodes(cards[0] if cards else None, renders[0] if renders else None)


def pcie_errors(function: Path) -> list[DeviceHealth]:
    """Return fatal PCIe errors since the kernel started: worth knowing, the link was reset."""
    text = read_sysfs(function / "aer_dev_fatal")
    count = key_values(text).get("TOTAL_ERR_FATAL", 0) if text else 0
    if not count:
        return []
    message = f"the kernel has counted fatal PCIe errors of the device: {count}"
    return [DeviceHealth(reason="PcieFatalErrors", severity="info", message=message)]
