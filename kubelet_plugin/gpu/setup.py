"""Puts together what changes hardware: controls of the backends, MPS daemons, the effects on both."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dra_driver.discovery.core.control import ToolPaths, control_of
from dra_driver.discovery.core.pci_binding import PciFunctions
from dra_driver.ports import DeviceBackend, GpuControl, Pausable
from kubelet_plugin.config import Configuration
from kubelet_plugin.gpu.bindings import Bindings
from kubelet_plugin.gpu.hardware import GpuHardware
from kubelet_plugin.gpu.mps import Daemons, Launcher, MpsDaemons
from kubelet_plugin.gpu.simulated_daemons import SimulatedDaemons

__all__ = ["HardwareSetup", "set_up"]

_THREADS = 4


@dataclass(frozen=True, slots=True)
class HardwareSetup:
    """What the plugin needs to change hardware.

    Attributes:
        controls: of each backend, in order; None where it changes nothing.
        executor: for calls that block; a thread of it may hang with a library.
    """

    controls: tuple[GpuControl | None, ...]
    daemons: Daemons
    hardware: GpuHardware
    executor: ThreadPoolExecutor

    def close(self) -> None:
        """Ends the threads; one that hangs is not waited for."""
        self.executor.shutdown(wait=False, cancel_futures=True)


def set_up(
    configuration: Configuration,
    backends: Sequence[DeviceBackend],
    daemons: Daemons | None = None,
    functions: PciFunctions | None = None,
) -> HardwareSetup:
    """Opens nothing yet: libraries are opened by the first call that needs them."""
    # Beside real hardware the daemons are real, and simulated GPUs do without.
    simulated = bool(backends) and all(b.name == "simulated" for b in backends)
    places = ToolPaths(
        nvidia_smi=configuration.nvidia_smi,
        proc_root=configuration.procfs_root,
        state_dir=configuration.state,
        simulated_daemons=simulated,
    )
    controls = tuple(control_of(backend, places) for backend in backends)
    daemons = daemons or _daemons(configuration, simulated=simulated)
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="hardware")
    functions = functions or PciFunctions(
        configuration.sysfs_root, configuration.dev_root, configuration.procfs_root
    )
    bindings = Bindings(functions, [b for b in backends if isinstance(b, Pausable)])
    hardware = GpuHardware([c for c in controls if c is not None], daemons, executor, bindings=bindings)
    return HardwareSetup(controls, daemons, hardware, executor)


def _daemons(configuration: Configuration, *, simulated: bool) -> Daemons:
    folder = configuration.state / "mps"
    if simulated:
        return SimulatedDaemons(folder)
    return MpsDaemons(
        folder, control=configuration.mps_control, launcher=Launcher(configuration.mps_launcher)
    )
