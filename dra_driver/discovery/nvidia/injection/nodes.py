"""Device nodes beside those that NVML knows of: graphics, GPUDirect Storage, GDRCopy, the IMEX channel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dra_driver.cdi import ContainerEdits, DeviceNode, Mount
from dra_driver.discovery.core.bus.pci import PciAddress, exists, read_sysfs
from dra_driver.discovery.core.host import sysfs
from dra_driver.discovery.core.host.host_view import HostView

__all__ = ["IMEX", "drm_links", "drm_nodes", "imex_channel", "nodes_of_modules"]

# The name by which a claim asks for the channel.
IMEX: Final = "imex"

_CHANNEL: Final = "nvidia-caps-imex-channels/channel0"
_READ_ONLY: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_STORAGE_FILES: Final = ("/run/udev", "/etc/cufile.json")


def drm_nodes(sysfs_root: Path, address: PciAddress) -> tuple[str, ...]:
    """Return the paths of the DRM nodes that the kernel lists for a PCI function: card and render node."""
    names = sysfs.entries(sysfs.pci_function(sysfs_root, address) / "drm") or ()
    return tuple(f"/dev/dri/{name}" for name in names if name.startswith(("card", "renderD")))


def drm_links(address: PciAddress, nodes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the links by which programs find DRM nodes by PCI address, and what each leads to."""
    kinds = {"card": "card", "renderD": "render"}
    return tuple(
        (f"/dev/dri/by-path/pci-{address}-{kind}", f"../{name}")
        for name in (n.rpartition("/")[2] for n in nodes)
        for prefix, kind in kinds.items()
        if name.startswith(prefix)
    )


def nodes_of_modules(dev_root: Path, host: HostView) -> ContainerEdits:
    """Return what a container needs for GPUDirect Storage and for GDRCopy, where their modules are loaded."""
    try:
        storage = sorted(p.name for p in dev_root.glob("nvidia-fs*"))
    except OSError:
        storage = []
    copy = ["gdrdrv"] if exists(dev_root / "gdrdrv") else []
    files = [p for p in _STORAGE_FILES if storage and (host.root / p.strip("/")).exists()]
    return ContainerEdits(
        device_nodes=tuple(DeviceNode(f"/dev/{name}") for name in (*storage, *copy)),
        mounts=tuple(Mount(p, p, _READ_ONLY) for p in files),
    )


def imex_channel(dev_root: Path, proc_root: Path) -> ContainerEdits | None:
    """Return the node of IMEX channel 0; None unless an option of the driver makes that channel for all.

    Who has a channel can import the memory of all others that have it, on all nodes of an IMEX domain. The
    module's parameter ``NVreg_CreateImexChannel0`` is by what an administrator says that the users of the
    node trust each other.
    """
    parameters = read_sysfs(proc_root / "driver/nvidia/params") or ""
    allowed = "CreateImexChannel0: 1" in (line.strip() for line in parameters.splitlines())
    if not allowed or not exists(dev_root / _CHANNEL):
        return None
    return ContainerEdits(device_nodes=(DeviceNode(f"/dev/{_CHANNEL}"),))
