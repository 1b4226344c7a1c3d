"""The client of ``fork_server``: starts processes without their imports."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_driver.sim.processes import dra_driver_command

# The variable of forked processes that names the socket of their server.
SERVER = "FORK_SERVER"


class ForkedChild:
    """Implements ``processes.Child``."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.stdout: asyncio.StreamReader | None = None
        self.returncode: int | None = None
        self._writer = writer
        self._ending = asyncio.get_running_loop().create_task(self._end(reader))

    async def _end(self, reader: asyncio.StreamReader) -> int:
        self.returncode = int(await reader.readline())
        self._writer.close()
        return self.returncode

    async def wait(self) -> int:
        """Wait for its end; return its exit status."""
        return await asyncio.shield(self._ending)

    def send_signal(self, signal: int) -> None:
        """Send a signal."""
        os.kill(self.pid, signal)


async def spawn(command: Sequence[str], environment: Mapping[str, str]) -> ForkedChild:
    """Start a command line of ``dra-driver``, or of a script in Python; see ``processes.Spawn``."""
    prefix = dra_driver_command()
    if tuple(command[: len(prefix)]) == prefix:
        arguments = command[len(prefix) :]
    else:
        assert (command[0], command[1][-3:]) == (sys.executable, ".py"), command
        arguments = command[1:]
    readable, writable = os.pipe()
    try:
        child = await fork(arguments, environment, writable)
    finally:
        os.close(writable)
    output = child.stdout = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(readable, "rb", buffering=0)
    )
    return child


async def fork(arguments: Sequence[str], environment: Mapping[str, str], *files: int) -> ForkedChild:
    """Start what ``fork_server.command`` knows, with these files: stdout and stderr, and what is its own."""
    reader, writer = await asyncio.open_unix_connection(sock=_ask(arguments, environment, *files))
    return ForkedChild(int(await reader.readline()), reader, writer)


class ForkedScript:
    """A script that runs in a process of its own: what it reads from stdin and prints, it does with us.

    Whatever needs a library in LD_LIBRARY_PATH runs like this: ctypes loads a library once per process.

    Args:
        script: Python text.
        arguments: ``sys.argv[1:]``.
        environment: variables besides those of this process.
        imports: modules that are imported once, before the process is forked.
    """

    def __init__(
        self, script: str, *arguments: str, environment: Mapping[str, str], imports: Sequence[str] = ()
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed at the end of the process
        ours, theirs = socket.socketpair()
        with ours, theirs:
            files = (self._errors.fileno(), theirs.fileno())
            self._connection = _ask(["-c", script, *arguments], environment, *files, imports=imports)
            self._answers = ours.makefile("rw")
        self._status = self._connection.makefile()
        self.pid = int(self._status.readline())

    def ask(self, line: str) -> str:
        """Return the line that the script prints after it has read this one."""
        print(line, file=self._answers, flush=True)
        answer = self._answers.readline()
        assert answer, f"the process has ended: {self._end()}"
        return answer

    def finish(self) -> list[str]:
        """Return the lines that the script still prints until its end, which must be a good one."""
        lines = self._answers.readlines()
        said = self._end()
        assert said.startswith("exit status 0"), said
        return lines

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._connection.shutdown(socket.SHUT_WR)
        self._end()

    def _end(self) -> str:
        """Return the exit status and what was written to stderr."""
        with self._connection, self._status, self._answers, self._errors:
            status = self._status.readline().strip()
            self._errors.seek(0)
            return f"exit status {status}: {self._errors.read()}"


def _ask(
    arguments: Sequence[str], environment: Mapping[str, str], *files: int, imports: Sequence[str] = ()
) -> socket.socket:
    """Return a connection to the server that has been asked for a process; it answers its process ID."""
    request = {"arguments": arguments, "environment": dict(environment), "imports": imports}
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server())
    socket.send_fds(connection, [json.dumps(request).encode()], files)
    return connection


@functools.cache
def _server() -> str:
    """Start the server of this process of tests; return its socket, which its processes ask too."""
    if SERVER in os.environ:
        return os.environ[SERVER]
    folder = tempfile.TemporaryDirectory(prefix="fork-server-")
    path = str(Path(folder.name) / "s")
    script = str(Path(__file__).with_name("fork_server.py"))
    process = subprocess.Popen(
        [sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def stop() -> None:
        process.communicate()  # closes its stdin
        folder.cleanup()

    atexit.register(stop)
    return path
