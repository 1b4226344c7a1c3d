"""The whole controller in virtual time, deciding in the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import virtual_time
from fake_client import FakeClient
from inline_answers import inline

from controller.app import Controller
from controller.config import ControllerConfig

__all__ = ["running"]


@contextlib.asynccontextmanager
async def running(cluster: FakeClient, seconds: float = 30, **config: Any) -> AsyncIterator[Controller]:
    """Run a controller that is ready; it has ended when the block ends, which may take so many seconds."""
    settings = ControllerConfig(leader_elect=False, **config)
    controller = Controller(cluster, settings, virtual_time.LoopClock(), answers_of=inline)
    task = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(seconds):
            await controller.ready.wait()
            yield controller
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
