"""Devices of our pools that two allocators have allocated, and what is done about it.

kube-scheduler keeps off our devices unless a claim tolerates their taint. Admission refuses such claims, but
one may be older than the policy, or there is no policy. Then kube-scheduler can allocate a device while the
controller does: neither sees the other's allocation in time, and the API server accepts both. Then:

* An allocation without a reservation is tentative: its pod is not bound yet. It is deallocated under its
  resourceVersion, so that a reservation that comes in between wins, and decided anew.
* Where all of them are reserved, the node's agent prepares the device for the first and refuses the others.
  Nothing is deallocated here; each claim gets an Event, and a metric counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Final

import structlog

from controller.allocate.deallocation import Deallocator
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.pool_owners import CurrentOwners
from dra_driver.api.meta import DriverName, ObjectKey
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocationResult, ResourceClaim, ResourceSlice
from dra_driver.kube import EventRecorder, Handler, Informer, WorkQueue
from dra_driver.ownership import PoolID
from dra_driver.structured import contested

__all__ = ["HELD_INDEX", "DoubleAllocations", "pools_held"]

log = structlog.get_logger(__name__)

HELD_INDEX: Final = "pools held"


def pools_held(claim: ResourceClaim) -> Iterable[Hashable]:
    """Return the pools that a claim holds devices of: the function of ``HELD_INDEX``."""
    return _pools(claim)


def _pools(claim: ResourceClaim) -> set[PoolID]:
    allocation = claim.status.allocation
    return set() if allocation is None else {PoolID(r.driver, r.pool) for r in allocation.devices.results}


class DoubleAllocations:
    """Looks at a pool whenever an allocation or a reservation there has changed.

    Attributes:
        queue: pools to be looked at.
    """

    def __init__(
        self,
        drivers: Collection[DriverName],
        assume_cache: AssumeCache,
        owners: CurrentOwners,
        deallocator: Deallocator,
        recorder: EventRecorder,
        *,
        claims: Informer[ResourceClaim],
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
    ) -> None:
        """Connect the parts.

        Args:
            drivers: whose pools are looked at.
            assume_cache: the newest version of each claim.
            owners: know whose a pool is.
            deallocator: for what is tentative.
            recorder: for Events.
            claims: with the index ``HELD_INDEX``.
            slices_of: the slices of a pool.
        """
        self._drivers = frozenset(drivers)
        self._assume_cache = assume_cache
        self._recorder = recorder
        self._claims = claims
        self._slices_of = slices_of
        self._owners = owners
        self._deallocator = deallocator
        self._found: dict[PoolID, int] = {}
        self.queue: WorkQueue[PoolID] = WorkQueue("double allocations", max_delay=30.0)
        claims.add_handler(
            Handler(added=self._seen, updated=self._updated, deleted=self._seen),
        )

    def count(self) -> int:
        """Return how many devices and counter sets have several holders now."""
        return sum(self._found.values())

    def _seen(self, claim: ResourceClaim) -> None:
        for pool in _pools(claim):
            if pool.driver in self._drivers:
                self.queue.add(pool)

    def _updated(self, old: ResourceClaim, claim: ResourceClaim) -> None:
        before, now = old.status, claim.status
        if (before.allocation, before.reserved_for) != (now.allocation, now.reserved_for):
            self._seen(old)
            self._seen(claim)

    async def reconcile(self, pool: PoolID) -> None:
        """Look for double allocations in one pool, deallocate what is tentative and report the rest.

        Raises:
            ApiError: a claim cannot be deallocated now.
        """
        holders = self._holders(pool)
        allocations = {k: c.status.allocation for k, c in holders.items() if c.status.allocation is not None}
        found = contested(pool, self._slices_of(pool), allocations) if len(allocations) > 1 else {}
        found = {
            what: keys for what, keys in found.items() if any(self._is_ours(allocations[k]) for k in keys)
        }
        self._found.pop(pool, None)
        if found:
            self._found[pool] = len(found)
        losers: dict[ObjectKey, str] = {}
        for what, keys in sorted(found.items()):
            for key in self._tentative({k: holders[k] for k in keys if k not in losers}):
                losers[key] = _described(what, pool, len(keys) - 1) + "this claim is deallocated"
            log.warning("double allocation", pool=str(pool), what=what, claims=sorted(map(str, keys)))
            left = keys - losers.keys()
            for key in left if len(left) > 1 else ():
                text = _described(what, pool, len(left) - 1) + "the node lets only the first of them start"
                self._recorder.event(RESOURCE_CLAIMS, holders[key], "Warning", "DoubleAllocation", text)
        for key, text in losers.items():
            log.warning(
                "deallocating one claim of a double allocation", claim=str(key), pool=str(pool), reason=text
            )
            await self._deallocator.deallocate(holders[key])
            self._recorder.event(RESOURCE_CLAIMS, holders[key], "Warning", "DoubleAllocation", text)

    def _is_ours(self, allocation: AllocationResult) -> bool:
        """Return whether this controller decides on all devices of an allocation."""
        return self._owners.are_ours(allocation)

    def _holders(self, pool: PoolID) -> dict[ObjectKey, ResourceClaim]:
        newest = (self._assume_cache.get(c.key) for c in self._claims.by_index(HELD_INDEX, pool))
        return {c.key: c for c in newest if c is not None}

    def _tentative(self, holders: Mapping[ObjectKey, ResourceClaim]) -> list[ObjectKey]:
        """Return those of the holders that give way: all that are not reserved, but one holder stays."""
        free = [
            claim
            for claim in holders.values()
            if not claim.status.reserved_for
            and not claim.metadata.deletion_timestamp
            and claim.status.allocation is not None
            and self._is_ours(claim.status.allocation)
        ]
        if len(free) == len(holders):
            free.sort(key=_age)
            del free[:1]
        return [claim.key for claim in free]


def _age(claim: ResourceClaim) -> tuple[str, ObjectKey]:
    allocation = claim.status.allocation
    return (allocation.allocation_timestamp or "" if allocation is not None else "", claim.key)


def _described(what: str, pool: PoolID, others: int) -> str:
    """Return what is held twice. The other claims may be of other namespaces: the log names them."""
    several = "s" * (others > 1)
    return f"{what} of pool {pool} is also allocated to {others} other claim{several}; "
