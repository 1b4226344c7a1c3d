"""The indexes that are being built: one at a time for each owner, and few altogether."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from dra_driver.structured.index.columns import Column
from dra_driver.structured.index.equivalence import FleetIndex
from dra_driver.structured.model.types import PoolPolicy

__all__ = ["Building", "Buildings", "Use"]

Use = PoolPolicy | int
"""How pools are used: all in one way, or by the policies of this origin (a number)."""

# Each may take as many bytes as all others together.
_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class Building:
    """An index that is being built.

    Attributes:
        index: that is built.
        replaces: the one that it is to replace; None if it replaces none.
        instead: columns and use of what is built instead, if it has too many layouts for that.
    """

    index: FleetIndex
    replaces: FleetIndex | None
    instead: tuple[frozenset[Column], Use] | None


class Buildings:
    """What is being built, by owner; what was begun first comes first."""

    def __init__(self) -> None:
        self._by_owner: dict[Hashable, Building] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def begin(self, owner: Hashable, building: Building) -> None:
        """Note what is built for an owner, in place of what was."""
        self._by_owner[owner] = building

    def of(self, owner: Hashable) -> Building:
        """Return what is being built for an owner."""
        return self._by_owner[owner]

    def end(self, owner: Hashable) -> None:
        """Note that nothing is built for an owner."""
        del self._by_owner[owner]

    def clear(self) -> None:
        """Note that nothing is built for any."""
        self._by_owner.clear()

    def owner(self, index: FleetIndex) -> Hashable | None:
        """Return for whom an index is being built; None if it is not."""
        return next((owner for owner, b in self._by_owner.items() if b.index is index), None)

    def replacing(self, index: FleetIndex) -> bool:
        """Return whether an index is being built in place of another one."""
        owner = self.owner(index)
        return owner is not None and self._by_owner[owner].replaces is not None

    def in_the_way(self, owner: Hashable, *, full: bool) -> Hashable | None:
        """Return whose index has to be whole before one is begun for an owner; None if it can be begun.

        Args:
            owner: for whom.
            full: whether no more memory is to be taken than for one at a time.
        """
        if owner in self._by_owner:
            return owner
        return next(iter(self._by_owner), None) if full or len(self._by_owner) >= _MOST else None
