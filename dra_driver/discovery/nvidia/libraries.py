"""Finds the files of NVIDIA's driver below a root: what a container needs where no toolkit has described it.

The driver's libraries carry its version as their last name; all of one version belong together. What is not
there is left out: without libraries a container still gets its device nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi import ContainerEdits, Hook, Mount
from dra_driver.discovery.nvidia.driver_root import DriverRoot

__all__ = ["HOOK_PROGRAM", "driver_material", "find_hook"]

HOOK_PROGRAM: Final = "nvidia-cdi-hook"

_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS: Final = (*_OPTIONS, "noexec")

# Any of them shows where the others are.
_LEADERS: Final = ("libnvidia-ml", "libcuda")
_PROGRAMS: Final = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_HOOK_FOLDERS: Final = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit", "opt/nvidia/toolkit")
_MOST_FILES: Final = 256
_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")


@dataclass(frozen=True, slots=True)
class _Library:
    """A library, by its path below the root, and the links beside it that lead to it."""

    path: str
    links: tuple[str, ...]


def find_hook(host_root: Path) -> str:
    """Return the path of NVIDIA's hook program on the host; empty if it is in none of the usual places."""
    for folder in _HOOK_FOLDERS:
        if (host_root / folder / HOOK_PROGRAM).is_file():
            return f"/{folder}/{HOOK_PROGRAM}"
    return ""


def driver_material(host_root: Path, driver_root: str, version: str, hook: str) -> ContainerEdits:
    """Return mounts and hooks for the driver's files; empty where there are none.

    With the hook program the links and the linker's cache are made in the container. Without it each library
    is mounted under the names of its links as well, so that the linker finds it in its default directories.

    Args:
        host_root: where the host's file system is.
        driver_root: where the driver is on the host; ``/`` where it is installed on the host itself.
        version: of the driver, as far as its numbers count (``570.148.8`` is ``570.148.08``); if empty, any.
        hook: path of NVIDIA's hook program on the host; empty where there is none.
    """
    driver = DriverRoot(driver_root, host_root)
    root = driver.here
    place = _find(driver, version)
    if place is None:
        return ContainerEdits()
    folder, text = place
    libraries = [*_libraries(root, folder, text), *_libraries(root, f"{folder}/vdpau", text)][:_MOST_FILES]
    prefix = "" if driver_root == "/" else "/" + driver_root.strip("/")
    mounts = [_mount(f"{prefix}/{lib.path}", f"/{lib.path}") for lib in libraries]
    if not hook:
        mounts += [_mount(f"{prefix}/{lib.path}", f"/{link}") for lib in libraries for link in lib.links]
    mounts += [
        _mount(f"{prefix}/usr/bin/{p}", f"/usr/bin/{p}")
        for p in _PROGRAMS
        if (root / "usr/bin" / p).is_file()
    ]
    mounts += [
        _mount(f"{prefix}/{f.relative_to(root)}", f"/{f.relative_to(root)}")
        for f in sorted((root / "lib/firmware/nvidia" / text).glob("gsp_*.bin"))
    ]
    mounts += [_mount(f"/{s}", f"/{s}", _SOCKET_OPTIONS) for s in _SOCKETS if (host_root / s).is_socket()]
    return ContainerEdits(mounts=tuple(mounts), hooks=tuple(_hooks(hook, folder, libraries)) if hook else ())


def _mount(host: str, container: str, options: tuple[str, ...] = _OPTIONS) -> Mount:
    return Mount(host, container, options)


def _hooks(hook: str, folder: str, libraries: Sequence[_Library]) -> Iterator[Hook]:
    links = [
        argument
        for lib in libraries
        for link in lib.links
        for argument in ("--link", f"{lib.path.rpartition('/')[2]}::/{link}")
    ]
    if links:
        yield Hook("createContainer", hook, (HOOK_PROGRAM, "create-symlinks", *links))
    folders = dict.fromkeys(f"/{lib.path.rpartition('/')[0]}" for lib in libraries) or {f"/{folder}": None}
    arguments = [a for f in folders for a in ("--folder", f)]
    yield Hook("createContainer", hook, (HOOK_PROGRAM, "update-ldcache", *arguments))


def _find(driver: DriverRoot, version: str) -> tuple[str, str] | None:
    """Return the folder below the root, and the version as it is written there."""
    folders = (f for leader in _LEADERS for f in driver.library_folders(f"{leader}.so"))
    for folder in dict.fromkeys(folders):
        for leader in _LEADERS:
            for file in sorted((driver.here / folder).glob(f"{leader}.so.*")):
                text = file.name.removeprefix(f"{leader}.so.")
                if _VERSION.fullmatch(text) and _same(text, version) and file.is_file():
                    return folder, text
    return None


def _same(text: str, version: str) -> bool:
    if not version:
        return True
    if not _VERSION.fullmatch(version):
        return text == version
    wanted, there = ([int(n) for n in v.split(".")] for v in (version, text))
    # 570.148.8 (made to three numbers) and 570.148.08; 460.32 is published as 460.32.0.
    length = max(len(wanted), len(there))
    return wanted + [0] * (length - len(wanted)) == there + [0] * (length - len(there))


def _libraries(root: Path, folder: str, version: str) -> Iterator[_Library]:
    try:
        entries = sorted((root / folder).iterdir())
    except OSError:
        return
    links: dict[str, list[str]] = {}
    for entry in entries:
        if entry.is_symlink():
            links.setdefault(_target(entry), []).append(f"{folder}/{entry.name}")
    for entry in entries:
        if entry.name.endswith(f".so.{version}") and entry.is_file():
            yield _Library(f"{folder}/{entry.name}", tuple(links.get(entry.name, ())))


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
