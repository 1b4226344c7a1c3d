"""How often a pool is looked at because its node writes.

A node that writes its inventory a hundred times a second, or raises its epoch so often, would have its slices
written as often, and each look takes the controller's time. So a few changes are looked at at once, as they
come when an agent starts, and further ones every two seconds: what came meanwhile is looked at together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dra_driver.api.own.inventory import DeviceInventory, Registration

__all__ = ["Pace"]

BURST: Final = 10.0
SECONDS: Final = 2.0
_LEAST: Final = 0.05

# UID, generation of the spec, registration: what a node writes and publishing looks at.
_Version = tuple[str, int, Registration]


@dataclass(slots=True)
class _Pool:
    version: _Version | None = None
    left: float = BURST
    counted: float = float("-inf")


class Pace:
    """The changes of each inventory that may be looked at, by time."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def wait(self, inventory: DeviceInventory, now: float) -> float:
        """Return the seconds after which an inventory may be looked at; 0: now, and this look is counted.

        Looks at what was looked at before cost nothing: they have other reasons.

        Args:
            inventory: as it is now.
            now: seconds on a clock that never goes back.
        """
        meta = inventory.metadata
        version = (meta.uid, meta.generation, inventory.status.registration)
        pool = self._pools.setdefault(meta.name, _Pool())
        if pool.version == version:
            return 0.0
        left = min(BURST, pool.left + (now - pool.counted) / SECONDS)
        if left < 1:
            # Never so little that it is lost in the sum with the time.
            return max((1 - left) * SECONDS, _LEAST)
        pool.version, pool.left, pool.counted = version, left - 1, now
        return 0.0
