"""A cluster that changes: a snapshot that is kept up to date object by object."""

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
    PoolPolicies,
)

__all__ = ["AllocationTracker", "Cluster", "prepare"]


def prepare(snapshot: Snapshot, pools: PoolPolicies | None = None) -> None:
    """Classify every node now, which would make the first question slow otherwise, and use up its budget.

    Args:
        snapshot: the cluster.
        pools: as questions will name them (``allocate``).
    """
    snapshot.memory.of(Fleet).prepare(snapshot, pools)


class AllocationTracker:
    """The allocated state, kept up to date holder by holder.

    Args:
        base: what is allocated besides.
    """

    def __init__(self, base: AllocatedState | None = None) -> None:
        self._base = base if base is not None else AllocatedState()
        self._state = self._base
        # UID → name and allocation; pool → the UIDs that hold something of it.
        self._held: dict[str, tuple[str, AllocationResult]] = {}
        self._holders: dict[PoolID, set[str]] = {}

    @property
    def state(self) -> AllocatedState:
        """Everything that is allocated now."""
        return self._state

    def hold(self, uid: str, name: str, allocation: AllocationResult | None) -> AllocatedState:
        """Set what a holder has, and return the new state.

        Args:
            uid: identity of the holder.
            name: ``namespace/name``, for people.
            allocation: replaces what it had before; None for nothing.
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
            # Rebuilt from all holders, not subtracted: two claims may hold the same device, and if one of
            # them goes, it is still allocated.
            for pool in lost | (_pools(allocation) if allocation is not None else set()):
                self._state = self._state.with_pool(pool, self._pool_state(pool))
        return self._state

    def _pool_state(self, pool: PoolID) -> PoolState:
        held = sorted((self._held[uid] for uid in self._holders.get(pool, ())), key=lambda h: h[0])
        base = AllocatedState().with_pool(pool, self._base.pool(pool))
        return base.with_allocations(held).pool(pool)


class Cluster:
    """The current snapshot of a cluster.

    Each method costs work for the objects that it gets, not for the rest. Earlier snapshots stay as they are.

    Args:
        slices: ResourceSlices at the start.
        classes: DeviceClasses.
        nodes: Nodes.
        allocated: allocations of claims that ``hold`` is not called for.
        features: which semantics apply.
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
        """Classify every node now; see the function of this name."""
        prepare(self._snapshot)
        return self._snapshot

    def apply_slice(self, slice_: ResourceSlice) -> Snapshot:
        """Add a slice, or replace the one of its name."""
        self._snapshot = self._snapshot.with_slices([slice_])
        return self._snapshot

    def commit(self, claims: Sequence[ResourceClaim], outcome: Allocated) -> Snapshot:
        """Allocate to the claims what the outcome gives them."""
        for claim, result in zip(claims, outcome.results, strict=True):
            self.hold(_identity(claim), str(claim.key), result)
        return self._snapshot

    def free(self, uid: str) -> Snapshot:
        """Deallocate a claim; an unknown one is ignored."""
        return self.hold(uid, "", None)

    def hold(self, uid: str, name: str, allocation: AllocationResult | None) -> Snapshot:
        """Set what a holder has.

        Args:
            uid: identity of the holder.
            name: ``namespace/name``, for people.
            allocation: replaces what it had before; None for nothing.
        """
        self._snapshot = self._snapshot.with_allocated(self._tracker.hold(uid, name, allocation))
        return self._snapshot


def _identity(claim: ResourceClaim) -> str:
    return claim.metadata.uid or str(claim.key)


def _pools(allocation: AllocationResult) -> set[PoolID]:
    return {PoolID(r.driver, r.pool) for r in allocation.devices.results if not r.admin_access}
