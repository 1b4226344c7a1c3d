"""Answers that cost work to make, so that asking again and again does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["Recent"]

SECONDS: Final = 0.25


class Recent:
    """An answer that is made at most once in so many seconds, however many ask for it."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], seconds: float = SECONDS) -> None:
        """Begin without an answer.

        Args:
            make: makes it.
            seconds: for which it is given again; 0: only to those who asked before it was begun.
        """
        self._make = make
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._begun = float("-inf")
        self._answered = False
        self._answer = b""

    async def get(self) -> bytes:
        """Return the answer; those that ask at the same time get the same one."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._lock:
            if self._begun < asked - self._seconds or not self._answered:
                self._answered, self._begun = False, loop.time()
                self._answer = await self._make()
                self._answered = True
            return self._answer
