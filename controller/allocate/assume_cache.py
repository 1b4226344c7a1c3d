"""Which devices are taken: what the API server said, and what we are writing right now.

The informer lags behind our own writes. A device counts as taken from the moment of the decision, through the
write, until the informer shows either the allocation or something newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, is_newer
from dra_driver.structured import (
    AllocatedState,
    Holdings,
)

__all__ = ["AssumeCache", "node_of", "same_devices"]


def same_devices(a: AllocationResult, b: AllocationResult) -> bool:
    """Whether two allocations hold the same devices for the same requests."""
    return [(r.request, r.driver, r.pool, r.device, r.share_id) for r in a.devices.results] == [
        (r.request, r.driver, r.pool, r.device, r.share_id) for r in b.devices.results
    ]


def node_of(allocation: AllocationResult) -> str | None:
    """The one node that the allocation can be used on; None where there may be several."""
    selector = allocation.node_selector
    if selector is None or len(selector.node_selector_terms) != 1:
        return None
    for field in selector.node_selector_terms[0].match_fields:
        if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
            return field.values[0]
    return None


def _nobody() -> None:
    return None


class AssumeCache:
    """Claims as we know them. All methods are synchronous: a decision and its assumption are one step."""

    def __init__(self, claims: Informer[ResourceClaim], changed: Callable[[], None]) -> None:
        """Make an empty cache.

        Args:
            claims: followed from now on.
            changed: called when something was released.
        """
        self._claims = claims
        self._changed = changed
        self._assumed: dict[Uid, tuple[ObjectKey, AllocationResult]] = {}
        self._written: dict[Uid, ResourceClaim] = {}
        self._held: dict[Uid, tuple[str, AllocationResult]] = {}
        self._holdings = Holdings()
        claims.add_handler(Handler(added=self._seen, updated=lambda _, c: self._seen(c), deleted=self._gone))

    def get(self, key: ObjectKey) -> ResourceClaim | None:
        """The newest version of a claim that we know."""
        claim = self._claims.get(key)
        if claim is None:
            return None
        return self._written.get(claim.metadata.uid, claim)

    def in_flight(self, claim: ResourceClaim) -> bool:
        """Whether its allocation is being written."""
        return claim.metadata.uid in self._assumed

    def allocated(self) -> AllocatedState:
        """Everything that is taken."""
        return self._holdings.state

    def assume(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """From now on the devices are taken; ``confirm`` or ``release`` must follow."""
        self._assumed[claim.metadata.uid] = (claim.key, allocation)
        self._update(claim.metadata.uid, claim)

    def note(self, claim: ResourceClaim) -> None:
        """The answer to a write."""
        known = self._claims.get(claim.key)
        if (
            known is not None
            and known.metadata.uid == claim.metadata.uid
            and not is_newer(known.metadata.resource_version, claim.metadata.resource_version)
        ):
            self._written[claim.metadata.uid] = claim
        self._update(claim.metadata.uid, claim)

    def confirm(self, claim: ResourceClaim) -> None:
        """The answer to the write of an allocation: the assumption has become a fact."""
        self._assumed.pop(claim.metadata.uid, None)
        self.note(claim)

    def release(self, claim: ResourceClaim) -> None:
        """The assumed allocation was certainly not written and never will be."""
        if self._assumed.pop(claim.metadata.uid, None) is not None:
            self._update(claim.metadata.uid, claim)

    def retract(self, claims: Iterable[ResourceClaim]) -> None:
        """Assumptions made while a group was tried, in one step: nobody has seen them, so nobody is woken."""
        changed, self._changed = self._changed, _nobody
        try:
            for claim in claims:
                self.release(claim)
        finally:
            self._changed = changed

    def assumed_in(self, pool: PoolID) -> bool:
        """Whether an allocation from the pool is being written."""
        return any(
            PoolID(r.driver, r.pool) == pool
            for _, allocation in self._assumed.values()
            for r in allocation.devices.results
        )

    def knows(self, claim: ResourceClaim) -> bool:
        """Whether what we know of a claim is as new as this version of it."""
        known = self.get(claim.key)
        return (
            known is not None
            and known.metadata.uid == claim.metadata.uid
            and is_newer(known.metadata.resource_version, claim.metadata.resource_version)
        )

    # --- inside ---------------------------------------------------------------------------------------------

    def _seen(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        written = self._written.get(uid)
        if written is not None and is_newer(
            claim.metadata.resource_version, written.metadata.resource_version
        ):
            del self._written[uid]
        self._update(uid, claim)

    def _gone(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        self._written.pop(uid, None)
        # An assumed allocation stays: the writer finds out that the claim is gone, and releases it.
        self._update(uid, claim)

    def _update(self, uid: Uid, claim: ResourceClaim) -> None:
        allocation = self._effective(uid, claim.key)
        old = self._held.get(uid)
        if allocation is None:
            if old is not None:
                del self._held[uid]
                self._holdings.hold(uid, "", None)
                self._changed()
            return
        entry = (str(claim.key), allocation)
        self._held[uid] = entry
        if old is None:
            self._holdings.hold(uid, *entry)
        elif not same_devices(old[1], allocation):
            self._holdings.hold(uid, *entry)
            self._changed()

    def _effective(self, uid: Uid, key: ObjectKey) -> AllocationResult | None:
        if uid in self._assumed:
            return self._assumed[uid][1]
        known = self._claims.get(key)
        if known is None or known.metadata.uid != uid:
            return None
        return self._written.get(uid, known).status.allocation
