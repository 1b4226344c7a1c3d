"""What can be said of the host's files from inside a container that has parts of the host as mounts."""

from __future__ import annotations

import enum
import os
import re
import stat
from pathlib import Path
from typing import Final

__all__ = ["HostView"]

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MOST_LINKS: Final = 40


class _Kind(enum.Enum):
    THERE = enum.auto()
    ABSENT = enum.auto()
    UNKNOWN = enum.auto()


# A link is where it leads.
_Found = _Kind | str


class HostView:
    """The host's file system as far as it is mounted below a root.

    That a file is absent can be said only where a mount shows its place. If the root is ``/``, it is not
    known what is the host's, and nothing counts as absent.

    An object is for one look: mounts, and the directories and links on the way to files, are read once. A
    driver has 150 files in few directories, and prepare looks for all of them.

    Args:
        root: where the host's file system is.
        mounts: the own table of mounts, ``/proc/self/mountinfo``.
    """

    def __init__(self, root: Path, mounts: Path) -> None:
        self.root = root
        self._mounts = mounts
        self._shown: tuple[Path, ...] | None = None
        self._ways: dict[str, _Found] = {}

    def absent(self, path: str) -> bool:
        """Return whether the host has no file at an absolute path. False where that cannot be known."""
        if self.root == Path("/"):
            return False
        known_to = self._last_directory(path)
        if known_to is None:
            return False
        if self._shown is None:
            self._shown = self._mount_points()
        return any(Path(known_to).is_relative_to(mount) for mount in self._shown)

    def _last_directory(self, path: str) -> str | None:
        """Return the deepest directory of the way to a path that is not there; None if it is there.

        Links are followed as on the host: an absolute one leads below the root again. What cannot be looked
        at counts as there.
        """
        # As text: objects for paths would cost several times what the files do.
        root = os.fspath(self.root)
        place, links = root, 0
        rest = _parts(path)
        while rest:
            part = rest.pop()
            if part == "..":
                place = place.rpartition("/")[0] if place != root else root
                continue
            found = self._look(f"{place}/{part}", on_the_way=bool(rest))
            if found is _Kind.ABSENT:
                return place
            if found is _Kind.UNKNOWN:
                return None
            if found is _Kind.THERE:
                place = f"{place}/{part}"
                continue
            links += 1
            if links > _MOST_LINKS:
                return place
            if found.startswith("/"):
                place = root
            rest += _parts(found)
        return None

    def _look(self, place: str, *, on_the_way: bool) -> _Found:
        """Return what is at a place, or where the link leads that is there."""
        found = self._ways.get(place)
        if found is None:
            found = _found(place)
            if on_the_way or found not in (_Kind.THERE, _Kind.ABSENT):
                self._ways[place] = found
        return found

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


def _parts(path: str) -> list[str]:
    """Return the parts of a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _found(place: str) -> _Found:
    try:
        if not stat.S_ISLNK(os.lstat(place).st_mode):
            return _Kind.THERE
        return str(Path(place).readlink())
    except (FileNotFoundError, NotADirectoryError):
        return _Kind.ABSENT
    except OSError:
        return _Kind.UNKNOWN
