"""Backend ``nvml``: NVIDIA GPUs through NVIDIA's management library (placeholder while it is written)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dra_driver.discovery.problems import HardwareAbsent
from dra_driver.ports import DiscoveredDevice

__all__ = ["NvmlBackend"]


class NvmlBackend:
    """Not there yet."""

    def __init__(self, *, sysfs_root: Path, dev_root: Path) -> None:
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root

    @property
    def name(self) -> str:
        """``nvml``."""
        return "nvml"

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Raises."""
        raise HardwareAbsent("nvml: not implemented yet")

    def close(self) -> None:
        """Nothing."""
