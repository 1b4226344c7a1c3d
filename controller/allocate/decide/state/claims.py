"""Claims as decisions see them, and what they hold: allocated, or assumed while the allocation is written."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from controller.allocate.decide.state.objects import GROUP_INDEX, Objects, group_of_claim
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.structured import AllocatedState, AllocationTracker, PoolState

__all__ = ["ClaimView", "node_of", "same_devices"]

_GRANTEE: Final = "kube-scheduler, to which it is granted"


def same_devices(a: AllocationResult, b: AllocationResult) -> bool:
    """Return whether two allocations hold the same devices for the same requests."""
    return [(r.request, r.driver, r.pool, r.device, r.share_id) for r in a.devices.results] == [
        (r.request, r.driver, r.pool, r.device, r.share_id) for r in b.devices.results
    ]


def node_of(allocation: AllocationResult) -> str | None:
    """Return the one node that the allocation can be used on; None where there may be several."""
    selector = allocation.node_selector
    if selector is None or len(selector.node_selector_terms) != 1:
        return None
    for field in selector.node_selector_terms[0].match_fields:
        if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
            return field.values[0]
    return None


class ClaimView:
    """The newest version of each claim, and which devices are taken.

    Each change returns whether devices may have become free by it.
    """

    def __init__(self) -> None:
        self._claims: Objects[ResourceClaim] = Objects({GROUP_INDEX: group_of_claim})
        self._assumed: dict[Uid, tuple[ObjectKey, AllocationResult]] = {}
        self._held: dict[Uid, tuple[ObjectKey, AllocationResult]] = {}
        self._tracker = AllocationTracker()
        self._granted = _GrantedDevices()

    def get(self, key: ObjectKey) -> ResourceClaim | None:
        """Return the newest version of a claim."""
        return self._claims.get(key)

    def of_group(self, group: tuple[str, str]) -> Iterator[ResourceClaim]:
        """Yield the claims that carry the label of a group, given by namespace and name."""
        return self._claims.each(GROUP_INDEX, group)

    def is_assumed(self, claim: ResourceClaim) -> bool:
        """Return whether an allocation of the claim is being written."""
        return claim.metadata.uid in self._assumed

    def assumed_devices(self, pool: PoolID, but: Collection[Uid] = ()) -> set[str]:
        """Return the devices of a pool of which an allocation is being written.

        Args:
            pool: which one.
            but: UIDs of what is assumed and not being written.
        """
        return {
            r.device
            for uid, (_, allocation) in self._assumed.items()
            for r in allocation.devices.results
            if uid not in but and PoolID(r.driver, r.pool) == pool
        }

    def holders(self) -> Iterator[tuple[ObjectKey, Uid, AllocationResult]]:
        """Iterate over the claims that hold devices, by key and UID, with their allocations."""
        for uid, (key, allocation) in self._held.items():
            yield key, uid, allocation

    def without(self, gone: Collection[Uid]) -> AllocatedState:
        """Return what would be taken if some claims held nothing."""
        pools = {pool for uid in gone if uid in self._held for pool in _pools(self._held[uid][1])}
        left = AllocatedState().with_allocations(
            (str(key), allocation)
            for key, uid, allocation in sorted(self.holders(), key=lambda h: h[0])
            if uid not in gone and not pools.isdisjoint(_pools(allocation))
        )
        state = self._tracker.state
        for pool in pools:
            state = state.with_pool(pool, left.pool(pool))
        return self._granted.over(state)

    @property
    def allocated(self) -> AllocatedState:
        """Everything that is taken: allocated, assumed or granted."""
        return self._granted.over(self._tracker.state)

    @property
    def held(self) -> AllocatedState:
        """Everything that claims have: allocated or assumed."""
        return self._tracker.state

    def set_granted(self, pool: PoolID, devices: frozenset[str]) -> None:
        """Count devices of a pool as taken because they are granted to kube-scheduler; the others are not."""
        self._granted.put(pool, devices)

    def put(self, claim: ResourceClaim) -> bool:
        """Take in a version of a claim."""
        self._claims.put(claim)
        return self._update(claim.key, claim.metadata.uid)

    def renew(self, key: ObjectKey, uid: Uid, version: str) -> None:
        """Note another resourceVersion of a claim of which decisions read nothing new."""
        known = self._claims.get(key)
        if known is not None and known.metadata.uid == uid:
            metadata = msgspec.structs.replace(known.metadata, resource_version=version)
            self._claims.put(msgspec.structs.replace(known, metadata=metadata))

    def remove(self, key: ObjectKey, uid: Uid) -> bool:
        """Forget a claim; what is assumed of it stays."""
        known = self._claims.get(key)
        if known is not None and known.metadata.uid == uid:
            self._claims.remove(key)
        return self._update(key, uid)

    def assume(self, key: ObjectKey, uid: Uid, allocation: AllocationResult | None) -> bool:
        """Count the devices of an allocation as taken; None ends that."""
        if allocation is not None:
            self._assumed[uid] = (key, allocation)
        else:
            self._assumed.pop(uid, None)
        return self._update(key, uid)

    def _update(self, key: ObjectKey, uid: Uid) -> bool:
        allocation = self._effective(key, uid)
        old = self._held.get(uid)
        if allocation is None:
            if old is None:
                return False
            del self._held[uid]
            self._tracker.hold(uid, "", None)
            return True
        self._held[uid] = (key, allocation)
        if old is None:
            self._tracker.hold(uid, str(key), allocation)
        elif not same_devices(old[1], allocation):
            self._tracker.hold(uid, str(key), allocation)
            return True
        return False

    def _effective(self, key: ObjectKey, uid: Uid) -> AllocationResult | None:
        if uid in self._assumed:
            return self._assumed[uid][1]
        known = self._claims.get(key)
        return known.status.allocation if known is not None and known.metadata.uid == uid else None


class _GrantedDevices:
    """Devices that are granted, counted as allocated."""

    def __init__(self) -> None:
        self._devices: dict[PoolID, frozenset[str]] = {}
        # What is taken of each pool with and without what is granted; the last answer, and what it was about.
        self._pools: dict[PoolID, tuple[PoolState, PoolState]] = {}
        self._last: tuple[AllocatedState, AllocatedState] | None = None

    def put(self, pool: PoolID, devices: frozenset[str]) -> None:
        if devices == self._devices.get(pool, frozenset()):
            return
        self._pools.pop(pool, None)
        self._last = None
        if devices:
            self._devices[pool] = devices
        else:
            del self._devices[pool]

    def over(self, state: AllocatedState) -> AllocatedState:
        """Return what is taken beside what claims have; the same object for the same question."""
        if not self._devices:
            return state
        if self._last is None or self._last[0] is not state:
            made = {pool: self._with_granted(pool, state.pool(pool)) for pool in self._devices}
            self._last = (state, AllocatedState(state.pools.updated(made)))
        return self._last[1]

    def _with_granted(self, pool: PoolID, taken: PoolState) -> PoolState:
        known = self._pools.get(pool)
        if known is None or known[0] is not taken:
            devices = {**dict.fromkeys(sorted(self._devices[pool]), _GRANTEE), **taken.devices}
            known = self._pools[pool] = (taken, PoolState(devices, taken.shares, taken.capacity))
        return known[1]


def _pools(allocation: AllocationResult) -> set[PoolID]:
    return {PoolID(r.driver, r.pool) for r in allocation.devices.results}
