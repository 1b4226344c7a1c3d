"""GPUs on the PCI bus for which no driver or library is installed, and the text that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.host import sysfs

__all__ = ["DisplayFunction", "display_functions", "sentence"]

# Drivers that hand a function over to a virtual machine: its host needs no other software for it.
_HANDED_OVER: Final = ("vfio", "pci-stub", "pciback")
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class DisplayFunction:
    """A PCI function that is a display controller or accelerator.

    Attributes:
        address: on the bus.
        driver: the kernel driver that it is bound to; empty if it is bound to none.
    """

    address: PciAddress
    driver: str


def display_functions(sysfs_root: Path, vendor: int) -> tuple[DisplayFunction, ...]:
    """Return the functions of a vendor's GPUs, without those that are handed over to virtual machines."""
    found = []
    for address in sysfs.pci_addresses(sysfs_root / "bus" / "pci" / "devices") or ():
        function = sysfs.pci_function(sysfs_root, address)
        if pci.display_vendor(function) != vendor:
            continue
        driver = sysfs.driver_name(function) or ""
        if not any(name in driver for name in _HANDED_OVER):
            found.append(DisplayFunction(address, driver))
    return tuple(found)


def sentence(vendor: str, functions: Sequence[DisplayFunction]) -> str:
    """Return a clause that says how many functions there are, where, and what they are bound to."""
    named = [f"{f.address} ({f'bound to {f.driver}' if f.driver else 'no driver'})" for f in functions]
    more = ", …" if len(named) > _MOST_NAMED else ""
    kind = "GPU is" if len(named) == 1 else "GPUs are"
    return f"{len(named)} {vendor} {kind} on the PCI bus: {', '.join(named[:_MOST_NAMED])}{more}"
