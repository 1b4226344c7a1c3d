"""Calls to a backend of a third party: in threads, bounded in time, none twice while it hangs.

A call that does not come back keeps its thread, and whatever it is about; nothing else waits for it. A call
that may take longer than the kubelet waits goes on, and the kubelet's next call waits for it.
"""

from __future__ import annotations

import asyncio
import copy
import fcntl
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from dra_driver.discovery.core.third_parties import guarded
from dra_driver.errors import PrepareError, StillPreparing
from dra_driver.hardware import DeviceWork

__all__ = ["BackendCalls"]

_T = TypeVar("_T")
# Which work on a device it was; None where no other instance can do any.
_Mark = tuple[int, int, int] | None
# A device may be prepared for an hour. So many are at once;
_THREADS: Final = 32
# and so many calls beside them plan or undo something for other devices.
_SPARE: Final = 8
# The kubelet asks again within two minutes. A call that nobody has asked for again by then is undone.
_KEPT_SECONDS: Final = 600.0
# A call for which less is left than this has used up its time.
_SLACK_SECONDS: Final = 0.1
# A thread that has not begun its work by then, beyond the time of its caller, is starved.
_BEGIN_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.005

log = structlog.get_logger(__name__)


class _Begin:
    """The moment at which a thread begins its work on a device, unless its caller has given up before.

    What began later would be done while no call holds the node, to a device that another instance may have
    given to another claim since.
    """

    def __init__(self) -> None:
        self._deciding = threading.Lock()
        self._refused: Exception | None = None
        self.begun = False

    def begin(self) -> None:
        """Begin; to be called in the thread, when it has the lock of the device.

        Raises:
            Exception: what ``refuse`` was called with before.
        """
        with self._deciding:
            if self._refused is not None:
                raise self._refused
            self.begun = True

    def refuse(self, why: Exception) -> bool:
        """Have it never begin; return False if it has begun."""
        with self._deciding:
            if not self.begun:
                self._refused = why
            return not self.begun


@dataclass(frozen=True, slots=True)
class _Slow:
    """A call that goes on after its caller has had to answer.

    Attributes:
        work: what it is about, by which the one who asks again is known.
        future: its end, with the mark since which no other instance had worked on the device then.
        begin: its beginning.
        began: when it began, a time of the loop's clock.
        seconds: that it may take.
    """

    work: DeviceWork
    future: asyncio.Future[_Mark]
    begin: _Begin
    began: float
    seconds: float


class BackendCalls:
    """The calls to one backend.

    Args:
        name: of the backend, for messages.
        locks: folder with a lock for each device, by which two instances of the plugin do not work on it at
            once; if None, there is one instance.
        threads: as many calls of ``go_on`` may be under way; those that hang are among them.
        spare: as many others may be beside them.
    """

    def __init__(
        self, name: str, locks: Path | None = None, threads: int = _THREADS, spare: int = _SPARE
    ) -> None:
        self._name = name
        self._folder = locks
        self._threads = threads
        self._most = threads + spare
        self._executor = ThreadPoolExecutor(self._most, thread_name_prefix=f"claims-{name}")
        self._locks: dict[str, asyncio.Lock] = {}
        self._under_way: dict[str, asyncio.Future[Any]] = {}
        # The last work of this instance on a device, and since which no other one has come between.
        self._own: dict[str, tuple[_Mark, _Mark]] = {}
        # By what the claim does to what: several may share a device.
        self._slow: dict[tuple[str, str, str], _Slow] = {}

    async def call(self, about: str, seconds: float, work: Callable[..., _T], *args: object) -> _T:
        """Call in a thread; calls about one thing wait for each other.

        Args:
            about: for messages: the device.
            seconds: that the call may take.
            work: what is called.
            args: its arguments.

        Raises:
            PrepareError: it has failed, takes too long, or another one about the same thing hangs.
        """
        async with self._locks.setdefault(about, asyncio.Lock()):
            begin = _Begin()

            def begun() -> _T:
                begin.begin()
                return self._guarded(about, work, args)

            future = self._start(about, self._most, begin, begun)
            return await self._end(about, future, seconds)

    async def undo(
        self, about: str, seconds: float, work: Callable[[DeviceWork], None], argument: DeviceWork
    ) -> None:
        """Call what undoes ``go_on`` with the same argument, after the end of that, whose result is dropped.

        Raises:
            PrepareError: as ``call``.
        """
        async with self._locks.setdefault(about, asyncio.Lock()):
            end = _now() + seconds
            slow = self._slow.pop(_key(about, argument), None)
            if slow is not None:
                await asyncio.wait([slow.future], timeout=seconds)
            begin = _Begin()
            future = self._start(about, self._most, begin, self._alone, about, begin, work, argument)
            await self._begun(about, begin, future, end - _now())
            await self._end(about, future, 0.0, seconds)

    async def go_on(
        self,
        about: str,
        wait: float,
        seconds: float,
        work: Callable[[DeviceWork], None],
        argument: DeviceWork,
    ) -> None:
        """Call in a thread, alone among instances, or wait for the end of the same call begun before.

        One that has ended well is not made again until ``settle``. It counts as long as no other instance has
        worked on the device since; call it where no other one can begin to.

        Args:
            about: for messages: the device.
            wait: for how many seconds its end is waited for.
            seconds: that it may take from its beginning.
            work: what is called.
            argument: its argument, by which the call is known again.

        Raises:
            StillPreparing: it has not ended, and may take longer.
            PrepareError: it has failed, takes too long, another one about the same thing hangs, or another
                instance works on the device, or has since.
        """
        async with self._locks.setdefault(about, asyncio.Lock()):
            key = _key(about, argument)
            slow = self._slow.get(key)
            if slow is None or slow.work != argument:
                # It is known again by what it was, whatever a third party's code does to what it gets.
                given = copy.deepcopy(argument)
                begin = _Begin()
                future = self._start(about, self._threads, begin, self._alone, about, begin, work, given)
                slow = self._slow[key] = _Slow(argument, future, begin, _now(), seconds)
            left = slow.began + slow.seconds - _now()
            if not await self._begun(about, slow.begin, slow.future, min(wait, left)):
                del self._slow[key]
                raise StillPreparing(
                    f"device {about}: backend {self._name} has no time left in this call to prepare it",
                    retryable=True,
                )
            if not slow.future.done() and left > wait + _SLACK_SECONDS:
                taken = _now() - slow.began
                raise StillPreparing(
                    f"device {about}: backend {self._name} still prepares it: {taken:.0f} s of at most "
                    f"{slow.seconds:g} s",
                    retryable=True,
                )
            try:
                since = await self._end(about, slow.future, 0.0, slow.seconds)
                if (since, self._last(about)) != self._own.get(about, (None, None)):
                    raise self._late(about, "another instance of the plugin has worked on it since")
            except BaseException:
                self._slow.pop(key, None)
                raise

    def goes_on(self, about: str, work: DeviceWork) -> bool:
        """Return whether ``go_on`` with this argument would wait for a call that was begun before."""
        slow = self._slow.get(_key(about, work))
        return slow is not None and slow.work == work and _now() < slow.began + slow.seconds + _KEPT_SECONDS

    def settle(self, about: str, work: DeviceWork) -> None:
        """Drop the result of a call of ``go_on``: the claim has what it needs."""
        self._slow.pop(_key(about, work), None)

    def forget(self) -> None:
        """Drop the results of all of them: what was begun does not count any more."""
        self._slow.clear()

    def close(self) -> None:
        """Take no more calls; one that hangs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _begun(self, about: str, begin: _Begin, future: asyncio.Future[Any], seconds: float) -> bool:
        """Wait for the end of what was started, and if need be a moment longer for its beginning.

        Returns:
            Whether it has begun; if not, it never will.
        """
        late = self._late(about, "it could not begin in time")
        try:
            await asyncio.wait([future], timeout=max(0.0, seconds))
            end = _now() + _BEGIN_SECONDS
            while not begin.begun and not future.done() and _now() < end:
                await asyncio.wait([future], timeout=_POLL_SECONDS)
        except asyncio.CancelledError:
            begin.refuse(late)
            raise
        return future.done() or not begin.refuse(late)

    def _start(
        self, about: str, most: int, begin: _Begin, work: Callable[..., _T], *args: object
    ) -> asyncio.Future[_T]:
        if about in self._under_way:
            raise self._late(about, "an earlier call has not returned yet")
        if len(self._under_way) >= most:
            raise self._late(about, f"{len(self._under_way)} calls have not returned yet")
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
        except RuntimeError as e:
            # It stays in the queue, for a thread that can be started later: too late for this call.
            begin.refuse(e)
            raise self._late(about, str(e)) from e
        # Until it ends, also after its caller has given up.
        self._under_way[about] = future
        future.add_done_callback(lambda f: self._ended(about, f))
        return future

    async def _end(
        self, about: str, future: asyncio.Future[_T], seconds: float, said: float | None = None
    ) -> _T:
        done, _ = await asyncio.wait([future], timeout=max(0.0, seconds))
        if not done:
            log.error("a call to a backend does not come back", backend=self._name, device=about)
            raise self._late(about, f"no answer after {seconds if said is None else said:g} s")
        return done.pop().result()

    def _ended(self, about: str, future: asyncio.Future[Any]) -> None:
        self._under_way.pop(about, None)
        if not future.cancelled():
            future.exception()  # asked for: nobody may wait for it any more

    def _alone(
        self, about: str, begin: _Begin, work: Callable[[DeviceWork], None], argument: DeviceWork
    ) -> _Mark:
        """Call while no other instance of the plugin works on the device; return since which none has.

        The lock is not waited for. Its holder is at work although it has answered: what waited here beyond
        the end of its own call would be done after the other one has finished, or given up, the claim.
        """
        if self._folder is None:
            begin.begin()
            self._guarded(about, work, (argument,))
            return None
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self._lock(about), flags, 0o600)
        except OSError as e:
            raise self._not_locked(about, e) from e
        try:
            try:
                # The end of the process, however it comes, releases it.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                begin.begin()
                since = self._marked(about, lock)
            except BlockingIOError:
                raise self._late(about, "another instance of the plugin is working on it") from None
            except OSError as e:
                raise self._not_locked(about, e) from e
            self._guarded(about, work, (argument,))
            return since
        finally:
            os.close(lock)

    def _marked(self, about: str, lock: int) -> _Mark:
        before = _mark(os.fstat(lock))
        # No content: that would need space on the disk.
        now = time.time_ns()
        os.utime(lock, ns=(now, now))
        last = _mark(os.fstat(lock))
        since, own = self._own.get(about, (None, None))
        self._own[about] = (since if own == before else last, last)
        return self._own[about][0]

    def _last(self, about: str) -> _Mark:
        """Return the mark of the last work on a device, of any instance."""
        try:
            return None if self._folder is None else _mark(self._lock(about).lstat())
        except OSError as e:
            raise self._not_locked(about, e) from e

    def _lock(self, about: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{about}.lock"

    def _not_locked(self, about: str, why: OSError) -> PrepareError:
        return PrepareError(f"device {about} cannot be locked: {why}", retryable=True)

    def _late(self, about: str, why: str) -> PrepareError:
        return PrepareError(f"device {about}: backend {self._name}: {why}", retryable=True)

    def _guarded(self, about: str, work: Callable[..., _T], args: tuple[object, ...]) -> _T:
        return guarded(f"device {about}: backend {self._name}", work, *args)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _mark(lock: os.stat_result) -> _Mark:
    return lock.st_dev, lock.st_ino, lock.st_mtime_ns


def _key(about: str, work: DeviceWork) -> tuple[str, str, str]:
    return about, work.claim_uid, work.share_id
