"""Locks: one call at a time for a claim, one instance of the plugin at a time for the checkpoint."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from dra_driver.api.meta import Uid
from dra_driver.errors import PrepareError

__all__ = ["ClaimLocks", "NoNodeLock", "NodeLock", "StateLock"]

_POLL_SECONDS: Final = 0.005
# How long an instance with calls all the time keeps another one waiting.
_FAIR_SECONDS: Final = 1.0

Taken = Callable[[], Awaitable[None]]


class NodeLock(Protocol):
    """The right to change the node's reservations and their checkpoint."""

    def on_taken(self, taken: Taken) -> None:
        """Set what is awaited each time the lock comes from another instance, before anything else."""
        ...

    def held(self, deadline: float) -> AbstractAsyncContextManager[None]:
        """Hold the lock around a transaction; several of one process run side by side.

        Raises:
            PrepareError: another instance holds it beyond ``deadline``, a time of the loop's clock.
        """
        ...


class NoNodeLock:
    """Implements ``NodeLock`` for a single instance."""

    def on_taken(self, taken: Taken) -> None:
        """Do nothing: there is no other instance."""

    @asynccontextmanager
    async def held(self, deadline: float) -> AsyncIterator[None]:
        """Hold it at once."""
        yield


class StateLock:
    """Implements ``NodeLock`` with ``flock``, which ends with the process that holds it.

    During a rolling update two instances share one state directory. A process holds the lock while any of its
    transactions runs, and releases it in between; it is never held while the API server, or a device that
    another claim holds, is waited for. A second file, locked by whichever instance waits, makes one with
    calls all the time give way after a second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: tuple[int, int] | None = None
        self._taken: Taken | None = None
        self._users = 0
        self._since = 0.0
        self._gate = asyncio.Lock()
        self._idle = asyncio.Event()

    def on_taken(self, taken: Taken) -> None:
        """See ``NodeLock.on_taken``."""
        self._taken = taken

    @asynccontextmanager
    async def held(self, deadline: float) -> AsyncIterator[None]:
        """See ``NodeLock.held``."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._enter()
        except TimeoutError:
            raise PrepareError(
                f"another instance of the plugin has not released {self._path} in time", retryable=True
            ) from None
        try:
            yield
        finally:
            self._leave()

    def close(self) -> None:
        """Release it for good."""
        if self._files is not None:
            for descriptor in self._files:
                os.close(descriptor)
            self._files = None

    async def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._gate:
            if self._users and loop.time() - self._since > _FAIR_SECONDS and self._wanted():
                while self._users:
                    self._idle.clear()
                    await self._idle.wait()
                await asyncio.sleep(2 * _POLL_SECONDS)
            if not self._users:
                await self._acquire()
                self._since = loop.time()
                try:
                    if self._taken is not None:
                        await self._taken()
                except BaseException:
                    self._release()
                    raise
            self._users += 1

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._release()
            self._idle.set()

    def _open(self) -> tuple[int, int]:
        if self._files is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self._path, flags, 0o600)
            try:
                self._files = (lock, os.open(self._path.with_suffix(".wanted"), flags, 0o600))
            except BaseException:
                os.close(lock)
                raise
        return self._files

    async def _acquire(self) -> None:
        lock, wanted = self._open()
        if _flock(lock, fcntl.LOCK_EX):
            return
        said = False
        try:
            while not _flock(lock, fcntl.LOCK_EX):
                # Not granted at once while the other instance is just looking whether one waits.
                said = said or _flock(wanted, fcntl.LOCK_SH)
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            fcntl.flock(wanted, fcntl.LOCK_UN)

    def _release(self) -> None:
        if self._files is not None:
            fcntl.flock(self._files[0], fcntl.LOCK_UN)

    def _wanted(self) -> bool:
        _, wanted = self._open()
        if not _flock(wanted, fcntl.LOCK_EX):
            return True
        fcntl.flock(wanted, fcntl.LOCK_UN)
        return False


def _flock(descriptor: int, how: int) -> bool:
    """Try to lock, without blocking; return whether it is locked."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class ClaimLocks:
    """One lock for each claim that a call is under way for; different claims do not wait for each other."""

    def __init__(self) -> None:
        self._locks: dict[Uid, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def held(self, uid: Uid, deadline: float) -> AsyncIterator[None]:
        """Hold the claim's lock around everything that is done for it.

        Raises:
            PrepareError: another call for it does not end before ``deadline``, a time of the loop's clock.
        """
        lock, users = self._locks.get(uid, (asyncio.Lock(), 0))
        self._locks[uid] = (lock, users + 1)
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await lock.acquire()
            except TimeoutError:
                raise PrepareError(
                    f"another call for this claim has not ended after {loop.time() - asked:.0f} s",
                    retryable=True,
                ) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks[uid]
            if users == 1:
                del self._locks[uid]
            else:
                self._locks[uid] = (lock, users - 1)
