"""Calls to GPUs: bounded in time, one change at a time for each GPU, none to what hangs.

Each control has threads of its own: one of a third party that is slow or hangs must not take those by which
the devices of others are changed. A call that hangs keeps away the calls to the same device alone where the
control says that its devices do not wait for each other (``SeparateCalls``), and those of the daemons, which
are processes of their own.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

from dra_driver.discovery.core.control import SeparateCalls
from dra_driver.errors import DraError, PrepareError
from dra_driver.ports import Daemons, GpuControl

__all__ = ["CALL_SECONDS", "GpuCalls", "NoAnswer"]

_T = TypeVar("_T")
# Of one call to a GPU; a library that hangs must not use up the time of the kubelet's call.
CALL_SECONDS: Final = 25.0
# Of each control. Those whose devices do not wait for each other have one for each device that may hang.
_THREADS: Final = 4
_SEPARATE_THREADS: Final = 64
# For which another instance of the plugin is waited for that changes the same GPU, or just looks at it.
_LOCK_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02
# The calls that were begun where a GPU is changed alone.
_BEGUN: ContextVar[list[asyncio.Future[Any]] | None] = ContextVar("begun", default=None)


class NoAnswer(PrepareError):
    """A call that did not come back in time: what it was to do may still be done.

    Attributes:
        begun: whether the call was made at all.
    """

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message, retryable=True)
        self.begun = begun


class GpuCalls:
    """What may be asked of the GPUs of a node, and how long it may take.

    Args:
        controls: of the GPUs.
        executor: for what is asked of anything else.
        seconds: that one call may take.
        locks: folder with a lock for each GPU, by which two instances of the plugin do not change it at once;
            if None, there is one instance.
        daemons: the sharing daemons of the node.

    Attributes:
        released: why nothing can be changed now, as a clause; empty if it can.
        found_by: returns the control of the backend that has found a GPU; None where that is not known.
        is_found: returns whether the GPU was there when its backend looked last, if a third party's control
            cannot know that better.
    """

    def __init__(
        self,
        controls: Iterable[GpuControl],
        executor: Executor,
        seconds: float = CALL_SECONDS,
        locks: Path | None = None,
        daemons: Daemons | None = None,
    ) -> None:
        self._controls = tuple(controls)
        self._executor = executor
        separate: list[object] = [c for c in self._controls if isinstance(c, SeparateCalls)]
        separate += [] if daemons is None else [daemons]
        self._separate = frozenset(map(id, separate))
        # Threads are started when they are needed.
        self._threads = {
            id(c): ThreadPoolExecutor(
                _SEPARATE_THREADS if id(c) in self._separate else _THREADS, thread_name_prefix=f"control-{i}"
            )
            for i, c in enumerate((*self._controls, *(() if daemons is None else (daemons,))))
        }
        # Which control had a GPU when it was asked last.
        self._had: dict[str, GpuControl] = {}
        self._seconds = seconds
        self._folder = locks
        # Of the loop's clock; None where each call has its own time alone.
        self._end: float | None = None
        self._locks: dict[str, asyncio.Lock] = {}
        # Calls that did not come back in time, by what was called. Until they do, no other of it is tried:
        # that would wait as well.
        self._stuck: dict[asyncio.Future[Any], tuple[int, str]] = {}
        self.released = ""
        self.found_by: Callable[[str], GpuControl | None] = lambda _: None
        self.is_found: Callable[[str], bool] = lambda _: False

    async def control(self, gpu: str) -> GpuControl | None:
        """Return the control that can change the GPU; None if the GPU is not here.

        Raises:
            DraError: none says that it has the GPU, and one cannot say whether it has.
        """
        unknown: DraError | None = None
        # First the one whose it is: others may be slow, or say of every GPU that they have it.
        likely = self.found_by(gpu) or self._had.get(gpu)
        for control in sorted(self._controls, key=lambda c: c is not likely):
            try:
                if await self.call(control.has, gpu):
                    self._had[gpu] = control
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
            NoAnswer: it takes too long, or one before it hangs.
            PrepareError: an administrator has the GPUs.
        """
        done: set[asyncio.Future[_T]] = set()
        if self.released:
            raise PrepareError(f"the GPUs cannot be changed now: {self.released}", retryable=True)
        # A backend, its control or the daemons; each call of a bound method makes the method anew.
        target = id(getattr(work, "__self__", None))
        about = args[0] if args and isinstance(args[0], str) else ""
        called = (target, about if target in self._separate else "")
        seconds = self._left(self._seconds)
        begun_call = called not in self._stuck.values() and seconds > 0
        if begun_call:
            executor = self._threads.get(target, self._executor)
            future = asyncio.get_running_loop().run_in_executor(executor, work, *args)
            begun = _BEGUN.get()
            if begun is not None:
                begun.append(future)
            done, late = await asyncio.wait([future], timeout=seconds)
            for hanging in late:
                self._stuck[hanging] = called
                hanging.add_done_callback(lambda f: self._stuck.pop(f, None))
        if not done:
            what = f"device {about}: " if about else ""
            raise NoAnswer(
                f"{what}the GPU or its library does not answer after {seconds:.3g} s"
                if seconds > 0
                else f"{what}there is no time left to ask the GPU before the kubelet may call",
                begun=begun_call,
            )
        return done.pop().result()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give all calls in a block so many seconds together: for the start, which all devices wait for."""
        self._end = asyncio.get_running_loop().time() + seconds
        try:
            yield
        finally:
            self._end = None

    def close(self) -> None:
        """Take no more calls; one that hangs is not waited for."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def alone(self, gpu: str) -> AsyncIterator[None]:
        """Allow one change at a time for one GPU, so that its last user and its next one do not cross.

        A call that does not come back in time may still change the GPU after the block: until it does, no
        other instance of the plugin gets in, which would find nothing to be undone and forget the claim.

        Raises:
            PrepareError: another instance of the plugin is working on it.
        """
        async with self._locks.setdefault(gpu, asyncio.Lock()):
            lock = await self._locked(gpu) if self._folder is not None else None
            begun: list[asyncio.Future[Any]] = []
            before = _BEGUN.set(begun)
            try:
                yield
            finally:
                _BEGUN.reset(before)
                if lock is not None:
                    _close_after(lock, [f for f in begun if not f.done()])

    def _left(self, seconds: float) -> float:
        if self._end is None:
            return seconds
        return min(seconds, self._end - asyncio.get_running_loop().time())

    async def _locked(self, gpu: str) -> int:
        assert self._folder is not None
        # UUIDs are whatever a vendor writes there.
        path = self._folder / f"{hashlib.sha256(gpu.encode()).hexdigest()[:32]}.lock"
        end = asyncio.get_running_loop().time() + self._left(_LOCK_SECONDS)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as e:
            raise PrepareError(f"device {gpu} cannot be locked: {e}", retryable=True) from e
        try:
            while True:
                try:
                    # The end of the process, however it comes, releases it.
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return lock
                except BlockingIOError:
                    if asyncio.get_running_loop().time() > end:
                        raise PrepareError(
                            f"device {gpu}: another instance of the plugin is working on it, or a call "
                            "does not return",
                            retryable=True,
                        ) from None
                await asyncio.sleep(_POLL_SECONDS)
        except BaseException:
            os.close(lock)
            raise


def _close_after(lock: int, calls: list[asyncio.Future[Any]]) -> None:
    """Release a lock when the last of the calls has come back."""
    if not calls:
        os.close(lock)
        return
    under_way = set(calls)

    def ended(call: asyncio.Future[Any]) -> None:
        under_way.discard(call)
        if not under_way:
            os.close(lock)

    for call in calls:
        call.add_done_callback(ended)
