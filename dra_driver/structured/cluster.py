"""A cluster that changes: what is told to it, one object at a time, and the snapshot of this moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_driver.api.core import Node
from dra_driver.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState, PoolState
from dra_driver.structured.model.types import (
    DEFAULT,
    Allocated,
    Features,
)

__all__ = ["AllocationTracker", "Cluster"]


class AllocationTracker:
    """Who holds what: the allocated state, kept up to date holder by holder.

    Args:
        base: what is taken besides.
    """

    def __init__(self, base: AllocatedState | None = None) -> None:
        self._base = base if base is not None else AllocatedState()
        self._state = self._base
        # UID → name and allocation; pool → the UIDs that hold something of it.
        self._held: dict[str, tuple[str, AllocationResult]] = {}
        self._holders: dict[PoolID, set[str]] = {}

    @property
    def state(self) -> AllocatedState:
        """Everything that is taken now."""
        return self._state

    def hold(self, uid: str, name: str, allocation: AllocationResult | None) -> AllocatedState:
        """What somebody holds from now on.

        Args:
            uid: identity of the holder.
            name: ``namespace/name``, for people.
            allocation: replaces what was held before; None for nothing.
        """
        old = self._held.pop(uid, None)
        lost = set() if old is None else _pools(old[1])
        for pool in lost:
            holders = self._holders[pool]
            holders.discard(uid)
            if not holders:
                del self._holders[pool]
        if allocation is not None:
            self._held[uid] = (name, allocation)
            for pool in _pools(allocation):
                self._holders.setdefault(pool, set()).add(uid)
        if old is None and allocation is not None:
            self._state = self._state.with_allocations([(name, allocation)])
        else:
            # Told anew from all holders: two claims may hold the same device, and one of them is left.
            for pool in lost | (_pools(allocation) if allocation is not None else set()):
                self._state = self._state.with_pool(pool, self._pool_state(pool))
        return self._state

    def _pool_state(self, pool: PoolID) -> PoolState:
        held = sorted((self._held[uid] for uid in self._holders.get(pool, ())), key=lambda h: h[0])
        base = AllocatedState().with_pool(pool, self._base.pool(pool))
        return base.with_allocations(held).pool(pool)


class Cluster:
    """Holds the current snapshot. Each method costs work for the objects that it is given, not for the rest.

    Snapshots that were taken before stay as they are.

    Args:
        allocated: what is taken by claims that are not told one by one.
    """

    def __init__(
        self,
        *,
        slices: Iterable[ResourceSlice] = (),
        classes: Iterable[DeviceClass] = (),
        nodes: Iterable[Node] = (),
        allocated: AllocatedState | None = None,
        features: Features = DEFAULT,
    ) -> None:
        self._tracker = AllocationTracker(allocated)
        self._snapshot = Snapshot.build(
            slices=slices, classes=classes, nodes=nodes, allocated=self._tracker.state, features=features
        )

    @property
    def snapshot(self) -> Snapshot:
        """The cluster as it is now."""
        return self._snapshot

    def prepare(self) -> Snapshot:
        """Does now what would make the first question slow: looks at every device."""
        self._snapshot.memory.of(Fleet).prepare(self._snapshot)
        return self._snapshot

    def apply_slice(self, slice_: ResourceSlice) -> Snapshot:
        """Adds a slice or replaces the one of its name."""
        self._snapshot = self._snapshot.with_slices([slice_])
        return self._snapshot

    def commit(self, claims: Sequence[ResourceClaim], outcome: Allocated) -> Snapshot:
        """The claims hold what the outcome gives them."""
        for claim, result in zip(claims, outcome.results, strict=True):
            self.hold(_identity(claim), str(claim.key), result)
        return self._snapshot

    def free(self, uid: str) -> Snapshot:
        """The claim holds nothing any more; unknown ones are ignored."""
        return self.hold(uid, "", None)

    def hold(self, uid: str, name: str, allocation: AllocationResult | None) -> Snapshot:
        """What somebody holds from now on.

        Args:
            uid: identity of the holder.
            name: ``namespace/name``, for people.
            allocation: replaces what was held before; None for nothing.
        """
        self._snapshot = self._snapshot.with_allocated(self._tracker.hold(uid, name, allocation))
        return self._snapshot


def _identity(claim: ResourceClaim) -> str:
    return claim.metadata.uid or str(claim.key)


def _pools(allocation: AllocationResult) -> set[PoolID]:
    return {PoolID(r.driver, r.pool) for r in allocation.devices.results if not r.admin_access}
