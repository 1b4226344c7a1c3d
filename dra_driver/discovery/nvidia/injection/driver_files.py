"""Finds the files of NVIDIA's driver below a root, and says for which of its capabilities each one is.

The driver's libraries carry its version as their last name; all of one version belong together. What is not
there is left out: without libraries a container still gets its device nodes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.host.host_view import HostView
from dra_driver.discovery.nvidia.driver.root import (
    LEADERS,
    LIBRARY_FOLDERS,
    PROGRAM_FOLDERS,
    cached_folders,
    is_script,
    program_folders,
)
from dra_driver.discovery.nvidia.injection import capabilities
from dra_driver.discovery.nvidia.injection.elf import read_library
from dra_driver.discovery.nvidia.injection.versions import is_version, same_version

__all__ = ["DriverFile", "DriverFiles", "DriverLibrary", "DriverPlace", "find_driver"]

_FOLDERS: Final = (
    *LIBRARY_FOLDERS,
    "usr/lib/i386-linux-gnu",
    "usr/lib/i386-linux-gnu/nvidia/current",
    "usr/lib32",
)
_CONFIGURATION_FOLDERS: Final = ("etc", "usr/local/share", "usr/share")
_FIRMWARE_FOLDERS: Final = ("lib/firmware", "usr/lib/firmware")
_X_FOLDERS: Final = tuple(
    f"xorg/modules/{updates}{kind}" for updates in ("", "updates/") for kind in ("drivers", "extensions")
)
_MOST_FILES: Final = 512
# Of the driver, but with versions of their own.
_OTHERWISE_NUMBERED: Final = re.compile(
    r"libnvidia-egl-(?:gbm|wayland2?|xcb|xlib)\.so\.[0-9]+(?:\.[0-9]+)+|libnvidia-nvvm70\.so\.[0-9.]+"
)
# Programs look for these names, and not every installation has them: library → link, and what it leads to; a
# target without name is the library itself.
_LINKS: Final[Mapping[str, tuple[str, str]]] = {
    "libcuda": ("libcuda.so", "libcuda.so.1"),
    "libGLX_nvidia": ("libGLX_indirect.so.0", ""),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so", ""),
    "libglxserver_nvidia": ("libglxserver_nvidia.so", ""),
}


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """Where the driver is.

    Attributes:
        on_host: its path on the host; ``/`` where it is installed on the host itself.
        seen: where this process sees it.
        host: what this process sees of the host.
        kernel: release of the running kernel, by which a folder of firmware may be named.
    """

    on_host: str
    seen: Path
    host: HostView
    kernel: str = ""

    def host_path(self, path: str) -> str:
        """Return the path on the host of what lies at ``path`` below the driver's root."""
        return f"{self.on_host.rstrip('/')}/{path.lstrip('/')}"

    def has(self, path: str) -> bool:
        """Return whether there is a file. A link whose end is not seen counts as a file."""
        return os.path.lexists(self.seen / path) and not self.host.absent(self.host_path(path))


@dataclass(frozen=True, slots=True)
class DriverLibrary:
    """A library of the driver.

    Attributes:
        folder: where it is, below the driver's root.
        below: what of the folder follows the linker's: ``vdpau``; empty for most.
        links: names beside it, each with what it leads to there.
        fixed: it is looked for at this very path, not by the linker.
    """

    folder: str
    name: str
    capabilities: frozenset[str]
    below: str = ""
    links: tuple[tuple[str, str], ...] = ()
    bits: int = 64
    fixed: bool = False

    @property
    def path(self) -> str:
        """Its path below the driver's root."""
        return "/".join(part for part in (self.folder, self.below, self.name) if part)


@dataclass(frozen=True, slots=True)
class DriverFile:
    """Another file of the driver.

    Attributes:
        path: below the driver's root.
        place: where a container finds it.
        capabilities: of the driver; empty where every container gets it.
    """

    path: str
    place: str
    capabilities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """All files of one driver.

    Attributes:
        version: as it is written in the names of the files.
        folders: where its libraries are, below its root.
    """

    version: str
    folders: tuple[str, ...]
    libraries: tuple[DriverLibrary, ...]
    others: tuple[DriverFile, ...]


def find_driver(root: DriverPlace, version: str) -> DriverFiles | None:
    """Return the files of the driver; None where it has no libraries.

    Args:
        root: where to look.
        version: of the driver, as far as its numbers count (``570.148.8`` is ``570.148.08``); if empty, any.
    """
    folders = tuple(_folders(root.seen))
    text = _text(root.seen, folders, version)
    if text is None:
        return None
    libraries = [
        library
        for folder in folders
        for below in ("", "vdpau")
        for library in _libraries(root.seen, folder, below, text)
    ]
    native = tuple(dict.fromkeys(lib.folder for lib in libraries if lib.bits == 64))
    libraries += _x_modules(root.seen, native, text)
    others = (*_programs(root, native), *_configurations(root), *_firmware(root, text))
    return DriverFiles(text, native, tuple(libraries[:_MOST_FILES]), others)


def _folders(root: Path) -> Iterator[str]:
    """Return the folders that there are, each under one of its names."""
    seen: set[tuple[int, int]] = set()
    for folder in dict.fromkeys((*_FOLDERS, *cached_folders(root))):
        try:
            # A link may lead out of the root, to files of this process.
            inside = (root / folder).resolve().is_relative_to(root.resolve())
            status = (root / folder).stat()
        except OSError:
            continue
        if inside and (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            yield folder


def _text(root: Path, folders: tuple[str, ...], version: str) -> str | None:
    """Return the version as it is written in the names of the libraries."""
    for folder in folders:
        for leader in LEADERS:
            for file in sorted((root / folder).glob(f"{leader}.*")):
                text = file.name.removeprefix(f"{leader}.")
                if is_version(text) and same_version(text, version) and file.is_file():
                    return text
    return None


def _libraries(root: Path, folder: str, below: str, version: str) -> Iterator[DriverLibrary]:
    place = root / folder / below
    try:
        entries = sorted(place.iterdir())
    except OSError:
        return
    links: dict[str, list[str]] = {}
    for entry in entries:
        if entry.is_symlink():
            links.setdefault(_target(entry), []).append(entry.name)
    for entry in entries:
        of_driver = entry.name.endswith(f".so.{version}")
        numbered = _OTHERWISE_NUMBERED.fullmatch(entry.name) is not None and not entry.is_symlink()
        if (of_driver or numbered) and entry.is_file():
            yield _library(entry, folder, below, links.get(entry.name, []))


def _library(file: Path, folder: str, below: str, beside: list[str]) -> DriverLibrary:
    headers = read_library(file)
    bits = headers.bits if headers is not None else 64
    names = dict.fromkeys(beside, file.name)
    if headers is not None and headers.soname not in ("", file.name):
        names.setdefault(headers.soname, file.name)
    link, target = _LINKS.get(file.name.partition(".so")[0], ("", ""))
    if link:
        names[link] = target or file.name
    own = capabilities.of_library(file.name)
    return DriverLibrary(
        folder=folder,
        name=file.name,
        capabilities=own if bits == 64 else frozenset({capabilities.COMPAT32}),
        below=below,
        links=tuple(names.items()),
        bits=bits,
    )


def _target(link: Path) -> str:
    """Return the file of the same folder that a chain of links ends at; empty if it leads elsewhere."""
    for _ in range(8):
        try:
            target = link.readlink()
        except OSError:
            return link.name
        if len(target.parts) != 1:
            return ""
        link = link.parent / target
    return ""


def _x_modules(root: Path, folders: tuple[str, ...], version: str) -> Iterator[DriverLibrary]:
    """Return the modules of the X server. A configuration that is given as well names their folder."""
    places = [f"{f}/{x}" for f in folders for x in ("nvidia/xorg", *_X_FOLDERS)]
    places += [f"{f}/{x}" for f in ("usr/lib", "usr/lib64") for x in _X_FOLDERS]
    for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}"):
        folder = next((p for p in dict.fromkeys(places) if (root / p / name).is_file()), None)
        if folder is None:
            continue
        link = _LINKS.get(name.partition(".so")[0])
        yield DriverLibrary(
            folder=folder,
            name=name,
            capabilities=frozenset({capabilities.DISPLAY}),
            links=((link[0], name),) if link is not None else (),
            fixed=True,
        )


def _programs(root: DriverPlace, library_folders: Sequence[str]) -> Iterator[DriverFile]:
    folders = tuple(program_folders(library_folders))
    for program, capability in capabilities.PROGRAMS.items():
        for folder in folders:
            path = f"{folder}/{program}"
            if root.has(path) and not is_script(root.seen / path):
                # Where an image's PATH leads.
                place = folder if folder in PROGRAM_FOLDERS else PROGRAM_FOLDERS[0]
                yield DriverFile(path, f"/{place}/{program}", frozenset({capability}))
                break


def _configurations(root: DriverPlace) -> Iterator[DriverFile]:
    for name, (capability, place) in capabilities.CONFIGURATIONS.items():
        for folder in _CONFIGURATION_FOLDERS:
            if root.has(f"{folder}/{name}"):
                yield DriverFile(f"{folder}/{name}", f"{place}/{name}", frozenset({capability}))
                break


def _firmware(root: DriverPlace, version: str) -> Iterator[DriverFile]:
    """Return the firmware of GSP, from the first folder that has it, in the kernel's order."""
    for folder in _FIRMWARE_FOLDERS:
        for below in (f"updates/{root.kernel}", "updates", root.kernel, ""):
            place = "/".join(part for part in (folder, below.strip("/"), "nvidia", version) if part)
            found = sorted((root.seen / place).glob("gsp*.bin"))
            if found:
                for file in found:
                    path = f"{place}/{file.name}"
                    yield DriverFile(path, f"/{path.removeprefix('usr/')}")
                return
