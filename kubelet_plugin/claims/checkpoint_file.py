"""The checkpoint as a file, with its previous version beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from dra_driver.api.meta import Uid
from dra_driver.errors import DecodeError
from dra_driver.preparation import Checkpoint, ClaimState, PreparedClaim
from kubelet_plugin.claims.reservations import NO_CHECKPOINT
from kubelet_plugin.core import files

__all__ = ["CheckpointFile"]

FILE_MODE: Final = 0o600

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Change:
    apply: Callable[[Checkpoint], Checkpoint]
    # Whether a power failure must not undo it.
    lasting: bool
    done: asyncio.Future[None]


class CheckpointFile:
    """Implements ``reservations.Checkpoints``.

    Changes that come while a write is under way are written together by the next one, so that sixteen claims
    at once do not cost sixteen times the fsyncs.

    ``FILE.previous`` is the version before the last write; ``FILE.corrupt`` is the last one that could not be
    read, for people to find out why.

    Costs: one fsync, and one more (of the directory) where something begins on hardware or is forgotten.
    """

    def __init__(self, path: Path, executor: Executor) -> None:
        self._path = path
        self._previous = path.with_name(f"{path.name}.previous")
        self._corrupt = path.with_name(f"{path.name}.corrupt")
        self._executor = executor
        self._current = Checkpoint()
        # Whether the file is worth keeping as the previous version; not so after it was found corrupt.
        self._usable = True
        # Which file ``_current`` stands for, to see whether another instance has written since.
        self._identity: tuple[int, ...] | None = None
        self._pending: list[_Change] = []
        self._writing = asyncio.Lock()

    @property
    def current(self) -> Checkpoint:
        """What is durable now."""
        return self._current

    async def load(self) -> str:
        """See ``reservations.Checkpoints.load``."""
        loop = asyncio.get_running_loop()
        self._current, problem = await loop.run_in_executor(self._executor, self._read)
        return problem

    async def refresh(self) -> bool:
        """See ``reservations.Checkpoints.refresh``."""
        if _identity(self._path) == self._identity:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._reread)

    async def save(self, *claims: PreparedClaim) -> None:
        """See ``reservations.Checkpoints.save``."""
        if claims:
            changes: dict[Uid, PreparedClaim | None] = {c.uid: c for c in claims}
            lasting = any(_must_last(c) for c in claims)
            await self._commit(lambda c: c.changed(changes), lasting=lasting)

    async def booted(self, boot_id: str) -> None:
        """See ``reservations.Checkpoints.booted``."""
        if self._current.boot_id != boot_id:
            await self._commit(lambda c: c.with_boot_id(boot_id), lasting=True)

    async def forget(self, uid: Uid) -> None:
        """See ``reservations.Checkpoints.forget``."""
        if self._current.get(uid) is not None:
            await self._commit(lambda c: c.without(uid), lasting=True)

    async def _commit(self, apply: Callable[[Checkpoint], Checkpoint], *, lasting: bool) -> None:
        change = _Change(apply, lasting, asyncio.get_running_loop().create_future())
        self._pending.append(change)
        try:
            async with self._writing:
                if not change.done.done():
                    await self._flush()
            await change.done
        except asyncio.CancelledError:
            # Afterwards ``current`` says whether it was made: made later, it would undo what comes meanwhile.
            if change in self._pending:
                self._pending.remove(change)
            else:
                await _finish(change.done)
            raise

    async def _flush(self) -> None:
        """Write everything that is pending, under the lock, for all who wait for it."""
        batch, self._pending = self._pending, []
        candidate = self._current
        for change in batch:
            candidate = change.apply(candidate)
        lasting = any(change.lasting for change in batch)
        loop = asyncio.get_running_loop()
        write = loop.run_in_executor(self._executor, self._write, candidate.encode(), lasting)
        cancelled = await _finish(write)
        error = write.exception()
        if error is None:
            self._current = candidate
        for change in batch:
            if change.done.cancelled():
                continue  # its caller has gone
            if isinstance(error, OSError):
                change.done.set_exception(OSError(error.errno, f"checkpoint {self._path}: {error.strerror}"))
            elif error is not None:
                change.done.set_exception(error)
            else:
                change.done.set_result(None)
        if cancelled:
            raise asyncio.CancelledError

    def _write(self, data: bytes, lasting: bool) -> None:
        files.make_directory(self._path.parent, 0o700)
        if self._usable:
            files.keep_previous(self._path, self._previous)
        try:
            files.write(self._path, data, FILE_MODE, name=lasting)
        finally:
            # Also after an error: what we hold in memory decides, the next write says it again.
            self._identity = _identity(self._path)
        self._usable = True

    def _reread(self) -> bool:
        """Take over what another instance wrote; keep what is in memory if the file cannot be read."""
        identity = _identity(self._path)
        try:
            self._current = Checkpoint.decode(self._path.read_bytes())
        except (OSError, DecodeError) as e:
            log.error("the checkpoint cannot be read again; what is in memory is used", error=str(e))
            self._usable = False
            self._identity = identity
            return False
        self._usable, self._identity = True, identity
        return True

    def _read(self) -> tuple[Checkpoint, str]:
        if self._path.parent.is_dir():
            with contextlib.suppress(OSError):
                files.remove_temporary(self._path.parent, self._path.name)
        self._identity = _identity(self._path)
        try:
            return Checkpoint.decode(self._path.read_bytes()), ""
        except FileNotFoundError:
            return self._read_previous(f"there is no {self._path}")
        except (OSError, DecodeError) as e:
            self._usable = False
            with contextlib.suppress(OSError):
                files.keep_previous(self._path, self._corrupt)
            return self._read_previous(f"{self._path} cannot be used: {e}")

    def _read_previous(self, problem: str) -> tuple[Checkpoint, str]:
        try:
            return Checkpoint.decode(self._previous.read_bytes()), f"{problem}; {self._previous} is used"
        except FileNotFoundError:
            there = self._path.exists()
            return Checkpoint(), f"{problem}; there is no {self._previous}" if there else NO_CHECKPOINT
        except (OSError, DecodeError) as e:
            return Checkpoint(), f"{problem}; nor can {self._previous}: {e}"


def _must_last(claim: PreparedClaim) -> bool:
    """Return whether a power failure must not bring back what was recorded of the claim before.

    It ends all containers, and of files without a record nothing is left after the next start: only what is
    begun on hardware, by this agent or by a third party's backend, has to be known then, and which devices a
    claim was given that a reboot has ended.
    """
    begun = claim.state is not ClaimState.COMPLETED and (claim.touches_hardware or bool(claim.effects))
    return claim.ended or begun


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what differs between any two versions of the file: each is a new inode or a later time."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


async def _finish(future: asyncio.Future[None]) -> bool:
    """Wait for a thread, which cannot be called back, even when cancelled; return whether that happened."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
