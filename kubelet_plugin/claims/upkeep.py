"""Keeps what is prepared true: after starts and reboots, and when devices, their nodes or their files change.

A document is written only of what the devices are now. One that cannot be true any more is removed rather
than left: a container that is started anew meanwhile waits for it (the runtime says that a CDI device cannot
be resolved, and tries again), while one that is there would hand out whatever has the number now.

A look at the hardware says nothing about a claim that was prepared after the look began: during an update the
other instance prepares claims too, and a device that came back from passthrough is one that this instance may
not have seen yet. Such a claim keeps its document until the next look, which is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set

import structlog

from dra_driver.api.meta import Uid
from dra_driver.errors import DeviceNodeAbsent, DraError, StillPreparing
from dra_driver.preparation import (
    ClaimState,
    Event,
    NodeDevice,
    PreparedClaim,
    renewed,
)
from kubelet_plugin.claims.effects import Effects
from kubelet_plugin.claims.host_files import Host
from kubelet_plugin.claims.reservations import DeviceReservations, Reservation
from kubelet_plugin.core.notices import CDI_FILE_WITHDRAWN
from kubelet_plugin.gpu.hardware import Hardware

__all__ = ["Upkeep"]

log = structlog.get_logger(__name__)


class Upkeep:
    """Renews one claim at a time, in a transaction of the caller.

    Attributes:
        unsettled: claims whose documents are not known to be right, and why.

    Args:
        reservations: asked what is recorded; changed through the caller's ``Reservation`` only.
        devices: the node's devices by name.
        looked: when the look began that found ``devices``, a time of the loop's clock.
        look: asks for another look.
        complete: whether ``devices`` is all there is, so that what is not in it is not on the node.
        is_preparing: whether a backend is at work for a claim, and the kubelet will ask again.
        report: called with the kind (see ``notices``) and the text of what is found.
    """

    def __init__(
        self,
        *,
        driver: str,
        reservations: DeviceReservations,
        effects: Effects,
        hardware: Hardware,
        host: Host,
        devices: Callable[[], Mapping[str, NodeDevice]],
        looked: Callable[[], float],
        look: Callable[[], None],
        complete: Callable[[], bool],
        is_preparing: Callable[[PreparedClaim], bool],
        report: Callable[[str, str], None],
    ) -> None:
        self._driver = driver
        self._reservations = reservations
        self._effects = effects
        self._hardware = hardware
        self._host = host
        self._devices = devices
        self._looked = looked
        self._look = look
        # Each record and since when it is known here.
        self._known_since: dict[Uid, tuple[PreparedClaim, float]] = {}
        self._complete = complete
        self._is_preparing = is_preparing
        self._report = report
        self.unsettled: dict[Uid, str] = {}
        # Claims that the kubelet has ended and whose backends have not undone everything yet.
        self._ending: set[Uid] = set()

    def ending(self, record: PreparedClaim) -> None:
        """Note that the claim could not be unprepared, and that the kubelet will ask for it again.

        What its backends have undone is not made again until the kubelet wants that: work that takes long
        would keep the kubelet's next attempt waiting for its end.
        """
        if record.effects:
            self._ending.add(record.uid)
            self.unsettled.pop(record.uid, None)

    def prepared(self, record: PreparedClaim) -> None:
        """Note that the claim has just been prepared with this record, whatever was to be ended before."""
        self._ending.discard(record.uid)
        self.saw(record)

    def saw(self, record: PreparedClaim) -> None:
        """Note that from now on the claim is known to have this record."""
        known = self._known_since.get(record.uid)
        if known is None or known[0] != record:
            self._known_since[record.uid] = record, asyncio.get_running_loop().time()

    def is_due(self, record: PreparedClaim) -> bool:
        """Return whether there is something to be done for a prepared claim that can be done now."""
        self.saw(record)
        outdated = self._reservations.is_outdated(record)
        if record.state is not ClaimState.COMPLETED or outdated or not self._known(record):
            return False
        if record.uid in self._ending:
            return False
        if record.uid in self.unsettled:
            return True
        try:
            return renewed(self._driver, record, self._devices()) != record
        except DraError:
            return True

    async def reconcile_record(self, claim: Reservation) -> None:
        """Finish, undo or renew what is found of a claim; what cannot be done now is logged."""
        uid, record = claim.uid, claim.record
        state = record.standing if record is not None else ClaimState.ABSENT
        try:
            await self._reconcile_record(claim, record, state)
        except (OSError, DraError) as e:
            # What is known already is logged once, not every few seconds.
            is_slow = isinstance(e, StillPreparing)
            level = log.debug if is_slow or self.unsettled.get(uid) == str(e) else log.error
            level("a claim could not be put in order", uid=uid, state=state.value, error=str(e))
            if is_slow or uid in self.unsettled:
                self.unsettled[uid] = str(e)
        except Exception:
            # A bug in a backend must not end the plugin at each of its starts.
            log.exception("a claim could not be put in order", uid=uid, state=state.value)

    async def _reconcile_record(
        self, claim: Reservation, record: PreparedClaim | None, state: ClaimState
    ) -> None:
        if record is not None:
            self.saw(record)
        if record is not None and self._reservations.is_outdated(record):
            await self.end(claim, record)
            return
        if record is not None and state is ClaimState.COMPLETED and record.uid in self._ending:
            return
        if record is not None and state is ClaimState.COMPLETED and self._known(record):
            await self.renew(claim, record, Event.REVIEW)
            return
        if record is not None and state is ClaimState.STARTED and self._is_preparing(record):
            return
        if state is ClaimState.STARTED:
            log.warning("undoing a prepare that did not end", uid=claim.uid)
        elif state is ClaimState.COMPLETED:
            # Its devices are not known yet: ``renew`` comes back to it when they are.
            self.unsettled.setdefault(claim.uid, "")
        try:
            after, _ = await self._effects.carry_out(claim, record, state, Event.RESTART)
        except DeviceNodeAbsent as e:
            if record is not None:
                await self._withdraw(claim, record, e)
            raise
        if after is ClaimState.ABSENT:
            self.forget(claim.uid)

    async def end(self, claim: Reservation, record: PreparedClaim) -> None:
        """Give back what a claim had before a reboot, and remember only which devices it was given.

        Raises:
            DraError: the hardware does not do it now; the record stays as it is.
            OSError: likewise, for files.
        """
        if not record.ended:
            log.info(
                "the reboot ended what a claim had; it is prepared anew when it is wanted", uid=record.uid
            )
        await self._effects.carry_out(claim, record, record.standing, Event.REBOOT)
        self.forget(record.uid)

    async def renew(self, claim: Reservation, record: PreparedClaim, event: Event) -> PreparedClaim:
        """Make again what is missing of a prepared claim, and its document of what its devices are now.

        Raises:
            DraError: it cannot be done; a document that is not known to be right is removed.
            OSError: likewise, for files.
        """
        fresh, is_old_look = record, False
        self._ending.discard(record.uid)
        try:
            record.check_document()
            fresh, is_old_look = self._renewed(record)
            fresh = await self._hardware.locate(fresh)
            if fresh.spec is not None and not any(d.binding for d in fresh.devices):
                # Looked at once more when it is written; here it keeps GPUs from being asked in vain.
                # Nodes of functions that are handed over are made by binding them.
                await self._host.document(fresh)
        except DraError as e:
            await self._withdraw(claim, record, e)
            raise
        try:
            _, made = await self._effects.carry_out(claim, fresh, record.state, event)
        except Exception as e:
            # The document in force is of the durable record. It stays only if that is still what is wanted
            # and what failed has nothing to do with the device's node.
            if isinstance(e, DeviceNodeAbsent) or fresh != record or claim.record != record:
                await self._withdraw(claim, record, e)
            raise
        self.saw(made or fresh)
        if is_old_look:
            self.unsettled[record.uid] = "its devices are to be looked at again"
            self._look()
        else:
            self.unsettled.pop(record.uid, None)
        return made or fresh

    def partitions_changed(self) -> None:
        """Note that the claims have to be renewed that have admin access to partitions."""
        for record in self._reservations.records:
            if any(d.admin_access and d.partition is not None for d in record.devices):
                self.unsettled.setdefault(record.uid, "the partition that it looks at may have changed")

    def keep_only(self, uids: Set[Uid]) -> None:
        """Forget claims other than these: another instance may have unprepared them."""
        for uid in (self.unsettled.keys() | self._known_since.keys() | self._ending) - uids:
            self.forget(uid)

    def forget(self, uid: Uid) -> None:
        """Forget a claim that has no document to be kept true any more."""
        self.unsettled.pop(uid, None)
        self._known_since.pop(uid, None)
        self._ending.discard(uid)

    def _renewed(self, record: PreparedClaim) -> tuple[PreparedClaim, bool]:
        """Return the record renewed, or as it is and True where what was found is older than it and differs.

        Raises:
            DraError: no document may be in force.
        """
        self.saw(record)
        is_old = self._looked() < self._known_since[record.uid][1]
        try:
            fresh = renewed(self._driver, record, self._devices())
        except DraError:
            if not is_old:
                raise
            return record, True
        return (record, True) if is_old and fresh != record else (fresh, False)

    def _known(self, record: PreparedClaim) -> bool:
        here = self._devices()
        return self._complete() or all(d.device in here for d in record.devices)

    async def _withdraw(self, claim: Reservation, record: PreparedClaim, why: Exception) -> None:
        before = self.unsettled.get(record.uid)
        # Noted first: if the file cannot be removed now, ``renew`` tries again.
        self.unsettled[record.uid] = str(why)
        await self._effects.carry_out(claim, record, ClaimState.COMPLETED, Event.WITHDRAW)
        if before != str(why):
            log.warning(
                "the CDI file of a claim is withdrawn", claim=str(record.key), uid=record.uid, why=str(why)
            )
            self._report(
                CDI_FILE_WITHDRAWN,
                f"{self._driver}: the CDI file of a claim (UID {record.uid}) was removed, and its "
                f"containers cannot start until it is written again: {why}",
            )
