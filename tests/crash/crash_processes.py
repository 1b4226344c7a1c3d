"""Node agents as processes, and the server that forks them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio
from machines.acme import package

from dra_driver.wire import dra_v1_pb2_grpc


class ForkServer:
    """Starts agents; see ``agent_under_test``.

    Args:
        environment: variables of its process, for what the dynamic linker reads.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, "PYTHONPATH": package(), **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ids = itertools.count()
        self._pids: dict[int, asyncio.Future[int]] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._ready = asyncio.Event()

    async def __aenter__(self) -> ForkServer:
        script = Path(__file__).with_name("agent_under_test.py")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        self._reader = asyncio.get_running_loop().create_task(self._read())
        async with asyncio.timeout(60):
            await self._ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reader is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader

    async def start(self, request: dict[str, Any]) -> tuple[int, asyncio.Future[int]]:
        """Process ID, and the future exit status of a new agent."""
        assert self._process is not None
        assert self._process.stdin is not None
        loop = asyncio.get_running_loop()
        pid: asyncio.Future[int]
        ended: asyncio.Future[int]
        number = next(self._ids)
        pid, ended = loop.create_future(), loop.create_future()
        self._pids[number], self._ends[number] = pid, ended
        self._process.stdin.write(json.dumps({"id": number, **request}).encode() + b"\n")
        return await pid, ended

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            if "ready" in answer:
                self._ready.set()
            elif "pid" in answer:
                _tell(self._pids.pop(answer["id"]), answer["pid"])
            else:
                _tell(self._ends.pop(answer["id"]), answer["status"])


class Agent:
    """One process of the node agent and a connection to it."""

    def __init__(self, pid: int, ended: asyncio.Future[int], channel: grpc.aio.Channel) -> None:
        self.pid = pid
        self.ended = ended
        self.channel = channel
        self.stub = dra_v1_pb2_grpc.DRAPluginStub(channel)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def listens(path: Path) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _tell(future: asyncio.Future[int], value: int) -> None:
    if not future.cancelled():
        future.set_result(value)
