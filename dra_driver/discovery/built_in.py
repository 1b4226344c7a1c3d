"""The backends that come with the driver, and how their arguments make them.

A backend's module is imported only when it is opened: nodes without NVIDIA GPUs do not pay for bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.errors import ConfigurationError
from dra_driver.ports import DeviceBackend

__all__ = ["ARGUMENTS", "BUILT_IN", "BuiltIn", "Roots"]


@dataclass(frozen=True, slots=True)
class Roots:
    """Where things are.

    Attributes:
        sysfs: ``/sys`` on a machine.
        dev: ``/dev`` on a machine.
        procfs: ``/proc`` on a machine.
        host: the host's file system; ``/`` outside of a container.
        nvidia_driver: NVIDIA's driver on the host: a path, or ``auto`` for the usual places.
    """

    sysfs: Path
    dev: Path
    procfs: Path
    host: Path = Path("/")
    nvidia_driver: str = "auto"


# Argument, roots and name of the Node → backend. They are those of ``registry.BackendFactory``.
BuiltIn = Callable[[str, Roots, str], DeviceBackend]


ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "nvml": {"mig": "to publish the MIG devices that exist"},
    "amdgpu": {},
    "intel": {"integrated": "to include GPUs that are parts of a processor"},
    "rdma": {"umad": "to give containers access to the subnet manager"},
}
"""The arguments of backends that take no name and no path, and what for; the chart knows them from here."""


def _check(name: str, arg: str) -> None:
    """Check the argument of such a backend."""
    known = ARGUMENTS[name]
    if not arg or arg in known:
        return
    allowed = [f"--backend {name}={one} {why}" for one, why in known.items()]
    if not allowed:
        raise ConfigurationError(
            f"--backend {name}={arg[:80]}: {name} takes no argument; allowed is --backend {name}"
        )
    raise ConfigurationError(
        f"--backend {name}={arg[:80]}: allowed are {', and '.join([f'--backend {name}', *allowed])}"
    )


def _nvml(arg: str, roots: Roots, node_name: str) -> DeviceBackend:
    from dra_driver.discovery.nvidia.backend import NvmlBackend

    _check("nvml", arg)
    whole = NvmlBackend(
        sysfs_root=roots.sysfs,
        dev_root=roots.dev,
        proc_root=roots.procfs,
        host_root=roots.host,
        driver_root=roots.nvidia_driver,
    )
    if not arg:
        return whole
    from dra_driver.discovery.nvidia.instances import NvmlInstancesBackend

    return NvmlInstancesBackend(whole, proc_root=roots.procfs)


def _simulated(arg: str, roots: Roots, node_name: str) -> DeviceBackend:
    from dra_driver.discovery.simulated.backend import SimulatedBackend
    from dra_driver.discovery.simulated.profile import built_in_profiles

    if not arg:
        raise ConfigurationError(
            "--backend simulated: a profile is missing: allowed are simulated=NAME with "
            f"{', '.join(built_in_profiles())}, or simulated=PATH of a YAML file"
        )
    return SimulatedBackend(arg, seed=node_name)


def _amdgpu(arg: str, roots: Roots, node_name: str) -> DeviceBackend:
    from dra_driver.discovery.amd.backend import AmdGpuBackend

    _check("amdgpu", arg)
    return AmdGpuBackend(sysfs_root=roots.sysfs, dev_root=roots.dev)


def _intel(arg: str, roots: Roots, node_name: str) -> DeviceBackend:
    from dra_driver.discovery.intel.backend import IntelGpuBackend

    _check("intel", arg)
    return IntelGpuBackend(sysfs_root=roots.sysfs, dev_root=roots.dev, integrated=bool(arg))


def _rdma(arg: str, roots: Roots, node_name: str) -> DeviceBackend:
    from dra_driver.discovery.rdma.backend import RdmaBackend

    _check("rdma", arg)
    return RdmaBackend(sysfs_root=roots.sysfs, dev_root=roots.dev, umad=bool(arg))


def _generic(arg: str, roots: Roots, node_name: str) -> DeviceBackend:
    from dra_driver.discovery.generic.backend import GenericBackend

    if not arg:
        raise ConfigurationError(
            "--backend generic: a file is missing: allowed is generic=PATH of a YAML file"
        )
    return GenericBackend(Path(arg), sysfs_root=roots.sysfs, dev_root=roots.dev)


BUILT_IN: Final[Mapping[str, BuiltIn]] = {
    "nvml": _nvml,
    "amdgpu": _amdgpu,
    "intel": _intel,
    "rdma": _rdma,
    "generic": _generic,
    "simulated": _simulated,
}
