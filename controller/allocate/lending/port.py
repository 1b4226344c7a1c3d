"""What lending needs of the publishing side."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from controller.allocate.signal import Signal
from dra_driver.ownership import PoolID
from dra_driver.publishing.loans import Loan

__all__ = ["Loans"]


class Loans(Protocol):
    """The loans of all pools."""

    @property
    def changed(self) -> Signal[[PoolID]]:
        """Sent with a pool whose loans are in other states."""
        ...

    def obstacle(self) -> str:
        """Return why nothing can be lent now at all; empty if it can."""
        ...

    def room(self) -> int:
        """Return how many more devices can be lent, as far as their recall has to fit into its object."""
        ...

    def lend(self, pool: PoolID, devices: Mapping[str, frozenset[str]]) -> bool:
        """Begin to lend devices of a pool, by unit: the allocator leaves them alone when this returns.

        Returns:
            Whether that was done; where one of the units cannot be lent now, none is.
        """
        ...

    def end(self, pool: PoolID, units: Collection[str]) -> None:
        """End the loans of units; those that are not lent stay as they are."""
        ...

    def loans(self, pool: PoolID) -> Mapping[str, Loan]:
        """Return the loans of a pool by unit, without units that are ours."""
        ...
