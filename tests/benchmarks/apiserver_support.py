"""What several benchmarks need: HTTP without a library, an API server in a process of its own, ``/proc``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
MERGE_PATCH = "application/merge-patch+json"
# Objects with all their device names and managed fields, and pages of 500 of them.
_LARGEST_LINE = 1 << 24


class Connection:
    """HTTP/1.1 with nothing on top: the client must not be what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """To a server on this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_LARGEST_LINE))

    async def send(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> bytes:
        """Sends a request, reads the answer.

        Raises:
            RuntimeError: it was refused.
        """
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(h[15:]) for h in head.split("\r\n") if h.lower().startswith("content-length:"))
        answer = await self.reader.readexactly(length)
        if not head.startswith("HTTP/1.1 20"):
            raise RuntimeError(f"{method} {path}: {answer[:300]!r}")
        return answer

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        """The same with plain data in and out."""
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads(await self.send(method, path, data, content_type))

    async def events(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """Events of a watch; the connection serves nothing else afterwards."""
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await self.reader.readuntil(b"\r\n\r\n")
        pending = b""
        while size := int(await self.reader.readline(), 16):
            lines = (pending + await self.reader.readexactly(size)).split(b"\n")
            await self.reader.readexactly(2)
            pending = lines.pop()
            for line in lines:
                if line.strip():
                    yield json.loads(line)


async def load(connections: list[Connection], requests: Iterable[tuple[str, dict[str, Any]]]) -> int:
    """Creates objects, given as path and body, over several connections; returns their number."""
    waiting = iter(requests)
    done = 0

    async def work(connection: Connection) -> None:
        nonlocal done
        for path, body in waiting:
            await connection.send("POST", path, json.dumps(body).encode())
            done += 1

    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(work(connection))
    return done


@dataclass(frozen=True, slots=True)
class Server:
    """A running API server."""

    pid: int
    port: int
    kubeconfig: Path


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """The embedded API server, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory, "kubeconfig")
        command = [sys.executable, "-m", "dra_driver.cli.main", "sim", "apiserver", "--kubeconfig"]
        process = subprocess.Popen(
            [*command, str(kubeconfig)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield Server(process.pid, int(line.split(",")[0].rpartition(":")[2]), kubeconfig)
        finally:
            process.kill()  # nothing of it is kept, and giving gigabytes back one by one takes a minute
            process.wait(20)
            process.stdout.close()


def resident(pid: int, *, peak: bool = False) -> float:
    """Resident memory of a process in MiB."""
    field = "VmHWM" if peak else "VmRSS"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith(field)).split()[1]) / 1024


def processor(pid: int) -> float:
    """Processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
