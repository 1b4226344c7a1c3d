"""NVML's health calls: what polling asks a GPU, and waiting for events of all of them."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pynvml
import structlog

from dra_driver.discovery.nvidia.conditions import XID_EVENT, Conditions, HealthReading
from dra_driver.hardware import HealthEvent

__all__ = ["EventWatch", "read_health"]

# Double-bit ECC, XID, memory retirement and its failure, poison, GPU unavailable, recovery action.
WANTED: Final = 0x2 | XID_EVENT | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000

# In one answer; a GPU that breaks down can send hundreds.
_MOST_EVENTS: Final = 64

_log = structlog.get_logger(__name__)


def read_health(handle: Any, ask: Callable[..., Any]) -> HealthReading:
    """Read the health of one GPU.

    Args:
        handle: NVML's.
        ask: an ``nvml_gpu.Asker``.

    Raises:
        GpuLost: the GPU has fallen off the bus.
    """
    remapped = ask("remapped rows", pynvml.nvmlDeviceGetRemappedRows, handle)
    pending = None
    if remapped is None:
        pending = ask("retired pages", pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    uncorrected = ask(
        "ECC errors",
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    return HealthReading(
        uncorrected=uncorrected,
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        retirement_pending=None if pending is None else bool(pending),
        recovery_action=_recovery_action(handle, ask),
        branch=_branch(ask),
    )


def _recovery_action(handle: Any, ask: Callable[..., Any]) -> int | None:
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = ask("recovery action", pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _branch(ask: Callable[..., Any]) -> int | None:
    first = str(ask("driverVersion", pynvml.nvmlSystemGetDriverVersion) or "").partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() and len(first) < 6 else None


class EventWatch:
    """A watch for the events of all GPUs.

    ``wait`` runs in a thread of its own; ``release`` gives everything up, so that the library can be
    closed. The event set is made anew after each release and after a GPU was lost.

    Args:
        conditions: what events are noted in.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._lock = threading.Lock()
        self._wanted_elsewhere = threading.Event()
        self._set: Any = None
        self._watched: dict[int, str] = {}
        self.enabled = False

    def enable(self) -> None:
        """Note that the library is open, and that there are GPUs to be watched."""
        with self._lock:
            self.enabled = True

    def release(self) -> None:
        """Free the event set, after a ``wait`` under way; the next ``enable`` makes it anew."""
        self._wanted_elsewhere.set()
        try:
            with self._lock:
                self.enabled = False
                self._free()
        finally:
            self._wanted_elsewhere.clear()

    def wait(self, seconds: float) -> tuple[tuple[HealthEvent, ...], bool]:
        """Wait for events, up to so many seconds.

        Returns:
            The events, and whether a GPU was lost (NVML does not say which one).
        """
        if self._wanted_elsewhere.is_set():
            time.sleep(0.02)
            return (), False
        with self._lock:
            watching = self.enabled and (self._set is not None or self._register())
            if watching:
                return self._wait(seconds)
        time.sleep(min(seconds, 0.2))
        return (), False

    def _wait(self, seconds: float) -> tuple[tuple[HealthEvent, ...], bool]:
        events: list[HealthEvent] = []
        timeout = int(seconds * 1000)
        try:
            for _ in range(_MOST_EVENTS):
                data = pynvml.nvmlEventSetWait_v2(self._set, timeout)
                events += self._noted(data)
                timeout = 0
        except pynvml.NVMLError as e:
            if e.value == pynvml.NVML_ERROR_TIMEOUT:
                return tuple(events), False
            _log.warning("waiting for GPU events failed; registering anew", error=str(e), code=e.value)
            self._free()
            if not events:
                time.sleep(min(seconds, 1.0))
            return tuple(events), e.value == pynvml.NVML_ERROR_GPU_IS_LOST
        return tuple(events), False

    def _noted(self, data: Any) -> Iterator[HealthEvent]:
        uuid = self._watched.get(_address(data.device))
        if uuid is None:
            _log.warning("an event of a GPU that is not watched", type=hex(data.eventType))
            return
        event = self._conditions.event(uuid, int(data.eventType), int(data.eventData), data.gpuInstanceId)
        if event is not None:
            yield event

    def _register(self) -> bool:
        """Make the event set, and return whether any GPU can be watched."""
        try:
            created = pynvml.nvmlEventSetCreate()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as e:
            _log.info("GPU events are not available", error=str(e))
            self.enabled = False  # until the next look at the hardware
            return False
        self._set = created
        self._watched = {}
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & WANTED
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, created)
            except (pynvml.NVMLError, UnicodeDecodeError) as e:
                _log.info("a GPU's events are not watched; it is polled", gpu=index, error=str(e))
                continue
            self._watched[_address(handle)] = uuid
        if not self._watched:
            self._free()
            self.enabled = False
        return bool(self._watched)

    def _free(self) -> None:
        if self._set is not None:
            try:
                pynvml.nvmlEventSetFree(self._set)
            except pynvml.NVMLError as e:
                _log.debug("an event set could not be freed", error=str(e))
        self._set = None
        self._watched = {}


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
