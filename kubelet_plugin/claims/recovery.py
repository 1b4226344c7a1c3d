"""What CDI files say of claims that the checkpoint does not know (any more)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import structlog

from dra_driver import cdi
from dra_driver.api.meta import Uid
from dra_driver.errors import DraError
from dra_driver.preparation import ClaimState, PreparedClaim, recover
from kubelet_plugin.claims.stores import NO_CHECKPOINT, Checkpoints
from kubelet_plugin.core.notices import CHECKPOINT_DAMAGED, ORPHANED_CDI_FILE

__all__ = ["Recovery"]

log = structlog.get_logger(__name__)


class Recovery:
    """Reads claims back from CDI files.

    Args:
        tell: called with kind (see ``notices``) and text of what somebody should know.
    """

    def __init__(self, driver: str, checkpoints: Checkpoints, tell: Callable[[str, str], None]) -> None:
        self._driver = driver
        self._checkpoints = checkpoints
        self._tell = tell

    async def recover(self, problem: str, known: Set[Uid], files: Mapping[Uid, bytes]) -> Set[Uid]:
        """Adds records that only the CDI files still hold.

        A file is written after everything else that a claim needs. One that the older version knows as begun
        was therefore made to its end, and its containers may run: to undo it would take their devices away.
        """
        current = self._checkpoints.current
        made = {u for u in known if (r := current.get(u)) is not None and r.state is ClaimState.COMPLETED}
        found = [r for u, data in files.items() if u not in made and (r := self._recovered(u, data))]
        if known or found or problem != NO_CHECKPOINT:
            log.error(
                "checkpoint lost; claims recovered from what is left",
                problem=problem,
                from_checkpoint=len(made),
                from_cdi=len(found),
            )
            self._tell(
                CHECKPOINT_DAMAGED,
                f"{self._driver}: the record of prepared claims was lost: {problem}; recovered {len(made)} "
                f"claims from the version before and {len(found)} from CDI files",
            )
        try:
            await self._checkpoints.save(*found)
        except OSError as e:
            # Their files stay, and unprepare of a claim without a record removes its file.
            log.error("recovered claims could not be written down", error=str(e))
        return {claim.uid for claim in found}

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
        """Whether a file that belongs to no record is ours to be removed; tells of it."""
        if not data.strip(b"\0"):
            return True  # what a power failure leaves of a file that was not synced
        # By name it is ours; its content decides, because the directory belongs to everybody.
        record = self._recovered(uid, data)
        if record is not None:
            log.warning(
                "removing the CDI file of a claim that nobody prepared", uid=uid, claim=str(record.key)
            )
            self._tell(
                ORPHANED_CDI_FILE,
                f"{self._driver}: removing the CDI file of claim {record.key} ({uid}), which is not prepared",
            )
        return record is not None
