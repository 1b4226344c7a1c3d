"""The cluster as the allocator needs it, kept up to date by informers, object by object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.kube import Changes, Handler, Informer
from dra_driver.ownership import is_newer
from dra_driver.structured import AllocatedState, AllocationTracker, Snapshot, with_rules

__all__ = ["FollowedCluster"]


class FollowedCluster:
    """Follows informers, and keeps what they do not show: claims that were written, and what was decided.

    Args:
        slices, rules, classes, nodes, claims: the informers.
    """

    def __init__(
        self,
        *,
        slices: Informer[ResourceSlice],
        rules: Informer[DeviceTaintRule],
        classes: Informer[DeviceClass],
        nodes: Informer[Node],
        claims: Informer[ResourceClaim],
    ) -> None:
        self._all_slices, self._all_rules = slices, rules
        self._slices, self._rules, self._classes = Changes(slices), Changes(rules), Changes(classes)
        # Nodes change with every heartbeat; only their labels matter to devices.
        self._nodes = Changes(nodes, lambda old, new: old.metadata.labels == new.metadata.labels)
        self._claims = claims
        self._assumed: dict[ObjectKey, ResourceClaim] = {}
        self._decided: set[Uid] = set()
        self._tracker = AllocationTracker()
        self._snapshot = Snapshot.build(slices=(), classes=(), nodes=(), allocated=AllocatedState())
        claims.add_handler(Handler(self._changed, lambda _, new: self._changed(new), self._changed))

    def claim(self, key: ObjectKey) -> ResourceClaim | None:
        """Return the newest known version of a claim; None if there is none."""
        return self._assumed.get(key) or self._claims.get(key)

    def assume(self, claim: ResourceClaim) -> None:
        """Assume a claim that was written or read; one that is older than what is known changes nothing."""
        known = self.claim(claim.key)
        if known is None or is_newer(claim.metadata.resource_version, known.metadata.resource_version):
            self._assumed[claim.key] = claim
            self._changed(claim)

    def forget_what_is_seen(self) -> None:
        """Forget assumed claims that the watch has shown, or has shown to be deleted."""
        for key, assumed in list(self._assumed.items()):
            seen = self._claims.get(key)
            # One that is not there was deleted, or made a moment ago: the watch does not know it yet.
            known = self._claims.resource_version if seen is None else seen.metadata.resource_version
            if (seen is not None and seen.metadata.uid != assumed.metadata.uid) or is_newer(
                known, assumed.metadata.resource_version
            ):
                del self._assumed[key]
                self._changed(assumed)

    def decide(self, allocations: Mapping[Uid, AllocationResult]) -> None:
        """Take allocations as made that are to be written later, by the UID of the claim, or of its pod."""
        for uid, allocation in allocations.items():
            self._decided.add(uid)
            self._tracker.hold(_decided(uid), _decided(uid), allocation)

    def give_up(self, uids: Iterable[Uid]) -> None:
        """Forget what was decided: it is written, or never will be."""
        for uid in uids:
            self._decided.discard(uid)
            self._tracker.hold(_decided(uid), "", None)

    def is_decided(self, claim: ResourceClaim) -> bool:
        """Return whether an allocation of a claim is to be written."""
        return claim.metadata.uid in self._decided

    def _changed(self, claim: ResourceClaim) -> None:
        """Update what a claim holds; another claim may have taken its name."""
        known = self.claim(claim.key)
        if known is None or known.metadata.uid != claim.metadata.uid:
            self._tracker.hold(claim.metadata.uid, "", None)
        if known is not None:
            self._tracker.hold(known.metadata.uid, str(known.key), known.status.allocation)

    def snapshot(self) -> Snapshot:
        """Return the cluster as it is now."""
        if self._slices or self._rules:
            changed, removed = self._slices.take()
            seldom = any(self._rules.take())
            tainted = (
                with_rules(s, self._all_rules.items())
                for s in (self._all_slices.items() if seldom else changed)
            )
            self._snapshot = self._snapshot.with_slices(tainted, removed)
        if self._classes:
            self._snapshot = self._snapshot.with_classes(*self._classes.take())
        if self._nodes:
            self._snapshot = self._snapshot.with_nodes(*self._nodes.take())
        return self._snapshot.with_allocated(self._tracker.state)


def _decided(uid: Uid) -> Uid:
    """Return the name under which a decision holds devices, beside the claim itself."""
    return Uid(f"{uid}<decided>")
