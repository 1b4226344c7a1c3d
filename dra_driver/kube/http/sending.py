"""How requests leave this process: the sockets, and the body of a write that a guard may stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import BytesPayload

from dra_driver.errors import DraError
from dra_driver.ports import WriteGuard

__all__ = ["GuardedBody", "make_socket"]

# A longer body is sent in pieces, each after a question to the guard: without its last byte it is no request.
PIECE = 1 << 16
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def make_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make a socket that notices a vanished peer in about 45 s; a watch would wait for its whole timeout.

    Closing it drops what has not been delivered. Otherwise the kernel would go on sending for minutes, and a
    request that was given up, or whose process has ended, would arrive when the network is back.
    """
    family, kind, proto, _, _ = info
    result = socket.socket(family=family, type=kind, proto=proto)
    if family in _INTERNET:
        result.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        result.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                result.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return result


class GuardedBody(BytesPayload):
    """The body of one write, which asks its guard in the same step of the event loop in which it is sent.

    aiohttp holds the head of a request back until the first piece of the body is there, and sends the body
    through here again when it repeats a PUT or DELETE on another connection.
    """

    def __init__(self, data: bytes, guard: WriteGuard) -> None:
        super().__init__(data)
        self._guard = guard
        self._transport: asyncio.WriteTransport | None = None
        self._refusal: DraError | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it."""
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send it piece by piece; raise what the guard raises, and send nothing more then."""
        data = self._value if content_length is None else self._value[:content_length]
        self._transport = writer.transport
        self._limit()
        for start in range(0, len(data) or 1, PIECE):
            try:
                self._guard.check()
            except DraError as e:
                self._refusal = e
                raise
            await writer.write(data[start : start + PIECE])

    def timeout(self, usual: aiohttp.ClientTimeout) -> aiohttp.ClientTimeout:
        """Return the usual timeout, shortened to what the guard allows.

        Raises:
            NotLeading: it allows nothing; no connection need be made then.
        """
        self._guard.check()
        left = max(0.001, self._guard.seconds_left())
        total = min(left, usual.total or left)
        # By default aiohttp rounds timeouts of more than 5 s up to the next full second.
        return aiohttp.ClientTimeout(total=total, sock_connect=usual.sock_connect, ceil_threshold=2 * total)

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Enclose the exchange: drop what is left of a request that fails, raise what the guard raised."""
        try:
            yield
        except BaseException as e:
            # A connection that is not closing has been answered, and may serve another request by now.
            if self._transport is not None and self._transport.is_closing():
                self._transport.abort()
            if self._refusal is not None and isinstance(e, aiohttp.ClientError):
                raise self._refusal from None
            raise

    def _limit(self) -> None:
        """Let the kernel give up what it cannot deliver in time, even while this process is stopped."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None and sock.family in _INTERNET and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = max(1, int(max(0.0, self._guard.seconds_left()) * 1000))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
