"""From the driver's files to what is done to a container.

With NVIDIA's hook program on the host a container gets what nvcdi would give it: each file at the path that
it has on the host, links and the linker's cache made by the hook.

Without it there is no hook at all. Each library is mounted under every name that programs look for, in the
folders that the dynamic linker searches when its cache knows nothing, in containers of any glibc: Debian and
Ubuntu search ``/usr/lib/<triplet>`` and never ``/usr/lib64``, the distributions of Red Hat and SUSE the other
way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver import cdi
from dra_driver.cdi import ContainerEdits, Mount
from dra_driver.discovery.nvidia.injection import capabilities
from dra_driver.discovery.nvidia.injection.driver_files import (
    DriverFile,
    DriverFiles,
    DriverLibrary,
    DriverPlace,
)
from dra_driver.discovery.nvidia.injection.hooks import HookProgram

__all__ = ["DriverEdits", "driver_edits"]

_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS: Final = (*_OPTIONS, "noexec")
_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_TRIPLETS: Final[Mapping[str, str]] = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_FOLDERS_OF_32_BITS: Final = ("/usr/lib/i386-linux-gnu", "/usr/lib")
# By this name NVIDIA's own tools look for the library.
_LIBRARY_VARIABLE: Final = "NVIDIA_CTK_LIBCUDA_DIR"


@dataclass(frozen=True, slots=True)
class DriverEdits:
    """What the driver's files do to a container.

    Attributes:
        common: whichever capabilities the claim asks for.
        parts: by capability.
    """

    common: ContainerEdits
    parts: cdi.Parts


def driver_edits(
    root: DriverPlace, files: DriverFiles, hook: HookProgram | None, machine: str
) -> DriverEdits:
    """Return what containers get of the driver.

    Args:
        root: where the files are.
        files: what was found there.
        hook: NVIDIA's hook program on the host, if there is one.
        machine: the node's architecture as the kernel calls it: ``x86_64``, ``aarch64``.
    """
    layout = _Layout(root, files, hook, machine)
    parts = {name: layout.part(name) for name in capabilities.NAMES}
    return DriverEdits(layout.common(), cdi.Parts(parts, capabilities.DEFAULT))


class _Layout:
    """Where the files of one driver are put in a container."""

    def __init__(self, root: DriverPlace, files: DriverFiles, hook: HookProgram | None, machine: str) -> None:
        self._root = root
        self._files = files
        self._hook = hook
        self._folders = (f"/usr/lib/{_TRIPLETS.get(machine, f'{machine}-linux-gnu')}", "/usr/lib64")

    def common(self) -> ContainerEdits:
        """Return what every container gets."""
        files = self._files
        folders = tuple(f"/{f}" for f in files.folders)
        hooks: tuple[cdi.Hook, ...] = ()
        if self._hook is not None:
            linked = dict.fromkeys(
                f"/{lib.folder}/{lib.below}".rstrip("/") for lib in files.libraries if not lib.fixed
            )
            hooks = tuple(self._hook.preparation(linked, files.version))
        else:
            folders = self._folders
        return ContainerEdits(
            env=(f"{_LIBRARY_VARIABLE}={':'.join(folders)}",) if folders else (),
            mounts=(*self._others(""), *self._sockets()),
            hooks=hooks,
        )

    def part(self, capability: str) -> ContainerEdits:
        """Return what a container gets for one capability."""
        libraries = [
            lib for lib in self._files.libraries if capabilities.in_capability(lib.capabilities, capability)
        ]
        mounts = [m for lib in libraries for m in self._library(lib)]
        hooks: tuple[cdi.Hook, ...] = ()
        if self._hook is not None:
            links = {
                f"/{lib.path.rpartition('/')[0]}/{link}": target
                for lib in libraries
                for link, target in lib.links
            }
            hooks = self._hook.links(links.items())
        by_place = {m.container_path: m for m in (*mounts, *self._others(capability))}
        return ContainerEdits(mounts=tuple(by_place.values()), hooks=hooks)

    def _library(self, library: DriverLibrary) -> Iterator[Mount]:
        host = self._root.host_path(library.path)
        if self._hook is not None:
            yield _mount(host, f"/{library.path}")
            return
        if library.fixed:
            folders: tuple[str, ...] = (f"/{library.folder}",)
        else:
            folders = self._folders if library.bits == 64 else _FOLDERS_OF_32_BITS
        for folder in folders:
            for name in (library.name, *(link for link, _ in library.links)):
                yield _mount(host, "/".join(part for part in (folder, library.below, name) if part))

    def _others(self, capability: str) -> Iterator[Mount]:
        for file in self._files.others:
            if self._asked_for(file, capability):
                yield _mount(self._root.host_path(file.path), file.place)

    @staticmethod
    def _asked_for(file: DriverFile, capability: str) -> bool:
        if not capability or not file.capabilities:
            return not capability and not file.capabilities
        return capabilities.in_capability(file.capabilities, capability)

    def _sockets(self) -> Iterator[Mount]:
        host = self._root.host.root
        for socket in _SOCKETS:
            # A driver in a container has its daemons there as well.
            if (self._root.seen / socket).is_socket():
                yield _mount(self._root.host_path(socket), f"/{socket}", _SOCKET_OPTIONS)
            elif (host / socket).is_socket():
                yield _mount(f"/{socket}", f"/{socket}", _SOCKET_OPTIONS)


def _mount(host: str, container: str, options: Sequence[str] = _OPTIONS) -> Mount:
    return Mount(host, container, tuple(options))
