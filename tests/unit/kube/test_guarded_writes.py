"""Writes behind a guard: none is sent, or sent again, once it says no, whatever they waited for before."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp.abc import AbstractStreamWriter

from dra_driver.api.core import NODES
from dra_driver.errors import ApiUnavailable, NotLeading
from dra_driver.kube import KubeApi
from dra_driver.kube.http.sending import PIECE, GuardedBody
from dra_driver.kube.http.transport import CONCURRENT_CALLS

ANSWER = json.dumps({"metadata": {"name": "n"}}).encode()
NODE = {"metadata": {"name": "n"}}


class Guard:
    """Says yes so many times, or until it is closed."""

    def __init__(self, times: int = 1_000_000, seconds: float = 15.0) -> None:
        self.times, self.seconds = times, seconds

    def check(self) -> None:
        if self.times <= 0:
            raise NotLeading("closed")
        self.times -= 1

    def close(self) -> None:
        self.times = 0

    def seconds_left(self) -> float:
        return self.seconds


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> str:
        """Reads one request; its first line without the version."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length")]
        await self.reader.readexactly(sum(lengths))
        return head.split(" HTTP/")[0]

    def answer(self, status: str = "200 OK", body: bytes = ANSWER, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


Serve = Callable[[Peer], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, serve: Serve, **user: str) -> AsyncIterator[tuple[KubeApi, list[bytes]]]:
    """A client of a server of raw connections, and what arrived where nobody read it."""
    rest: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(Peer(reader, writer))
            rest.append(await reader.read())
        except (ConnectionError, asyncio.IncompleteReadError) as e:
            rest.append(getattr(e, "partial", b""))
        finally:
            writer.close()

    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)  # long requests do not fit
    host, port = sock.getsockname()
    server = await asyncio.start_server(connected, sock=sock)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    async with server:
        async with await KubeApi.connect(file) as api:
            yield api, rest
        await asyncio.sleep(0)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


async def until(there: Callable[[], object]) -> None:
    while not there():
        await asyncio.sleep(0.01)


WRITES = {
    "POST": lambda c: c.create(NODES, NODE),
    "PUT": lambda c: c.replace(NODES, NODE),
    "PATCH": lambda c: c.merge_patch(NODES, "n", {}),
    "APPLY": lambda c: c.apply(NODES, NODE, field_manager="m"),
    "DELETE": lambda c: c.delete(NODES, "n"),
}


@pytest.mark.parametrize("verb", WRITES)
def test_a_guard_that_says_yes_changes_nothing(tmp_path: Path, verb: str) -> None:
    async def serve(peer: Peer) -> None:
        while True:
            assert (await peer.request()).split()[0] == verb.replace("APPLY", "PATCH")
            peer.answer()

    async def main() -> None:
        async with serving(tmp_path, serve) as (api, _):
            for _ in range(2):
                await WRITES[verb](api.guarded(Guard()))

    run(main)


@pytest.mark.parametrize("verb", WRITES)
def test_nothing_leaves_when_the_guard_says_no_while_a_connection_is_made(tmp_path: Path, verb: str) -> None:
    async def main() -> None:
        async def serve(_: Peer) -> None:
            pass

        async with serving(tmp_path, serve) as (api, rest):
            with pytest.raises(NotLeading):
                await WRITES[verb](api.guarded(Guard(times=1)))  # yes to the connection, no to the request
            await until(lambda: rest)
            assert rest == [b""]

    run(main)


def test_a_lease_that_is_given_up_while_a_connection_is_made_is_no_error_of_ours(tmp_path: Path) -> None:
    """There is no renewal to count from any more: the time that is left is minus infinity."""

    class Ending(Guard):
        def seconds_left(self) -> float:
            seconds, self.seconds = self.seconds, float("-inf")
            return seconds

    async def main() -> None:
        async def serve(_: Peer) -> None:
            pass

        async with serving(tmp_path, serve) as (api, rest):
            with pytest.raises(NotLeading):
                await api.guarded(Ending(times=1)).replace(NODES, NODE)
            await until(lambda: rest)
            assert rest == [b""]

    run(main)


def test_no_connection_is_made_when_the_guard_says_no_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async def serve(_: Peer) -> None:
            pass

        async with serving(tmp_path, serve) as (api, rest):
            with pytest.raises(NotLeading):
                await api.guarded(Guard(times=0)).delete(NODES, "n")
            assert rest == []

    run(main)


def test_reads_do_not_ask_the_guard(tmp_path: Path) -> None:
    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.answer()

    async def main() -> None:
        async with serving(tmp_path, serve) as (api, _):
            assert (await api.guarded(Guard(times=0)).get(NODES, "n")).metadata.name == "n"

    run(main)


def test_a_write_that_the_server_put_off_is_not_repeated_later(tmp_path: Path) -> None:
    guard, seen = Guard(), []

    async def serve(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            guard.close()
            peer.answer("429 Too Many Requests", Retry_After="0")

    async def main() -> None:
        async with serving(tmp_path, serve) as (api, rest):
            with pytest.raises(NotLeading):
                await api.guarded(guard).merge_patch(NODES, "n", {})
        await until(lambda: rest)
        assert (len(seen), rest) == (1, [b""])

    run(main)


def test_a_write_with_a_credential_that_ran_out_is_not_repeated_later(tmp_path: Path) -> None:
    guard, seen = Guard(), []
    token = tmp_path / "token"
    token.write_text("old")

    async def serve(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            guard.close()
            peer.answer("401 Unauthorized")

    async def main() -> None:
        async with serving(tmp_path, serve, tokenFile=str(token)) as (api, _):
            with pytest.raises(NotLeading):
                await api.guarded(guard).merge_patch(NODES, "n", {})
            assert len(seen) == 1

    run(main)


@pytest.mark.parametrize("verb", ["PUT", "DELETE"])
def test_a_write_is_not_repeated_on_another_connection_later(tmp_path: Path, verb: str) -> None:
    """The HTTP library does that by itself when a connection that it kept turns out to be closed."""
    guard, seen = Guard(), []

    async def serve(peer: Peer) -> None:
        seen.append(await peer.request())
        peer.answer()
        seen.append(await peer.request())
        guard.close()
        peer.writer.close()

    async def main() -> None:
        async with serving(tmp_path, serve) as (api, rest):
            await api.get(NODES, "n")
            with pytest.raises(NotLeading):
                await WRITES[verb](api.guarded(guard))
            await until(lambda: len(rest) == 2)
            assert [s.split()[0] for s in seen] == ["GET", verb]
            assert rest[1:] == [b""]

    run(main)


def test_a_write_that_waited_for_other_calls_is_not_sent_later(tmp_path: Path) -> None:
    guard, seen, go = Guard(), [], asyncio.Event()

    async def serve(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            await go.wait()
            peer.answer()

    async def main() -> None:
        async with serving(tmp_path, serve) as (api, _), asyncio.TaskGroup() as group:
            for _ in range(CONCURRENT_CALLS):
                group.create_task(api.get(NODES, "n"))
            await until(lambda: len(seen) == CONCURRENT_CALLS)
            write = group.create_task(contain(api.guarded(guard).delete(NODES, "n")))
            await asyncio.sleep(0)
            guard.close()
            go.set()
            assert isinstance(await write, NotLeading)
            assert {s.split()[0] for s in seen} == {"GET"}

    run(main)


async def contain(call: Awaitable[object]) -> Exception | None:
    try:
        await call
    except NotLeading as e:
        return e
    return None


LARGE = {"metadata": {"name": "n", "annotations": {"a": "x" * 900_000}}}


def test_a_long_write_is_not_completed_later(tmp_path: Path) -> None:
    async def main() -> None:
        async def serve(_: Peer) -> None:
            pass

        async with serving(tmp_path, serve) as (api, rest):
            with pytest.raises(NotLeading):
                await api.guarded(Guard(times=4)).replace(NODES, LARGE)
            await until(lambda: rest)
            assert len(rest[0]) < 900_000

    run(main)


def test_a_write_without_an_answer_is_given_up_with_its_connection(tmp_path: Path) -> None:
    ends: list[type[BaseException]] = []

    async def serve(peer: Peer) -> None:
        await peer.request()
        try:
            await peer.reader.read()
        except ConnectionResetError as e:
            ends.append(type(e))

    async def main() -> None:
        async with serving(tmp_path, serve) as (api, _):
            with pytest.raises(ApiUnavailable, match=r"no answer in 0\.2 s"):
                await api.guarded(Guard(seconds=0.2)).merge_patch(NODES, "n", {})
            await until(lambda: ends)

    run(main)


def test_what_a_busy_server_has_not_read_of_a_write_never_arrives(tmp_path: Path) -> None:
    """Neither this process nor its kernel go on sending a request that was given up."""
    go = asyncio.Event()
    received: list[int] = []

    async def serve(peer: Peer) -> None:
        transport = peer.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        await go.wait()
        transport.resume_reading()
        total = 0
        with contextlib.suppress(ConnectionError):
            while data := await peer.reader.read(1 << 16):
                total += len(data)
        received.append(total)

    async def main() -> None:
        async with serving(tmp_path, serve) as (api, _):
            with pytest.raises(ApiUnavailable):
                await api.guarded(Guard(seconds=0.5)).replace(NODES, LARGE)
            go.set()
            await until(lambda: received)
            assert received[0] < 900_000

    run(main)


def test_what_this_process_still_holds_of_a_write_that_was_given_up_is_dropped() -> None:
    async def main() -> None:
        near, far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
        _, writer = await asyncio.open_connection(sock=near)
        body = GuardedBody(b"x" * PIECE, Guard())

        async def exchange() -> None:
            await body.write(Writer(writer.transport))
            writer.transport.close()  # as the HTTP library does
            raise TimeoutError

        with pytest.raises(TimeoutError), body.sending():
            await exchange()
        reader, other = await asyncio.open_connection(sock=far)
        assert 0 < len(await reader.read()) < PIECE
        other.close()

    run(main)


class Writer(AbstractStreamWriter):
    """The HTTP library's, as far as a body needs it."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._to = transport

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._to

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._to.write(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        raise NotImplementedError

    async def drain(self) -> None:
        raise NotImplementedError

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        raise NotImplementedError

    def enable_chunking(self) -> None:
        raise NotImplementedError

    async def write_headers(self, status_line: str, headers: object) -> None:
        raise NotImplementedError
