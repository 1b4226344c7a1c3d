"""What can be said of the host's files from inside a container that has parts of the host as mounts."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

__all__ = ["HostView"]

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MOST_LINKS: Final = 40


class HostView:
    """The host's file system as far as it is mounted below a root.

    That a file is absent can be said only where a mount shows its place. If the root is ``/``, it is not
    known what is the host's, and nothing counts as absent.

    Args:
        root: where the host's file system is.
        mounts: the own table of mounts, ``/proc/self/mountinfo``.
    """

    def __init__(self, root: Path, mounts: Path) -> None:
        self.root = root
        self._mounts = mounts
        self._shown: tuple[Path, ...] | None = None

    def absent(self, path: str) -> bool:
        """Return whether the host has no file at an absolute path. False where that cannot be known."""
        if self.root == Path("/"):
            return False
        there, known_to = _there(self.root, path)
        if there:
            return False
        if self._shown is None:
            self._shown = self._mount_points()
        return any(known_to.is_relative_to(mount) for mount in self._shown)

    def _mount_points(self) -> tuple[Path, ...]:
        """Return the mount points at or below the root: what is in them is the host's."""
        try:
            lines = self._mounts.read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            return ()
        fields = (line.split(" ") for line in lines)
        points = (Path(_ESCAPED.sub(_character, f[4])) for f in fields if len(f) > 4)
        return tuple(p for p in points if p.is_relative_to(self.root))


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
