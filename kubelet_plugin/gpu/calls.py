"""Calls to GPUs: bounded in time, one change at a time for each GPU, none to what hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from dra_driver.errors import DraError, PrepareError
from dra_driver.ports import GpuControl

__all__ = ["CALL_SECONDS", "GpuCalls"]

_T = TypeVar("_T")
# Of one call to a GPU; a library that hangs must not use up the time of the kubelet's call.
CALL_SECONDS: Final = 25.0


class GpuCalls:
    """What may be asked of the GPUs of a node, and how long it may take.

    Attributes:
        released: why nothing can be changed now, as a clause; empty if it can.
    """

    def __init__(
        self, controls: Iterable[GpuControl], executor: Executor, seconds: float = CALL_SECONDS
    ) -> None:
        self._controls = tuple(controls)
        self._executor = executor
        self._seconds = seconds
        self._locks: dict[str, asyncio.Lock] = {}
        # Calls that did not come back in time, by what was called. Until they do, no other of it is tried:
        # that would wait as well.
        self._stuck: dict[asyncio.Future[Any], int] = {}
        self.released = ""

    async def control(self, gpu: str) -> GpuControl | None:
        """Return the control that can change the GPU; None if the GPU is not here.

        Raises:
            DraError: none says that it has the GPU, and one cannot say whether it has.
        """
        unknown: DraError | None = None
        for control in self._controls:
            try:
                if await self.call(control.has, gpu):
                    return control
            except DraError as e:
                unknown = unknown or e
        if unknown is not None:
            raise unknown
        return None

    async def needed(self, device: str, gpu: str) -> GpuControl:
        """Return the control that can change the GPU with this UUID.

        Raises:
            PrepareError: the GPU is not here.
        """
        control = await self.control(gpu)
        if control is None:
            raise PrepareError(
                f"device {device}: there is no GPU {gpu} that could be configured", retryable=True
            )
        return control

    async def call(self, work: Callable[..., _T], *args: object) -> _T:
        """Call in a thread.

        Raises:
            PrepareError: it takes too long, one before it hangs, or an administrator has the GPUs.
        """
        done: set[asyncio.Future[_T]] = set()
        if self.released:
            raise PrepareError(f"the GPUs cannot be changed now: {self.released}", retryable=True)
        # A backend, its control or the daemons; each call of a bound method makes the method anew.
        called = id(getattr(work, "__self__", None))
        if called not in self._stuck.values():
            future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
            done, late = await asyncio.wait([future], timeout=self._seconds)
            for hanging in late:
                self._stuck[hanging] = called
                hanging.add_done_callback(lambda f: self._stuck.pop(f, None))
        if not done:
            raise PrepareError(
                f"the GPU or its library does not answer after {self._seconds:g} s", retryable=True
            )
        return done.pop().result()

    @asynccontextmanager
    async def alone(self, gpu: str) -> AsyncIterator[None]:
        """Allow one change at a time for one GPU, so that its last user and its next one do not cross."""
        async with self._locks.setdefault(gpu, asyncio.Lock()):
            yield
