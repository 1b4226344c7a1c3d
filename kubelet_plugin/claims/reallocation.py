"""A claim that was allocated anew while the node still holds what it was given before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from dra_driver.errors import PrepareError
from dra_driver.preparation import GivenDevice, PreparedClaim, Use, Verdict, devices_of_record

__all__ = ["Given", "InUse", "is_reallocated", "nothing_is_used"]

# What a claim is allocated to now; None where that is not known.
Given = frozenset[GivenDevice] | None
InUse = Callable[[PreparedClaim], Awaitable[Verdict]]

log = structlog.get_logger(__name__)


async def nothing_is_used(record: PreparedClaim) -> Verdict:
    """Return that no container uses the devices of a claim."""
    return Verdict(Use.FREE)


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
    verdict = await in_use(record)
    had, has = (", ".join(map(str, sorted(devices))) or "no device" for devices in (before, given))
    if verdict.use is not Use.FREE:
        raise PrepareError(
            f"the claim is allocated to {has} now, but was prepared with {had}, which a pod may still use: "
            f"{verdict.why}; it is prepared anew when that pod has ended",
            retryable=True,
        )
    log.warning("a claim was allocated anew; what it had is undone", uid=record.uid, had=had, has=has)
    return True
