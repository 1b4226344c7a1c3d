"""Pools that are kube-scheduler's: since when, and what of them is admitted at first.

The rule is ``dra_driver.publishing.forms``; here is for which pools it holds, and for how long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from dra_driver.api.own.inventory import DeviceInventory, InventoryDevice
from dra_driver.api.resource import ResourceSlice
from dra_driver.ports import Clock
from dra_driver.publishing.forms import Listing, list_forms

__all__ = ["Listings"]

_Pool = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Made:
    """A listing, and what it was made of: most looks change nothing."""

    found: tuple[InventoryDevice, ...]
    slices: tuple[ResourceSlice, ...]
    held: frozenset[str]
    listing: Listing


@dataclass(slots=True)
class Listings:
    """What is admitted of each pool that is kube-scheduler's.

    Attributes:
        seconds: for which not everything is admitted: a decision of before may be under way for so long.
        clock: for that.
    """

    seconds: float
    clock: Clock
    _since: dict[_Pool, float] = field(default_factory=dict)
    _made: dict[_Pool, _Made] = field(default_factory=dict)
    _new: set[_Pool] = field(default_factory=set)

    def __contains__(self, pool: _Pool) -> bool:
        """Return whether changes of its slices matter for a pool."""
        return pool in self._made or pool in self._new

    def note(self, pool: _Pool, *, theirs: bool, harmless: bool) -> None:
        """Take note of whether a pool is kube-scheduler's.

        Args:
            pool: which one.
            theirs: whether it is.
            harmless: whether nothing that could be refused was decided before now: nothing of the pool has
                been published yet, or everything was admitted before this process looked at it.
        """
        if not theirs:
            self._since.pop(pool, None)
            self._made.pop(pool, None)
            (self._new.add if harmless else self._new.discard)(pool)
        elif pool not in self._since:
            self._since[pool] = -math.inf if harmless or pool in self._new else self.clock.monotonic()
            self._new.discard(pool)

    def of(
        self,
        pool: _Pool,
        inventory: DeviceInventory | None,
        slices: Iterable[ResourceSlice],
        held: frozenset[str],
    ) -> Listing:
        """Return what is admitted of a pool; ``held``: forms that claims have because of the controller."""
        over = self._since.get(pool, math.inf) <= self.clock.monotonic() - self.seconds
        if inventory is None or over:
            self._made.pop(pool, None)
            return Listing()
        made, found, known = self._made.get(pool), inventory.spec.devices, tuple(slices)
        if made is None or (made.found, made.slices, made.held) != (found, known, held):
            made = self._made[pool] = _Made(found, known, held, list_forms(found, known, held))
        return made.listing
