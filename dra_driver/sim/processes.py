"""Child processes of the embedded cluster: started, logged to a file, stopped, and never orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dra_driver.errors import DraError

__all__ = ["Child", "ManagedProcess", "ProcessFailed", "Spawn", "dra_driver_command", "spawn"]

# Runs before the real command, in the same process: asks the kernel (PR_SET_PDEATHSIG) to kill it if the
# parent dies without a chance to clean up. A preexec_fn would do the same, but runs Python code between fork
# and exec of a process that has gRPC threads.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ProcessFailed(DraError):
    """A process of the cluster ended by itself; the text has the end of its log."""


def dra_driver_command(*arguments: str) -> tuple[str, ...]:
    """Return a command line of ``dra-driver`` with the present interpreter."""
    return (sys.executable, "-m", "dra_driver.cli.main", *arguments)


class Child(Protocol):
    """A process that was started; ``asyncio.subprocess.Process`` is one."""

    pid: int

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """What it writes to stdout and stderr."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, the negative number of the signal that ended it, or None while it runs."""

    async def wait(self) -> int:
        """Wait for its end; return its exit status."""

    def send_signal(self, signal: int) -> None:
        """Send a signal."""


Spawn = Callable[[Sequence[str], Mapping[str, str]], Awaitable[Child]]
"""Starts a command with more variables in its environment, in a session of its own."""


async def spawn(command: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start a process that the kernel kills should we die."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-ISc",
        _LAUNCHER,
        str(os.getpid()),
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        # Not the file itself: as in a container, a full disk must not take the log away.
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
        # Ctrl-C in a terminal is for us; we stop our children in our own order.
        start_new_session=True,
    )


class ManagedProcess:
    """One child process.

    Args:
        name: name in messages, for example ``plugin node1``.
        command: absolute path of the program and its arguments.
        log: file that gets stdout and stderr.
        environment: variables that are added to those of this process.
        spawn: starts it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        spawn: Spawn = spawn,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._environment = dict(environment or {})
        self._spawn = spawn
        self._process: Child | None = None
        self._logging: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id; None if it does not run."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process; its output is appended to the log."""
        self._stopping = False
        self._process = await self._spawn(self.command, self._environment)
        self._logging = asyncio.get_running_loop().create_task(self._write_log(self._process))

    async def _write_log(self, process: Child) -> None:
        assert process.stdout is not None
        with self.log.open("ab", buffering=0) as log:
            while chunk := await process.stdout.read(65536):
                log.write(chunk)

    async def _ended(self) -> int:
        """Wait for the end of the process and of its output."""
        assert self._process is not None
        code = await self._process.wait()
        if self._logging is not None:
            await asyncio.shield(self._logging)
        return code

    async def supervise(self) -> None:
        """Wait until the process is stopped by ``stop`` or ``signal``.

        Raises:
            ProcessFailed: the process ended by itself.
        """
        code = await self._ended()
        if not self._stopping:
            raise ProcessFailed(f"{self.name} ended with status {code}\n{self.tail()}")

    def limit_file_size(self, limit: int | None) -> None:
        """Let writes to files fail beyond ``limit`` bytes, with EFBIG; if None, remove the limit.

        This comes close to a full disk, without root and without a file system of its own.
        """
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if limit is None else limit, hard))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; an end of the process by it is no failure."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, grace: float = 5.0) -> None:
        """Stop the process by SIGTERM, and by SIGKILL after ``grace`` seconds; return when it has ended."""
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await self._ended()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._ended()

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log, for messages."""
        try:
            text = self.log.read_text(errors="replace").splitlines()[-lines:]
        except OSError as e:
            return f"({self.log}: {e.strerror})"
        return "\n".join([f"--- end of the log of {self.name}", *text, "---"])
