"""Which pods of the node have processes, read from the host's cgroup file system.

The kubelet gives each pod a cgroup that is named after its UID; the kernel says whether any process is in it
or below it, in whatever PID namespace. Unlike procfs this shows no command lines, environments or files of
others, and needs no capability. What is not found proves something only where pods are to be found, so the
agent first looks for its own pod.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog

from dra_driver.api.meta import Uid

__all__ = ["PodCgroups"]

log = structlog.get_logger(__name__)

# The cgroup above those of all pods; with the driver systemd, the names of the slices above it come first.
_PODS: Final = re.compile(r"(?:[A-Za-z0-9_.-]{1,200}-)?kubepods(?:\.slice)?", re.ASCII)
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
# Of quality of service; guaranteed pods have none.
_CLASSES: Final = ("", "burstable", "besteffort")
# A kubelet's --cgroup-root is a few levels deep. Services and sessions of the host are some hundreds.
_DEPTH: Final = 6
_MOST_FOLDERS: Final = 20_000
# Some dozens of bytes.
_MOST_BYTES: Final = 4096


class PodCgroups:
    """The cgroups of pods.

    Args:
        root: where the host's cgroup file system is mounted: version 2, or the hierarchies of version 1.
        own: UID of the agent's own pod; if it is none, the agent runs outside of pods and sees the host's own
            file system.
    """

    def __init__(self, root: Path, own: str = "") -> None:
        self._root = root
        self._own = Uid(own) if _UID.fullmatch(own) else None
        self._above: tuple[Path, ...] = ()
        self._trouble = ""

    def with_processes(self, pods: Collection[Uid]) -> Mapping[Uid, str] | None:
        """Return which of these pods have processes, with their cgroups; None if they cannot be seen.

        Blocks, for milliseconds. A process that has ended and is not reaped may count.
        """
        try:
            found = self._look(pods)
        except (OSError, ValueError) as e:
            self._above = ()
            self._note(f"cgroups of pods cannot be read: {e}")
            return None
        if found is None:
            self._above = ()
            self._note(
                f"no cgroups of pods are found below {self._root}; the host's cgroup file system has to be "
                "mounted there, and the kubelet to make cgroups for pods (cgroupsPerQOS)"
            )
            return None
        self._note("")
        return found

    def _look(self, pods: Collection[Uid]) -> Mapping[Uid, str] | None:
        above = [a for a in self._above if a.is_dir()]
        if not above or not self._shows_own(above):
            # A kubelet that was set up anew has its pods elsewhere.
            above = list(self._find_above())
            if not above or not self._shows_own(above):
                return None
        self._above = tuple(above)
        # Made into text: a UID that is none is no path.
        names = {uid: self._having(above, uid) for uid in pods if _UID.fullmatch(uid)}
        return {uid: path for uid, path in names.items() if path}

    def _shows_own(self, above: Collection[Path]) -> bool:
        return self._own is None or bool(self._having(above, self._own))

    def _having(self, above: Collection[Path], pod: Uid) -> str:
        """Return the path, below the root, of the pod's cgroup with processes; empty if none has any."""
        for parent in above:
            for folder in _candidates(parent, pod):
                if _has_processes(folder):
                    return "/" + str(folder.relative_to(self._root))
        return ""

    def _find_above(self) -> Iterator[Path]:
        """Yield the cgroups that are above those of pods, in hierarchies that count processes.

        The cgroups of pods are not entered: what is below them may be made by their containers.
        """
        waiting = [(self._root, 0)]
        left = _MOST_FOLDERS
        while waiting:
            folder, depth = waiting.pop()
            for below in _folders(folder):
                if _PODS.fullmatch(below.name):
                    if _counts(below):
                        yield below
                elif depth < _DEPTH:
                    left -= 1
                    if left < 0:
                        raise ValueError(f"more than {_MOST_FOLDERS} cgroups of the host")
                    waiting.append((below, depth + 1))

    def _note(self, trouble: str) -> None:
        """Log what has changed, once."""
        if trouble and trouble != self._trouble:
            log.warning("whether pods have processes cannot be seen in cgroups", error=trouble)
        elif self._trouble and not trouble:
            log.info("whether pods have processes can be seen in cgroups again")
        self._trouble = trouble


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, none where it has just gone; not those that links lead to."""
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _candidates(above: Path, pod: Uid) -> Iterator[Path]:
    """Yield where the cgroup of a pod may be, with the kubelet's drivers systemd and cgroupfs."""
    if above.name.endswith(".slice"):
        prefix, uid = above.name.removesuffix(".slice"), pod.replace("-", "_")
        for name in _CLASSES:
            of_class = f"{prefix}-{name}" if name else prefix
            yield (above / f"{of_class}.slice" if name else above) / f"{of_class}-pod{uid}.slice"
    else:
        for name in _CLASSES:
            yield above / name / f"pod{pod}"


def _counts(folder: Path) -> bool:
    return (folder / "cgroup.events").exists() or (folder / "pids.current").exists()


def _has_processes(folder: Path) -> bool:
    """Return whether a cgroup, or one below it, has processes; false where it does not exist.

    Lists of processes (``cgroup.procs``) leave out those of other PID namespaces, counts do not.
    """
    events = _read(folder / "cgroup.events")  # version 2
    if events is not None:
        populated = [line for line in events.splitlines() if line.startswith("populated ")]
        if len(populated) != 1 or populated[0] not in ("populated 0", "populated 1"):
            raise ValueError(f"{folder}/cgroup.events does not say whether it is populated")
        return populated[0] == "populated 1"
    current = _read(folder / "pids.current")  # version 1
    return current is not None and int(current) > 0


def _read(path: Path) -> str | None:
    """Return the text of a file of a cgroup; None if there is no such file, or the cgroup has just gone."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii")
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno == errno.ENODEV:
            return None
        raise
