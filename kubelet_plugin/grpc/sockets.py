"""A gRPC server on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from dra_driver.errors import ConfigurationError

__all__ = ["SocketServer"]

# The kubelet's deadline.
OLD_CALLS_SECONDS: Final = 45.0
_CLOSING_SECONDS: Final = 0.2
# It takes a few steps of the event loop.
_STARTING_SECONDS: Final = 5.0


class SocketServer:
    """A server on ``path``; the file is there exactly while it serves.

    Args:
        path: an absolute path that fits a Unix socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._register: Callable[[grpc.aio.Server], None] | None = None
        self._server: grpc.aio.Server | None = None
        self._ending: set[asyncio.Task[None]] = set()

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
        await _started(server)
        # A process that can connect can prepare claims.
        self._path.chmod(0o600)

    async def restart(self, tasks: asyncio.TaskGroup) -> None:
        """Listen anew, after ``start`` and the removal of the file; calls in flight end on the old server.

        Args:
            tasks: where the old server ends.

        Raises:
            ConfigurationError: it cannot listen there.
        """
        old, self._server = self._server, None
        if old is not None:
            ending = tasks.create_task(old.stop(OLD_CALLS_SECONDS))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            # It closes its socket at once, and removes the file of that name; ours is to come after.
            await asyncio.wait([ending], timeout=_CLOSING_SECONDS)
        assert self._register is not None
        await self.start(self._register)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let those in flight end for up to ``grace`` seconds, remove the file."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace)
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=grace)
        with contextlib.suppress(OSError):
            self._path.unlink()


async def _started(server: grpc.aio.Server) -> None:
    """Wait until a server has started, also where this is cancelled: gRPC crashes if it is stopped before."""
    starting = asyncio.create_task(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting], timeout=_STARTING_SECONDS)
        raise
