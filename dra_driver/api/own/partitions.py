"""Partitions of a device as devices of their own: their names, and which ones a GPU can be cut into.

The controller publishes them under these names, and the node agent finds the profile and the placement
behind a name again. Neither takes a name apart: both list what the inventory says and look the name up.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from dra_driver.api.own.inventory import InventoryDevice, PartitionPlacement, PartitionProfile

__all__ = ["PartitionDevice", "partition_devices", "partition_name"]

_MAX_NAME: Final = 63
_KIND: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,18}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class PartitionDevice:
    """One partition that can be made: a profile at a placement.

    Attributes:
        name: of the device in the ResourceSlice.
        gpu: name of the device that is cut.
    """

    name: str
    gpu: str
    profile: PartitionProfile
    placement: PartitionPlacement


def partition_name(gpu: str, profile: str, start: int, kind: str = "mig") -> str:
    """Return ``<gpu>-<kind>-<profile>-<start>``, a DNS label.

    Dots become dashes, ``+me`` becomes ``-me`` and ``-me`` (without media engines) ``-nome``. Where the whole
    is longer than 63 characters, the GPU's name is cut and followed by digits of its SHA-256.
    """
    text = re.sub(r"[^a-z0-9+]+", "-", re.sub(r"-(?=[a-z])", "-no", profile.lower())).replace("+", "-")
    end = f"-{kind}-{text.strip('-')}-{start}"
    if len(gpu) + len(end) <= _MAX_NAME:
        return gpu + end
    digest = hashlib.sha256(gpu.encode()).hexdigest()[:8]
    return f"{gpu[: _MAX_NAME - len(end) - 9].rstrip('-')}-{digest}{end}"


def partition_devices(device: InventoryDevice) -> tuple[PartitionDevice, ...]:
    """Return every profile at every placement, in the order of the inventory; of one name the first."""
    found: dict[str, PartitionDevice] = {}
    for profile in device.partitions:
        for placement in profile.placements:
            name = partition_name(device.name, profile.name, placement.start, _kind(profile))
            found.setdefault(name, PartitionDevice(name, device.name, profile, placement))
    return tuple(found.values())


def _kind(profile: PartitionProfile) -> str:
    """Return what the vendor calls its partitions, by the attribute ``type`` that they have."""
    value = profile.attributes.get("type")
    text = (value.string_value or "") if value is not None else ""
    return text if _KIND.fullmatch(text) else "mig"
