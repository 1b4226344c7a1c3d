"""A tree of files that looks like sysfs, procfs and devfs of a machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.simulated.machine import PciFunction
from dra_driver.errors import ConfigurationError

__all__ = ["TreeWriter"]

_NULL: Final = os.makedev(1, 3)
# The kernel numbers render nodes from here.
_FIRST_RENDER: Final = 128


class TreeWriter:
    """Writes below one directory. All paths are relative to it: ``sys/…``, ``proc/…``, ``dev/…``.

    Args:
        root: an empty or new directory; nothing that is there is ever overwritten.
        mknod: make device nodes (of the null device; needs root) instead of regular files.

    Raises:
        ConfigurationError: the directory holds something, or cannot be written.
    """

    def __init__(self, root: Path, *, mknod: bool = False) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            if any(root.iterdir()):
                raise ConfigurationError(f"{root}: is not empty; give a directory that is new or empty")
        except OSError as e:
            raise ConfigurationError(f"{root}: {e.strerror or e}") from e
        self.root = root
        self._top = f"{root}/"
        # Folders that are there, so that none is asked for again for each of its files.
        self._made: set[str] = set()
        self._mknod = mknod
        self._cards = 0
        self._renders = _FIRST_RENDER
        for folder in (
            "sys/bus/pci/devices",
            "sys/bus/pci/drivers",
            "sys/class",
            "sys/module",
            "proc",
            "dev",
        ):
            self.folder(folder)

    def file(self, path: str, content: object = "") -> None:
        """Write a file with a line end, as the kernel shows its attributes."""
        self.folder(path.rpartition("/")[0])
        Path(self._top + path).write_text(f"{content}\n", encoding="utf-8")

    def files(self, folder: str, contents: Mapping[str, object]) -> None:
        """Write several files; a content of None is no file."""
        for name, content in contents.items():
            if content is not None:
                self.file(f"{folder}/{name}", content)

    def folder(self, path: str) -> None:
        """Make an empty directory, unless it is there."""
        if path not in self._made:
            Path(self._top + path).mkdir(parents=True, exist_ok=True)
            self._made.add(path)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, relative and ending in the target's name, as sysfs has them."""
        parent = path.rpartition("/")[0]
        self.folder(parent)
        Path(self._top + path).symlink_to(_relative(target, parent))

    def node(self, name: str) -> None:
        """Make a device node below ``dev``, if it is not there yet.

        Raises:
            ConfigurationError: this process may not make device nodes.
        """
        self.folder(f"dev/{name}".rpartition("/")[0])
        path = self.root / "dev" / name
        if path.exists():
            return
        if not self._mknod:
            path.touch()
            return
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, _NULL)
        except OSError as e:
            raise ConfigurationError(f"--mknod: {path}: {e.strerror or e}: device nodes need root") from e

    def pci_function(self, function: PciFunction, facts: Mapping[str, object] | None = None) -> None:
        """Write a PCI function below its PCIe root, bound to its driver.

        Args:
            function: the function; the kernel shows −1 for a NUMA node that is not known.
            facts: further files of its directory; a content of None is no file.
        """
        folder = function.folder
        own = {
            "numa_node": -1 if function.numa_node is None else function.numa_node,
            "vendor": f"0x{function.vendor_id}",
            "device": f"0x{function.device_id}",
            "class": f"0x{function.class_code}",
            "revision": f"0x{function.revision}",
        }
        self.files(folder, {**own, **(facts or {})})
        self.link(f"sys/bus/pci/devices/{function.address}", folder)
        if function.driver is None:
            return
        home = f"sys/bus/pci/drivers/{function.driver}"
        if not (self.root / home).exists():
            self.folder(f"sys/module/{function.driver}/drivers")
            self.link(f"{home}/module", f"sys/module/{function.driver}")
            self.link(f"sys/module/{function.driver}/drivers/pci:{function.driver}", home)
        self.link(f"{home}/{function.address}", folder)
        self.link(f"{folder}/driver", home)

    def drm(self, folder: str, by_path: PciAddress | None) -> tuple[int, int]:
        """Write card and render node of a device with their device nodes, and return their numbers.

        Args:
            folder: directory of the device.
            by_path: PCI address for the links in ``dev/dri/by-path``; if None, there are none.
        """
        card, render = self._cards, self._renders
        self._cards += 1
        self._renders += 1
        for kind, name in (("card", f"card{card}"), ("render", f"renderD{render}")):
            self.folder(f"{folder}/drm/{name}")
            self.link(f"{folder}/drm/{name}/device", folder)
            self.link(f"sys/class/drm/{name}", f"{folder}/drm/{name}")
            self.node(f"dri/{name}")
            if by_path is not None:
                self.link(f"dev/dri/by-path/pci-{by_path}-{kind}", f"dev/dri/{name}")
        return card, render


def _relative(target: str, folder: str) -> str:
    """Return the way from a folder to a target; both are relative to the same root."""
    *there, name = target.split("/")
    here = folder.split("/")
    same = 0
    while here[same:] and here[same : same + 1] == there[same : same + 1]:
        same += 1
    return "/".join([*([".."] * (len(here) - same) + there[same:] or ["."]), name])
