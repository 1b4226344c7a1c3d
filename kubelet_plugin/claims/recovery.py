"""What CDI files say of claims that the checkpoint does not know, or no longer knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from dra_driver import cdi
from dra_driver.api.meta import Uid
from dra_driver.errors import DraError
from dra_driver.preparation import ClaimState, PreparedClaim, recover
from kubelet_plugin.claims.reservations import NO_CHECKPOINT
from kubelet_plugin.core.notices import CHECKPOINT_DAMAGED, ORPHANED_CDI_FILE

__all__ = ["Recovery"]

log = structlog.get_logger(__name__)


class Recovery:
    """Reads claims back from CDI files.

    Args:
        report: called with the kind (see ``notices``) and the text of what is found.
    """

    def __init__(self, driver: str, report: Callable[[str, str], None]) -> None:
        self._driver = driver
        self._report = report

    def recover(
        self, problem: str, known: Sequence[PreparedClaim], files: Mapping[Uid, bytes]
    ) -> Sequence[PreparedClaim]:
        """Return the records that only the CDI files still hold.

        A file is written after everything else that a claim needs. One that the older version knows as begun
        was therefore made to its end, and its containers may run: to undo it would take their devices away.

        Args:
            problem: why records may be missing.
            known: what the checkpoint, or its older version, holds.
            files: the contents of the CDI files of this driver, by the UID of their claim.
        """
        made = {record.uid for record in known if record.state is ClaimState.COMPLETED}
        found = [r for u, data in files.items() if u not in made and (r := self._recovered(u, data))]
        if known or found or problem != NO_CHECKPOINT:
            log.error(
                "checkpoint lost; claims recovered from what is left",
                problem=problem,
                from_checkpoint=len(made),
                from_cdi=len(found),
            )
            self._report(
                CHECKPOINT_DAMAGED,
                f"{self._driver}: the record of prepared claims was lost: {problem}; recovered {len(made)} "
                f"claims from the previous version and {len(found)} from CDI files",
            )
        return found

    def _recovered(self, uid: Uid, data: bytes) -> PreparedClaim | None:
        try:
            record = recover(self._driver, cdi.decode(data))
        except DraError as e:
            log.error("a CDI file of a claim cannot be read back", uid=uid, error=str(e))
            return None
        if record.uid != uid:
            log.error("a CDI file carries the record of another claim", uid=uid, record=record.uid)
            return None
        return record

    def is_orphan(self, uid: Uid, data: bytes) -> bool:
        """Return whether a file that belongs to no record is this driver's to be removed, and report it."""
        if not data.strip(b"\0"):
            return True  # what a power failure leaves of a file that was not synced
        # By name it is ours; its content decides, because the directory belongs to everybody.
        record = self._recovered(uid, data)
        if record is not None:
            log.warning(
                "removing the CDI file of a claim that is not prepared", uid=uid, claim=str(record.key)
            )
            self._report(
                ORPHANED_CDI_FILE,
                f"{self._driver}: removing the CDI file of a claim that is not prepared (UID {uid})",
            )
        return record is not None
