"""The checkpoint as files: a document, the document before it, and a journal of the changes since.

Writing the whole document for each change would cost more with each claim that the node holds. So changes
are appended to a journal, and now and then *folded* into a new document. The name of the document says what
counts:

* ``FILE`` is there: it is complete, and nothing else counts. Every version of the plugin can read it.
* ``FILE`` is not there: ``FILE.previous`` counts, with ``FILE.journal``. The version that does not know
  journals finds no checkpoint then, and takes ``FILE.previous`` and the CDI files of the claims.

A journal is begun in two steps: it is written with its first change under its name, then ``FILE`` is renamed
to ``FILE.previous``. It ends when ``FILE`` is written. Both are single steps, so that a crash leaves the one
or the other. The journal stays there: should ``FILE`` be damaged, it completes ``FILE.previous``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from dra_driver.api.meta import Uid
from dra_driver.errors import DecodeError
from dra_driver.preparation import Checkpoint, ClaimState, Journal, PreparedClaim
from kubelet_plugin.claims.reservations import NO_CHECKPOINT
from kubelet_plugin.core import files

__all__ = ["CheckpointFile", "read_checkpoint"]

FILE_MODE: Final = 0o600
# A journal is folded when it has become longer than the document, so that a change costs the same on average
# however many claims there are.
_SHORTEST: Final = 256 * 1024
# After these a journal that was cut back to what it was can be added to.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

# What a change makes of each claim: a record, or None.
_Records = Mapping[Uid, PreparedClaim | None]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of records, or of the boot that they are of; neither for a fold."""

    records: _Records
    boot_id: str | None
    # Whether a power failure must not undo it.
    lasting: bool
    done: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Found:
    """What the files hold.

    Attributes:
        journal: the one that counts, or could be begun; None if there is no document to which one belongs.
        in_force: whether it counts: there is no ``FILE``.
        problem: why records may be missing; see ``reservations.Checkpoints.load``.
        corrupt: whether ``FILE`` is there and cannot be used.
        size: of the document, in bytes.
    """

    checkpoint: Checkpoint
    journal: Journal | None = None
    in_force: bool = False
    problem: str = ""
    corrupt: bool = False
    size: int = 0


class CheckpointFile:
    """Implements ``reservations.Checkpoints``.

    Changes that come while a write is under way are written together by the next one, so that sixteen claims
    at once do not cost sixteen times the fsyncs.

    ``FILE.previous`` is the document before the one in force; ``FILE.corrupt`` is the last one that could not
    be read, for people to find out why.

    Costs: one fsync, and one more (of the directory) where something begins on hardware or is forgotten,
    unless the journal's name is durable already. The bytes that are written do not depend on how many claims
    there are, except where a journal is folded.

    Args:
        path: ``FILE``.
        executor: for calls that block.
        alone: returns whether no other instance of the plugin runs, which may be of a version that does not
            know journals; while it does, the document is written whole. If a journal is begun, the caller
            must keep other instances out until it has called ``fold``.
        check: called right before each write; raises OSError where another instance may write as well.
    """

    def __init__(
        self,
        path: Path,
        executor: Executor,
        alone: Callable[[], bool] = lambda: False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._previous = path.with_name(f"{path.name}.previous")
        self._journal_path = path.with_name(f"{path.name}.journal")
        self._corrupt = path.with_name(f"{path.name}.corrupt")
        self._executor = executor
        self._alone = alone
        self._check = check
        self._current = Checkpoint()
        # Whether the file is worth keeping as the previous version; not so after it was found corrupt.
        self._usable = True
        # Which files ``_current`` stands for, to see whether another instance has written since.
        self._identity: tuple[object, ...] = ()
        # The journal of the document in force, and whether it has begun; None if the next write is to be a
        # whole document.
        self._journal: Journal | None = None
        self._in_force = False
        # Whether the names of the files are durable as they are.
        self._is_synced = False
        self._document_size = 0
        self._pending: list[_Change] = []
        self._writing = asyncio.Lock()

    @property
    def current(self) -> Checkpoint:
        """What is durable now."""
        return self._current

    @property
    def is_folded(self) -> bool:
        """See ``reservations.Checkpoints.is_folded``."""
        return not self._in_force

    async def load(self) -> str:
        """See ``reservations.Checkpoints.load``."""
        loop = asyncio.get_running_loop()
        found, identity = await loop.run_in_executor(self._executor, self._load)
        self._adopt(found, identity)
        self._current = found.checkpoint
        return found.problem

    async def refresh(self) -> str | None:
        """See ``reservations.Checkpoints.refresh``."""
        if self._identities() == self._identity:
            return None
        loop = asyncio.get_running_loop()
        found, identity = await loop.run_in_executor(self._executor, self._find)
        # All at once, and not if this was cancelled: what was not taken over is to be read again.
        self._adopt(found, identity)
        if found.problem:
            log.error("the checkpoint cannot be read again; what is in memory is used", error=found.problem)
            self._journal = None
        else:
            self._current = found.checkpoint
        return found.problem

    async def save(self, *claims: PreparedClaim) -> None:
        """See ``reservations.Checkpoints.save``."""
        if claims:
            await self._commit({c.uid: c for c in claims}, lasting=any(_must_last(c) for c in claims))

    async def booted(self, boot_id: str) -> None:
        """See ``reservations.Checkpoints.booted``."""
        if self._current.boot_id != boot_id:
            await self._commit({}, boot_id=boot_id, lasting=True)

    async def forget(self, uid: Uid) -> None:
        """See ``reservations.Checkpoints.forget``."""
        if self._current.get(uid) is not None:
            await self._commit({uid: None}, lasting=True)

    async def fold(self) -> None:
        """See ``reservations.Checkpoints.fold``."""
        if self._in_force:
            await self._commit({}, lasting=False)

    async def _commit(self, records: _Records, *, lasting: bool, boot_id: str | None = None) -> None:
        change = _Change(records, boot_id, lasting, asyncio.get_running_loop().create_future())
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
        changed: dict[Uid, None] = {}
        is_whole = False
        for change in batch:
            if change.boot_id is not None:
                candidate = candidate.with_boot_id(change.boot_id)
            elif change.records:
                candidate = candidate.changed(change.records)
            is_whole |= not change.records
            changed |= dict.fromkeys(change.records)
        lasting = any(change.lasting for change in batch)
        loop = asyncio.get_running_loop()
        uids = None if is_whole else tuple(changed)
        write = loop.run_in_executor(self._executor, self._write, candidate, uids, lasting)
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

    # --- writing, in a thread -------------------------------------------------------------------------------

    def _write(self, candidate: Checkpoint, uids: tuple[Uid, ...] | None, lasting: bool) -> None:
        """Write what is to become ``current``.

        Args:
            candidate: all of it.
            uids: of the claims that differ from ``current``; if None, the whole document is to be written.
            lasting: whether a power failure must not undo it.
        """
        try:
            self._check()
            if uids is None or not self._noted(candidate, uids, lasting):
                self._write_document(candidate, lasting)
        finally:
            # Also after an error: what we hold in memory decides, the next write says it again.
            self._identity = self._identities()

    def _write_document(self, candidate: Checkpoint, lasting: bool) -> None:
        data = candidate.encode()
        files.make_directory(self._path.parent, 0o700)
        if self._usable:
            files.keep_previous(self._path, self._previous)
        files.write(self._path, data, FILE_MODE, name=lasting)
        self._usable, self._is_synced, self._in_force = True, lasting, False
        self._journal, self._document_size = Journal.of(data), len(data)

    def _noted(self, candidate: Checkpoint, uids: tuple[Uid, ...], lasting: bool) -> bool:
        """Write the records of claims to the journal; return False where the document is to be written.

        Raises:
            OSError: what counts is what counted before.
        """
        if self._journal is None or self._identities() != self._identity:
            return False  # what the files hold is not known
        if not self._in_force and not (self._usable and self._alone()):
            return False
        line, after = self._journal.line(candidate.entry(uids))
        if after.size > max(_SHORTEST, self._document_size):
            return False
        before, self._journal = self._journal, None
        if self._in_force:
            self._append(before, line)
        else:
            try:
                files.write(self._journal_path, line, FILE_MODE, name=False)
                if _is_same(self._path, self._previous):
                    # As an instance leaves them that is killed while it writes a document. Renamed, the file
                    # would keep both names, and go on to be what counts.
                    self._path.unlink()
                else:
                    self._path.rename(self._previous)
            except OSError:
                self._journal = before
                raise
            self._in_force, self._is_synced = True, False
        if lasting and not self._is_synced:
            files.sync_directory(self._path.parent)
            self._is_synced = True
        self._journal = after
        return True

    def _append(self, before: Journal, line: bytes) -> None:
        descriptor = os.open(self._journal_path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            except OSError as e:
                # What has been refused must not be found there later.
                os.ftruncate(descriptor, before.size)
                if e.errno in _FULL:
                    self._journal = before
                raise
        finally:
            os.close(descriptor)

    # --- reading, in a thread -------------------------------------------------------------------------------

    def _load(self) -> tuple[_Found, tuple[object, ...]]:
        if self._path.parent.is_dir():
            with contextlib.suppress(OSError):
                files.remove_temporary(self._path.parent, self._path.name)
        found, identity = self._find()
        if found.corrupt:
            with contextlib.suppress(OSError):
                files.keep_previous(self._path, self._corrupt)
            identity = self._identities()  # another name of the file has changed its status
        return found, identity

    def _find(self) -> tuple[_Found, tuple[object, ...]]:
        identity = self._identities()
        return _find(self._path, self._previous, self._journal_path), identity

    def _adopt(self, found: _Found, identity: tuple[object, ...]) -> None:
        self._identity = identity
        self._usable, self._in_force, self._is_synced = not found.corrupt, found.in_force, False
        # One that has begun may end with half a line: the next write is a whole document.
        self._journal = None if found.in_force else found.journal
        self._document_size = found.size

    def _identities(self) -> tuple[object, ...]:
        return (_identity(self._path), _identity(self._journal_path))


def read_checkpoint(path: Path) -> Checkpoint:
    """Return what the files of a checkpoint say now, for other programs; nothing where there are none.

    Raises:
        DecodeError: they cannot be read.
    """
    found = _find(path, path.with_name(f"{path.name}.previous"), path.with_name(f"{path.name}.journal"))
    if found.problem and found.problem != NO_CHECKPOINT:
        raise DecodeError(found.problem)
    return found.checkpoint


def _find(path: Path, previous: Path, journal: Path) -> _Found:
    try:
        data = path.read_bytes()
        return _Found(Checkpoint.decode(data), Journal.of(data), size=len(data))
    except FileNotFoundError:
        problem, corrupt = f"there is no {path}", False
    except (OSError, DecodeError) as e:
        problem, corrupt = f"{path} cannot be used: {e}", True
    try:
        data = previous.read_bytes()
        found = Checkpoint.decode(data)
    except FileNotFoundError:
        problem = f"{problem}; there is no {previous}" if corrupt else NO_CHECKPOINT
        return _Found(Checkpoint(), problem=problem, corrupt=corrupt)
    except (OSError, DecodeError) as e:
        return _Found(Checkpoint(), problem=f"{problem}; nor can {previous}: {e}", corrupt=corrupt)
    before = Journal.of(data)
    try:
        entries, now, trouble = before.read(journal.read_bytes())
        found = found.replayed(entries)
    except FileNotFoundError:
        entries, now, trouble = [], before, ""
    except (OSError, DecodeError) as e:
        entries, now, trouble = [], before, f"{journal} cannot be used: {e}"
    if entries and not corrupt and not trouble:
        return _Found(found, now, in_force=True)
    why = f"; {trouble}" if trouble and entries else ""
    return _Found(found, in_force=not corrupt, problem=f"{problem}{why}; {previous} is used", corrupt=corrupt)


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


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


async def _finish(future: asyncio.Future[None]) -> bool:
    """Wait for a thread, which cannot be called back, even when cancelled; return whether that happened."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
