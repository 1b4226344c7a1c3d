"""What granting needs of the publishing side."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from controller.allocate.signal import Signal
from dra_driver.ownership import PoolID
from dra_driver.publishing.grants import Grant

__all__ = ["Grants", "Wanted"]

Wanted = Mapping[PoolID, Mapping[str, Mapping[str, frozenset[str]]]]
"""Devices by pool, by unit, and by the key of the claim (``dra_driver.ownership.grant_key``)."""


class Grants(Protocol):
    """What of all pools kube-scheduler may allocate to which claims."""

    @property
    def changed(self) -> Signal[[PoolID]]:
        """Sent with a pool whose grants are in other states."""
        ...

    def obstacle(self) -> str:
        """Return why nothing can be granted now at all; empty if it can."""
        ...

    def room(self) -> int:
        """Return how many more devices can be granted, as far as the object has room for them."""
        ...

    def grant(self, wanted: Wanted) -> bool:
        """Begin to grant devices to claims: the allocator leaves their units alone when this returns.

        Returns:
            Whether that was done; where one of the units cannot be granted now, none is.
        """
        ...

    def end(self, pool: PoolID, units: Collection[str]) -> None:
        """End the grants of units; those that are not granted stay as they are."""
        ...

    def grants(self, pool: PoolID) -> Mapping[str, Grant]:
        """Return the grants of a pool by unit, without units that are ours."""
        ...
