"""The client of ``fork_server``: starts processes of the embedded cluster without their imports."""

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
    request = {"arguments": arguments, "environment": dict(environment)}
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server())
    socket.send_fds(connection, [json.dumps(request).encode()], files)
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    return ForkedChild(int(await reader.readline()), reader, writer)


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
