"""Locks: one call at a time for a claim, one instance of the plugin at a time for the checkpoint."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import structlog

from dra_driver.api.meta import Uid
from dra_driver.errors import PrepareError
from kubelet_plugin.core import files

__all__ = ["ClaimLocks", "NoNodeLock", "NodeLock", "StateLock", "Unsettled"]

_POLL_SECONDS: Final = 0.005
# How long an instance with calls all the time keeps another one waiting.
_FAIR_SECONDS: Final = 1.0
# How long the lock is kept for more transactions while there is something to be settled, and how often is
# looked meanwhile whether another instance waits.
_QUIET_SECONDS: Final = 1.0
_LINGER_POLL_SECONDS: Final = 0.05

log = structlog.get_logger(__name__)

# Given whether the lock's file had been removed, so that another instance may have acted at the same time.
Taken = Callable[[bool], Awaitable[None]]


class Unsettled(Protocol):
    """What has to be done before another instance may have the lock."""

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to be done."""
        ...

    async def settle(self) -> None:
        """Do it.

        Raises:
            OSError: it cannot be done now; the lock is released all the same.
        """
        ...


class NodeLock(Protocol):
    """The right to change the node's reservations and their checkpoint."""

    def serve(self, taken: Taken, unsettled: Unsettled) -> None:
        """Set what is awaited each time the lock comes from another instance, before anything else.

        Args:
            taken: awaited then.
            unsettled: what is done before another instance gets it.
        """
        ...

    def check(self) -> None:
        """Refuse to go on if the lock does not keep other instances out any more.

        Raises:
            OSError: its file was removed.
        """
        ...

    def held(self, deadline: float) -> AbstractAsyncContextManager[None]:
        """Hold the lock around a transaction; several of one process run side by side.

        Raises:
            PrepareError: another instance holds it beyond ``deadline``, a time of the loop's clock.
        """
        ...


class NoNodeLock:
    """Implements ``NodeLock`` for a single instance."""

    def serve(self, taken: Taken, unsettled: Unsettled) -> None:
        """Do nothing: there is no other instance."""

    def check(self) -> None:
        """Do nothing: there is no file."""

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

    While there is something to be settled the lock stays held after a transaction, until there was none for a
    second or another instance waits.

    A file that is removed, with its directory for example, stays locked for whoever has it open, and is none
    to others. So the lock counts only while its file is under its name: it is looked at whenever the lock is
    taken or used, and ``check`` looks at it after each write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: tuple[int, int] | None = None
        self._taken: Taken | None = None
        self._unsettled: Unsettled | None = None
        self._is_locked = False
        # Whether a file of it was removed since it was last taken.
        self._was_removed = False
        self._is_failing = False
        self._users = 0
        self._since = 0.0
        self._quiet_at = 0.0
        self._gate = asyncio.Lock()
        self._idle = asyncio.Event()
        self._lingering: asyncio.Task[None] | None = None

    def serve(self, taken: Taken, unsettled: Unsettled) -> None:
        """See ``NodeLock.serve``."""
        self._taken, self._unsettled = taken, unsettled

    def check(self) -> None:
        """See ``NodeLock.check``."""
        if not self._is_in_place():
            raise OSError(
                errno.ESTALE,
                f"{self._path} was removed while it kept two instances of the plugin apart; repeat the call",
            )

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

    async def end(self) -> None:
        """Settle what is to be settled, and release the lock for good. No transaction is under way."""
        if self._lingering is not None:
            self._lingering.cancel()
            await asyncio.wait([self._lingering])
        if self._is_locked:
            await self._give_up()
        self.close()

    def close(self) -> None:
        """Release it for good, as it is."""
        if self._files is not None:
            for descriptor in self._files:
                os.close(descriptor)
            self._files = None
        self._is_locked = False

    async def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._gate:
            if self._is_locked:
                is_wanted = loop.time() - self._since > _FAIR_SECONDS and self._wanted()
                if is_wanted or not self._is_in_place():
                    while self._users:
                        self._idle.clear()
                        await self._idle.wait()
                    if self._is_locked:
                        await self._give_up()
                    if is_wanted:
                        await asyncio.sleep(2 * _POLL_SECONDS)
            if not self._is_locked:
                await self._acquire()
                self._since = loop.time()
                try:
                    if self._taken is not None:
                        await self._taken(self._was_removed)
                except BaseException:
                    self._release()
                    raise
                self._was_removed = False
            self._users += 1

    def _leave(self) -> None:
        self._users -= 1
        if self._users:
            return
        self._idle.set()
        if self._unsettled is None or self._unsettled.is_settled:
            self._release()
            return
        self._quiet_at = asyncio.get_running_loop().time() + _QUIET_SECONDS
        if self._lingering is None or self._lingering.done():
            self._lingering = asyncio.create_task(self._linger())

    async def _linger(self) -> None:
        """Keep the lock until there was no transaction for a while, or another instance waits."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LINGER_POLL_SECONDS)
            if not self._users and (loop.time() > self._quiet_at or self._wanted()):
                break
        async with self._gate:
            if self._is_locked and not self._users:
                await self._give_up()

    async def _give_up(self) -> None:
        try:
            # What is written while another instance may hold the lock would undo what that one writes.
            if self._unsettled is not None and not self._unsettled.is_settled and self._is_in_place():
                await self._unsettled.settle()
                self._is_failing = False
        except OSError as e:
            # Once: it is tried again after each transaction.
            level = log.debug if self._is_failing else log.error
            level("the checkpoint could not be folded; its journal counts", error=str(e))
            self._is_failing = True
        finally:
            self._release()

    def _open(self) -> tuple[int, int]:
        if self._files is None:
            files.make_directory(self._path.parent, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self._path, flags, 0o600)
            try:
                self._files = (lock, os.open(self._path.with_suffix(".wanted"), flags, 0o600))
            except BaseException:
                os.close(lock)
                raise
        return self._files

    def _is_in_place(self) -> bool:
        """Return whether the files that are open are those that another instance would open."""
        if self._files is None:
            return False
        paths = (self._path, self._path.with_suffix(".wanted"))
        try:
            return all(
                os.path.samestat(os.fstat(descriptor), path.lstat())
                for descriptor, path in zip(self._files, paths, strict=True)
            )
        except FileNotFoundError:
            return False

    async def _acquire(self) -> None:
        while not await self._acquired():
            log.warning("the lock of the node was removed; it is made anew", path=str(self._path))
            self.close()
            self._was_removed = True
        self._is_locked = True

    async def _acquired(self) -> bool:
        """Lock the files as they are; return False if they are not in place (any more)."""
        lock, wanted = self._open()
        said = False
        try:
            while not _flock(lock, fcntl.LOCK_EX):
                # Not granted at once while the other instance is just looking whether one waits.
                said = said or _flock(wanted, fcntl.LOCK_SH)
                await asyncio.sleep(_POLL_SECONDS)
                if not self._is_in_place():
                    return False
        finally:
            if said:
                fcntl.flock(wanted, fcntl.LOCK_UN)
        return self._is_in_place()

    def _release(self) -> None:
        self._is_locked = False
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
