"""The processes of MPS daemons: found by what the kernel says of them, ended by signals.

Whoever shares a GPU reads the directory of its daemon's sockets, and with earlier versions could write
there as well. So nothing in there says which process the daemon is: neither the file with its process ID nor
the socket, which could be a link to the one of another GPU. A process counts if it is in our own PID
namespace, which containers are not, and has the directory in the environment that it was started with.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Process", "find", "is_running", "listens", "send"]

_PROC: Final = Path("/proc")
# Of both programs of NVIDIA, as the kernel cuts names of programs off.
_COMM_LENGTH: Final = 15
_NVIDIA: Final = "nvidia-cuda-mps"
_MODES: Final = frozenset({b"-d", b"-f"})
_ENVIRONMENT_BYTES: Final = 1 << 20
_GONE: Final = frozenset("ZXx")
# Positions behind the name in /proc/<pid>/stat (proc(5)).
_STATE: Final = 0
_THREADS: Final = 17
_START: Final = 19


@dataclass(frozen=True, slots=True)
class Process:
    """A process, whatever becomes of its number.

    Attributes:
        pid: in our PID namespace.
        started: clock ticks since the boot.
        is_control: whether it is the control daemon; else one of its servers.
    """

    pid: int
    started: int
    is_control: bool = field(compare=False, default=False)


def find(tool: str, pipes: Path) -> tuple[Process, ...]:
    """Return the control daemon of a directory and its servers, as far as they run.

    Args:
        tool: the control daemon's program, a path or a name.
        pipes: the directory of its sockets, as the daemon was told.
    """
    names = {Path(tool).name[:_COMM_LENGTH], _NVIDIA}
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={pipes}".encode()
    return tuple(_matching(names, wanted))


def is_running(process: Process) -> bool:
    """Return whether the process runs, and its number is not another one's by now."""
    found = _stat(process.pid)
    return found is not None and found[1] == process.started


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to those that still run."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process.pid)
            try:
                # Looked at behind the descriptor: the number cannot become another one's in between.
                if is_running(process):
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def listens(pipes: Path) -> bool:
    """Return whether a process listens on the socket for clients; links are not followed."""
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(pipes, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            control = os.open("control", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            stack.callback(os.close, control)
        except OSError:
            return False
        if not stat.S_ISSOCK(os.fstat(control).st_mode):
            return False
        client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        client.setblocking(False)
        try:
            client.connect(f"/proc/self/fd/{control}")
        except OSError as e:
            # A queue that is full, or a socket of another type: there is a process behind it.
            return e.errno in (errno.EAGAIN, errno.EPROTOTYPE)
        return True


def _matching(names: set[str], variable: bytes) -> Iterator[Process]:
    namespace = (_PROC / "self/ns/pid").readlink()
    for folder in _PROC.iterdir():
        found = _stat(int(folder.name)) if folder.name.isdecimal() else None
        if found is None or found[0] not in names:
            continue
        with contextlib.suppress(OSError):
            # First of all: the memory of a container's process, which it may make wait, is not read.
            if (folder / "ns/pid").readlink() != namespace:
                continue
            with (folder / "environ").open("rb") as file:
                if variable not in file.read(_ENVIRONMENT_BYTES).split(b"\0"):
                    continue
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            process = Process(int(folder.name), found[1], not _MODES.isdisjoint(arguments))
            if is_running(process):
                yield process


def _stat(pid: int) -> tuple[str, int] | None:
    """Return name and start of a process; None if it does not run, be it that it was not waited for yet."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) <= _START:
        return None
    # The first thread may have ended, and another one hang in the driver: the process has all that it had.
    if fields[_STATE] in _GONE and int(fields[_THREADS]) <= 1:
        return None
    return head.partition("(")[2], int(fields[_START])
