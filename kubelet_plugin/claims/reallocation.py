"""A claim that was allocated anew while the node still holds what it was given before."""

from __future__ import annotations

from typing import Protocol

import structlog

from dra_driver.api.meta import Uid
from dra_driver.errors import PrepareError
from dra_driver.preparation import GivenDevice, PreparedClaim, Use, Verdict, devices_of_record

__all__ = ["Given", "InUse", "NothingInUse", "is_reallocated"]

# What a claim is allocated to now; None where that is not known.
Given = frozenset[GivenDevice] | None

log = structlog.get_logger(__name__)


class InUse(Protocol):
    """Whether containers may still use the devices of claims (``kubelet_plugin.usage``)."""

    async def of_reallocated(self, record: PreparedClaim) -> Verdict:
        """Return whether they may use what a claim was given before it was allocated anew."""
        ...

    async def check_unprepare(self, record: PreparedClaim) -> None:
        """Refuse to unprepare a claim while they may use its devices.

        Raises:
            PrepareError: they may.
        """
        ...

    def release(self, uid: Uid) -> None:
        """Note that a pod has the claim again."""
        ...

    def unprepared(self, uid: Uid) -> None:
        """Note that the claim has released its devices."""
        ...


class NothingInUse:
    """Implements ``InUse`` where no container uses any device."""

    async def of_reallocated(self, record: PreparedClaim) -> Verdict:
        """Return that none does."""
        return Verdict(Use.FREE)

    async def check_unprepare(self, record: PreparedClaim) -> None:
        """Do nothing."""

    def release(self, uid: Uid) -> None:
        """Do nothing."""

    def unprepared(self, uid: Uid) -> None:
        """Do nothing."""


async def is_reallocated(record: PreparedClaim, given: Given, in_use: InUse) -> bool:
    """Return whether a claim is allocated to other devices than its record has, and these are free.

    Args:
        record: of the claim.
        given: what it is allocated to now; if None, what it was given stays.
        in_use: whether containers may still use what it was given.

    Raises:
        PrepareError: they may: the new devices must not be given beside the old ones, nor in their place.
    """
    before = devices_of_record(record)
    if given is None or given == before:
        return False
    verdict = await in_use.of_reallocated(record)
    had, has = (", ".join(map(str, sorted(devices))) or "no device" for devices in (before, given))
    if verdict.use is not Use.FREE:
        raise PrepareError(
            f"the claim is allocated to {has} now, but was prepared with {had}, which a pod may still use: "
            f"{verdict.why}; it will be prepared again when that pod has ended",
            retryable=True,
        )
    log.warning("a claim was allocated anew; what it had is undone", uid=record.uid, had=had, has=has)
    return True
