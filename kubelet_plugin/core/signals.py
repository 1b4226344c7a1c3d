"""Signals to several tasks that something has changed, none of which is lost."""

from __future__ import annotations

import asyncio

__all__ = ["Changes"]


class Changes:
    """A counter that tasks can wait on. Changes between two waits are seen as one."""

    def __init__(self) -> None:
        self._count = 0
        self._event = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of changes so far."""
        return self._count

    def notify(self) -> None:
        """Count a change and wake every task that waits."""
        self._count += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait_beyond(self, count: int) -> int:
        """Wait until there were more than ``count`` changes; return the new number."""
        while self._count <= count:
            await self._event.wait()
        return self._count

    async def wait(self, count: int, seconds: float) -> int:
        """Do what ``wait_beyond`` does, for at most so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait_beyond(count)
        except TimeoutError:
            return self._count
