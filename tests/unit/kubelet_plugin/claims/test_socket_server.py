"""The server on a Unix socket, when its start is cut short."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

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
