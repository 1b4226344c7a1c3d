"""What a GPU does right now, as amdgpu shows it in sysfs: load, memory, temperature, power."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_driver.discovery import sysfs
from dra_driver.ports import DeviceSample

__all__ = ["read_sample"]

_HWMON: Final = re.compile(r"hwmon[0-9]{1,6}", re.ASCII)


def read_sample(device: str, function: Path) -> DeviceSample:
    """One sample; a file that is missing or garbage costs one value.

    Args:
        device: its name in the inventory.
        function: sysfs directory of the PCI function. Below ``hwmon`` temperatures are in thousandths of a
            degree Celsius, power is in microwatts.
    """
    busy = sysfs.read_number(function / "gpu_busy_percent")
    monitors = [function / "hwmon" / name for name in sysfs.children(function / "hwmon", _HWMON)]
    temperature = next(_first(monitors, "temp1_input"), None)
    power = next(_first(monitors, "power1_average", "power1_input"), None)
    return DeviceSample(
        device=device,
        utilization=busy / 100 if busy is not None and busy <= 100 else None,
        memory_used=sysfs.read_number(function / "mem_info_vram_used"),
        memory_total=sysfs.read_number(function / "mem_info_vram_total"),
        temperature=None if temperature is None else temperature / 1000,
        power=None if power is None else power / 1_000_000,
    )


def _first(monitors: list[Path], *names: str) -> Iterator[int]:
    for monitor in monitors:
        for name in names:
            number = sysfs.read_number(monitor / name)
            if number is not None:
                yield number
