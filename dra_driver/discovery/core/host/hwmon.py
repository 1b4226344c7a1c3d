"""What the kernel's hardware monitoring shows of a device, below ``hwmon`` of its sysfs directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.host import sysfs

__all__ = ["energy", "power", "temperature"]

_HWMON: Final = re.compile(r"hwmon[0-9]{1,6}", re.ASCII)
_TEMPERATURE: Final = re.compile(r"temp[0-9]{1,2}_input", re.ASCII)
_ENERGY: Final = re.compile(r"energy[0-9]{1,2}_input", re.ASCII)


def _monitors(function: Path) -> list[Path]:
    return [function / "hwmon" / name for name in sysfs.children(function / "hwmon", _HWMON)]


def temperature(function: Path) -> float | None:
    """Return degrees Celsius of the first sensor by number: of the chip, where there are several."""
    for monitor in _monitors(function):
        for name in sysfs.children(monitor, _TEMPERATURE):
            number = sysfs.read_number(monitor / name)
            if number is not None:
                return number / 1000
    return None


def power(function: Path) -> float | None:
    """Return watts: the mean if the driver reports it, else what flows now."""
    for monitor in _monitors(function):
        for name in ("power1_average", "power1_input"):
            number = sysfs.read_number(monitor / name)
            if number is not None:
                return number / 1_000_000
    return None


def energy(function: Path) -> float | None:
    """Return joules since some time ago: of the whole card if that is reported."""
    for monitor in _monitors(function):
        for name in sysfs.children(monitor, _ENERGY):
            number = sysfs.read_number(monitor / name)
            if number is not None:
                return number / 1_000_000
    return None
