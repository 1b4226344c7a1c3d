"""Where it shows that a backend's devices come and go."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

__all__ = ["HotplugHints", "HotplugSource", "fingerprint"]

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.")


@dataclass(frozen=True, slots=True)
class HotplugHints:
    """What shows that devices, or their kernel drivers, come and go.

    Attributes:
        folders: directories whose entries come and go with them, and how the names of these entries begin.
        modules: kernel modules whose loading and unloading matters.
        subsystems: ``SUBSYSTEM`` of the kernel's events that matter.
    """

    folders: tuple[tuple[Path, str], ...] = ()
    modules: frozenset[str] = frozenset()
    subsystems: frozenset[str] = frozenset()


@runtime_checkable
class HotplugSource(Protocol):
    """A ``DeviceBackend`` whose devices come and go with more than PCI functions."""

    def hotplug(self) -> HotplugHints:
        """Return where that shows. Does not look at hardware."""
        ...


def fingerprint(places: Iterable[tuple[Path, str]]) -> frozenset[tuple[str, str]]:
    """Return a value that changes when a device comes or goes, or its name becomes another device's.

    Sysfs names the device behind a name such as ``class/infiniband/mlx5_0`` by a link. A PCI address names
    its device itself, and there may be thousands, so no link of theirs is read. Blocks for a microsecond or
    two for each of those, and for a few for each other entry.

    Args:
        places: see ``HotplugHints.folders``.
    """
    found: set[tuple[str, str]] = set()
    for folder, prefix in places:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            found |= {(f"{folder}/{e.name}", _target(e)) for e in entries if e.name.startswith(prefix)}
    return frozenset(found)


def _target(entry: os.DirEntry[str]) -> str:
    if _ADDRESS.match(entry.name) is None and entry.is_symlink():
        with contextlib.suppress(OSError):
            return os.readlink(entry.path)  # noqa: PTH115
    return ""
