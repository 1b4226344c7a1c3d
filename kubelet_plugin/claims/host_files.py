"""What is on the host of the device nodes and files that CDI documents name.

The agent usually runs in a container that has parts of the host below ``host_root``, as mounts. That a file
is absent can be said only where such a mount shows its place; elsewhere it counts as there. The host's
``/dev`` is seen whole.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterable, Set
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol

from dra_driver import cdi
from dra_driver.discovery.core import pci
from dra_driver.preparation import PreparedClaim, named_on_host, without_absent

__all__ = ["EverythingThere", "Host", "HostFiles"]

_DEV: Final = "/dev/"
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MOST_LINKS: Final = 40


class Host(Protocol):
    """What is on the host, as far as documents depend on it."""

    async def document(self, record: PreparedClaim) -> cdi.Spec:
        """Return the document of a claim that has one, without the nodes and files that are not there.

        Raises:
            DeviceNodeAbsent: the node of a device is not there; the document must not be in force.
        """
        ...


class EverythingThere:
    """Implements ``Host`` without looking: everything counts as there."""

    async def document(self, record: PreparedClaim) -> cdi.Spec:
        """See ``Host``."""
        assert record.spec is not None
        return record.spec


class HostFiles:
    """Implements ``Host``.

    Args:
        dev_root: where the host's device nodes are.
        host_root: where the host's file system is; if it is ``/``, that is not known, and no file is judged.
        mounts: the agent's table of mounts, ``/proc/self/mountinfo``.
        executor: for calls that block.
    """

    def __init__(self, *, dev_root: Path, host_root: Path, mounts: Path, executor: Executor) -> None:
        self._dev_root = dev_root
        self._host_root = host_root
        self._mounts = mounts
        self._executor = executor

    async def document(self, record: PreparedClaim) -> cdi.Spec:
        """See ``Host``."""
        named = named_on_host(record)
        absent: Set[str] = frozenset()
        if named:
            loop = asyncio.get_running_loop()
            absent = await loop.run_in_executor(self._executor, self._absent, named)
        spec = without_absent(record, absent)
        assert spec is not None
        return spec

    def _absent(self, paths: Iterable[str]) -> Set[str]:
        shown: tuple[Path, ...] | None = None
        absent: set[str] = set()
        for path in paths:
            if path.startswith(_DEV):
                if not pci.exists(self._dev_root / path.removeprefix(_DEV)):
                    absent.add(path)
                continue
            if self._host_root == Path("/"):
                continue
            there, known_to = _there(self._host_root, path)
            if there:
                continue
            shown = self._shown() if shown is None else shown
            if any(known_to.is_relative_to(mount) for mount in shown):
                absent.add(path)
        return absent

    def _shown(self) -> tuple[Path, ...]:
        """Return the mount points at or below the host's root: what is in them is the host's."""
        try:
            lines = self._mounts.read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            return ()
        fields = (line.split(" ") for line in lines)
        points = (Path(_ESCAPED.sub(_character, f[4])) for f in fields if len(f) > 4)
        return tuple(p for p in points if p.is_relative_to(self._host_root))


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 8))


def _there(root: Path, path: str) -> tuple[bool, Path]:
    """Return whether a path exists below a root, and the deepest directory of the way to it that does.

    Links are followed as on the host: an absolute one leads below the root again. What cannot be looked at
    counts as there.
    """
    place, links = root, 0
    rest = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    while rest:
        part = rest.pop()
        if part == "..":
            place = place.parent if place != root else root
            continue
        try:
            mode = os.lstat(place / part).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False, place
        except OSError:
            return True, place
        if not stat.S_ISLNK(mode):
            place /= part
            continue
        links += 1
        if links > _MOST_LINKS:
            return False, place
        target = (place / part).readlink()
        if target.is_absolute():
            place = root
        rest += [p for p in reversed(target.parts) if p != "/"]
    return True, place
