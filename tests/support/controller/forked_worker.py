"""Workers of controllers that cost no imports."""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import Process
from pathlib import Path
from typing import cast

import forked

from controller.allocate.worker.child import WorkerChild

__all__ = ["ForkedWorker"]


class ForkedWorker(WorkerChild):
    """A worker that ``fork_server`` forks: all but how its process is started is as in a controller."""

    @classmethod
    async def start(cls) -> ForkedWorker:
        """Start a worker."""
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        with there, Path(os.devnull).open("wb") as output:
            process = await forked.fork(["worker"], {}, output.fileno(), there.fileno())
        return cls(cast("Process", process), reader, writer)
