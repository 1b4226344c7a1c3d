"""Telling several tasks that something has changed, without losing a change."""

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
        """How many changes there were."""
        return self._count

    def notify(self) -> None:
        """Something has changed."""
        self._count += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait_beyond(self, count: int) -> int:
        """Waits until there were more than ``count`` changes; gives the new number."""
        while self._count <= count:
            await self._event.wait()
        return self._count

    async def wait(self, count: int, seconds: float) -> int:
        """Like ``wait_beyond``, but gives up after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait_beyond(count)
        except TimeoutError:
            return self._count
