"""A port over real sockets, and clients that stop half-way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web
from connecting import (
    Begin,
    Crowd,
    body_half_sent,
    client_context,
    handshake_half_done,
    handshake_half_sent,
    header_half_sent,
    idle_after_handshake,
    material,
    server_context,
    silent,
)

from dra_driver.errors import ConfigurationError
from dra_driver.serving import Limits, Port, serve
from dra_driver.serving.connections import NO_PLACE

MADE = material(time.time())
# Long enough that nothing ends by its time in a test of places, unless the test says so.
LONG = Limits(
    connections=16, silent=16, hello=60, handshake=60, header=60, body=60, idle=60, request_bytes=2000
)
SHORT = Limits(
    connections=16, silent=16, hello=0.2, handshake=0.2, header=0.2, body=0.2, idle=0.2, sweep=0.05
)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def application(port: Port) -> web.Application:
    async def post(request: web.Request) -> web.Response:
        return web.Response(text=f"{len(await port.body(request))}\n")

    async def get(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * (32 << 20))

    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(0.02)
        return web.Response(text="ok\n")

    async def in_turn(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response(text=f"{len(await port.body(request))}\n")

    app = web.Application(middlewares=[port.middleware])
    app.router.add_get("/slow", slow)
    app.router.add_post("/in-turn", in_turn)
    app.router.add_post("/validate", post)
    app.router.add_get("/", get)
    app.router.add_get("/large", large)
    return app


@contextlib.asynccontextmanager
async def served(limits: Limits, *, tls: bool = True) -> AsyncIterator[Port]:
    context = server_context(MADE) if tls else None
    async with serve("127.0.0.1", 0, application, flag="--port", limits=limits, context=context) as port:
        yield port


async def ask(
    port: Port,
    request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    *,
    tls: bool = True,
) -> bytes:
    """What is answered on a connection of its own, to its end."""
    context = client_context(MADE) if tls else None
    reader, writer = await asyncio.open_connection(*port.address, ssl=context)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        await leave(writer)


def post(size: int) -> bytes:
    head = f"POST /validate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + b"x" * size


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("tls", [True, False])
def test_requests_are_answered(tls: bool) -> None:
    async def scenario() -> None:
        async with served(LONG, tls=tls) as port:
            assert b"200 OK" in await ask(port, tls=tls)
            assert (await ask(port, post(2000), tls=tls)).endswith(b"2000\n")
            assert b"413" in await ask(port, post(2001), tls=tls)
            await until(lambda: port.connections.count() == 0)

    run(scenario)


def test_a_body_without_a_length_is_bounded_too() -> None:
    async def scenario() -> None:
        head = (
            b"POST /validate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        async with served(LONG) as port:
            chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
            assert (await ask(port, head + chunk + b"0\r\n\r\n")).endswith(b"1024\n")
            assert b"413" in await ask(port, head + chunk * 3 + b"0\r\n\r\n")

    run(scenario)


@pytest.mark.parametrize(
    "begin",
    [
        silent,
        handshake_half_sent,
        handshake_half_done,
        idle_after_handshake,
        header_half_sent,
        body_half_sent,
    ],
)
def test_a_crowd_that_stops_half_way_keeps_nobody_out(begin: Begin) -> None:
    async def scenario() -> None:
        with Crowd().gathered() as crowd:
            async with served(LONG) as port:
                await crowd.come(begin, port.address, 60)
                await until(lambda: crowd.closed() + crowd.refused >= 60 - LONG.connections)
                for _ in range(3):
                    assert b"200 OK" in await ask(port)
                assert port.connections.count() <= LONG.connections + LONG.silent
                assert port.connections.closed[NO_PLACE] >= 60 - LONG.connections - 3
            # And at the end nobody is waited for.
            await until(lambda: crowd.closed() == len(crowd.sockets))

    run(scenario)


async def keep_asking(port: Port, host: str, requests: bytes) -> None:
    """Send requests without a pause, on one connection after the other."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(*port.address, local_addr=(host, 0))
            try:
                while True:
                    writer.write(requests)
                    for _ in range(requests.count(b"HTTP/1.1")):
                        await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.01)


HOST = b" HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /in-turn" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param(b"GET /" + HOST + b"\r\n", id="one after the other"),
        pytest.param((b"GET /" + HOST + b"\r\n") * 50, id="many at once"),
        pytest.param(b"GET /nothing" + HOST + b"\r\n", id="for what there is not"),
        pytest.param((b"GET /slow" + HOST + b"\r\n") * 500, id="that are waited for"),
        pytest.param(CHUNKED, id="whose bodies wait for their turn"),
    ],
)
def test_connections_that_are_always_busy_keep_nobody_out(requests: bytes) -> None:
    async def scenario() -> None:
        async with served(LONG, tls=False) as port:
            crowd = [
                asyncio.create_task(keep_asking(port, f"127.0.0.{2 + i % 2}", requests)) for i in range(24)
            ]
            await until(lambda: port.connections.count() >= LONG.connections)
            for _ in range(3):
                async with asyncio.timeout(5):
                    assert b"200 OK" in await ask(port, tls=False)
            for each in crowd:
                each.cancel()
            await asyncio.wait(crowd)

    run(scenario)


def test_a_connection_is_kept_after_its_answer_while_nobody_waits() -> None:
    async def scenario() -> None:
        async with served(LONG, tls=False) as port:
            connections = [await asyncio.open_connection(*port.address) for _ in range(LONG.connections)]
            for _ in range(3):
                for reader, writer in connections:
                    writer.write(b"GET /" + HOST + b"\r\n")
                    assert b"Connection: close" not in await reader.readuntil(b"ok\n")
            assert port.connections.count() == LONG.connections
            for _, writer in connections:
                await leave(writer)

    run(scenario)


@pytest.mark.parametrize(
    "begin",
    [
        silent,
        handshake_half_sent,
        handshake_half_done,
        idle_after_handshake,
        header_half_sent,
        body_half_sent,
    ],
)
def test_who_takes_too_long_is_closed(begin: Begin) -> None:
    async def scenario() -> None:
        with Crowd().gathered() as crowd:
            async with served(SHORT) as port:
                await crowd.come(begin, port.address, 8)
                await until(lambda: crowd.closed() == len(crowd.sockets))
                assert NO_PLACE not in port.connections.closed

    run(scenario)


def test_connections_between_two_requests_are_closed_in_time() -> None:
    async def scenario() -> None:
        async with served(SHORT, tls=False) as port:
            reader, writer = await asyncio.open_connection(*port.address)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"ok\n")
            assert await reader.read() == b""
            await until(lambda: port.connections.count() == 0)
            await leave(writer)

    run(scenario)


def test_several_requests_go_over_one_connection() -> None:
    async def scenario() -> None:
        async with served(LONG) as port:
            reader, writer = await asyncio.open_connection(*port.address, ssl=client_context(MADE))
            for _ in range(3):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200 OK" in await reader.readuntil(b"ok\n")
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5)  # at once
            for _ in range(5):
                await reader.readuntil(b"ok\n")
            await leave(writer)

    run(scenario)


def test_who_does_not_read_the_answer_is_closed() -> None:
    async def scenario() -> None:
        limits = Limits(answer=0.3, sweep=0.05)
        async with served(limits, tls=False) as port:
            with socket.create_connection(port.address) as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
                await until(lambda: port.connections.closed == {"answer": 1})
                assert port.connections.count() == 0

    run(scenario)


def test_an_endless_header_is_cut_off() -> None:
    async def scenario() -> None:
        async with served(LONG, tls=False) as port:
            reader, writer = await asyncio.open_connection(*port.address)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
            with contextlib.suppress(ConnectionError):
                for i in range(10_000):
                    writer.write(b"X-%d: %s\r\n" % (i, b"x" * 500))
                    await writer.drain()
            await until(lambda: port.connections.count() == 0)
            await leave(writer)
            with contextlib.suppress(ConnectionError):
                await reader.read()

    run(scenario)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x16", b"\x00"])
def test_what_is_no_handshake_is_no_trouble(sent: bytes) -> None:
    async def scenario() -> None:
        async with served(LONG) as port:
            for _ in range(40):
                with socket.create_connection(port.address) as other:
                    other.send(sent)
            await until(lambda: port.connections.count() == 0)
            assert b"200 OK" in await ask(port)

    run(scenario)


def test_a_hello_may_come_in_pieces() -> None:
    async def scenario() -> None:
        async with served(LONG) as port:
            reader, writer = await asyncio.open_connection(*port.address)
            context = client_context(MADE)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            hello = outgoing.read()
            for part in (hello[:3], hello[3:5], hello[5:50], hello[50:]):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.02)
            assert (await reader.read(1)) == b"\x16"  # the server's part
            await leave(writer)

    run(scenario)


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        async with served(LONG, tls=False) as port:
            host, number = port.address
            with pytest.raises(ConfigurationError, match=f"--port: cannot listen on {host}:{number}"):
                async with serve(host, number, application, flag="--port", limits=LONG):
                    pass

    run(scenario)


def test_all_addresses_have_one_port() -> None:
    async def scenario() -> None:
        async with serve("", 0, application, flag="--port", limits=LONG) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port.address[1])
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in await reader.read()
            await leave(writer)

    run(scenario)
