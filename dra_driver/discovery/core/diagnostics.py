"""What people are shown where no device was found: what was looked at, and what was missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.last_known_good import LastKnownGood

__all__ = ["diagnostics"]

_VENDORS: Final = {"NVIDIA": pci.NVIDIA, "AMD": pci.AMD, "Intel": pci.INTEL}


def diagnostics(backends: Sequence[LastKnownGood], *, sysfs_root: Path, dev_root: Path) -> list[str]:
    """Return what was looked for and what was there instead, a line each.

    Call it after the backends have looked.
    """
    lines = [_of_backend(kept) for kept in backends]
    folder = sysfs_root / "bus" / "pci" / "devices"
    try:
        vendors = [pci.display_vendor(entry) for entry in sorted(folder.iterdir())]
    except OSError as e:
        lines.append(f"sysfs: {folder}: {e.strerror or e}")
    else:
        counts = ", ".join(f"{vendors.count(number)} {name}" for name, number in _VENDORS.items())
        lines.append(f"sysfs: {folder}: {len(vendors)} PCI functions; display controllers: {counts}")
    for node in ("nvidiactl", "nvidia0"):
        state = "there" if pci.exists(dev_root / node) else "not there"
        lines.append(f"device node: {dev_root / node}: {state}")
    return lines


def _of_backend(kept: LastKnownGood) -> str:
    if kept.report.message:
        return kept.report.message
    where = getattr(kept.backend, "diagnostics", "")
    return f"{kept.backend.name}: no devices" + (f" ({where})" if where else "")
