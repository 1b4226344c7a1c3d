"""Keeps what is prepared true: after starts and reboots, and when devices, their nodes or their files change.

A document is written only of what the devices are now. One that cannot be true any more is removed rather
than left: a container that is started anew meanwhile waits for it (the runtime says that a CDI device cannot
be resolved, and tries again), while one that is there would hand out whatever has the number now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import structlog

from dra_driver.api.meta import Uid
from dra_driver.errors import DeviceNodeAbsent, DraError
from dra_driver.preparation import (
    ClaimState,
    Event,
    NodeDevice,
    PreparedClaim,
    renewed,
)
from kubelet_plugin.claims.host_files import Host
from kubelet_plugin.claims.stores import Checkpoints
from kubelet_plugin.claims.transaction import Transactions
from kubelet_plugin.core.notices import CDI_FILE_WITHDRAWN
from kubelet_plugin.gpu.hardware import Hardware

__all__ = ["Upkeep"]

log = structlog.get_logger(__name__)


class Upkeep:
    """One claim at a time; the caller holds its lock and the turn.

    Attributes:
        unsettled: claims whose documents are not known to be right, and why.

    Args:
        devices: the node's devices by name.
        complete: whether ``devices`` is all there is, so that what is not in it is not on the node.
        boot_id: which boot of the machine this is; empty where that is not known.
        tell: called with kind (see ``notices``) and text of what somebody should know.
    """

    def __init__(
        self,
        *,
        driver: str,
        checkpoints: Checkpoints,
        steps: Transactions,
        hardware: Hardware,
        host: Host,
        devices: Callable[[], Mapping[str, NodeDevice]],
        complete: Callable[[], bool],
        boot_id: str,
        tell: Callable[[str, str], None],
    ) -> None:
        self._driver = driver
        self._checkpoints = checkpoints
        self._steps = steps
        self._hardware = hardware
        self._host = host
        self._devices = devices
        self._complete = complete
        self._boot_id = boot_id
        self._tell = tell
        self.unsettled: dict[Uid, str] = {}

    def outdated(self, record: PreparedClaim) -> bool:
        """Whether the record is of an earlier boot: nothing of what it says counts."""
        return self._checkpoints.current.is_of_earlier_boot(record, self._boot_id)

    def waits(self, record: PreparedClaim) -> bool:
        """Whether there is something to be done for a prepared claim that can be done now."""
        if record.state is not ClaimState.COMPLETED or self.outdated(record) or not self._known(record):
            return False
        if record.uid in self.unsettled:
            return True
        try:
            return renewed(self._driver, record, self._devices()) != record
        except DraError:
            return True

    async def put_in_order(self, uid: Uid, record: PreparedClaim | None) -> None:
        """Finishes, undoes or renews what is found of a claim. What cannot be done now is logged."""
        state = record.standing if record is not None else ClaimState.ABSENT
        try:
            if record is not None and self.outdated(record):
                await self.end(record)
            elif record is not None and state is ClaimState.COMPLETED and self._known(record):
                await self.renew(record, Event.REVIEW)
            else:
                if state is ClaimState.STARTED:
                    log.warning("undoing a prepare that did not end", uid=uid)
                elif state is ClaimState.COMPLETED:
                    self.unsettled.setdefault(uid, "")
                after, _ = await self._steps.carry_out(uid, record, state, Event.RESTART)
                if after is ClaimState.ABSENT:
                    self.released(uid)
        except (OSError, DraError) as e:
            # What is known already is said once, not every few seconds.
            level = log.debug if self.unsettled.get(uid) == str(e) else log.error
            level("a claim could not be put in order", uid=uid, state=state.value, error=str(e))
            if uid in self.unsettled:
                self.unsettled[uid] = str(e)
        except Exception:
            # A bug in a backend must not end the plugin at each of its starts.
            log.exception("a claim could not be put in order", uid=uid, state=state.value)

    async def end(self, record: PreparedClaim) -> None:
        """Gives back what a claim had before a reboot, and remembers only which devices it was given.

        Raises:
            DraError: the hardware does not do it now; the record stays as it is.
            OSError: likewise, for files.
        """
        if not record.ended:
            log.info(
                "the reboot ended what a claim had; it is prepared anew when it is wanted", uid=record.uid
            )
        await self._steps.carry_out(record.uid, record, record.standing, Event.REBOOT)
        self.released(record.uid)

    async def renew(self, record: PreparedClaim, event: Event) -> PreparedClaim:
        """Makes again what is missing of a prepared claim, and its document of what its devices are now.

        Raises:
            DraError: it cannot be done; a document that is not known to be right is removed.
            OSError: likewise, for files.
        """
        fresh = record
        try:
            fresh = renewed(self._driver, record, self._devices())
            fresh = await self._hardware.locate(fresh)
            if fresh.spec is not None:
                # Looked at once more when it is written; here it keeps GPUs from being asked in vain.
                await self._host.document(fresh)
        except DraError as e:
            await self._withdraw(record, e)
            raise
        try:
            _, made = await self._steps.carry_out(record.uid, fresh, record.state, event)
        except Exception as e:
            noted = self._checkpoints.current.get(record.uid)
            if isinstance(e, DeviceNodeAbsent) or fresh != record or noted != record:
                await self._withdraw(record, e)
            raise
        self.unsettled.pop(record.uid, None)
        return made or fresh

    def only(self, uids: Set[Uid]) -> None:
        """Forgets other claims than these: another instance may have unprepared them."""
        for uid in self.unsettled.keys() - uids:
            del self.unsettled[uid]

    def released(self, uid: Uid) -> None:
        """Notes that a claim holds nothing any more."""
        self.unsettled.pop(uid, None)
        self._steps.holdings.release(uid)

    def _known(self, record: PreparedClaim) -> bool:
        here = self._devices()
        return self._complete() or all(d.device in here for d in record.devices)

    async def _withdraw(self, record: PreparedClaim, why: Exception) -> None:
        before = self.unsettled.get(record.uid)
        self.unsettled[record.uid] = str(why)
        await self._steps.carry_out(record.uid, record, ClaimState.COMPLETED, Event.WITHDRAW)
        if before != str(why):
            log.warning("the CDI file of a claim is withdrawn", uid=record.uid, why=str(why))
            self._tell(
                CDI_FILE_WITHDRAWN,
                f"{self._driver}: the CDI file of claim {record.key} ({record.uid}) is withdrawn, and its "
                f"containers cannot be started anew until it is back: {why}",
            )
