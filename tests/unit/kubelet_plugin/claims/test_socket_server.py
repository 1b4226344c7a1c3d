"""The server on a Unix socket, when its start is cut short."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kubelet_plugin.grpc.sockets import SocketServer


@pytest.mark.parametrize("steps", range(6))
def test_a_start_that_is_cancelled_leaves_a_server_that_can_be_stopped(steps: int, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "socket"
        server = SocketServer(path)
        start = asyncio.create_task(server.start(lambda _: None))
        for _ in range(steps):
            await asyncio.sleep(0)
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        await server.stop(0.1)
        assert not path.exists()

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(8))
def test_a_server_that_is_stopped_at_once_when_its_start_is_cancelled(steps: int, tmp_path: Path) -> None:
    """gRPC would end the process where a server is stopped while it starts."""

    async def main() -> None:
        path = tmp_path / "socket"
        server = SocketServer(path)

        async def serve() -> None:
            try:
                await server.start(lambda _: None)
                await asyncio.Event().wait()
            finally:
                await server.stop(0.1)

        task = asyncio.create_task(serve())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not path.exists()

    asyncio.run(main())


def test_calls_of_a_server_that_lost_its_file_have_ended_when_all_has_stopped(tmp_path: Path) -> None:
    """A server that is stopped by half crashes the process later, or keeps it from ending."""

    async def main() -> None:
        path = tmp_path / "socket"
        server = SocketServer(path)
        states: list[str] = []

        async def hang(_: bytes, __: object) -> bytes:
            states.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                states.append("ended")
            return b""

        def register(new: grpc.aio.Server) -> None:
            handlers = {"Hang": grpc.unary_unary_rpc_method_handler(hang)}
            new.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Calls", handlers),))

        await server.start(register)
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary("/test.Calls/Hang", bytes, bytes)(b"")
            await asyncio.wait_for(_until(lambda: states == ["begun"]), 30)
            path.unlink()
            await server.restart()
            assert server.present
            # Calls in flight go on, whatever becomes of the task that put the socket back.
            assert states == ["begun"]
            stopping = asyncio.create_task(server.stop(0.1))
            await asyncio.sleep(0.01)
            stopping.cancel()
            await asyncio.wait([stopping])
            assert states == ["begun", "ended"]
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        assert not path.exists()

    asyncio.run(main())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
