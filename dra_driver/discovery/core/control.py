"""Backends whose devices can be changed, and what changing them needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from dra_driver.ports import DeviceBackend, GpuControl

__all__ = ["ControllableBackend", "ToolPaths", "control_of"]


@dataclass(frozen=True, slots=True)
class ToolPaths:
    """Where the tools and files are that a control needs.

    Attributes:
        nvidia_smi: a path, or a name to be found in PATH.
        proc_root: where procfs is mounted.
        state_dir: where simulated hardware remembers what was done to it.
        simulated_daemons: whether sharing daemons (MPS) for simulated hardware can be had.
    """

    nvidia_smi: str = "nvidia-smi"
    proc_root: Path = Path("/proc")
    state_dir: Path | None = None
    simulated_daemons: bool = False


@runtime_checkable
class ControllableBackend(Protocol):
    """A backend that gives a control for its devices."""

    def control(self, places: ToolPaths) -> GpuControl | None:
        """Shares the backend's library handles; None where nothing can be changed."""
        ...


def control_of(backend: DeviceBackend, places: ToolPaths) -> GpuControl | None:
    """The control for the devices of a backend; None where there is none."""
    return backend.control(places) if isinstance(backend, ControllableBackend) else None
