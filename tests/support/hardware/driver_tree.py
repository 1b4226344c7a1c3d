"""Trees of files with NVIDIA's driver in them, and what becomes of GPUs there."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.nvidia.injection.material import NvidiaMaterial
from dra_driver.hardware import DiscoveredDevice

LIB = "usr/lib/x86_64-linux-gnu"


def gpu(minor: int = 0, version: str = "570.148.8", *env: str) -> DiscoveredDevice:
    """A GPU as its backend reports it."""
    return DiscoveredDevice(
        device=InventoryDevice(
            name=f"gpu-{minor}", attributes={"driverVersion": DeviceAttribute(version_value=version)}
        ),
        uuid=f"GPU-{minor}",
        material=ContainerEdits(
            device_nodes=(DeviceNode(f"/dev/nvidia{minor}"), DeviceNode("/dev/nvidiactl")),
            env=env or ("NVIDIA_VISIBLE_DEVICES=void",),
        ),
    )


def touch(root: Path, *paths: str) -> None:
    """Files that begin as libraries do, and are none."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"\x7fELF")


def driver(root: Path, folder: str = LIB, version: str = "570.148.08") -> None:
    """A driver with links, beside files that are not the driver's."""
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        touch(root, f"{folder}/{name}.so.{version}")
        (root / folder / f"{name}.so.1").symlink_to(f"{name}.so.{version}")
    (root / folder / "libcuda.so").symlink_to("libcuda.so.1")
    touch(root, f"{folder}/libc.so.6", f"{folder}/libcuda.so.1.2.3", "usr/bin/nvidia-smi")


def completed(root: Path, *devices: DiscoveredDevice, **more: Any) -> list[DiscoveredDevice]:
    """The GPUs with all that a container needs, of a host whose file system is the tree."""
    roots = {"sysfs_root": root / "sys", "dev_root": root / "dev", "proc_root": root / "proc"}
    return list(NvidiaMaterial(**{"host_root": root, **roots, **more}).complete(devices))


def complete(root: Path, *devices: DiscoveredDevice, **more: Any) -> list[ContainerEdits]:
    """What containers get whose claims do not ask for certain capabilities of the driver."""
    return [d.parts.added_to(d.material, None) for d in completed(root, *devices, **more)]


def seen(root: Path, *folders: str) -> None:
    """These folders of the host are mounted below the root."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    lines = (f"{i} 21 8:1 /{f} {root}/{f} ro - ext4 x ro\n" for i, f in enumerate(folders, 30))
    (root / "proc/self/mountinfo").write_text("".join(lines))


def mounted(material: ContainerEdits) -> dict[str, str]:
    """The host's path by the container's."""
    return {m.container_path: m.host_path for m in material.mounts}


def linker_cache(*entries: tuple[str, str]) -> bytes:
    """The linker's cache with names of libraries and their paths."""
    header = struct.Struct("<20sII20x")
    strings, offsets = b"", []
    base = header.size + 24 * len(entries)
    for name, path in entries:
        offsets.append((base + len(strings), base + len(strings) + len(name) + 1))
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    packed = b"".join(struct.pack("<iIIIQ", 0x303, n, p, 0, 0) for n, p in offsets)
    return header.pack(b"glibc-ld.so.cache1.1", len(entries), len(strings)) + packed + strings
