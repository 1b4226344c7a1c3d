"""Where it shows that a backend's devices come and go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

__all__ = ["HotplugHints", "HotplugSource"]


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
