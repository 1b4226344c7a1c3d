"""The NVIDIA GPU of this computer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dra_driver.discovery import open_backend
from dra_driver.errors import DraError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import DeviceBackend

ROOTS: Final = {"sysfs_root": Path("/sys"), "procfs_root": Path("/proc"), "dev_root": Path("/dev")}


def opened() -> DeviceBackend:
    """Return NVML, as an agent has it."""
    return open_backend("nvml", **ROOTS, node_name="node")


def first() -> DiscoveredDevice:
    """Return the first GPU; skip the test where there is none."""
    backend = opened()
    try:
        found = backend.discover()
    except DraError as e:
        pytest.skip(f"NVML finds no GPU: {e}")
    finally:
        backend.close()
    if not found:
        pytest.skip("NVML finds no GPU")
    return found[0]


def uuid_of(gpu: DiscoveredDevice) -> str:
    """Return what NVIDIA calls a GPU."""
    return str(gpu.device.attributes["uuid"].string_value)
