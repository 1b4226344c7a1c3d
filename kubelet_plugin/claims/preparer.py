"""Carries out prepare and unprepare: the state machine of ``dra_driver.preparation`` on real files.

Time: the kubelet gives a call 45 s and comes back only after 65 s or more, so whatever may pass soon (API
server away, device still held, another call for the same claim) is waited for inside the call, up to
``Timing.budget``. Effects themselves are never cut short.

What is reserved and recorded belongs to ``DeviceReservations``; everything here asks it. Between transactions
nothing is kept that another instance of the plugin could make untrue.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import structlog

from dra_driver.api.meta import PoolName, Uid
from dra_driver.errors import DraError, PartitionAbsent, PrepareError, StillPreparing
from dra_driver.ports import KubeClient
from dra_driver.preparation import (
    ClaimState,
    Event,
    NodeDevice,
    PassthroughPolicy,
    PreparedClaim,
    PreparedDevice,
    check_identity,
    check_uid,
    devices_of_record,
    renewed,
)
from kubelet_plugin.claims.cdi_directory import Specs
from kubelet_plugin.claims.effects import Effects
from kubelet_plugin.claims.host_files import EverythingThere, Host
from kubelet_plugin.claims.metadata_directory import Metadata, NoMetadata
from kubelet_plugin.claims.planning import ClaimReference, Planner, Timing
from kubelet_plugin.claims.reallocation import Given, InUse, NothingInUse, is_reallocated
from kubelet_plugin.claims.recovery import Recovery
from kubelet_plugin.claims.reservations import (
    NO_CHECKPOINT,
    DeviceReservations,
    LockedClaim,
    Reservation,
    Start,
)
from kubelet_plugin.claims.upkeep import Upkeep
from kubelet_plugin.extensions.effects import BackendEffects
from kubelet_plugin.gpu.hardware import Hardware
from kubelet_plugin.gpu.no_hardware import NoHardware

__all__ = ["Preparer"]

log = structlog.get_logger(__name__)

# Another instance cannot wake this one when it releases a device.
_LOOK_AGAIN_SECONDS: Final = 0.5


class Preparer:
    """The claims of one driver on one node.

    Attributes:
        intact: whether the records of the start were all there: false after some had to be recovered.

    Args:
        reservations: what is recorded, and which devices are held.
        devices: the node's devices by name.
        looked: when the look began that found ``devices``, a time of the loop's clock; if it is not given,
            ``devices`` is what there is now.
        look: asks for another look.
        metadata: where device metadata files go, and ``metadata_directory`` under which name of the host;
            if the name is empty, none are written.
        host: what is there of what documents name; defaults to everything.
        backends: those that prepare their devices themselves; defaults to none.
        passthrough: whose claims may have devices as bare PCI functions; defaults to those whose DeviceClass
            asks for it.
        complete: whether ``devices`` is all there is, so that what is not in it is not on the node.
        in_use: whether containers may still use what claims were given; defaults to none doing so.
        report: called with the kind (see ``notices``) and the text of what is found.
    """

    def __init__(
        self,
        *,
        driver: str,
        pool: PoolName,
        client: KubeClient,
        reservations: DeviceReservations,
        specs: Specs,
        devices: Callable[[], Mapping[str, NodeDevice]],
        looked: Callable[[], float] = lambda: math.inf,
        look: Callable[[], None] = lambda: None,
        hardware: Hardware | None = None,
        timing: Timing | None = None,
        metadata: Metadata | None = None,
        metadata_directory: str = "",
        host: Host | None = None,
        backends: BackendEffects | None = None,
        passthrough: PassthroughPolicy | None = None,
        complete: Callable[[], bool] = lambda: True,
        in_use: InUse | None = None,
        report: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._driver = driver
        self._specs = specs
        self.intact = True
        self._in_use: InUse = in_use or NothingInUse()
        self._devices = devices
        self._hardware: Hardware = hardware or NoHardware()
        self._timing = timing or Timing()
        self._metadata: Metadata = metadata or NoMetadata()
        host = host or EverythingThere()
        self._backends = backends = backends or BackendEffects()
        self._reservations = reservations
        reservations.on_written_elsewhere(backends.forget)
        self._recovery = Recovery(driver, report)
        reservations.on_lost(self._found_elsewhere)
        self._planner = Planner(
            driver=driver,
            pool=pool,
            client=client,
            reservations=self._reservations,
            devices=devices,
            timing=self._timing,
            metadata_directory=metadata_directory,
            host=host,
            boot_id=reservations.boot_id,
            passthrough=passthrough or PassthroughPolicy(),
            backends=backends,
        )
        self._effects = Effects(
            driver=driver,
            specs=specs,
            hardware=self._hardware,
            backends=backends,
            metadata=self._metadata,
            metadata_directory=metadata_directory,
            host=host,
            devices=devices,
            held=lambda: reservations.held,
        )
        self._upkeep = Upkeep(
            driver=driver,
            reservations=self._reservations,
            effects=self._effects,
            hardware=self._hardware,
            host=host,
            devices=devices,
            looked=looked,
            look=look,
            complete=complete,
            is_preparing=backends.is_preparing,
            report=report,
        )

    @property
    def claims(self) -> tuple[PreparedClaim, ...]:
        """The claims that hold something, as this instance remembers, without waiting for another one."""
        return self._reservations.held

    @property
    def unsettled(self) -> bool:
        """Whether there are claims whose documents are not known to be right: ``renew`` tries again."""
        return bool(self._upkeep.unsettled)

    @property
    def failures(self) -> Counter[str]:
        """How often what was durable failed, by what it was."""
        return self._effects.failures

    # --- start ----------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Bring records and files together after a start: finish or undo whatever a crash left.

        Documents wait for the devices to be known; ``renew`` writes them. A claim that cannot be put in order
        now is logged and stays as it is; its next call tries again.

        Raises:
            PrepareError: another instance does not release the node's memory.
        """
        async with self._reservations.starting(self._now() + self._timing.start) as start:
            await self._restore(start)

    async def _restore(self, start: Start) -> None:
        files = await self._files_at_start()
        known = {claim.uid for claim in self._reservations.records}
        self.intact = start.problem in ("", NO_CHECKPOINT)
        if start.problem:
            self._effects.failures["checkpoint"] += start.problem != NO_CHECKPOINT
            # Before anything is undone: what is undone for one claim may be needed by another.
            known |= await self._recover(start, files)
        before = start.boot_before
        for record in self._reservations.records:
            with start.transaction(record.uid) as claim:
                await self._upkeep.reconcile_record(claim)
        for uid in files.keys() - known:
            if self._recovery.is_orphan(uid, files[uid]):
                with start.transaction(uid) as claim:
                    await self._upkeep.reconcile_record(claim)
        await self._remove_metadata_without_records()
        try:
            # Last: a crash before it does all of the above again.
            await start.note_boot()
        except OSError as e:
            log.error("the boot ID could not be written down", error=str(e))
        log.info("claims restored", claims=len(self._reservations.records), boot_before=before)

    async def _files_at_start(self) -> Mapping[Uid, bytes]:
        try:
            await self._specs.clean()
        except OSError as e:
            log.error("leftovers of an interrupted write could not be removed", error=str(e))
        return await self._files_now()

    async def _files_now(self) -> Mapping[Uid, bytes]:
        try:
            return await self._specs.ours()
        except OSError as e:
            self._effects.failures["cdi"] += 1
            log.error("the CDI directory cannot be read", error=str(e))
            return {}

    async def _found_elsewhere(self, problem: str) -> Sequence[PreparedClaim]:
        return self._recovery.recover(problem, self._reservations.records, await self._files_now())

    async def _recover(self, start: Start, files: Mapping[Uid, bytes]) -> set[Uid]:
        found = self._recovery.recover(start.problem, self._reservations.records, files)
        try:
            await start.adopt(found)
        except OSError as e:
            # They count as if they were: their containers run. ``tidy`` writes them.
            log.error("recovered claims could not be written down", error=str(e))
        return {claim.uid for claim in found}

    async def _remove_metadata_without_records(self) -> None:
        try:
            for uid in await self._metadata.ours() - {claim.uid for claim in self._reservations.records}:
                await self._metadata.remove(uid)
        except OSError as e:
            log.error("metadata files of claims that are gone could not be removed", error=str(e))

    # --- now and then ---------------------------------------------------------------------------------------

    async def prepared(self) -> tuple[PreparedClaim, ...]:
        """Return the records of claims that are prepared, or were before a reboot, by any instance."""
        return tuple(
            c for c in await self.recorded() if c.standing in (ClaimState.COMPLETED, ClaimState.ENDED)
        )

    async def recorded(self) -> tuple[PreparedClaim, ...]:
        """Return the records of all claims, also of those that any instance is preparing."""
        return tuple(await self._reservations.read(self._now() + self._timing.budget))

    async def holds(self, uid: Uid) -> bool:
        """Return whether a claim holds devices, or may come to hold some by a call that is under way."""
        try:
            check_uid(uid)
        except DraError:
            return False  # no claim is prepared under it
        async with self._undisturbed(uid) as claim:
            return claim is None or (claim.record is not None and not claim.record.ended)

    async def tidy(self) -> None:
        """Do what ``restore`` does, one claim after the other, while calls go on."""
        files = await self._specs.ours()
        known = {claim.uid for claim in self._reservations.records}
        for uid in [*known, *(files.keys() - known)]:
            async with self._undisturbed(uid) as claim:
                if claim is None:
                    continue
                # Looked at inside the transaction: a call may have come between.
                orphan = claim.record is None and uid in files and self._recovery.is_orphan(uid, files[uid])
                if claim.record is not None or orphan:
                    await self._upkeep.reconcile_record(claim)

    def partitions_changed(self) -> None:
        """Note that partitions came or went: ``renew`` looks at the claims that have admin access to some."""
        self._upkeep.partitions_changed()

    async def renew(self) -> None:
        """Write the documents that discovery has something new for, or that could not be written before."""
        records = self._reservations.records
        self._upkeep.keep_only({claim.uid for claim in records})
        for record in records:
            if not self._upkeep.is_due(record):
                continue
            async with self._undisturbed(record.uid) as claim:
                if claim is not None and claim.record is not None and self._upkeep.is_due(claim.record):
                    await self._upkeep.reconcile_record(claim)

    @contextlib.asynccontextmanager
    async def _undisturbed(self, uid: Uid) -> AsyncIterator[Reservation | None]:
        """Open a transaction of a claim; give None where a call for it does not end."""
        deadline = self._now() + self._timing.patience
        async with contextlib.AsyncExitStack() as stack:
            try:
                locked = await stack.enter_async_context(self._reservations.claim(uid, deadline))
                claim = await stack.enter_async_context(locked.transaction(deadline))
            except PrepareError as e:
                log.info("a claim is busy and was not looked at", uid=uid, error=str(e))
                yield None
                return
            yield claim

    # --- calls ----------------------------------------------------------------------------------------------

    async def prepare(self, reference: ClaimReference) -> tuple[PreparedDevice, ...]:
        """Make the devices of a claim usable; a claim that is prepared already gives the same answer.

        Raises:
            DraError: it is not prepared; the text says why and goes to the pod's Event.
            OSError: likewise, for files.
        """
        uid = check_uid(reference.uid)
        deadline = self._now() + self._timing.budget
        async with self._reservations.claim(uid, deadline) as locked:
            if (devices := await self._answer_again(locked, reference, deadline)) is not None:
                self._in_use.release(uid)  # a pod has it again
                return devices
            # Outside of a transaction: the API server is waited for, and another instance may act meanwhile.
            planned = await self._planner.plan(reference, uid, deadline)
            return await self._make(locked, planned, deadline)

    async def unprepare(self, reference: ClaimReference) -> None:
        """Undo prepare, without the API server; a claim that is not known is a success.

        Raises:
            PrepareError: another call for the claim does not end, or containers may use its devices.
            OSError: a file cannot be removed or the checkpoint cannot be written; the claim stays prepared.
        """
        try:
            uid = check_uid(reference.uid)
        except DraError as e:
            log.warning("unprepare of what cannot have been prepared", error=str(e))
            return
        deadline = self._now() + self._timing.budget
        async with self._reservations.claim(uid, deadline) as locked:
            await self._check_use(locked, deadline)
            async with locked.transaction(deadline) as claim:
                if claim.record is not None and self._reservations.is_outdated(claim.record):
                    # It could not be ended at the start. What it had is to be undone as after a reboot.
                    await self._upkeep.end(claim, claim.record)
                await self._give_back(claim, claim.record, Event.UNPREPARE)
        self._in_use.unprepared(uid)

    # --- inside ---------------------------------------------------------------------------------------------

    async def _check_use(self, locked: LockedClaim, deadline: float) -> None:
        """Refuse to unprepare a claim that containers may use; of what was never finished there are none."""
        # The node is looked at outside of a transaction: that takes its time, and other claims go on.
        async with locked.transaction(deadline) as claim:
            record = claim.record
        if record is None or record.standing is not ClaimState.COMPLETED:
            return
        if not self._reservations.is_outdated(record):
            await self._in_use.check_unprepare(record)

    async def _answer_again(
        self, locked: LockedClaim, reference: ClaimReference, deadline: float
    ) -> tuple[PreparedDevice, ...] | None:
        """Do what ``_repeat`` does; what may pass soon is waited for."""
        limit = min(deadline, self._now() + self._timing.patience)
        given: Given = None
        is_known = False
        while True:
            try:
                async with locked.transaction(deadline) as claim:
                    # Tried at the start; a disk that was full then must not make this boot look like another.
                    await claim.note_boot()
                    if is_known or not claim.has_begun:
                        return await self._repeat(claim, given)
                # Outside of the transaction, and for a claim that has something only: it may have been
                # allocated anew since. The kubelet asks seldom for what is prepared.
                given, is_known = await self._planner.given(reference, claim.uid, deadline), True
                continue
            except StillPreparing:
                raise  # it has been waited for
            except PrepareError as e:
                if not e.retryable or self._now() + _LOOK_AGAIN_SECONDS > limit:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _repeat(self, claim: Reservation, given: Given) -> tuple[PreparedDevice, ...] | None:
        """Answer for a claim that is prepared already, or finish one that a backend is at work for.

        Args:
            claim: the claim's reservation, in a transaction.
            given: what the claim is allocated to now; None where that is not known.

        Returns:
            None for any other claim, and one that was allocated anew, of which nothing is left then.

        Raises:
            PrepareError: it was allocated anew, and what it had may still be in use.
        """
        record = claim.record
        if record is None or record.ended:
            return None
        if self._reservations.is_outdated(record):
            await self._upkeep.end(claim, record)
            return None
        if record.state is not ClaimState.COMPLETED and not self._backends.is_preparing(record):
            # An earlier attempt ended half-way and its undoing failed too: its record says what is left.
            await self._undo(claim)
            return None
        if await is_reallocated(record, given, self._in_use):
            await self._give_back(claim, record, Event.REALLOCATED)
            return None
        if record.state is not ClaimState.COMPLETED:
            return await self._resume(claim, record)
        return (await self._upkeep.renew(claim, record, Event.PREPARE)).devices

    async def _make(
        self, locked: LockedClaim, planned: PreparedClaim, deadline: float
    ) -> tuple[PreparedDevice, ...]:
        """Wait until no other claim holds the devices, then reserve them and make them usable."""
        limit = min(deadline, self._now() + self._timing.patience)
        while True:
            async with locked.transaction(deadline) as claim:
                # While this one waited, another instance may have prepared it.
                if (devices := await self._repeat(claim, devices_of_record(planned))) is not None:
                    return devices
                conflict = claim.reserve(planned)
                if conflict is None:
                    try:
                        return await self._apply(claim, planned)
                    except PartitionAbsent:
                        # The claim that makes it may be under way, and its call may be waiting for this node.
                        if limit - self._now() < _LOOK_AGAIN_SECONDS:
                            raise
            if conflict is None:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                continue
            left = limit - self._now()
            if left <= 0:
                log.warning(
                    "a device is held by another claim",
                    uid=planned.uid,
                    device=conflict.device,
                    holder=str(conflict.holder),
                    holder_uid=conflict.holder_uid,
                )
                raise PrepareError(
                    f"{conflict}; waited {self._timing.patience:g} s for it to be unprepared", retryable=True
                )
            # Outside of the transaction, so that another instance can unprepare the holder.
            await self._reservations.wait_released(conflict, min(left, _LOOK_AGAIN_SECONDS))

    async def _apply(self, claim: Reservation, planned: PreparedClaim) -> tuple[PreparedDevice, ...]:
        """Make the devices of a claim usable that are reserved for it, or leave nothing of it."""
        state = claim.record.standing if claim.record is not None else ClaimState.ABSENT
        async with self._all_or_nothing(claim):
            # While it waited for the devices they may have changed.
            record = renewed(self._driver, planned, self._devices())
            record = await self._hardware.look(record, claim.holdings)
            claim.refine(record)
            return await self._finish(claim, record, state, Event.PREPARE)

    async def _resume(self, claim: Reservation, record: PreparedClaim) -> tuple[PreparedDevice, ...]:
        """Make the devices of a claim usable for which a backend was at work when the last call ended."""
        async with self._all_or_nothing(claim):
            check_identity(record, self._devices())
            await self._effects.go_on(record)
            # While it was at work the devices may have changed, by the work itself too.
            try:
                record = renewed(self._driver, record, self._devices())
            except PrepareError as e:
                if not e.retryable:
                    raise
                # New firmware takes a device off its bus; that it is back is seen a moment later.
                raise StillPreparing(str(e), retryable=True) from e
            await self._check_partitions(record)
            return await self._finish(claim, record, ClaimState.STARTED, Event.RESUME)

    async def _check_partitions(self, record: PreparedClaim) -> None:
        """Refuse to go on with partitions that are gone: everything is undone then, and begun anew.

        The backend has worked on them, not on those that would be made in their place. And by the identity of
        the old ones, which the record has, the new ones would be somebody else's after a crash.

        Raises:
            PrepareError: one is gone.
        """
        left = await self._hardware.drop_missing_partitions(record)
        gone = [d.device for d, now in zip(record.devices, left.devices, strict=True) if d != now]
        if gone:
            raise PrepareError(
                f"device {', '.join(gone)}: the partition was destroyed while a backend prepared it",
                retryable=True,
            )

    async def _finish(
        self, claim: Reservation, record: PreparedClaim, state: ClaimState, event: Event
    ) -> tuple[PreparedDevice, ...]:
        state, made = await self._effects.carry_out(claim, record, state, event)
        record = made or record
        await self._effects.carry_out(claim, record, state, Event.APPLIED)
        if claim.record is not None:
            self._upkeep.prepared(claim.record)
        return record.devices

    @contextlib.asynccontextmanager
    async def _all_or_nothing(self, claim: Reservation) -> AsyncIterator[None]:
        """Undo what was begun for a claim if it fails, unless a backend just needs longer."""
        try:
            yield
        except StillPreparing as e:
            log.info("a backend is still preparing a device", uid=claim.uid, why=str(e))
            raise
        except Exception as e:  # also a bug in a backend: nothing may stay half-made
            try:
                await self._undo(claim)
            except Exception as undo:
                # The record stays STARTED and the devices stay held until the next call or start.
                log.error("a failed prepare could not be undone", uid=claim.uid, error=str(e), undo=str(undo))
            raise

    async def _give_back(self, claim: Reservation, record: PreparedClaim | None, why: Event) -> None:
        state = record.standing if record is not None else ClaimState.ABSENT
        try:
            await self._effects.carry_out(claim, record, state, why)
        except Exception:
            if record is not None:
                self._upkeep.ending(record)
            raise
        self._upkeep.forget(claim.uid)

    async def _undo(self, claim: Reservation) -> None:
        # Without a durable record nothing was begun, and what is at the places of its partitions is not ours.
        if claim.has_begun:
            await self._effects.carry_out(claim, claim.record, ClaimState.STARTED, Event.FAILED)
        self._upkeep.forget(claim.uid)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
