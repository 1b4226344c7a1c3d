"""What an NVIDIA GPU and its MIG devices do right now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pynvml

from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.own.partitions import partition_name
from dra_driver.hardware import DeviceSample

__all__ = ["read_partition_samples", "read_sample"]

# NVML's answer is at most 7; guards against a library that answers nonsense.
_MOST_MIG_DEVICES: Final = 16


def read_sample(handle: Any, name: str) -> DeviceSample:
    """Return a sample of the GPU behind a handle; what cannot be read is None."""
    used = _try(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _memory(handle)
    temperature = _try(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    power = _try(pynvml.nvmlDeviceGetPowerUsage, handle)
    return DeviceSample(
        device=name,
        utilization=None if used is None else used.gpu / 100,
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        temperature=None if temperature is None else float(temperature),
        # NVML reports milliwatts.
        power=None if power is None else power / 1000,
    )


def read_partition_samples(handle: Any, gpu: InventoryDevice) -> Iterator[DeviceSample]:
    """Yield samples of the MIG devices of the GPU behind a handle; none where MIG mode is off.

    NVML tells the memory of a MIG device, not its load or power; its temperature is that of the GPU.
    """
    mode = _try(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or not mode[0]:
        return
    profiles = {p.profile_id: p.name for p in gpu.partitions}
    temperature = _try(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    for number in range(min(_try(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, _MOST_MIG_DEVICES)):
        # Numbers without a device are NOT_FOUND.
        part = _try(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        instance = None if part is None else _try(pynvml.nvmlDeviceGetGpuInstanceId, part)
        found = None if instance is None else _try(pynvml.nvmlDeviceGetGpuInstanceById, handle, instance)
        info = None if found is None else _try(pynvml.nvmlGpuInstanceGetInfo, found)
        if info is None or info.profileId not in profiles:
            continue
        memory = _memory(part)
        yield DeviceSample(
            device=partition_name(gpu.name, profiles[info.profileId], info.placement.start),
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            temperature=None if temperature is None else float(temperature),
        )


def _memory(handle: object) -> Any:
    """Return memory in use without what the driver keeps for itself, as nvidia-smi and DCGM show it.

    Drivers before 510 have only the first version of the call, which counts that as used.
    """
    found = _try(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return found if found is not None else _try(pynvml.nvmlDeviceGetMemoryInfo, handle)


def _try(call: Callable[..., Any], *arguments: object) -> Any:
    # Sampled often: what fails is absent from the metrics, which says enough; discovery reports reasons.
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None
