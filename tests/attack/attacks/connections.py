"""Connections to the ports of both replicas: probes and metrics, the page, the webhooks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from attack_objects import alternatives, one
from attack_world import TENANT, AttackedCluster, attack

_CLIENT = ssl.create_default_context()
_CLIENT.check_hostname = False
_CLIENT.verify_mode = ssl.CERT_NONE

# A pod of a tenant has an address of its own, not that of the kubelet, of Prometheus or of the API server.
_ATTACKER = "127.0.0.2"
_HALF = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Never-Ends: "
_BODY = (
    b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n"
)


async def _forever() -> None:
    await asyncio.Event().wait()


def _ports(world: AttackedCluster, which: str) -> list[int]:
    return [getattr(replica, which) for replica in world.controllers.replicas]


async def _open(port: int, first: bytes) -> socket.socket | None:
    """Open a connection and send something; None if it is not taken."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setblocking(False)
    made.bind((_ATTACKER, 0))
    try:
        async with asyncio.timeout(5):
            await loop.sock_connect(made, ("127.0.0.1", port))
            if first:
                await loop.sock_sendall(made, first)
    except (OSError, TimeoutError):
        made.close()
        return None
    return made


@contextlib.asynccontextmanager
async def _many(
    world: AttackedCluster, ports: list[int], number: int, first: bytes = b""
) -> AsyncIterator[None]:
    """Open connections to each port; close them at the end."""
    opened: list[socket.socket] = []
    waiting = iter([port for port in ports for _ in range(number)])

    async def work() -> None:
        for port in waiting:
            made = await _open(port, first)
            if made is not None:
                opened.append(made)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(50):
                tasks.create_task(work())
        world.notes.append(f"{len(opened)} of {number * len(ports)} connections were taken")
        if not opened:
            world.problems.append("no connection was taken")
        yield
    finally:
        for made in opened:
            made.close()


async def _hold(world: AttackedCluster, which: str, number: int, first: bytes = b"") -> None:
    """Open connections and keep them."""
    world.strike()
    async with _many(world, _ports(world, which), number, first):
        await _forever()


@attack
async def idle_connections_to_health(world: AttackedCluster) -> None:
    """Open 2,000 connections to each health port and say nothing."""
    await _hold(world, "health", 2_000)


@attack
async def half_sent_requests_to_health(world: AttackedCluster) -> None:
    """Begin 2,000 requests at each health port and never end their heads."""
    await _hold(world, "health", 2_000, _HALF)


@attack
async def idle_connections_to_webhooks(world: AttackedCluster) -> None:
    """Open 2,500 connections to each webhook port without a handshake."""
    await _hold(world, "webhook", 2_500)


@attack
async def half_handshakes_with_webhooks(world: AttackedCluster) -> None:
    """Begin 2,500 handshakes at each webhook port and never go on."""
    hello = bytes.fromhex("16030100c8010000c40303") + b"x" * 60
    await _hold(world, "webhook", 2_500, hello)


async def _encrypted(
    world: AttackedCluster,
    number: int,
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    """Open encrypted connections to each webhook port, and do something with each of them."""
    world.strike()
    waiting = iter([port for port in _ports(world, "webhook") for _ in range(number)])
    writers: list[asyncio.StreamWriter] = []
    talking: set[asyncio.Task[None]] = set()

    async def work() -> None:
        for port in waiting:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=_CLIENT)
                writers.append(writer)
                talking.add(asyncio.create_task(_quietly(talk(reader, writer))))

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(work())
        world.notes.append(f"{len(writers)} encrypted connections")
        if not writers:
            world.problems.append("no connection was taken")
        await _forever()
    finally:
        for task in talking:
            task.cancel()
        for writer in writers:
            writer.transport.abort()


async def _quietly(talk: Awaitable[None]) -> None:
    with contextlib.suppress(OSError, EOFError):
        await talk


@attack
async def idle_encrypted_connections(world: AttackedCluster) -> None:
    """Complete 500 handshakes at each webhook port and say nothing."""

    async def nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None: ...

    await _encrypted(world, 500, nothing)


@attack
async def half_sent_reviews(world: AttackedCluster) -> None:
    """Begin 300 reviews at each webhook port and never end their heads."""

    async def half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_HALF)
        await writer.drain()

    await _encrypted(world, 300, half)


@attack
async def slow_reviews(world: AttackedCluster) -> None:
    """Send the bodies of 200 reviews to each webhook port byte by byte."""

    async def slowly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_BODY)
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.5)

    await _encrypted(world, 200, slowly)


@attack
async def large_reviews(world: AttackedCluster) -> None:
    """Send reviews of four megabytes, deeply nested, over eight connections to each webhook port."""
    nested = b'{"a":' * 40_000 + b"1" + b"}" * 40_000

    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = nested.ljust(3_900_000)
            writer.write(_BODY.replace(b"4000000", str(len(body)).encode()) + body)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")
            )
            await reader.readexactly(length)
            await asyncio.sleep(0.2)

    await _encrypted(world, 8, large)


@attack
async def slow_readers_of_the_page(world: AttackedCluster) -> None:
    """Ask for the fleet and its changes over 200 connections to each page, and read nothing."""
    await _hold(world, "page", 200, b"GET /fleet/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


@attack
async def greedy_readers_of_the_page(world: AttackedCluster) -> None:
    """Ask for the whole fleet again and again over ten connections to each page."""
    await _ask(world, "page", 10, b"GET /fleet HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 2)


@attack
async def greedy_readers_of_plans(world: AttackedCluster) -> None:
    """Ask each page again and again for plans of ten pods whose claims are made to be hard."""
    names = [f"planned-{i}" for i in range(10)]
    await world.submit(*(m for name in names for m in one(name, TENANT, alternatives(9))))
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            request = f"GET /fleet/plan?pod={TENANT}/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            tasks.create_task(_ask(world, "page", 1, request.encode(), 2))


@attack
async def greedy_readers_of_metrics(world: AttackedCluster) -> None:
    """Ask for metrics again and again over ten connections to each health port."""
    await _ask(world, "health", 10, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 5)


async def _ask(world: AttackedCluster, which: str, number: int, request: bytes, per_second: float) -> None:
    """Ask at a rate over each of some connections, and read what comes."""
    world.strike()
    loop = asyncio.get_running_loop()

    async def one(port: int) -> None:
        async for _ in world.ticks(per_second):
            made = await _open(port, request)
            if made is None:
                continue
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    while await loop.sock_recv(made, 1 << 20):
                        pass
            made.close()

    async with asyncio.TaskGroup() as tasks:
        for port in _ports(world, which):
            for _ in range(number):
                tasks.create_task(one(port))


@attack
async def connections_come_and_go(world: AttackedCluster) -> None:
    """Open and reset 200 connections a second at every port."""
    world.strike()
    ports = [p for which in ("health", "webhook", "page") for p in _ports(world, which)]
    async for i in world.ticks(200):
        made = await _open(ports[i % len(ports)], b"GET / HTTP/1.1\r\n" if i % 2 else b"")
        if made is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            made.close()


@attack
async def garbage(world: AttackedCluster) -> None:
    """Send what is no HTTP and no TLS to every port, and headers without an end."""
    world.strike()
    ports = [p for which in ("health", "webhook", "page") for p in _ports(world, which)]
    texts = (
        b"\x00" * 60_000,
        world.rng.randbytes(60_000),
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 9_000,
        b"GET /" + b"a" * 60_000,
        b"POST /validate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    )
    async for i in world.ticks(60):
        made = await _open(ports[i % len(ports)], texts[i // len(ports) % len(texts)])
        if made is not None:
            made.close()
