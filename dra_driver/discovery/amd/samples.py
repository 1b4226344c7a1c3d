"""What an AMD GPU or a partition of one does right now, as amdgpu and KFD show it in sysfs.

A file that is missing or garbage costs one value.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dra_driver.discovery.amd.kfd import KfdNode
from dra_driver.discovery.core.host import hwmon, sysfs
from dra_driver.hardware import DeviceSample

__all__ = ["ras_counts", "read_partition_sample", "read_sample"]

_RAS: Final = re.compile(r"([a-z0-9_]{1,32})_err_count", re.ASCII)
_BANK: Final = re.compile(r"[0-9]{1,5}", re.ASCII)


def read_sample(device: str, function: Path, node: KfdNode | None) -> DeviceSample:
    """Return a sample of a whole GPU.

    Args:
        device: its name in the inventory.
        function: sysfs directory of the PCI function.
        node: what KFD has of it.
    """
    busy = sysfs.read_number(function / "gpu_busy_percent")
    used = sysfs.read_number(function / "mem_info_vram_used")
    total = sysfs.read_number(function / "mem_info_vram_total")
    return DeviceSample(
        device=device,
        utilization=busy / 100 if busy is not None and busy <= 100 else None,
        memory_used=_used(node) if used is None else used,
        memory_total=(node.memory if node is not None else None) if total is None else total,
        temperature=hwmon.temperature(function),
        power=hwmon.power(function),
        errors=_errors(function),
    )


def read_partition_sample(device: str, function: Path | None, node: KfdNode) -> DeviceSample:
    """Return a sample of a partition: the driver reports the use of its memory, not its load or power.

    The temperature is that of the GPU.
    """
    return DeviceSample(
        device=device,
        memory_used=_used(node),
        memory_total=node.memory,
        temperature=None if function is None else hwmon.temperature(function),
    )


def ras_counts(function: Path) -> dict[str, tuple[int, int]]:
    """Return errors counted since the driver was loaded: block → (uncorrectable, correctable).

    Args:
        function: sysfs directory of the PCI function; blocks are its ``ras/<block>_err_count`` files.
    """
    counts: dict[str, tuple[int, int]] = {}
    for name in sysfs.children(function / "ras", _RAS):
        values = sysfs.key_values(sysfs.read_sysfs(function / "ras" / name) or "", ":")
        if "ue" in values or "ce" in values:
            counts[name.removesuffix("_err_count")] = (values.get("ue", 0), values.get("ce", 0))
    return counts


def _errors(function: Path) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for block, (uncorrected, corrected) in ras_counts(function).items():
        found[block, "uncorrected"], found[block, "corrected"] = uncorrected, corrected
    return found


def _used(node: KfdNode | None) -> int | None:
    """Return the bytes in use of the memory that KFD counts as the node's; older kernels do not report it."""
    if node is None:
        return None
    folder = node.folder / "mem_banks"
    banks = (sysfs.read_number(folder / name / "used_memory") for name in sysfs.children(folder, _BANK)[:16])
    known = [number for number in banks if number is not None]
    return sum(known) if known else None
