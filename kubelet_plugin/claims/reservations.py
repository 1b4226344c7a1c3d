"""The one owner of the node's reservations: which claim holds which device, in memory and in the checkpoint.

Nothing else of the node agent reserves a device, releases one or writes the checkpoint. Locks are taken in
this order, and none is held while the API server is waited for, except the first:

1. the lock of the claim (``claim``): one call at a time for one claim;
2. the lock of the node (``LockedClaim.transaction``): one instance of the plugin at a time. Several
   transactions of one process run side by side;
3. the devices (``Reservation.reserve``): a reservation is the lock of its devices, exclusive or shared as
   ``Holdings`` decides. It is granted or refused at once; a call that is refused leaves the transaction and
   waits in ``wait_released``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from dra_driver.api.meta import Uid
from dra_driver.preparation import Checkpoint, Conflict, Holdings, PreparedClaim, ended, gathered
from kubelet_plugin.claims.locks import ClaimLocks, NodeLock, NoNodeLock

__all__ = ["NO_CHECKPOINT", "Checkpoints", "DeviceReservations", "LockedClaim", "Reservation", "Start"]

log = structlog.get_logger(__name__)

# Answer of ``Checkpoints.load`` where there was never anything, as on the first start.
NO_CHECKPOINT: Final = "no checkpoint"


class Checkpoints(Protocol):
    """The durable records of claims. Only ``DeviceReservations`` uses them."""

    @property
    def current(self) -> Checkpoint:
        """What is durable now."""
        ...

    async def load(self) -> str:
        """Read what is there into ``current``.

        Returns:
            Why records may be missing (``NO_CHECKPOINT``, nothing readable, or only an older version); empty
            where all is well.
        """
        ...

    async def refresh(self) -> str | None:
        """Read into ``current`` what another instance has written since.

        The caller holds the node's lock and nothing of its own is being written.

        Returns:
            None if there was nothing; otherwise why records may be missing, as ``load`` does. If that is not
            empty, ``current`` stays as it is.
        """
        ...

    @property
    def is_folded(self) -> bool:
        """Whether every version of the plugin can read all that is written."""
        ...

    async def fold(self) -> None:
        """Write what is written so that every version of the plugin can read it.

        Raises:
            OSError: what was written counts as it is.
        """
        ...

    async def save(self, *claims: PreparedClaim) -> None:
        """Write records; on return they survive the end of the process, however it ends.

        A power failure may bring back what was recorded before, which ends whatever used the devices, and the
        kubelet prepares again. Records of ended claims survive it, and so do those that are not COMPLETED and
        touch hardware, because somebody has to undo that.

        Raises:
            OSError: ``current`` is as it was before.
        """
        ...

    async def booted(self, boot_id: str) -> None:
        """Note which boot of the machine the records are of.

        Raises:
            OSError: ``current`` is as it was before.
        """
        ...

    async def forget(self, uid: Uid) -> None:
        """Remove a record durably; success where there is none.

        Raises:
            OSError: ``current`` is as it was before.
        """
        ...


class DeviceReservations:
    """The devices of the node and the claims that they are reserved for.

    The invariant, between any two steps of any task:

    * no two claims hold one device in ways that exclude each other (``Holdings``; admin access holds
      nothing);
    * memory holds at least what the checkpoint holds: a device is reserved before its claim's record is
      written, and released after the record is removed, or has become that of an ended claim;
    * what memory holds beyond the checkpoint belongs to a transaction that is under way, and is released when
      that ends, by an error too; or it was recovered from CDI files and is written with the next record; or
      it belongs to a write whose outcome is not known, because its transaction was cancelled meanwhile.

    So a crash at any point loses no reservation of a device that something was done to: the next start reads
    all of them back from the checkpoint.

    Args:
        checkpoints: the durable records.
        node_lock: what keeps other instances of the plugin out; defaults to there being none.
        boot_id: which boot of the machine this is; empty where that is not known.

    Attributes:
        boot_id: as given.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        node_lock: NodeLock | None = None,
        boot_id: str = "",
    ) -> None:
        self._checkpoints = checkpoints
        self.boot_id = boot_id
        self._written_elsewhere: Callable[[], None] = lambda: None
        self._found: Callable[[str], Awaitable[Sequence[PreparedClaim]]] | None = None
        self._holdings = Holdings()
        self._claim_locks = ClaimLocks()
        self._node_lock: NodeLock = node_lock or NoNodeLock()
        self._node_lock.serve(self._read_again, self)
        self._starting = False
        # Why records were lost that have not been gathered yet.
        self._lost = ""
        # Records that were recovered and could not be written yet: as good as written to all others.
        self._unwritten: dict[Uid, PreparedClaim] = {}
        # Claims whose records are just being replaced.
        self._replacing: set[Uid] = set()
        # Set when the claim of that UID releases its devices.
        self._released: dict[Uid, asyncio.Event] = {}

    @property
    def records(self) -> tuple[PreparedClaim, ...]:
        """Every record, those of ended claims too, as this instance remembers them."""
        return tuple(({c.uid: c for c in self._checkpoints.current} | self._unwritten).values())

    @property
    def held(self) -> tuple[PreparedClaim, ...]:
        """The records of claims that hold something."""
        return tuple(c for c in self.records if not c.ended)

    def on_written_elsewhere(self, written: Callable[[], None]) -> None:
        """Call this when another instance has written records since this one looked."""
        self._written_elsewhere = written

    def on_lost(self, found: Callable[[str], Awaitable[Sequence[PreparedClaim]]]) -> None:
        """Call this when records were lost while the plugin runs.

        Args:
            found: given why, and returns the records that can be read elsewhere than in the checkpoint.
        """
        self._found = found

    @property
    def is_settled(self) -> bool:
        """See ``locks.Unsettled``."""
        return self._checkpoints.is_folded

    async def settle(self) -> None:
        """See ``locks.Unsettled``."""
        await self._checkpoints.fold()

    def record(self, uid: Uid) -> PreparedClaim | None:
        """Return the record of a claim as this instance remembers it."""
        return self._unwritten.get(uid) or self._checkpoints.current.get(uid)

    def is_outdated(self, record: PreparedClaim) -> bool:
        """Return whether the record is of an earlier boot: nothing of what it says counts."""
        return self._checkpoints.current.is_of_earlier_boot(record, self.boot_id)

    async def read(self, deadline: float) -> tuple[PreparedClaim, ...]:
        """Return every record, whichever instance wrote it.

        Raises:
            PrepareError: another instance holds the node beyond ``deadline``, a time of the loop's clock.
        """
        async with self._node_lock.held(deadline):
            return self.records

    @contextlib.asynccontextmanager
    async def starting(self, deadline: float) -> AsyncIterator[Start]:
        """Read the checkpoint, and change any claim alone, before the first call is served.

        Raises:
            PrepareError: another instance holds the node beyond ``deadline``, a time of the loop's clock.
        """
        self._starting = True  # everything is read here, and a checkpoint that cannot be read is dealt with
        try:
            async with self._node_lock.held(deadline):
                problem = await self._checkpoints.load()
                self._hold_what_is_recorded()
                yield Start(self, problem)
        finally:
            self._starting = False

    @contextlib.asynccontextmanager
    async def claim(self, uid: Uid, deadline: float) -> AsyncIterator[LockedClaim]:
        """Keep other calls for the claim out.

        Raises:
            PrepareError: another call does not end before ``deadline``, a time of the loop's clock.
        """
        async with self._claim_locks.held(uid, deadline):
            yield LockedClaim(self, uid)

    async def wait_released(self, conflict: Conflict, seconds: float) -> None:
        """Wait until the claim of a conflict releases its devices, at most so many seconds.

        Another instance of the plugin cannot wake this one when it releases a device: ask again.
        """
        released = self._released.setdefault(conflict.holder_uid, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await released.wait()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _read_again(self, was_removed: bool) -> None:
        """Read what another instance has written since this one released the node.

        No transaction of this process is under way, so that nothing is held but what is recorded.

        Args:
            was_removed: whether the files of the node's lock were removed, so that the two may not have
                excluded each other.
        """
        if self._starting:
            return
        before = self.records
        problem = await self._checkpoints.refresh()
        # Kept until it is dealt with: this may be cancelled, and the files look the same the next time.
        self._lost = problem or self._lost
        if problem is None and not was_removed and not self._lost:
            return
        try:
            self._written_elsewhere()
            if self._lost or was_removed:
                await self._gather(self._lost, before)
                self._lost = ""
        finally:
            self._hold_what_is_recorded()

    async def _gather(self, problem: str, before: Sequence[PreparedClaim]) -> None:
        """Bring together what the checkpoint, CDI files and this instance's memory say, and write it.

        The checkpoint says what another instance has, if it was the first to write after files were removed.
        CDI files say what it had prepared before. Memory knows both less well: what it has beside them may
        have been unprepared there. It counts where nothing speaks against it, as nothing must be given twice.
        """
        recorded = () if problem else self.records
        found = await self._found(problem or "the lock of the node was removed") if self._found else ()
        kept, dropped = gathered(recorded, found, before)
        for record in dropped:
            log.warning("a claim is dropped: another one has its devices", uid=record.uid)
        self._unwritten = {record.uid: record for record in kept}
        try:
            for record in dropped:
                await self._checkpoints.forget(record.uid)
            await self._save()
        except OSError as e:
            # They count as if they were written, which the next write does.
            log.error("what was gathered of lost records could not be written down", error=str(e))

    def _hold_what_is_recorded(self) -> None:
        self._holdings = Holdings(self.records)
        for uid in tuple(self._released):
            self._wake(uid)

    async def _save(self, *records: PreparedClaim) -> None:
        """Write records, and with them those that could not be written before."""
        new = {record.uid: record for record in records}
        # What was recovered of a claim must not be written after what replaces it.
        written = {u: r for u, r in self._unwritten.items() if u not in self._replacing} | new
        self._replacing |= new.keys()
        try:
            await self._checkpoints.save(*written.values())
        finally:
            self._replacing -= new.keys()
        for uid in written:
            self._unwritten.pop(uid, None)
        # Looked at before the write too. What was removed since may be what another instance goes by, which
        # then does not know of this record, and may have given the same devices to another claim.
        self._node_lock.check()

    async def _forget(self, uid: Uid) -> None:
        if (recovered := self._unwritten.get(uid)) is not None:
            # Or a write that is under way would bring the record back after it is forgotten.
            await self._save(recovered)
        await self._checkpoints.forget(uid)
        self._node_lock.check()

    async def _note_boot(self) -> None:
        if self.boot_id and self._checkpoints.current.boot_id != self.boot_id:
            if self._unwritten:
                # Or those that do not say of which boot they are would count as of this one.
                await self._save()
            await self._checkpoints.booted(self.boot_id)

    @contextlib.contextmanager
    def _open(self, uid: Uid) -> Iterator[Reservation]:
        reservation = Reservation(self, uid)
        try:
            yield reservation
        finally:
            reservation.is_open = False
            if not reservation.has_begun and not reservation.is_writing:
                self._release(uid)

    def _hold(self, record: PreparedClaim) -> None:
        self._holdings.take(record.uid, record.key, record.devices, record.settings)

    def _release(self, uid: Uid) -> None:
        self._holdings.release(uid)
        self._wake(uid)

    def _wake(self, uid: Uid) -> None:
        released = self._released.pop(uid, None)
        if released is not None:
            released.set()


class LockedClaim:
    """A claim while no other call for it can run."""

    def __init__(self, owner: DeviceReservations, uid: Uid) -> None:
        self._owner = owner
        self._uid = uid

    @contextlib.asynccontextmanager
    async def transaction(self, deadline: float) -> AsyncIterator[Reservation]:
        """Keep other instances of the plugin out, and change what the claim holds.

        What is reserved in the block and has no record at its end is released.

        Raises:
            PrepareError: another instance holds the node beyond ``deadline``, a time of the loop's clock.
        """
        async with self._owner._node_lock.held(deadline):
            with self._owner._open(self._uid) as reservation:
                yield reservation


class Start:
    """The reservations at a start of the plugin, before anything else asks for them.

    Attributes:
        problem: why records may be missing (see ``Checkpoints.load``); empty where all is well.
    """

    def __init__(self, owner: DeviceReservations, problem: str) -> None:
        self._owner = owner
        self.problem = problem

    @property
    def boot_before(self) -> str:
        """The boot of the machine that the checkpoint is of; empty where it says nothing."""
        return self._owner._checkpoints.current.boot_id

    async def adopt(self, records: Sequence[PreparedClaim]) -> None:
        """Reserve the devices of records that were recovered from elsewhere, and write the records.

        Raises:
            OSError: they cannot be written now. Their devices are reserved all the same, and the next write
                of a record writes them too.
        """
        # With what is known already: it was read from files that are not in force, or damaged.
        self._owner._unwritten = {r.uid: r for r in (*self._owner.records, *records)}
        self._owner._hold_what_is_recorded()
        await self._owner._save()

    def transaction(self, uid: Uid) -> contextlib.AbstractContextManager[Reservation]:
        """Change what a claim holds."""
        return self._owner._open(uid)

    async def note_boot(self) -> None:
        """See ``Reservation.note_boot``."""
        await self._owner._note_boot()


class Reservation:
    """What one claim holds, inside a transaction: the only way to change it.

    Attributes:
        uid: of the claim.
        is_open: whether the transaction is under way; nothing can be changed after it.
        is_writing: whether a write has begun and has neither succeeded nor failed.
    """

    def __init__(self, owner: DeviceReservations, uid: Uid) -> None:
        self._owner = owner
        self.uid = uid
        self.is_open = True
        self.is_writing = False

    @property
    def record(self) -> PreparedClaim | None:
        """The claim's record: the durable one, or the one that was recovered and is not written yet."""
        return self._owner.record(self.uid)

    @property
    def has_begun(self) -> bool:
        """Whether the record says that something was done for the claim; that of an ended one does not."""
        record = self.record
        return record is not None and not record.ended

    @property
    def holdings(self) -> Holdings:
        """What every claim holds, for what depends on other claims of the same GPU; to be read only."""
        return self._owner._holdings

    def reserve(self, planned: PreparedClaim) -> Conflict | None:
        """Reserve the devices of a planned claim, or return which other claim excludes it."""
        self._check(planned)
        # Nothing is awaited between the question and the answer: this is what keeps two claims apart.
        conflict = self.holdings.conflict(planned.uid, planned.namespace, planned.devices, planned.settings)
        if conflict is None:
            self._owner._hold(planned)
        return conflict

    def refine(self, planned: PreparedClaim) -> None:
        """Keep the reserved devices with what the hardware has said of them since."""
        self._check(planned)
        self._owner._hold(planned)

    async def save(self, record: PreparedClaim) -> None:
        """Write the record of a claim whose devices are reserved.

        Raises:
            OSError: the record is as it was before.
        """
        self._check(record)
        await self._write(record)

    async def note(self, record: PreparedClaim) -> None:
        """Write the record if it says something else than the durable one.

        Raises:
            OSError: the record is as it was before.
        """
        if self._owner._checkpoints.current.get(self.uid) != record:
            await self.save(record)

    async def end(self, record: PreparedClaim) -> None:
        """Write that a reboot has ended what the claim had, then release its devices.

        Raises:
            OSError: the record is as it was before; the devices stay reserved.
        """
        self._check(record)
        await self._write(ended(record))
        self._owner._release(self.uid)

    async def forget(self) -> None:
        """Remove the record, then release the claim's devices.

        Raises:
            OSError: the record is as it was before; the devices stay reserved.
        """
        assert self.is_open, "a reservation is changed inside its transaction only"
        await self._owner._forget(self.uid)
        self._owner._release(self.uid)

    def begin(self) -> None:
        """Note that the claim, whose record is durable, will undo what it needs of whole GPUs."""
        assert self.is_open, "a reservation is changed inside its transaction only"
        self.holdings.begun(self.uid)

    def end_settings(self) -> None:
        """Note that the claim undoes what it needs of whole GPUs: no other claim may leave it to this one."""
        assert self.is_open, "a reservation is changed inside its transaction only"
        self.holdings.ending(self.uid)

    async def note_boot(self) -> None:
        """Write which boot of the machine this is, where it is known.

        Records of this boot must never look like those of the one before, whose devices no container uses.

        Raises:
            OSError: the checkpoint is as it was before.
        """
        await self._owner._note_boot()

    async def _write(self, record: PreparedClaim) -> None:
        # Not reset by a cancellation: the write may go on, and be durable after the transaction has ended.
        self.is_writing = True
        try:
            await self._owner._save(record)
        except Exception:
            self.is_writing = False
            raise
        self.is_writing = False

    def _check(self, record: PreparedClaim) -> None:
        assert self.is_open, "a reservation is changed inside its transaction only"
        assert record.uid == self.uid, f"the record of {record.uid} in a transaction of {self.uid}"
