"""NVIDIA's management library in this process: opened, closed, opened anew after a reload of the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pynvml
import structlog

from dra_driver.discovery.nvidia.driver.loading import Driver
from dra_driver.discovery.nvidia.driver.root import LIBRARY
from dra_driver.errors import DiscoveryError

__all__ = ["Library", "error_text"]

# More than any machine has; guards against a library that answers nonsense.
_MAX_GPUS: Final = 256

_log = structlog.get_logger(__name__)


def error_text(error: pynvml.NVMLError) -> str:
    """Return ``Unknown Error (NVML error 999)``."""
    return f"{str(error).strip()} (NVML error {error.value})"


class Library:
    """The library as one backend has it open; ``lanes`` keeps calls out while it is closed.

    Attributes:
        is_open: whether it is.

    Args:
        software: loads it.
        reopened: called when GPUs may have been reset while it was closed, or with the driver.
    """

    def __init__(self, software: Driver, sysfs_root: Path, reopened: Callable[[], None]) -> None:
        self._software = software
        self._sysfs_root = sysfs_root
        self._reopened = reopened
        self._lock = threading.Lock()
        self.is_open = False
        # Opened for the first time, the library says nothing about resets: see ``_opened``.
        self._driver: str | None = ""
        self._released = False

    def open(self) -> None:
        """Open the library, unless it is.

        Raises:
            HardwareAbsent: there is no library, or no driver is loaded.
            DriverMissing: likewise, and there are GPUs on the PCI bus.
            DiscoveryError: the library or the driver is broken.
        """
        with self._lock:
            if self.is_open:
                return
            self._software.load()
            try:
                pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
            except pynvml.NVMLError as e:
                if e.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
                    raise self._software.not_loaded(error_text(e)) from e
                raise _initialization_error(e) from e
            self.is_open = True
            self._opened()

    def count(self) -> int:
        """Return how many GPUs there are.

        Raises:
            NVMLError: they cannot be counted.
            DiscoveryError: the number is not plausible.
        """
        count = int(pynvml.nvmlDeviceGetCount())
        if count > _MAX_GPUS:
            raise DiscoveryError(f"nvml: {count} GPUs are not plausible; at most {_MAX_GPUS} are looked at")
        return count

    def close(self, *, released: bool = False) -> None:
        """Close the library. Nothing must be under way in it.

        Args:
            released: whether GPUs may be reset until it is opened again.
        """
        with self._lock:
            self._released |= released
            if not self.is_open:
                return
            self.is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as e:
                # Nothing can be done about it, and the next opening will say what is wrong.
                _log.warning("NVIDIA's library could not be closed", error=error_text(e))

    def was_reloaded(self) -> bool | None:
        """Return whether the kernel driver was loaded anew since the library was opened; None if unknown."""
        return self.loaded_driver() != self._driver if self._driver else None

    def loaded_driver(self) -> str | None:
        """Return which loading of the kernel driver this is: empty if unknown, None if it is not loaded.

        sysfs gives the module's folder another inode number each time that it is made, and no number twice.
        """
        modules = self._sysfs_root / "module"
        try:
            return str((modules / "nvidia").stat().st_ino)
        except FileNotFoundError:
            return None if modules.is_dir() else ""
        except OSError:
            return ""

    def _opened(self) -> None:
        """Note that GPUs may have been reset while the library was closed, or with the driver."""
        before, self._driver = self._driver, self.loaded_driver()
        if self._released or (before and before != self._driver):
            self._reopened()
        self._released = False


def _initialization_error(error: pynvml.NVMLError) -> DiscoveryError:
    text = error_text(error)
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return DiscoveryError(
            f"nvml: {LIBRARY} and the loaded kernel driver are of different versions (the driver was "
            f"upgraded): start this process again, or load the new driver: {text}"
        )
    return DiscoveryError(f"nvml: the library cannot be initialized: {text}")
