"""Device nodes of a GPU that the kernel's DRM serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi import DeviceNode
from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.host.sysfs import DrmNodes

__all__ = ["FoundNodes", "device_nodes", "drm_folders"]


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """Device nodes for a container.

    Attributes:
        nodes: all of them.
        own: paths of those that belong to the device alone, for ``DiscoveredDevice.own_nodes``.
        missing: where nodes were looked for that are not there.
    """

    nodes: tuple[DeviceNode, ...]
    own: tuple[str, ...]
    missing: tuple[Path, ...]


def drm_folders(sysfs_root: Path, dev_root: Path) -> tuple[tuple[Path, str], ...]:
    """Return directories whose entries come and go with such devices, for ``HotplugHints``."""
    return ((sysfs_root / "class" / "drm", ""), (dev_root / "dri", ""))


def device_nodes(dev_root: Path, shared: Sequence[str], drm: DrmNodes, by_path: str | None) -> FoundNodes:
    """Return the nodes that a container needs for a device.

    A node that is missing is given all the same: prepare refuses then and says which, because a container
    that does not start is better than one without its GPU. The names below ``/dev/dri/by-path``, which some
    software looks for, are nodes of their own in the container.

    Args:
        dev_root: where device nodes are looked for.
        shared: names below ``/dev`` that the device needs beside its own (``kfd``).
        drm: the device's own.
        by_path: PCI address, where ``/dev/dri/by-path`` is to be given.
    """
    names = [f"dri/{name}" for name in (drm.card, drm.render) if name]
    common = [DeviceNode(f"/dev/{name}") for name in shared]
    own = [DeviceNode(f"/dev/{name}") for name in names]
    missing = tuple(dev_root / name for name in (*shared, *names) if not pci.exists(dev_root / name))
    for kind, name in (("card", drm.card), ("render", drm.render)):
        path = f"dri/by-path/pci-{by_path}-{kind}"
        if by_path and name and pci.exists(dev_root / path):
            own.append(DeviceNode(f"/dev/{path}", f"/dev/dri/{name}"))
    return FoundNodes((*common, *own), tuple(n.path for n in own), missing)
