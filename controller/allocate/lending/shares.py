"""Devices of which shares have just changed hands.

kube-scheduler may not have seen that yet, and would count on capacity that is gone. For whole devices it does
not matter: an API server lets no claim be allocated twice, and what is lent is free.
"""

from __future__ import annotations

from typing import Final

from dra_driver.api.resource import ResourceClaim
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID
from dra_driver.ports import Clock

__all__ = ["SETTLED_SECONDS", "RecentShares"]

SETTLED_SECONDS: Final = 2.0
"""Since the last change of a share of a device until the device can be lent."""

# Forgotten when there are so many, and they are old enough.
_MANY: Final = 256


class RecentShares:
    """When shares of each device last changed hands.

    Args:
        claims: followed from now on.
        clock: for that time.
    """

    def __init__(self, claims: Informer[ResourceClaim], clock: Clock) -> None:
        self._clock = clock
        self._changed: dict[tuple[PoolID, str], float] = {}
        claims.add_handler(Handler(added=self._seen, updated=self._updated, deleted=self._seen))

    def left(self, pool: PoolID, device: str) -> float:
        """Return the seconds until the device can be lent; 0: it can."""
        changed = self._changed.get((pool, device))
        return 0.0 if changed is None else max(0.0, changed + SETTLED_SECONDS - self._clock.monotonic())

    def _updated(self, old: ResourceClaim, new: ResourceClaim) -> None:
        if old.status.allocation != new.status.allocation:
            self._seen(old)
            self._seen(new)

    def _seen(self, claim: ResourceClaim) -> None:
        allocation = claim.status.allocation
        now = self._clock.monotonic()
        for result in allocation.devices.results if allocation is not None else ():
            if result.share_id is not None:
                self._changed[PoolID(result.driver, result.pool), result.device] = now
        if len(self._changed) > _MANY:
            recent = now - SETTLED_SECONDS
            self._changed = {key: at for key, at in self._changed.items() if at > recent}
