"""Device nodes of a GPU that the kernel's DRM serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dra_driver.cdi import DeviceNode
from dra_driver.discovery.core import pci
from dra_driver.discovery.core.sysfs import DrmNodes

__all__ = ["device_nodes"]


def device_nodes(
    dev_root: Path, shared: Sequence[str], drm: DrmNodes, by_path: str | None
) -> tuple[tuple[DeviceNode, ...], list[Path]]:
    """Nodes for a container, and those of them that are not there.

    A node that is missing is given all the same: prepare refuses then and says which, because a container
    that does not start is better than one without its GPU. The names below ``/dev/dri/by-path``, which some
    software looks for, are nodes of their own in the container.

    Args:
        dev_root: where device nodes are looked for.
        shared: names below ``/dev`` that the device needs beside its own (``kfd``).
        drm: the device's own.
        by_path: PCI address, where ``/dev/dri/by-path`` is to be given.
    """
    own = [f"dri/{name}" for name in (drm.card, drm.render) if name]
    nodes = [DeviceNode(f"/dev/{name}") for name in (*shared, *own)]
    missing = [dev_root / name for name in (*shared, *own) if not pci.exists(dev_root / name)]
    for kind, name in (("card", drm.card), ("render", drm.render)):
        path = f"dri/by-path/pci-{by_path}-{kind}"
        if by_path and name and pci.exists(dev_root / path):
            nodes.append(DeviceNode(f"/dev/{path}", f"/dev/dri/{name}"))
    return tuple(nodes), missing
