"""Which devices are taken: what the API server said, and what we are writing right now.

The informer lags behind our own writes. A device counts as taken from the moment of the decision, through the
write, until the informer shows either the allocation or something newer.
"""

from __future__ import annotations

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    ClaimView,
    same_for_decisions,
)
from controller.allocate.signal import Signal
from controller.allocate.state.gone_claims import GoneClaims
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, is_newer
from dra_driver.structured import PoolState
from dra_driver.trimming import trimmed_claim

__all__ = ["AssumeCache"]


class AssumeCache:
    """Claims as we know them. All methods are synchronous: a decision and its assumption are one step.

    Args:
        claims: followed from now on.
        journal: takes each change, before other parts hear of it.
        freed: sent when devices may have become free.
        gone: knows what claims keep that are gone; if None, they keep nothing.
    """

    def __init__(
        self,
        claims: Informer[ResourceClaim],
        journal: Journal,
        freed: Signal[[]],
        gone: GoneClaims | None = None,
    ) -> None:
        self._claims = claims
        self._journal = journal
        self._freed = freed
        self._view = ClaimView()
        # What counts as assumed because claims that are gone keep it.
        self._kept: set[Uid] = set()
        # Answers to our writes that the informer has not shown yet.
        self._written: dict[Uid, ResourceClaim] = {}
        self._gone_claims = gone
        if gone is not None:
            gone.changed.listen(self._keep)
        claims.add_handler(Handler(added=self._seen, updated=lambda _, c: self._seen(c), deleted=self._gone))

    # --- questions ------------------------------------------------------------------------------------------

    def get(self, key: ObjectKey) -> ResourceClaim | None:
        """Return the newest version of a claim that we know."""
        return self._view.get(key)

    def is_assumed(self, claim: ResourceClaim) -> bool:
        """Return whether an allocation of the claim is being written."""
        return self._view.is_assumed(claim)

    def assumed_in(self, pool: PoolID) -> bool:
        """Return whether an allocation from the pool is being written, or may be on its way.

        An answer that is awaited may not know yet that the pool is blocked. It is dropped when it comes, so
        this is the second of two locks.
        """
        return bool(self.being_written(pool)) or self._journal.freshness.is_undecided(pool)

    def being_written(self, pool: PoolID) -> set[str]:
        """Return the devices of a pool of which an allocation is being written."""
        return self._view.assumed_devices(pool, self._kept)

    def taken(self, pool: PoolID) -> PoolState:
        """Return what claims have taken of a pool: allocated or assumed."""
        return self._view.held.pool(pool)

    def knows(self, claim: ResourceClaim) -> bool:
        """Return whether what we know of a claim is as new as this version of it."""
        known = self.get(claim.key)
        return (
            known is not None
            and known.metadata.uid == claim.metadata.uid
            and is_newer(known.metadata.resource_version, claim.metadata.resource_version)
        )

    def knows_all(self, version: str) -> bool:
        """Return whether the claims are known as they were at a version of their collection, or later."""
        return self._claims.synced.is_set() and is_newer(self._claims.resource_version, version)

    # --- what the allocator writes --------------------------------------------------------------------------

    def assume(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Count the devices of an allocation as taken; ``confirm`` or ``release`` must follow."""
        self._assume(claim, allocation)

    def note(self, claim: ResourceClaim) -> None:
        """Take in the answer to a write."""
        claim = trimmed_claim(claim)
        known = self._claims.get(claim.key)
        if known is None or known.metadata.uid != claim.metadata.uid:
            if self._gone_claims is not None:
                self._gone_claims.gone(claim)  # with what it has just got, which nobody has seen
        elif not is_newer(known.metadata.resource_version, claim.metadata.resource_version):
            self._written[claim.metadata.uid] = claim
            self._put(claim)

    def confirm(self, claim: ResourceClaim) -> None:
        """Take in the answer to the write of an allocation: it is no assumption any more."""
        # In this order: the devices are taken all the time.
        self.note(claim)
        self._assume(claim, None)

    def release(self, claim: ResourceClaim) -> None:
        """End the assumption of an allocation that was certainly not written and never will be."""
        if self.is_assumed(claim):
            self._assume(claim, None)

    # --- inside ---------------------------------------------------------------------------------------------

    def _seen(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        if self._gone_claims is not None:
            self._gone_claims.seen(claim)
        written = self._written.get(uid)
        if written is not None and is_newer(
            claim.metadata.resource_version, written.metadata.resource_version
        ):
            del self._written[uid]
            written = None
        self._put(claim if written is None else written)

    def _gone(self, claim: ResourceClaim) -> None:
        newest = self._written.pop(claim.metadata.uid, claim)
        if self._gone_claims is not None:
            # Before the claim is forgotten: its devices are taken all the time.
            self._gone_claims.gone(newest)
        # An assumed allocation stays: the writer finds out that the claim is gone, and releases it.
        freed = self._view.remove(claim.key, claim.metadata.uid)
        self._report(ClaimGone(claim.key, claim.metadata.uid), freed=freed)

    def _keep(self, uid: Uid, allocation: AllocationResult | None) -> None:
        """Count the devices as taken that a claim keeps which is gone.

        They are counted under a UID of their own: what is assumed of a claim is the writer's to end.
        """
        key, kept = ObjectKey("", f"gone-{uid}"), Uid(f"gone-{uid}")
        if allocation is None:
            self._kept.discard(kept)
        else:
            self._kept.add(kept)
        freed = self._view.assume(key, kept, allocation)
        self._report(ClaimAssumed(key, kept, allocation), freed=freed)

    def _put(self, claim: ResourceClaim) -> None:
        known = self.get(claim.key)
        if known is not None and same_for_decisions(known, claim):
            self._view.put(claim)
            self._journal.renew(claim)
            return
        freed = self._view.put(claim)
        self._report(ClaimSeen(claim), freed=freed)

    def _assume(self, claim: ResourceClaim, allocation: AllocationResult | None) -> None:
        key, uid = claim.key, claim.metadata.uid
        freed = self._view.assume(key, uid, allocation)
        self._report(ClaimAssumed(key, uid, allocation), freed=freed)

    def _report(self, change: Change, *, freed: bool) -> None:
        self._journal.apply(change)
        if freed:
            self._freed.send()
