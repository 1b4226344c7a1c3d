"""What PodGrants needs of the publishing side, in memory: a test says when the object is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from controller.allocate.granting import Grants
from controller.allocate.signal import Signal
from dra_driver.ownership import PoolID
from dra_driver.publishing.grants import Grant, GrantEvent, GrantState, advance_grant

__all__ = ["FakeGrants"]

Wanted = Mapping[PoolID, Mapping[str, Mapping[str, frozenset[str]]]]


class FakeGrants:
    """The grants of all pools, by the real table.

    Attributes:
        obstructed: why nothing can be granted; empty if it can.
        left: for how many devices there is room.
        changed: see the port.
    """

    def __init__(self) -> None:
        self.obstructed = ""
        self.left = 1_000
        self.changed: Signal[[PoolID]] = Signal()
        self._grants: dict[PoolID, dict[str, Grant]] = {}

    def obstacle(self) -> str:
        """Return why nothing can be granted now at all."""
        return self.obstructed

    def room(self) -> int:
        """Return for how many more devices there is room."""
        return self.left

    def grant(self, wanted: Wanted) -> bool:
        """Begin to grant devices; nothing if one of the units is not ours."""
        if any(unit in self.grants(pool) for pool, of_pool in wanted.items() for unit in of_pool):
            return False
        for pool, of_pool in wanted.items():
            for unit, claims in of_pool.items():
                made, _ = advance_grant(Grant(claims=MappingProxyType(dict(claims))), GrantEvent.GRANT, 0.0)
                self._put(pool, unit, made)
        return True

    def end(self, pool: PoolID, units: Collection[str]) -> None:
        """End grants of a pool."""
        self._all(GrantEvent.END, pool, units)

    def grants(self, pool: PoolID) -> Mapping[str, Grant]:
        """Return the grants of a pool."""
        return self._grants.get(pool, {})

    # --- what a test does -----------------------------------------------------------------------------------

    def stored(self) -> None:
        """Let the API server store the object as the states ask for it."""
        for pool in list(self._grants):
            self._all(GrantEvent.STORED, pool, self.grants(pool))

    def closed(self) -> None:
        """Let the time of all that is ending be over, and the claims be known."""
        for pool in list(self._grants):
            for event in (GrantEvent.STORED, GrantEvent.TIME_OVER, GrantEvent.CLAIMS_SEEN):
                ending = [u for u, g in self.grants(pool).items() if not g.state.listed]
                self._all(event, pool, ending)

    def states(self) -> dict[tuple[str, str], GrantState]:
        """Return the state of each unit that is not ours, by pool and unit."""
        return {
            (str(pool.pool), unit): grant.state
            for pool, of_pool in self._grants.items()
            for unit, grant in of_pool.items()
        }

    def given(self) -> dict[str, set[tuple[str, str]]]:
        """Return the devices that the object grants, by the key of the claim."""
        found: dict[str, set[tuple[str, str]]] = {}
        for pool, of_pool in self._grants.items():
            for grant in of_pool.values():
                for key, names in grant.claims.items() if grant.state is GrantState.GRANTED else ():
                    found.setdefault(key, set()).update((str(pool.pool), name) for name in names)
        return found

    def _all(self, event: GrantEvent, pool: PoolID, units: Collection[str]) -> None:
        for unit in list(units):
            if unit in self.grants(pool):
                after, _ = advance_grant(self._grants[pool][unit], event, 0.0)
                self._put(pool, unit, after)

    def _put(self, pool: PoolID, unit: str, grant: Grant) -> None:
        before = self._grants.setdefault(pool, {}).get(unit, Grant())
        if grant.state.blocked:
            self._grants[pool][unit] = grant
        else:
            self._grants[pool].pop(unit, None)
        if grant.state is not before.state:
            self.changed.send(pool)


_: type[Grants] = FakeGrants
