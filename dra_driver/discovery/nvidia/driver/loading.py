"""Loads NVIDIA's management library: as the linker finds it, or from the driver's root on the host."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Final

import pynvml

from dra_driver.discovery.core.bus.pci import NVIDIA, exists
from dra_driver.discovery.core.host import unserved
from dra_driver.discovery.core.problems import DriverMissing, HardwareAbsent
from dra_driver.discovery.nvidia.driver.root import AUTO, LIBRARY, DriverRoot, candidates, find_driver_root

__all__ = ["Driver", "module_loaded"]

_RUNTIME: Final = (
    "run the agent with NVIDIA's container runtime (runtimeClassName: nvidia; in the chart "
    "kubeletPlugin.nvidia.runtimeClassName)"
)
_ROOT: Final = (
    "set the driver's root on the host (--nvidia-driver-root; in the chart kubeletPlugin.nvidia.driverRoot)"
)
_loading = threading.Lock()


def module_loaded(sysfs_root: Path) -> bool | None:
    """Return whether NVIDIA's kernel module is loaded; None if that cannot be seen."""
    modules = sysfs_root / "module"
    try:
        return (modules / "nvidia").is_dir() if modules.is_dir() else None
    except OSError:
        return None


class Driver:
    """NVIDIA's driver on this machine, as far as it is seen without its library.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: where the host's device nodes are looked for.
        host_root: where the host's file system is.
        wanted: the driver's root on the host as configured: a path, or ``auto``.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path, host_root: Path, wanted: str = AUTO) -> None:
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        self._host_root = host_root
        self._wanted = wanted

    def root(self) -> DriverRoot | None:
        """Return the root that has the driver's libraries now; None if none has."""
        return find_driver_root(self._wanted, host_root=self._host_root, sysfs_root=self._sysfs_root)

    def load(self) -> None:
        """Load the library, unless this process has loaded it before.

        A root that is named goes first; ``auto`` leaves it to the linker first, because NVIDIA's container
        runtime puts the library where the linker looks.

        Raises:
            DriverMissing: it cannot be loaded, and NVIDIA GPUs are on the PCI bus.
            HardwareAbsent: it cannot be loaded, and there are no GPUs.
        """
        with _loading:
            if pynvml.nvmlLib is not None:
                return
            root = self.root()
            found = root.library(LIBRARY) if root is not None else None
            below = [str(found.here)] if found is not None else []
            places = [LIBRARY, *below] if self._wanted == AUTO else [*below, LIBRARY]
            errors: list[str] = []
            for place in places:
                try:
                    # pynvml knows the linker's way only; what it finds set here, it uses.
                    pynvml.nvmlLib = ctypes.CDLL(place)
                    return
                except OSError as e:
                    errors.append(str(e))
        raise self._absent(f"{LIBRARY} cannot be loaded ({'; '.join(errors)})", self._searched())

    def not_loaded(self, text: str) -> HardwareAbsent:
        """Return the error for a library that says that the kernel driver is not loaded.

        Args:
            text: the library's words.
        """
        return self._absent(
            f"{LIBRARY} is there, but NVIDIA's kernel driver is not loaded, or its device nodes are not "
            f"visible: {text}",
            "",
        )

    def node(self, path: str, root: DriverRoot | None) -> tuple[Path, str]:
        """Return where a device node is looked for, and its path on the host where that is another one.

        Args:
            path: in a container, such as ``/dev/nvidia0``.
            root: the driver's, if it is known.
        """
        if root is not None:
            node = root.device_node(path)
            if node.host != path:
                return node.here, node.host
        return self._dev_root / path.removeprefix("/dev/"), ""

    def _searched(self) -> str:
        places = ", ".join(candidates(self._wanted, self._host_root))
        where = "" if self._host_root == Path("/") else f", seen below {self._host_root}"
        return f"looked for by the linker and on the host in {places}{where}"

    def _absent(self, why: str, searched: str) -> HardwareAbsent:
        looked = f"; {searched}" if searched else ""
        functions = unserved.display_functions(self._sysfs_root, NVIDIA)
        if not functions:
            return HardwareAbsent(f"nvml: {why}{looked}: NVIDIA's driver is not installed here")
        if module_loaded(self._sysfs_root) is False:
            to_do = (
                "NVIDIA's kernel driver is not loaded: install it on the node, or wait for the container "
                "that installs it"
            )
        elif not searched and not exists(Path("/dev/nvidiactl")):
            to_do = (
                "the kernel driver is loaded, but this process has no /dev/nvidiactl: "
                f"{_RUNTIME}, or privileged (kubeletPlugin.nvidia.privileged)"
            )
        else:
            to_do = f"the kernel driver is loaded: {_RUNTIME}, or {_ROOT}"
        return DriverMissing(f"nvml: {unserved.sentence('NVIDIA', functions)}, but {why}{looked}; {to_do}")
