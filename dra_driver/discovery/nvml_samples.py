"""What an NVIDIA GPU does right now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from dra_driver.ports import DeviceSample

__all__ = ["read_sample"]


def read_sample(index: int, name: str) -> DeviceSample:
    """One GPU by its NVML index; what cannot be read is None."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError:
        return DeviceSample(device=name)
    used = _try(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _try(pynvml.nvmlDeviceGetMemoryInfo, handle)
    temperature = _try(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    power = _try(pynvml.nvmlDeviceGetPowerUsage, handle)
    return DeviceSample(
        device=name,
        utilization=None if used is None else used.gpu / 100,
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        temperature=None if temperature is None else float(temperature),
        # NVML tells milliwatts.
        power=None if power is None else power / 1000,
    )


def _try(call: Callable[..., Any], *arguments: object) -> Any:
    # Sampled often: what fails is absent from the metrics, which says enough; discovery reports reasons.
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None
