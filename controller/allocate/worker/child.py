"""The worker as a process of the operating system: how it is started, looked at and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from typing import Final, Protocol

__all__ = ["Child", "WorkerChild"]

_CHUNK: Final = 1 << 18
_CPU_TICKS: Final = 100.0
# For processes that were killed to end.
_REAP_SECONDS: Final = 1.0
_REAP_INTERVAL: Final = 0.01


class Child(Protocol):
    """What a controller has of a worker: a stream in each direction, and a process."""

    @property
    def unread(self) -> int:
        """Bytes that were written and that it has not taken yet."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; copies of it may hold the streams open."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it: it will not end by itself, nor answer."""
        ...

    @property
    def switches(self) -> int:
        """How often it has given up a processor, or was stopped."""
        ...

    @property
    def cpu_seconds(self) -> float:
        """CPU time that it has taken, without that of its copies."""
        ...

    async def read(self) -> bytes:
        """Return what it has sent; empty where it will send no more."""
        ...

    def write(self, data: bytes) -> None:
        """Send it something, now or when it can take that."""
        ...

    async def drain(self) -> None:
        """Wait until it has taken most of what was sent.

        Raises:
            ConnectionError: it takes no more.
        """
        ...

    def abort(self) -> None:
        """Close the streams at once."""
        ...

    def kill(self) -> None:
        """Have it end, with its copies, whatever it does."""
        ...

    async def end(self) -> str:
        """Kill it and leave nothing of it behind; return what became of it."""
        ...


class WorkerChild:
    """Implements ``Child`` with a process that runs ``controller.allocate.worker``.

    The process leads a process group of its own: it is killed with its copies, and copies that outlive it are
    waited for. Where this process is the first of a container, they become its children, and would stay as
    zombies.

    Attributes:
        pid: of the process.
    """

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer
        # What is sent with the next turn of the event loop: a burst of changes costs one system call.
        self._unsent = bytearray()

    @classmethod
    async def start(cls) -> WorkerChild:
        """Start a worker.

        Raises:
            OSError: that is not possible now.
        """
        here, there = socket.socketpair()
        try:
            reader, writer = await asyncio.open_connection(sock=here)
        except BaseException:
            here.close()
            there.close()
            raise
        try:
            with there:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    __package__,
                    str(there.fileno()),
                    str(os.getpid()),
                    pass_fds=[there.fileno()],
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    process_group=0,
                    # The code of this process, wherever it is from, not what lies in the working directory.
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
        except BaseException:
            writer.close()
            raise
        return cls(process, reader, writer)

    @property
    def unread(self) -> int:
        """See ``Child.unread``."""
        return self._writer.transport.get_write_buffer_size() + len(self._unsent)

    @property
    def has_ended(self) -> bool:
        """See ``Child.has_ended``."""
        return self._process.returncode is not None

    @property
    def is_stopped(self) -> bool:
        """See ``Child.is_stopped``."""
        return self._facts()[:1] == ["T"]

    @property
    def switches(self) -> int:
        """See ``Child.switches``."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
            return sum(
                map(int, re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", text, re.MULTILINE))
            )
        return 0

    @property
    def cpu_seconds(self) -> float:
        """See ``Child.cpu_seconds``."""
        facts = self._facts()
        return (int(facts[11]) + int(facts[12])) / _CPU_TICKS if facts else 0.0

    def _facts(self) -> list[str]:
        """Return state, parent and so on (proc_pid_stat(5)); empty where the process has ended."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
            return text.rpartition(")")[2].split()
        return []

    async def read(self) -> bytes:
        """See ``Child.read``."""
        # What became of the worker, its exit status says.
        with contextlib.suppress(ConnectionError):
            return await self._reader.read(_CHUNK)
        return b""

    def write(self, data: bytes) -> None:
        """See ``Child.write``."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += data

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, bytearray()
        if unsent:
            self._writer.write(unsent)

    async def drain(self) -> None:
        """See ``Child.drain``."""
        self._flush()
        await self._writer.drain()

    def abort(self) -> None:
        """See ``Child.abort``."""
        self._writer.transport.abort()

    def kill(self) -> None:
        """See ``Child.kill``."""
        # While it has not been waited for, no other group can have its number.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Return the exit status when it has ended."""
        return await self._process.wait()

    async def end(self) -> str:
        """See ``Child.end``."""
        self.abort()
        self.kill()
        status = await self.wait()
        await self._reap()
        return f"exit status {status}"

    async def _reap(self) -> None:
        """Wait for copies that have become children of this process."""
        for _ in range(int(_REAP_SECONDS / _REAP_INTERVAL)):
            if not _reaped(self.pid):
                return
            await asyncio.sleep(_REAP_INTERVAL)


def _reaped(group: int) -> bool:
    """Take note of children in a process group that have ended; return whether there may be more."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
