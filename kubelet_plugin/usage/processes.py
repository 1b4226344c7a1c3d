"""Which processes of pods have device nodes open, read from procfs.

The cgroup of a process tells its pod; reading it needs no rights. Open files and mounts of others need
``CAP_SYS_PTRACE``, and are read of processes of pods only. Where the agent sees no pod but its own, it may be
in a process namespace of its own: then nothing can be said. The work is bounded in time, and done when claims
are about to be freed. Mounted with ``hidepid`` (proc(5)), procfs hides processes from those without rights,
and the first process of the machine as well: then nothing can be said either.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import structlog

from dra_driver.api.meta import Uid
from dra_driver.preparation import NodeProcess, ProcessView

__all__ = ["Processes"]

log = structlog.get_logger(__name__)

# With the drivers systemd and cgroupfs; the kubelet gives static pods 32 digits.
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?/")
_BUDGET_SECONDS: Final = 20.0
_NAMED_OF_A_POD: Final = 4
# A mount table of a container has some dozens of lines.
_MOST_BYTES: Final = 1 << 20


class Processes:
    """The processes of the machine.

    Args:
        procfs: where the host's procfs is.
        budget: seconds after which the look is given up.
        monotonic: a clock.
    """

    def __init__(
        self,
        procfs: Path,
        *,
        budget: float = _BUDGET_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._procfs = procfs
        self._budget = budget
        self._monotonic = monotonic

    def look(self, nodes: Collection[str], claims: Collection[Uid]) -> ProcessView | None:
        """Return what is seen of pods; None if pods cannot be seen, or not in time. Blocks.

        Args:
            nodes: paths of device nodes, as containers know them.
            claims: UIDs to be looked for in the mounts of processes that have one of the nodes open.
        """
        end = self._monotonic() + self._budget
        own = self._own_pod()
        pods: dict[Uid, list[NodeProcess]] = {}
        users: dict[str, list[NodeProcess]] = {}
        complete = True
        if not self._shows_all():
            return None
        for folder in self._folders():
            if self._monotonic() > end:
                log.warning("the node's processes were not looked at in time", seconds=self._budget)
                return None
            try:
                cgroup = _read(folder / "cgroup")
            except OSError:
                continue  # it has ended
            pod = _pod(cgroup)
            if not pod or pod == own:
                continue
            process = NodeProcess(int(folder.name), pod)
            named = pods.setdefault(process.pod, [])
            if len(named) < _NAMED_OF_A_POD:
                named.append(process)
            try:
                opened = _open_files(folder) & set(nodes)
                if opened:
                    process = NodeProcess(process.pid, process.pod, _mounted(folder, claims))
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                complete = False
                continue
            for node in opened:
                users.setdefault(node, []).append(process)
        if not pods:
            return None  # no proof that those of others can be seen
        return ProcessView(
            {uid: tuple(p) for uid, p in pods.items()}, {n: tuple(p) for n, p in users.items()}, complete
        )

    def _shows_all(self) -> bool:
        """Return whether procfs hides no process from us: it would hide the first one, which is root's."""
        try:
            _read(self._procfs / "1/cgroup")
        except OSError as e:
            log.warning("processes are hidden (hidepid)", procfs=str(self._procfs), error=str(e))
            return False
        return True

    def _own_pod(self) -> str:
        """Return the UID of the agent's own pod, whose libraries have devices open; empty if unknown."""
        try:
            return _pod(_read(self._procfs / "self/cgroup"))
        except OSError:
            return ""

    def _folders(self) -> Iterator[Path]:
        try:
            with os.scandir(self._procfs) as entries:
                for entry in entries:
                    if entry.name.isdecimal():
                        yield Path(entry.path)
        except OSError as e:
            log.warning("processes cannot be listed", procfs=str(self._procfs), error=str(e))


def _pod(cgroup: str) -> Uid:
    match = _POD.search(cgroup)
    return Uid(match[1].replace("_", "-")) if match else Uid("")


def _open_files(folder: Path) -> set[str]:
    found: set[str] = set()
    with os.scandir(folder / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(entry.path))  # noqa: PTH115 - one object less for each of 100,000
    return found


def _mounted(folder: Path, claims: Collection[Uid]) -> frozenset[Uid]:
    table = _read(folder / "mountinfo")
    return frozenset(uid for uid in claims if f"/{uid}/" in table)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
