"""An event loop that does not wait: when nothing is left to do, its clock goes on to the next timer.

For scenarios that live in memory altogether. A delay then costs nothing, and how busy the machine is changes
neither what happens nor in which order. What the loop cannot see (sockets, other processes, foreign threads)
does not hold the clock back: such scenarios need the real one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_SHORTEST: Final = 1e-6


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as ``asyncio.run`` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class LoopClock:
    """Implements ``ports.Clock`` with the time of the running loop."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        return 1_800_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        """Return the loop's seconds."""
        return asyncio.get_running_loop().time()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The clock stands still while callbacks run, and while work is under way in an executor."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._in_executor = 0
        super().__init__(_Selector(self._idle))

    def time(self) -> float:
        """Return the seconds since the loop was made."""
        return self._seconds

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Let the clock move for each timer.

        One within the clock's resolution is due at once. Whoever asks for the rest of a time, which rounding
        has left, would ask for ever, where a real clock goes on by itself.
        """
        return super().call_at(max(when, self._seconds + _SHORTEST), callback, *args, context=context)

    def compute(self, seconds: float) -> None:
        """Let time go by while a callback runs, as if it computed for so long."""
        self._seconds += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Hold the clock back until the work is done."""
        future = super().run_in_executor(executor, func, *args)
        self._in_executor += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, _: asyncio.Future[Any]) -> None:
        self._in_executor -= 1

    def _idle(self, timeout: float | None) -> float | None:
        """Let ``timeout`` seconds go by at once, where they may; return how long to really wait."""
        if timeout is None or self._in_executor:
            return None
        self._seconds += timeout
        return 0


class _Selector(selectors.DefaultSelector):
    """Asks how long to wait when there is nothing to do."""

    def __init__(self, idle: Callable[[float | None], float | None]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; wait only if ``idle`` says so."""
        # Beside sockets there is the loop's own pipe, which only ends a wait. To ask the kernel takes long.
        ready = super().select(0) if len(self.get_map()) > 1 else []
        if ready or timeout == 0:
            return ready
        wait = self._idle(timeout)
        return [] if wait == 0 else super().select(wait)
