"""Puts together what changes hardware: controls of the backends, MPS daemons, the effects on both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dra_driver.discovery import is_simulated
from dra_driver.discovery.core.bus.pci_binding import PciFunctions
from dra_driver.discovery.core.control import DaemonSource, ToolPaths, control_of
from dra_driver.discovery.nvidia.injection.material import NvidiaMaterial
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import Daemons, DeviceBackend, GpuControl, Pausable
from kubelet_plugin.config import Configuration
from kubelet_plugin.gpu.bindings import Bindings
from kubelet_plugin.gpu.hardware import GpuHardware
from kubelet_plugin.gpu.mps import Launcher, MpsDaemons

__all__ = ["HardwareSetup", "completion", "daemon_folder", "set_up"]

_THREADS = 4


@dataclass(frozen=True, slots=True)
class HardwareSetup:
    """What the plugin needs to change hardware.

    Attributes:
        controls: of each backend, in order; None where it changes nothing.
        functions: the PCI functions of the machine.
        executor: for calls that block and are not to a control; a thread of it may hang.
    """

    controls: tuple[GpuControl | None, ...]
    daemons: Daemons
    hardware: GpuHardware
    functions: PciFunctions
    executor: ThreadPoolExecutor

    def close(self) -> None:
        """End the threads; one that hangs is not waited for."""
        self.hardware.calls.close()
        self.executor.shutdown(wait=False, cancel_futures=True)


def set_up(
    configuration: Configuration,
    backends: Sequence[DeviceBackend],
    functions: PciFunctions | None = None,
) -> HardwareSetup:
    """Make what changes hardware. Libraries are opened by the first call that needs them."""
    own = _own_daemons(configuration, backends)
    places = ToolPaths(
        nvidia_smi=configuration.nvidia_smi,
        proc_root=configuration.procfs_root,
        state_dir=configuration.state,
        own_daemons=own is not None,
    )
    controls = tuple(control_of(backend, places) for backend in backends)
    daemons = own if own is not None else _mps_daemons(configuration)
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="hardware")
    functions = functions or PciFunctions(
        configuration.sysfs_root, configuration.dev_root, configuration.procfs_root
    )
    bindings = Bindings(functions, [b for b in backends if isinstance(b, Pausable)])
    hardware = GpuHardware(
        [c for c in controls if c is not None],
        daemons,
        executor,
        bindings=bindings,
        locks=configuration.state / "gpus",
    )
    return HardwareSetup(controls, daemons, hardware, functions, executor)


def completion(
    configuration: Configuration,
) -> Callable[[Sequence[DiscoveredDevice]], Sequence[DiscoveredDevice]]:
    """Return what adds the files of the vendors' drivers to what backends find. It blocks."""
    return NvidiaMaterial(
        host_root=configuration.host_root,
        driver_root=configuration.nvidia_driver_root,
        hook=configuration.nvidia_cdi_hook,
        sysfs_root=configuration.sysfs_root,
        dev_root=configuration.dev_root,
        proc_root=configuration.procfs_root,
    ).complete


def _own_daemons(configuration: Configuration, backends: Sequence[DeviceBackend]) -> Daemons | None:
    """Return the daemons that the backends bring; None where one of them needs those of the vendor's tools.

    There is one set of daemons for all devices of a node, so that beside real hardware simulated devices do
    without. Other devices that do not exist need none of the tools.
    """
    sources = [b for b in backends if isinstance(b, DaemonSource)]
    if not sources or any(b not in sources and not is_simulated(b) for b in backends):
        return None
    return sources[0].daemons(daemon_folder(configuration))


def _mps_daemons(configuration: Configuration) -> Daemons:
    return MpsDaemons(
        daemon_folder(configuration),
        control=configuration.mps_control,
        launcher=Launcher(configuration.mps_launcher),
        shared_memory=configuration.mps_shared_memory,
    )


def daemon_folder(configuration: Configuration) -> Path:
    """Return the directory of MPS daemons, which stays when the agent is taken off."""
    return configuration.state / "mps"
