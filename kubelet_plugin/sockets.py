"""A gRPC server on a Unix socket."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from dra_driver.errors import ConfigurationError

__all__ = ["SocketServer"]


class SocketServer:
    """Serves on ``path`` until stopped; the file is there exactly while it serves.

    Args:
        path: an absolute path that fits a Unix socket.
        register: adds the services to a new server.
    """

    def __init__(self, path: Path, register: Callable[[grpc.aio.Server], None]) -> None:
        self._path = path
        self._register = register
        self._server: grpc.aio.Server | None = None

    @property
    def present(self) -> bool:
        """Whether the socket file is where clients look."""
        return self._server is not None and self._path.is_socket()

    async def start(self) -> None:
        """Listens; a stale file of a plugin that was killed is removed first.

        Raises:
            ConfigurationError: it cannot listen there.
        """
        if self._path.is_socket():
            self._path.unlink()
        elif self._path.exists():
            raise ConfigurationError(f"{self._path}: is in the way: a socket belongs there")
        server = grpc.aio.server(
            # One process per socket: sharing a port by SO_REUSEPORT has no meaning here.
            options=[("grpc.so_reuseport", 0)]
        )
        self._register(server)
        try:
            server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as e:
            raise ConfigurationError(f"{self._path}: cannot listen: {e}") from e
        await server.start()
        # Whoever can connect can prepare claims.
        self._path.chmod(0o600)
        self._server = server

    async def restart(self) -> None:
        """Listens anew where the file was removed under us; calls in flight end on the old server."""
        old, self._server = self._server, None
        if old is not None:
            await old.stop(0)
        await self.start()

    async def stop(self, grace: float) -> None:
        """Refuses new calls, lets those in flight end for up to ``grace`` seconds, removes the file."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace)
        with contextlib.suppress(OSError):
            self._path.unlink()
