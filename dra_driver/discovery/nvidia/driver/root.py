"""Where NVIDIA's driver is: on the host itself, or below a folder that a container or an installer filled.

The GPU Operator, also on OpenShift, mounts the file system of its driver container at ``/run/nvidia/driver``;
GKE unpacks the driver to ``/home/kubernetes/bin/nvidia``, Flatcar to ``/opt/nvidia``, Container-Optimized OS
to ``/var/lib/nvidia``. Talos has its libraries on the host, in folders of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.bus.pci import exists, read_sysfs
from dra_driver.discovery.nvidia.driver import ld_cache

__all__ = [
    "AUTO",
    "LEADERS",
    "LIBRARY",
    "LIBRARY_FOLDERS",
    "PROGRAM_FOLDERS",
    "DriverRoot",
    "HostFile",
    "cached_folders",
    "candidates",
    "find_driver_root",
    "is_script",
    "program_folders",
]

AUTO: Final = "auto"
LIBRARY: Final = "libnvidia-ml.so.1"

# The host's own driver first, as NVIDIA's operator decides where both are there.
_ROOTS: Final = (
    "/",
    "/run/nvidia/driver",
    "/home/kubernetes/bin/nvidia",
    "/opt/nvidia",
    "/opt/nvidia/current",
    "/var/lib/nvidia",
)
# The operator writes the root here that it has validated (hostPaths.driverInstallDir).
_OPERATORS_CHOICE: Final = "run/nvidia/validations/driver-ready"
_CHOICE: Final = re.compile(r"^NVIDIA_DRIVER_ROOT=[\"']?(/[A-Za-z0-9._/-]{1,255})[\"']?\s*$", re.MULTILINE)

# Any of them shows where the others are.
LEADERS: Final = ("libcuda.so", "libnvidia-ml.so")
LIBRARY_FOLDERS: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib64",
    "lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    # Talos, whose own C library is musl.
    "usr/local/glibc/usr/lib",
    "usr/local/glibc/lib",
    "usr/local/lib",
)
PROGRAM_FOLDERS: Final = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin", "bin", "sbin", "opt/bin")
# Its presence shows that a folder has the driver's nodes: an unpacked image may have an empty ``/dev``.
_DRIVER_NODE: Final = "nvidiactl"
_DEV: Final = "/dev/"
_MOST_LINKS: Final = 40
_VERSION: Final = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+){1,3})$")


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file of the driver, by its three names.

    Attributes:
        host: path on the host, without symbolic links; what a CDI document mounts.
        here: path at which this process sees it.
        container: path at which a container expects it: below the driver's root, links not followed.
    """

    host: str
    here: Path
    container: str


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """The folder of the host below which the driver's files are.

    Attributes:
        path: on the host; ``/`` where the driver is installed on the host itself.
        host_root: where this process sees the host's file system.
    """

    path: str
    host_root: Path = Path("/")

    @property
    def here(self) -> Path:
        """The root as this process sees it."""
        return self.host_root / self.path.strip("/")

    @property
    def version(self) -> str:
        """Version of the driver's files, by the name of its library; empty if they do not tell."""
        library = self.library(LIBRARY)
        found = _VERSION.search(library.host) if library is not None else None
        return found[1] if found else ""

    def file(self, path: str) -> HostFile | None:
        """Return the file at a path below the root; None if there is none.

        Links are followed as a process sees them whose root this is: absolute ones begin at it again.
        """
        place = _resolved(self.here, path)
        if place is None:
            return None
        inside = "/".join(place.relative_to(self.here).parts)
        prefix = self.path.rstrip("/")
        return HostFile(f"{prefix}/{inside}", place, "/" + path.strip("/"))

    def library(self, name: str) -> HostFile | None:
        """Return a library by its file name, such as ``libcuda.so.1``; None if it is in no usual folder."""
        found = (self.file(f"{folder}/{name}") for folder in self.library_folders())
        return next((f for f in found if f is not None), None)

    def program(self, name: str) -> HostFile | None:
        """Return a program by its file name, such as ``nvidia-smi``; None if it is in no usual folder."""
        found = (self.file(f"{folder}/{name}") for folder in program_folders(cached_folders(self.here)))
        return next((f for f in found if f is not None and not is_script(f.here)), None)

    def library_folders(self) -> Iterator[str]:
        """Yield the folders below the root that may have libraries, without a slash at the beginning.

        Those come first in which the linker's cache of the root lists libraries of the driver.
        """
        yield from dict.fromkeys((*cached_folders(self.here), *LIBRARY_FOLDERS))

    def device_node(self, path: str) -> HostFile:
        """Return a device node by its path in a container, such as ``/dev/nvidia0``; it need not exist.

        The root's own ``/dev`` is preferred where it has the driver's nodes: those that a driver container
        makes appear there only.
        """
        name = path.removeprefix(_DEV)
        own = f"{self.path.rstrip('/')}{_DEV}"
        if self.has_dev and exists(self.here / "dev" / name):
            return HostFile(own + name, self.here / "dev" / name, path)
        return HostFile(path, self.host_root / "dev" / name, path)

    @property
    def has_dev(self) -> bool:
        """Whether the root has a ``/dev`` of its own with the driver's nodes; false for the host itself."""
        return self.path != "/" and exists(self.here / "dev" / _DRIVER_NODE)


def cached_folders(root: Path) -> Iterator[str]:
    """Yield the folders below a root in which the linker's cache there lists libraries of the driver."""
    try:
        data = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return
    for name, path in ld_cache.libraries(data):
        folder = path.rpartition("/")[0].strip("/")
        if name.startswith(LEADERS) and path.startswith("/") and ".." not in folder.split("/"):
            yield folder


def program_folders(library_folders: Iterable[str]) -> Iterator[str]:
    """Yield the folders that may have the driver's programs, without a slash at the beginning.

    A driver with a folder of its own (``usr/local/nvidia/lib64``) has its programs beside it. They come
    first: of the same name in ``usr/bin`` there may be a script that starts them.
    """
    own = (folder.rpartition("/")[0] for folder in library_folders if folder not in LIBRARY_FOLDERS)
    yield from dict.fromkeys((*(f"{parent}/bin" for parent in own if parent), *PROGRAM_FOLDERS))


def is_script(file: Path) -> bool:
    """Return whether a program is a script: what it starts would not be found in a container.

    The driver's programs are none. Of a file that cannot be read it is not known, and not assumed.
    """
    try:
        with file.open("rb") as opened:
            return opened.read(2) == b"#!"
    except OSError:
        return False


def candidates(wanted: str, host_root: Path) -> tuple[str, ...]:
    """Return the roots on the host that are looked at, in order.

    Args:
        wanted: the root as configured: a path, or ``auto``.
        host_root: where this process sees the host's file system.
    """
    if wanted != AUTO:
        return (wanted,)
    try:
        choice = (host_root / _OPERATORS_CHOICE).read_text(encoding="utf-8")[:4096]
    except (OSError, UnicodeDecodeError):
        choice = ""
    chosen = [c for c in _CHOICE.findall(choice) if ".." not in c.split("/")]
    return tuple(dict.fromkeys((_ROOTS[0], *chosen, *_ROOTS[1:])))


def find_driver_root(
    wanted: str = AUTO, *, host_root: Path = Path("/"), sysfs_root: Path = Path("/sys")
) -> DriverRoot | None:
    """Return the root that has the driver's libraries; None if none has. Reads a few folders.

    Of several, the one whose version is that of the loaded kernel module: files of a driver that was there
    before do not work with it. If none is, or no module is loaded, the first.

    Args:
        wanted: the root as configured: a path on the host, or ``auto`` for the usual places.
        host_root: where this process sees the host's file system.
        sysfs_root: where sysfs is mounted; it shows the version of the module.
    """
    roots = (DriverRoot(path, host_root) for path in candidates(wanted, host_root))
    found = [root for root in roots if root.library(LIBRARY) is not None]
    loaded = read_sysfs(sysfs_root / "module" / "nvidia" / "version")
    same = (root for root in found if loaded and root.version == loaded)
    return next(same, found[0] if found else None)


def _resolved(root: Path, path: str) -> Path | None:
    """Return the file that a path below a root leads to, as seen from outside; None if there is no file."""
    place, links = root, 0
    rest = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    try:
        while rest:
            part = rest.pop()
            if part == "..":
                place = place.parent if place != root else root
            elif (place / part).is_symlink():
                links += 1
                if links > _MOST_LINKS:
                    return None
                target = (place / part).readlink()
                place = root if target.is_absolute() else place
                rest += [p for p in reversed(target.parts) if p != "/"]
            else:
                place /= part
        return place if place.is_file() else None
    except OSError:
        return None
