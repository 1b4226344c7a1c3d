"""PCI addresses, and what sysfs says about the function at one.

sysfs is read below a root of the caller's (``/sys`` on a machine). Files that are missing, unreadable or
nonsense give None: one unknown fact.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "AMD",
    "INTEL",
    "NVIDIA",
    "PciAddress",
    "display_vendor",
    "exists",
    "numa_node",
    "pcie_root",
    "read_sysfs",
]

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.IGNORECASE | re.ASCII)
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)

NVIDIA = 0x10DE
AMD = 0x1002
INTEL = 0x8086
_DISPLAY_CONTROLLER = 0x03
# What Instinct says it is. Of other vendors (Intel's NPU) these are no GPUs.
_PROCESSING_ACCELERATOR = 0x12

# No sysfs attribute is longer than a page.
_PAGE = 4096


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """Domain, bus, device and function; ``str()`` as the kernel writes it (``0000:3b:00.0``)."""

    domain: int
    bus: int
    device: int
    function: int = 0

    @classmethod
    def parse(cls, text: str) -> PciAddress | None:
        """Parse ``0000:3b:00.0`` or NVML's ``00000000:3B:00.0``; None where the text is no PCI address."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            return None
        domain, bus, device, function = (int(part, 16) for part in match.groups())
        return cls(domain, bus, device, function)

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"

    @property
    def label(self) -> str:
        """The address as a part of a DNS label: ``0000-3b-00-0``."""
        return str(self).replace(":", "-").replace(".", "-")


def read_sysfs(path: Path) -> str | None:
    """Return the text of one sysfs attribute, stripped of white space; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_PAGE).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def exists(path: Path) -> bool:
    """Return whether something is there; what may not be looked at is not."""
    try:
        return path.exists()
    except OSError:
        return False


def _function_directory(sysfs_root: Path, address: PciAddress) -> Path:
    return sysfs_root / "bus" / "pci" / "devices" / str(address)


def numa_node(sysfs_root: Path, address: PciAddress) -> int | None:
    """Return the NUMA node of the function; None where the kernel does not know (it says -1 then)."""
    text = read_sysfs(_function_directory(sysfs_root, address) / "numa_node")
    # More digits than any kernel has nodes: not a number to be trusted.
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 6:
        return None
    return int(text)


def pcie_root(sysfs_root: Path, address: PciAddress) -> str | None:
    """Return the function's root complex (``pci0000:3a``), as the link in ``bus/pci/devices`` names it.

    Only the text of the link is used, so that no tree, however broken, leads anywhere.
    """
    try:
        target = os.readlink(_function_directory(sysfs_root, address))  # noqa: PTH115
    except OSError:
        return None
    # The first match, not the second component: on Arm servers the root hangs below devices/platform/….
    return next((part for part in target.split("/") if _ROOT.fullmatch(part)), None)


def display_vendor(function: Path) -> int | None:
    """Return the PCI vendor of the function with this sysfs directory; None if its class is no GPU's."""
    try:
        kind = int(read_sysfs(function / "class") or "0", 16) >> 16
        if kind not in (_DISPLAY_CONTROLLER, _PROCESSING_ACCELERATOR):
            return None
        vendor = int(read_sysfs(function / "vendor") or "", 16)
    except ValueError:
        return None
    return vendor if kind == _DISPLAY_CONTROLLER or vendor == AMD else None
