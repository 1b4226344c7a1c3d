"""A gRPC server on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dra_driver.errors import ConfigurationError

__all__ = ["SocketServer"]

# The kubelet's deadline.
OLD_CALLS_SECONDS: Final = 45.0
_CLOSING_SECONDS: Final = 0.2
# A start takes a few steps of the event loop, and an end no more than its grace and some.
_CANCELLED_SECONDS: Final = 5.0


class SocketServer:
    """A server on ``path``; the file is there exactly while it serves.

    Args:
        path: an absolute path that fits a Unix socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._register: Callable[[grpc.aio.Server], None] | None = None
        self._server: grpc.aio.Server | None = None
        # Servers that take no new calls, with what ends them.
        self._ending: dict[grpc.aio.Server, asyncio.Task[None]] = {}

    @property
    def present(self) -> bool:
        """Whether the socket file is where clients look."""
        return self._server is not None and self._path.is_socket()

    async def start(self, register: Callable[[grpc.aio.Server], None]) -> None:
        """Listen; a stale file of a plugin that was killed is removed first.

        Args:
            register: adds the services to a new server, also after ``restart``.

        Raises:
            ConfigurationError: it cannot listen there.
        """
        self._register = register
        if self._path.is_socket():
            self._path.unlink()
        elif self._path.exists():
            raise ConfigurationError(f"{self._path}: is in the way: a socket belongs there")
        server = grpc.aio.server(
            # One process per socket: sharing a port by SO_REUSEPORT has no meaning here.
            options=[("grpc.so_reuseport", 0)]
        )
        register(server)
        try:
            server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as e:
            raise ConfigurationError(f"{self._path}: cannot listen: {e}") from e
        # From here on it is stopped by ``stop``, even if the start is cancelled half-way: a server that is
        # collected as garbage removes the file of its name, which may be another server's by then.
        self._server = server
        await _whole(asyncio.create_task(server.start()))
        # A process that can connect can prepare claims.
        self._path.chmod(0o600)

    async def restart(self) -> None:
        """Listen anew, after ``start`` and the removal of the file; calls in flight end on the old server.

        Raises:
            ConfigurationError: it cannot listen there.
        """
        if (ending := self._begin_to_end()) is not None:
            # It closes its socket at once, and removes the file of that name; ours is to come after.
            await asyncio.wait([ending], timeout=_CLOSING_SECONDS)
        assert self._register is not None
        await self.start(self._register)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let those in flight end for up to ``grace`` seconds, remove the file."""
        self._begin_to_end()
        await _whole(asyncio.create_task(self._end(grace)))
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _begin_to_end(self) -> asyncio.Task[None] | None:
        server, self._server = self._server, None
        if server is None:
            return None
        ending = self._ending[server] = asyncio.create_task(server.stop(OLD_CALLS_SECONDS))
        ending.add_done_callback(lambda _: self._ending.pop(server))
        return ending

    async def _end(self, grace: float) -> None:
        if self._ending:
            await asyncio.wait(self._ending.values(), timeout=grace)
        # What has begun with more time is not cancelled, which would leave a server that is stopped by half.
        async with asyncio.TaskGroup() as tasks:
            for server in self._ending:
                tasks.create_task(server.stop(None))
        while self._ending:
            await asyncio.wait(self._ending.values())


async def _whole(work: asyncio.Future[Any]) -> None:
    """Wait until gRPC has started or stopped a server, also where this is cancelled.

    gRPC crashes if a server is stopped before it has started. One that is stopped by half crashes the process
    when it is collected as garbage, or keeps it from ending.
    """
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work], timeout=_CANCELLED_SECONDS)
        raise
