"""Which backends there are, and how ``--backend NAME[=ARG]`` opens one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol

import structlog

from dra_driver.api import names
from dra_driver.discovery import pci
from dra_driver.discovery.built_in import BUILT_IN, Roots
from dra_driver.discovery.control import Places, control_of
from dra_driver.discovery.problems import HardwareAbsent, Problem
from dra_driver.errors import ConfigurationError, DraError
from dra_driver.ports import DeviceBackend, DiscoveredDevice, GpuControl

__all__ = [
    "ENTRY_POINTS",
    "GPU_BACKENDS",
    "NIC_BACKENDS",
    "BackendFactory",
    "HardwareBackend",
    "backend_names",
    "hardware_backends",
    "looked_for",
    "open_backend",
    "open_hardware",
]

ENTRY_POINTS = "dra_driver.backends"

_PROCFS: Final = Path("/proc")

_VENDORS: Final = {"NVIDIA": pci.NVIDIA, "AMD": pci.AMD, "Intel": pci.INTEL}

_log = structlog.get_logger(__name__)


class BackendFactory(Protocol):
    """Makes a backend; what an entry point of the group ``dra_driver.backends`` names.

    The name of the entry point is the name for ``--backend``. A factory does not look at hardware:
    ``discover`` does. It raises ``ConfigurationError`` where the argument is wrong.
    """

    def __call__(self, arg: str, *, sysfs_root: Path, dev_root: Path, node_name: str) -> DeviceBackend:
        """A backend.

        Args:
            arg: what follows ``=`` in ``--backend``; empty where there is none.
            sysfs_root: where sysfs is mounted, ``/sys`` on a machine.
            dev_root: where device nodes are looked for, ``/dev`` on a machine.
            node_name: name of the Node.
        """
        ...


# Looked at where no --backend is given: GPUs, and what a driver of another name publishes.
GPU_BACKENDS: Final = ("nvml", "amdgpu", "intel")
NIC_BACKENDS: Final = ("rdma",)


def _third_party() -> dict[str, metadata.EntryPoint]:
    # A built-in name cannot be taken over by whatever happens to be installed.
    return {e.name: e for e in metadata.entry_points(group=ENTRY_POINTS) if e.name not in BUILT_IN}


def backend_names() -> tuple[str, ...]:
    """Names that ``--backend`` accepts."""
    return (*BUILT_IN, *sorted(_third_party()))


def open_backend(
    spec: str, *, sysfs_root: Path, dev_root: Path, node_name: str, procfs_root: Path = _PROCFS
) -> DeviceBackend:
    """The backend of ``--backend NAME[=ARG]``. It looks at nothing yet.

    Args:
        spec: name and argument.
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for.
        node_name: name of the Node.
        procfs_root: where procfs is mounted; backends of third parties are not told.

    Raises:
        ConfigurationError: the name is unknown, the argument is wrong, or a third party's backend cannot be
            loaded.
    """
    name, _, arg = spec.partition("=")
    if name in BUILT_IN:
        return BUILT_IN[name](arg, Roots(sysfs_root, dev_root, procfs_root), node_name)
    entry = _third_party().get(name)
    if entry is None:
        raise ConfigurationError(
            f"--backend {spec[:80]}: {name[:80]!r} is unknown; allowed are {', '.join(backend_names())}"
        )
    try:
        factory: BackendFactory = entry.load()
    except Exception as e:
        # Another's module may raise anything at import.
        raise ConfigurationError(
            f"--backend {spec[:80]}: {entry.value} cannot be loaded: {type(e).__name__}: {e}"
        ) from e
    return factory(arg, sysfs_root=sysfs_root, dev_root=dev_root, node_name=node_name)


class HardwareBackend:
    """Several backends as one: every kind of real hardware that this machine may have.

    A backend whose hardware or library is not there is skipped, and its words are kept in ``absent``. One
    that is broken, or that is gone after it had devices, fails the whole: half an inventory would withdraw
    the rest.
    """

    def __init__(self, backends: Sequence[DeviceBackend]) -> None:
        self._backends = tuple(backends)
        self._had_devices: set[str] = set()
        self.absent: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """``hardware``."""
        return "hardware"

    @property
    def parts(self) -> tuple[DeviceBackend, ...]:
        """The backends."""
        return self._backends

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn, of all backends that tell."""
        return tuple(p for backend in self._backends for p in getattr(backend, "problems", ()))

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Every device of every backend.

        Raises:
            DiscoveryError: a backend is broken, or has vanished since it last had devices.
        """
        devices: list[DiscoveredDevice] = []
        absent: dict[str, str] = {}
        for backend in self._backends:
            try:
                found = backend.discover()
            except HardwareAbsent as e:
                if backend.name in self._had_devices:
                    raise
                absent[backend.name] = str(e)
                continue
            if found:
                self._had_devices.add(backend.name)
            devices += found
        self.absent = absent
        return devices

    def control(self, places: Places) -> GpuControl | None:
        """The control of the first backend that has one: vendors' GPUs are told apart by their UUIDs."""
        return next((c for b in self._backends if (c := control_of(b, places)) is not None), None)

    def close(self) -> None:
        """Releases what the backends hold."""
        _close_all([b.close for b in self._backends])


def _close_all(closers: Sequence[Callable[[], None]]) -> None:
    for close in closers:
        try:
            close()
        except DraError as e:
            _log.warning("a backend could not be closed", error=str(e))


def hardware_backends(driver: str) -> tuple[str, ...]:
    """Backends that a driver of this name uses where no ``--backend`` is given."""
    return NIC_BACKENDS if driver == names.RDMA_DRIVER_NAME else GPU_BACKENDS


def open_hardware(
    *,
    sysfs_root: Path,
    dev_root: Path,
    node_name: str,
    backends: Sequence[str] = GPU_BACKENDS,
    procfs_root: Path = _PROCFS,
) -> HardwareBackend:
    """What is used where no ``--backend`` is given: every kind of real hardware that we know.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for.
        node_name: name of the Node.
        backends: which kinds, see ``hardware_backends``; without it GPUs of every vendor.
        procfs_root: where procfs is mounted.
    """
    roots = {"sysfs_root": sysfs_root, "dev_root": dev_root, "procfs_root": procfs_root}
    return HardwareBackend([open_backend(name, **roots, node_name=node_name) for name in backends])


def _looked_for(backend: DeviceBackend) -> str:
    where = getattr(backend, "looked_for", "")
    return f"{backend.name}: no devices" + (f" ({where})" if where else "")


def looked_for(backends: Sequence[DeviceBackend], *, sysfs_root: Path, dev_root: Path) -> list[str]:
    """What was looked for and what was there instead, a line each, for a machine where nothing was found.

    Call it after ``discover`` of the backends.
    """
    lines: list[str] = []
    for backend in backends:
        if isinstance(backend, HardwareBackend):
            lines += [backend.absent.get(b.name) or _looked_for(b) for b in backend.parts]
        else:
            lines.append(_looked_for(backend))
    folder = sysfs_root / "bus" / "pci" / "devices"
    try:
        vendors = [pci.display_vendor(entry) for entry in sorted(folder.iterdir())]
    except OSError as e:
        lines.append(f"sysfs: {folder}: {e.strerror or e}")
    else:
        counts = ", ".join(f"{vendors.count(number)} {name}" for name, number in _VENDORS.items())
        lines.append(f"sysfs: {folder}: {len(vendors)} PCI functions; display controllers: {counts}")
    for node in ("nvidiactl", "nvidia0"):
        state = "there" if pci.exists(dev_root / node) else "not there"
        lines.append(f"device node: {dev_root / node}: {state}")
    return lines
