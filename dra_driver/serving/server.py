"""``serve``: an aiohttp application on a port whose connections are bounded.

asyncio makes the buffers of TLS (256 KiB) for each connection as soon as it is accepted, and aiohttp has no
limit of time for a header. So sockets are accepted here, wait without buffers until the client's first
message is there as a whole, and are handed to asyncio then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from dra_driver.errors import ConfigurationError
from dra_driver.serving.connections import Connection, Connections, Stage
from dra_driver.serving.limits import Limits

__all__ = ["Port", "listening_sockets", "serve"]

log = structlog.get_logger(__name__)

# Sockets that are accepted before other work gets its turn.
_AT_ONCE: Final = 64
# Handshakes that begin before those under way go on: each takes the time of some 0.5 ms.
_BEGUN_AT_ONCE: Final = 16
_BACKLOG: Final = 4096
# Until it is looked again whether one of the open connections gives way.
_NO_PLACE_SECONDS: Final = 0.02
_REST_SECONDS: Final = 0.1
_REPORT_SECONDS: Final = 60.0
# RFC 8446, 5.1: type, version, length; then at most 2^14 bytes.
_RECORD_HEADER: Final = 5
_HANDSHAKE_RECORD: Final = 0x16
_LARGEST_RECORD: Final = 1 << 14
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# A host without IPv6 may have its addresses all the same.
_NO_FAMILY: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
# Bytes of a body that may be read with the header, before the request is looked at.
_READ_AHEAD: Final = 512 << 10
# For a client to confirm the end of a TLS connection.
_SHUTDOWN_SECONDS: Final = 2.0

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Port:
    """One port that is being served.

    Attributes:
        address: host and port that it listens on.
        connections: those that are open.
    """

    def __init__(self, limits: Limits, context: ssl.SSLContext | None) -> None:
        self.address: tuple[str, int] = ("", 0)
        self._limits = limits
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.connections = Connections(limits, self._loop.time)
        self._by_transport: dict[asyncio.BaseTransport, Connection] = {}
        self._listening: list[socket.socket] = []
        self._make_protocol: Callable[[], asyncio.Protocol] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._reported = (float("-inf"), 0)
        self._beginning = False
        self._is_short = False

    # --- requests -------------------------------------------------------------------------------------------

    @property
    def middleware(self) -> Middleware:
        """Return what notes the stages of a request; the outermost of an application."""

        @web.middleware
        async def track(request: web.Request, handler: Handle) -> web.StreamResponse:
            connection = self._of(request)
            if connection is None:
                return _timed_out()
            connection.received = 0
            # One whose body is there may still wait for its turn to be read.
            self.connections.enter(connection, Stage.BODY if request.body_exists else Stage.SERVED)
            try:
                response = await handler(request)
            except web.HTTPException as e:
                if self.connections.is_wanted(connection):
                    e.force_close()
                raise
            except ConnectionError:
                if self._of(request) is not None:
                    raise
                return _timed_out()  # or aiohttp would log each of thousands with its traceback
            finally:
                if self._of(request) is connection:
                    self.connections.enter(connection, Stage.IDLE)
            if self.connections.is_wanted(connection):
                response.force_close()
            return response

        return track

    async def body(self, request: web.Request) -> bytes:
        """Return the body of a request.

        Raises:
            HTTPRequestEntityTooLarge: it has more bytes than the port takes.
            ConnectionResetError: the connection had to go meanwhile.
        """
        most = self._limits.request_bytes
        if request.content_length is not None and request.content_length > most:
            raise web.HTTPRequestEntityTooLarge(most, request.content_length)
        connection = self._of(request)
        if connection is None:
            raise ConnectionResetError("the connection was closed meanwhile")
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > most:
                    raise web.HTTPRequestEntityTooLarge(most, size)
                chunks.append(chunk)
                self.connections.hold(connection, len(chunk))
                if self._of(request) is not connection:
                    raise ConnectionResetError("there is no memory for the request")
        finally:
            self.connections.release(connection)
        self.connections.enter(connection, Stage.SERVED)
        return b"".join(chunks)

    def _of(self, request: web.Request) -> Connection | None:
        transport = request.transport
        found = self._by_transport.get(transport) if transport is not None else None
        return found if found is not None and found in self.connections else None

    # --- the port -------------------------------------------------------------------------------------------

    def listen(
        self, listening: Sequence[socket.socket], make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """Accept connections of these sockets from now on."""
        self._make_protocol = make_protocol
        self._listening = list(listening)
        name = self._listening[0].getsockname()
        self.address = (str(name[0]), int(name[1]))
        for one in self._listening:
            self._loop.add_reader(one, self._accept, one)
        self._timer = self._loop.call_later(self._limits.sweep, self._sweep)

    def stop_listening(self) -> None:
        """Accept no further connections."""
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()

    async def close(self) -> None:
        """End everything that is left."""
        self.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
        opening = tuple(self._opening)
        for task in opening:
            task.cancel()
        for connection in self.connections:
            self.connections.end(connection, "the port is closed")
        if opening:
            await asyncio.wait(opening)

    def _sweep(self) -> None:
        self.connections.sweep()
        self._report()
        self._timer = self._loop.call_later(self._limits.sweep, self._sweep)

    def _report(self) -> None:
        """Log at most once a minute that connections had to go."""
        since, before = self._reported
        now = sum(n for reason, n in self.connections.closed.items() if reason != Stage.IDLE.value)
        if now > before and self._loop.time() - since >= _REPORT_SECONDS:
            self._reported = (self._loop.time(), now)
            log.warning(
                "connections were closed that took too long, or to make room for others",
                port=self.address[1],
                since_start=dict(self.connections.closed),
            )

    # --- from the socket to the protocol --------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except BlockingIOError:
                self._is_short = False
                return
            except (InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _NO_DESCRIPTORS:
                    log.error("a connection could not be accepted", error=str(e))
                    return
                self._rest(listening)
                return
            accepted.setblocking(False)
            connection = Connection(str(address[0]), accepted)
            connection.close = partial(self._drop, connection)
            self._loop.add_reader(accepted, self._look, connection)
            self.connections.add(connection)

    def _rest(self, listening: socket.socket) -> None:
        """Stop accepting for a moment: the process has no file descriptors left."""
        # Once, not ten times a second: it is over when no connection waits any more.
        level = log.debug if self._is_short else log.error
        level("connections wait: there are no file descriptors left", port=self.address[1])
        self._is_short = True
        self._loop.remove_reader(listening)

        def go_on() -> None:
            if listening in self._listening:
                self._loop.add_reader(listening, self._accept, listening)

        self._loop.call_later(_REST_SECONDS, go_on)

    def _drop(self, connection: Connection) -> None:
        """Close a connection that no transport has yet."""
        if connection.socket is not None:
            self._loop.remove_reader(connection.socket)
            connection.socket.close()
            connection.socket = None

    def _look(self, connection: Connection) -> None:
        """Hand a socket to asyncio, if what the client sends first is there."""
        accepted = connection.socket
        assert accepted is not None
        try:
            complete = _is_complete(accepted, tls=self._context is not None)
        except OSError:
            complete = None
        if complete is None:
            self.connections.remove(connection)
            self._drop(connection)
        elif complete:
            self._loop.remove_reader(accepted)
            self.connections.enter(connection, Stage.READY)
            self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._beginning:
            self._beginning = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Open a few connections; those that are open already come first in the next turn of the loop."""
        self._beginning = False
        stage = Stage.HANDSHAKE if self._context is not None else Stage.HEADER
        full: set[str] = set()
        for _ in range(_BEGUN_AT_ONCE):
            connection = self.connections.next(full)
            if connection is None:
                break
            if not self.connections.admit(connection, stage):
                full.add(connection.peer)
                continue
            accepted = connection.socket
            assert accepted is not None
            task = self._loop.create_task(self._open(connection, accepted))
            self._opening.add(task)
            task.add_done_callback(partial(self._was_opened, connection))
            connection.close = partial(_cancel, task)
        if full:
            self._beginning = True
            self._loop.call_later(_NO_PLACE_SECONDS, self._begin)
        elif self.connections.count(Stage.READY):
            self._begin_soon()

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        assert self._make_protocol is not None
        protocol = _Tracked(self, connection, self._make_protocol())
        tls = self._context is not None
        with contextlib.suppress(OSError):  # of which the errors of ssl are
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.handshake if tls else None,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS if tls else None,
            )

    def _was_opened(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if connection.socket is not None:  # no transport has it
            connection.socket.close()
            connection.socket = None
            self.connections.remove(connection)

    def opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Note the transport of a connection, with which its handshake has ended."""
        connection.socket = None
        connection.close = transport.abort
        if connection in self.connections:
            self._by_transport[transport] = connection
            self.connections.enter(connection, Stage.HEADER)
        else:
            transport.abort()

    def received(self, connection: Connection, size: int) -> None:
        """Count what a client sends before its request is complete."""
        if connection.stage is Stage.IDLE:
            self.connections.enter(connection, Stage.HEADER)
        if connection.stage is Stage.HEADER:
            connection.received += size
            # A body may come with the header, as far as it is read at once.
            if connection.received > self._limits.header_bytes + _READ_AHEAD:
                self.connections.end(connection, Stage.HEADER.value)

    def lost(self, connection: Connection, transport: asyncio.BaseTransport | None) -> None:
        """Forget a connection."""
        if transport is not None:
            self._by_transport.pop(transport, None)
        self.connections.remove(connection)


class _Tracked(asyncio.Protocol):
    """Passes everything on to the protocol of aiohttp, and notes it."""

    def __init__(self, port: Port, connection: Connection, inner: asyncio.Protocol) -> None:
        self._port = port
        self._connection = connection
        self._inner = inner
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        self._port.opened(self._connection, transport)

    def data_received(self, data: bytes) -> None:
        self._port.received(self._connection, len(data))
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.lost(self._connection, self._transport)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._port.connections.stall(self._connection)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._port.connections.flow(self._connection)
        self._inner.resume_writing()


async def listening_sockets(host: str | None, port: int, flag: str) -> list[socket.socket]:
    """Return sockets that listen, of each address that a host has; connections wait until they are served.

    Args:
        host: address to listen on; if None or empty, all addresses.
        port: 0: any.
        flag: of the command line, for the error.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    loop = asyncio.get_running_loop()
    made: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            # All addresses get the port that the first one got.
            number = port or (made[0].getsockname()[1] if made else 0)
            try:
                made.append(_bound(family, (address[0], number, *address[2:])))
            except OSError as e:
                if not made or e.errno not in _NO_FAMILY:
                    raise
        for one in made:
            one.listen(_BACKLOG)
    except OSError as e:
        for one in made:
            one.close()
        raise ConfigurationError(f"{flag}: cannot listen on {host or '*'}:{port}: {e.strerror}") from e
    return made


@contextlib.asynccontextmanager
async def serve(
    host: str | None,
    port: int,
    make_app: Callable[[Port], web.Application],
    *,
    flag: str,
    limits: Limits,
    context: ssl.SSLContext | None = None,
    ending: Callable[[], None] = lambda: None,
    shutdown_seconds: float = 2.0,
    listening: Sequence[socket.socket] = (),
) -> AsyncIterator[Port]:
    """Serve an application until the block ends.

    Args:
        host: address to listen on; if None or empty, all addresses.
        port: 0: any.
        make_app: makes the application, whose outermost middleware must be ``Port.middleware``.
        flag: of the command line, for the error.
        limits: of the port; lowered where the process may have few file descriptors.
        context: for HTTPS.
        ending: called before requests are waited for at the end.
        shutdown_seconds: for requests that are being answered at the end.
        listening: sockets that listen already; host and port are not used then.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    opened = Port(limits.within_descriptors(), context)
    # Bodies are counted as they are in memory, so they are not decompressed. A slow reader of an answer must
    # not hold up the end of the process.
    runner = web.AppRunner(
        make_app(opened),
        access_log=None,
        shutdown_timeout=shutdown_seconds,
        keepalive_timeout=limits.idle,
        auto_decompress=False,
    )
    await runner.setup()
    try:
        server = runner.server
        assert server is not None
        opened.listen(listening or await listening_sockets(host, port, flag), server)
        yield opened
    finally:
        opened.stop_listening()
        ending()
        await runner.cleanup()
        await opened.close()


def _timed_out() -> web.Response:
    """Return the answer for a connection that is closed."""
    return web.Response(status=408)


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _is_complete(accepted: socket.socket, *, tls: bool) -> bool | None:
    """Return whether a client's first message is there; None if it never will be.

    Of HTTP that is a byte, of TLS the first record. The kernel is told to wake us when there is more of it,
    because what is only looked at stays readable.
    """
    head = accepted.recv(_RECORD_HEADER, socket.MSG_PEEK)
    if not head:
        return None
    if not tls:
        return True
    if head[0] != _HANDSHAKE_RECORD:
        return None
    needed = _RECORD_HEADER
    if len(head) == _RECORD_HEADER:
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= _LARGEST_RECORD:
            return None
        needed += length
        if len(accepted.recv(needed, socket.MSG_PEEK)) == needed:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            return True
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)
    return False
