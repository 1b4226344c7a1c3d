"""Backends whose devices can be changed, and what changing them needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from dra_driver.discovery.core.partition_control import PartitionsOnly
from dra_driver.ports import Daemons, DeviceBackend, GpuControl, PartitionMaker

__all__ = [
    "ControllableBackend",
    "DaemonSource",
    "SeparateCalls",
    "SeparateLooks",
    "ToolPaths",
    "control_of",
]


@dataclass(frozen=True, slots=True)
class ToolPaths:
    """Where the tools and files are that a control needs.

    Attributes:
        nvidia_smi: a path, or a name to be found in PATH.
        proc_root: where procfs is mounted.
        state_dir: where a backend remembers what was done to hardware that forgets it, or does not exist.
        own_daemons: whether the sharing daemons of the node are those that the backends bring
            (``DaemonSource``).
    """

    nvidia_smi: str = "nvidia-smi"
    proc_root: Path = Path("/proc")
    state_dir: Path | None = None
    own_daemons: bool = False


@runtime_checkable
class ControllableBackend(Protocol):
    """A backend that gives a control for its devices."""

    def control(self, places: ToolPaths) -> GpuControl | None:
        """Return the control, which shares the backend's library handles; None if nothing can be changed."""
        ...


@runtime_checkable
class SeparateCalls(Protocol):
    """A ``GpuControl`` of which a call about one device does not wait for a call about another."""

    @property
    def lanes_of_devices(self) -> bool:
        """Whether that is so."""
        ...


@runtime_checkable
class SeparateLooks(Protocol):
    """A backend that goes on without a device about which a call does not come back.

    Attributes:
        patience: seconds after which a call about one device counts as hanging.
    """

    patience: float


@runtime_checkable
class DaemonSource(Protocol):
    """A backend whose devices have sharing daemons of their own: they need none of the vendor's tools."""

    def daemons(self, folder: Path) -> Daemons:
        """Return the daemons, which keep their directories in ``folder``."""
        ...


def control_of(backend: DeviceBackend, places: ToolPaths) -> GpuControl | None:
    """Return the control for the devices of a backend; None where there is none."""
    if isinstance(backend, ControllableBackend):
        return backend.control(places)
    return PartitionsOnly(backend) if isinstance(backend, PartitionMaker) else None
