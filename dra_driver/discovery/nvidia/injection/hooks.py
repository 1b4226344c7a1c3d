"""NVIDIA's hook program on the host, and what it can do: its commands have become more over time."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi import Hook

__all__ = ["HOOK_PROGRAM", "HookProgram", "HookPrograms"]

HOOK_PROGRAM: Final = "nvidia-cdi-hook"

_FOLDERS: Final = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit", "opt/nvidia/toolkit")
# A command that the program does not know fails the container: of these we look whether it has them.
_LATER_COMMANDS: Final = (
    "enable-cuda-compat",
    "disable-device-node-modification",
    "update-application-profile",
)


@dataclass(frozen=True, slots=True)
class HookProgram:
    """The program.

    Attributes:
        path: on the host.
        commands: those of the later ones that it has.
    """

    path: str
    commands: frozenset[str] = frozenset()

    def links(self, links: Iterable[tuple[str, str]]) -> tuple[Hook, ...]:
        """Return the hook that makes links in the container; none where there are none to make.

        Args:
            links: path of each link in the container, and what it leads to.
        """
        arguments = [a for path, target in links for a in ("--link", f"{target}::{path}")]
        return (self._hook("create-symlinks", *arguments),) if arguments else ()

    def preparation(self, folders: Iterable[str], version: str) -> Iterator[Hook]:
        """Return what is done when the links are there, in the order in which it has to be done.

        Args:
            folders: of libraries in the container.
            version: of the driver.
        """
        if "enable-cuda-compat" in self.commands:
            yield self._hook("enable-cuda-compat", f"--host-driver-version={version}")
        yield self._hook("update-ldcache", *(a for f in folders for a in ("--folder", f)))
        for command in ("disable-device-node-modification", "update-application-profile"):
            if command in self.commands:
                yield self._hook(command)

    def _hook(self, command: str, *arguments: str) -> Hook:
        return Hook("createContainer", self.path, (HOOK_PROGRAM, command, *arguments))


class HookPrograms:
    """Finds the program, and looks into each only once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, int], frozenset[str]] = {}

    def find(self, host_root: Path, named: str = "") -> HookProgram | None:
        """Return the program; None if it is in none of the usual places.

        Args:
            host_root: where the host's file system is.
            named: its path on the host; if empty, it is looked for.
        """
        for path in [named] if named else [f"/{folder}/{HOOK_PROGRAM}" for folder in _FOLDERS]:
            file = host_root / path.strip("/")
            if file.is_file():
                # An installer puts a script in its place, which starts the program beside it.
                real = file.with_name(f"{file.name}.real")
                return HookProgram(path, self._commands(file) | self._commands(real))
        return HookProgram(named) if named else None

    def _commands(self, file: Path) -> frozenset[str]:
        try:
            status = file.stat()
            key = (file, status.st_mtime_ns, status.st_size)
            if key not in self._known:
                self._known = {k: v for k, v in self._known.items() if k[0] != file} | {key: _names_in(file)}
            return self._known[key]
        except (OSError, ValueError):
            return frozenset()


def _names_in(file: Path) -> frozenset[str]:
    """Return the later commands whose names are in the program."""
    if not file.stat().st_size:
        return frozenset()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return frozenset(c for c in _LATER_COMMANDS if data.find(c.encode()) >= 0)
