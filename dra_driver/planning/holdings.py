"""What holders have of the devices of a cluster, and the cluster without some of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.structured import AllocatedState, PoolState, Snapshot

__all__ = ["HeldDevice", "Holdings", "NodeHoldings"]

# The holder of what cannot be freed.
_KEPT = -1


class HeldDevice(NamedTuple):
    """What a claim has of one device of a node's view.

    Attributes:
        place: of the device among all of the view; those of other nodes, which may take from counters that
            the node needs, come last.
        shared: whether it is a share.
        amounts: of capacity, that the share consumes, × 1e9.
    """

    place: int
    shared: bool
    amounts: tuple[tuple[str, int], ...]


class NodeHoldings(NamedTuple):
    """What is held of the devices of one node.

    Attributes:
        kept: what cannot be freed.
        held: the rest, by number of the holder.
    """

    kept: list[HeldDevice]
    held: dict[int, list[HeldDevice]]


class Holdings:
    """The claims that hold devices, by pool.

    Args:
        snapshot: with all of them allocated.
        holders: the claims of each holder.
        kept: claims that cannot be freed.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        holders: Sequence[Iterable[ResourceClaim]],
        kept: Iterable[ResourceClaim] = (),
    ) -> None:
        self.snapshot = snapshot
        # What is allocated to a claim, and the number of its holder.
        self._of_pool: dict[PoolID, list[tuple[ResourceClaim, AllocationResult, int]]] = {}
        self._pools: list[set[PoolID]] = []
        for claim in kept:
            self._note(claim, _KEPT)
        for number, claims in enumerate(holders):
            self._pools.append(set().union(*(self._note(claim, number) for claim in claims)))

    def _note(self, claim: ResourceClaim, holder: int) -> set[PoolID]:
        allocation = claim.status.allocation
        if allocation is None:
            return set()
        pools = {PoolID(r.driver, r.pool) for r in allocation.devices.results if not r.admin_access}
        for pool in pools:
            self._of_pool.setdefault(pool, []).append((claim, allocation, holder))
        return pools

    def pools_of(self, holder: int) -> Collection[PoolID]:
        """Return the pools of which a holder has devices."""
        return self._pools[holder]

    def without(self, freed: Iterable[int]) -> Snapshot:
        """Return the cluster as it is when some holders have gone."""
        gone = frozenset(freed)
        if not gone:
            return self.snapshot
        changed: dict[PoolID, PoolState] = {}
        for pool in set[PoolID]().union(*(self._pools[i] for i in gone)):
            left = [(str(c.key), of) for c, of, holder in self._of_pool[pool] if holder not in gone]
            changed[pool] = AllocatedState().with_allocations(left).pool(pool)
        empty = [pool for pool, state in changed.items() if not (state.devices or state.shares)]
        for pool in empty:
            del changed[pool]
        pools = self.snapshot.allocated.pools.updated(changed, empty)
        return self.snapshot.with_allocated(AllocatedState(pools))

    def on_node(self, name: str) -> NodeHoldings:
        """Return what is held of the devices of a node's view."""
        found = NodeHoldings([], {})
        pools = self.snapshot.view(name).pools
        base, beyond = 0, sum(len(pool.devices) for pool in pools)
        for pool in pools:
            holding = self._of_pool.get(pool.id)
            if holding:
                place = {entry.id.device: beyond + i for i, entry in enumerate(pool.elsewhere)}
                place |= {entry.id.device: base + i for i, entry in enumerate(pool.devices)}
                for _, allocation, holder in holding:
                    into = found.kept if holder == _KEPT else None
                    for r in allocation.devices.results:
                        if (r.driver, r.pool) != pool.id or r.admin_access or r.device not in place:
                            continue
                        if into is None:
                            into = found.held.setdefault(holder, [])
                        amounts = tuple(sorted((n, q.nano) for n, q in r.consumed_capacity.items()))
                        into.append(HeldDevice(place[r.device], r.share_id is not None, amounts))
            base += len(pool.devices)
            beyond += len(pool.elsewhere)
        return found
