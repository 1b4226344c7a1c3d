"""How late the event loop is: watches, the lease, probes, webhooks and writes all wait that long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

__all__ = ["measuring_lag"]

# A hundred samples per second take about half a percent of a core.
INTERVAL: Final = 0.01
"""Seconds from one sample to the next."""


@contextlib.asynccontextmanager
async def measuring_lag(observe: Callable[[float], None]) -> AsyncIterator[None]:
    """Measure for as long as the block runs how much later than it asked for a task runs again.

    Args:
        observe: called with each delay, in seconds.
    """
    task = asyncio.get_running_loop().create_task(_measure(observe))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _measure(observe: Callable[[float], None]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        observe(max(0.0, loop.time() - due))
