"""NVML's handles of GPUs, found so that a GPU that fails or hangs is not asked about another one.

NVML looks for a UUID by asking one GPU after the other: it may say GPU_IS_LOST because any of them is lost.
By PCI address or index it asks the one GPU alone. What is found is compared with the UUID, because an address
or an index may become another GPU's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.nvidia.driver.library import error_text
from dra_driver.errors import DiscoveryError

__all__ = ["GpuAbsent", "GpuFallenOff", "Handles", "Place"]

_ELSEWHERE: Final = (
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)


class GpuAbsent(DiscoveryError):
    """There is no such GPU: every GPU of the machine has said which it is."""


class GpuFallenOff(GpuAbsent):
    """NVML says that the GPU is lost, in both ways of asking for its handle: one failing call is no proof."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GPU was when NVML was asked last."""

    address: PciAddress
    index: int


class Handles:
    """The GPUs of the machine, by UUID. Safe to use from several threads.

    Attributes:
        places: where each GPU was last; replaced as a whole.
    """

    def __init__(self) -> None:
        self.places: Mapping[str, Place] = {}

    def find(self, gpu: str) -> Any:
        """Return the handle of a GPU whose place is known; None if it is not there.

        Raises:
            GpuFallenOff: it has fallen off the bus.
            NVMLError: of this GPU.
        """
        place = self.places.get(gpu)
        if place is None:
            return None
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(str(place.address))
        except pynvml.NVMLError as first:
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(place.index)
            except pynvml.NVMLError as second:
                if first.value == second.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    raise GpuFallenOff(f"GPU {gpu}: {error_text(first)}") from first
                raise second if first.value in _ELSEWHERE else first from None
            if not _is(gpu, handle):
                if first.value not in _ELSEWHERE:
                    raise  # its index is another's; at its own address it fails
                return None
            return handle
        return handle if _is(gpu, handle) else None


def _is(gpu: str, handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetUUID(handle) == gpu)
    except UnicodeDecodeError as e:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN) from e
