"""What AMD's compute driver (KFD) shows in sysfs: one node per GPU, or one per partition of a GPU.

Source: ``kfd_topology.c`` and ``include/uapi/linux/kfd_sysfs.h`` of Linux. CPUs are nodes, too; a node with a
render minor is a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.host import sysfs

__all__ = ["KfdNode", "gfx_target", "links", "nodes_folder", "read_nodes"]

_NODE = re.compile(r"[0-9]{1,5}", re.ASCII)
# More than a machine has; a node is a processor socket, a GPU or a partition.
_MAX_NODES: Final = 1024
_MAX_LINKS: Final = 1024
_MAX_BANKS: Final = 16

# HSA_CAP_MEM_EDCSUPPORTED: the driver has ECC of the memory (RAS block UMC) enabled.
_ECC: Final = 0x00100000
# Memory banks of the device itself; 0 is memory of the host.
_DEVICE_HEAPS: Final = (1, 2)
_LINK_XGMI: Final = 11


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU or partition.

    Attributes:
        number: of the node; links name it.
        address: of the PCI function as ``location_id`` says; its last digit may be the number of the
            partition instead of the function, and only the list of PCI functions tells which.
        partition: number from the bits above the address (kernels of 2023), else 0.
        minor: of the render node.
        memory: bytes of this GPU or of this partition's share; None where it is not known.
        unique_id: 0 where there is none.
        hive: 0 where it is in none.
    """

    number: int
    folder: Path
    address: PciAddress
    partition: int
    minor: int
    device_id: int
    compute_units: int | None
    gfx_target: str | None
    memory: int | None
    unique_id: int
    hive: int
    ecc: bool


def nodes_folder(sysfs_root: Path) -> Path:
    """Return the folder of the nodes."""
    return sysfs_root / "class" / "kfd" / "kfd" / "topology" / "nodes"


def read_nodes(sysfs_root: Path, note: Callable[[str, str], None]) -> list[KfdNode] | None:
    """Return every GPU or partition, by number; None where there is no KFD.

    Args:
        sysfs_root: where sysfs is.
        note: called with subject and message of what cannot be read.
    """
    folder = nodes_folder(sysfs_root)
    if sysfs.entries(folder) is None:
        return None
    found: list[KfdNode] = []
    for name in sysfs.children(folder, _NODE)[:_MAX_NODES]:
        text = sysfs.read_sysfs(folder / name / "properties")
        if text is None:
            note(f"KFD node {name}", "its properties cannot be read")
            continue
        node = _node(int(name), folder / name, sysfs.key_values(text))
        if node is not None:
            found.append(node)
    return found


def _node(number: int, folder: Path, values: Mapping[str, int]) -> KfdNode | None:
    minor = values.get("drm_render_minor", 0)
    if not 0 < minor < 2**20:
        return None
    location = values.get("location_id", 0)
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    per_unit = values.get("simd_per_cu", 0)
    return KfdNode(
        number=number,
        folder=folder,
        address=PciAddress(values.get("domain", 0) & 0xFFFFFFFF, bus, device, function),
        partition=location >> 28 & 0xF,
        minor=minor,
        device_id=values.get("device_id", 0) & 0xFFFF,
        compute_units=values.get("simd_count", 0) // per_unit or None if per_unit else None,
        gfx_target=gfx_target(values.get("gfx_target_version", 0)),
        memory=_memory(folder) or values.get("local_mem_size") or None,
        unique_id=values.get("unique_id", 0),
        hive=values.get("hive_id", 0),
        ecc=bool(values.get("capability", 0) & _ECC),
    )


def _memory(folder: Path) -> int | None:
    total = 0
    for bank in sysfs.children(folder / "mem_banks", _NODE)[:_MAX_BANKS]:
        values = sysfs.key_values(sysfs.read_sysfs(folder / "mem_banks" / bank / "properties") or "")
        if values.get("heap_type") in _DEVICE_HEAPS:
            total += values.get("size_in_bytes", 0)
    return total or None


def gfx_target(version: int) -> str | None:
    """Return ``gfx942`` for 90402, ``gfx90a`` for 90010: minor and stepping are hexadecimal digits."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    if not 0 < major < 100 or minor > 15 or stepping > 15:
        return None
    return f"gfx{major}{minor:x}{stepping:x}"


def links(node: KfdNode) -> list[int]:
    """Return the numbers of the nodes that XGMI connects to this one, once per link."""
    folder = node.folder / "io_links"
    found: list[int] = []
    for name in sysfs.children(folder, _NODE)[:_MAX_LINKS]:
        values = sysfs.key_values(sysfs.read_sysfs(folder / name / "properties") or "")
        if values.get("type") == _LINK_XGMI and "node_to" in values:
            found.append(values["node_to"])
    return found
