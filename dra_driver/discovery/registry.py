"""Which backends there are, and how ``--backend NAME[=ARG]`` opens one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from dra_driver.api import names
from dra_driver.discovery.built_in import BUILT_IN, Roots
from dra_driver.errors import ConfigurationError, DraError
from dra_driver.ports import DeviceBackend
from dra_driver.suggestions import did_you_mean

__all__ = [
    "ENTRY_POINTS",
    "GPU_BACKENDS",
    "NIC_BACKENDS",
    "BackendFactory",
    "DemoFactory",
    "backend_names",
    "demo_spec",
    "hardware_backends",
    "open_backend",
    "open_backends",
]

ENTRY_POINTS = "dra_driver.backends"

_PROCFS: Final = Path("/proc")
_HOST: Final = Path("/")


class BackendFactory(Protocol):
    """A function that makes a backend; what an entry point of the group ``dra_driver.backends`` names.

    The name of the entry point is the name for ``--backend``. A factory does not look at hardware:
    ``discover`` does. It raises ``ConfigurationError`` where the argument is wrong.
    """

    def __call__(self, arg: str, *, sysfs_root: Path, dev_root: Path, node_name: str) -> DeviceBackend:
        """Make a backend.

        Args:
            arg: what follows ``=`` in ``--backend``; empty where there is none.
            sysfs_root: where sysfs is mounted, ``/sys`` on a machine.
            dev_root: where device nodes are looked for, ``/dev`` on a machine.
            node_name: name of the Node.
        """
        ...


@runtime_checkable
class DemoFactory(Protocol):
    """A ``BackendFactory`` that can also make a backend of devices that do not exist."""

    def demo_argument(self, folder: Path) -> str:
        """Return the argument for it: what ``dra-driver demo --backend NAME`` opens where none is given.

        Args:
            folder: an empty folder for the files of such devices; agents of several nodes share it.
        """
        ...


# Looked at where no --backend is given: GPUs, and what a driver of another name publishes.
GPU_BACKENDS: Final = ("nvml", "amdgpu", "intel")
NIC_BACKENDS: Final = ("rdma",)


def _third_party() -> dict[str, metadata.EntryPoint]:
    # A built-in name cannot be taken over by whatever happens to be installed.
    return {e.name: e for e in metadata.entry_points(group=ENTRY_POINTS) if e.name not in BUILT_IN}


def backend_names() -> tuple[str, ...]:
    """Return the names that ``--backend`` accepts."""
    return (*BUILT_IN, *sorted(_third_party()))


def open_backend(
    spec: str,
    *,
    sysfs_root: Path,
    dev_root: Path,
    node_name: str,
    procfs_root: Path = _PROCFS,
    host_root: Path = _HOST,
    nvidia_driver_root: Path | str = "auto",
) -> DeviceBackend:
    """Open the backend of ``--backend NAME[=ARG]``. It looks at nothing yet.

    Args:
        spec: name and argument.
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for.
        node_name: name of the Node.
        procfs_root: where procfs is mounted; backends of third parties do not get it.
        host_root: where the host's file system is; likewise.
        nvidia_driver_root: where NVIDIA's driver is on the host: a path, or ``auto`` for the usual places.

    Raises:
        ConfigurationError: the name is unknown, the argument is wrong, or a third party's backend cannot be
            loaded.
    """
    name, _, arg = spec.partition("=")
    if name in BUILT_IN:
        return BUILT_IN[name](
            arg, Roots(sysfs_root, dev_root, procfs_root, host_root, str(nvidia_driver_root)), node_name
        )
    entry = _third_party().get(name)
    if entry is None:
        raise ConfigurationError(
            f"--backend {spec[:80]}: {name[:80]!r} is unknown; allowed are {', '.join(backend_names())}"
            f"{did_you_mean(name, backend_names())}"
        )
    factory = _loaded(spec, entry)
    try:
        made = factory(arg, sysfs_root=sysfs_root, dev_root=dev_root, node_name=node_name)
        if lacking := _lacking(made):
            raise ConfigurationError(
                f"--backend {spec[:80]}: what {entry.value} makes ({type(made).__name__}) is no "
                f"DeviceBackend: it lacks {', '.join(lacking)}"
            )
        return made
    except DraError:
        raise
    except Exception as e:
        raise ConfigurationError(
            f"--backend {spec[:80]}: {entry.value} makes no backend: {type(e).__name__}: {e}"
        ) from e


def _lacking(made: object) -> list[str]:
    """Return which parts of a ``DeviceBackend`` an object lacks."""
    name = getattr(made, "name", None)
    lacking = [] if isinstance(name, str) and name else ["name (a text)"]
    return lacking + [f"{m}()" for m in ("discover", "close") if not callable(getattr(made, m, None))]


def demo_spec(spec: str, folder: Path) -> str:
    """Return what a cluster of nodes that do not exist opens for ``--backend NAME[=ARG]``.

    Args:
        spec: as given. Where it has no argument, a third party's backend may have one for this
            (``DemoFactory``).
        folder: an empty folder for the files of its devices.

    Raises:
        ConfigurationError: as ``open_backend``.
    """
    name, _, arg = spec.partition("=")
    if arg or name in BUILT_IN or (entry := _third_party().get(name)) is None:
        return spec
    factory: object = _loaded(spec, entry)
    return f"{name}={factory.demo_argument(folder)}" if isinstance(factory, DemoFactory) else spec


def _loaded(spec: str, entry: metadata.EntryPoint) -> BackendFactory:
    try:
        factory: BackendFactory = entry.load()
    except Exception as e:
        # Another's module may raise anything at import.
        raise ConfigurationError(
            f"--backend {spec[:80]}: {entry.value} cannot be loaded: {type(e).__name__}: {e}"
        ) from e
    return factory


def hardware_backends(driver: str) -> tuple[str, ...]:
    """Return the backends that a driver of this name uses where no ``--backend`` is given."""
    return NIC_BACKENDS if driver == names.RDMA_DRIVER_NAME else GPU_BACKENDS


def open_backends(
    specs: Sequence[str],
    *,
    sysfs_root: Path,
    dev_root: Path,
    node_name: str,
    procfs_root: Path = _PROCFS,
    host_root: Path = _HOST,
    nvidia_driver_root: Path | str = "auto",
) -> tuple[DeviceBackend, ...]:
    """Open the backends of several ``--backend``; for the arguments see ``open_backend``.

    Raises:
        ConfigurationError: one of them is unknown or has a wrong argument; all findings at once.
    """
    opened: list[DeviceBackend] = []
    findings: list[str] = []
    for spec in specs:
        try:
            opened.append(
                open_backend(
                    spec,
                    sysfs_root=sysfs_root,
                    dev_root=dev_root,
                    node_name=node_name,
                    procfs_root=procfs_root,
                    host_root=host_root,
                    nvidia_driver_root=nvidia_driver_root,
                )
            )
        except ConfigurationError as e:
            findings += e.findings
    if findings:
        raise ConfigurationError(findings)
    return tuple(opened)
