"""The cluster as the allocator wants it, kept up to date by informers: a change costs work for its object."""

from __future__ import annotations

from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.kube import Changes, Handler, Informer
from dra_driver.ownership import is_newer
from dra_driver.structured import AllocatedState, AllocationTracker, Snapshot

__all__ = ["FollowedCluster"]


class FollowedCluster:
    """Follows informers, and knows the claims that were written and that the watch has not shown yet.

    Args:
        slices, classes, nodes, claims: followed from now on.
    """

    def __init__(
        self,
        *,
        slices: Informer[ResourceSlice],
        classes: Informer[DeviceClass],
        nodes: Informer[Node],
        claims: Informer[ResourceClaim],
    ) -> None:
        self._slices, self._classes = Changes(slices), Changes(classes)
        # Nodes report their health all the time; only their labels matter to devices.
        self._nodes = Changes(nodes, lambda old, new: old.metadata.labels == new.metadata.labels)
        self._claims = claims
        self._assumed: dict[ObjectKey, ResourceClaim] = {}
        self._tracker = AllocationTracker()
        self._snapshot = Snapshot.build(slices=(), classes=(), nodes=(), allocated=AllocatedState())
        claims.add_handler(Handler(self._changed, lambda _, new: self._changed(new), self._changed))

    def claim(self, key: ObjectKey) -> ResourceClaim | None:
        """The newest version that is known."""
        return self._assumed.get(key) or self._claims.get(key)

    def assume(self, claim: ResourceClaim) -> None:
        """The answer to a write."""
        self._assumed[claim.key] = claim
        self._changed(claim)

    def forget_what_is_seen(self) -> None:
        """Assumed claims that the watch shows, or that it shows to be gone, are assumed no more."""
        for key, assumed in list(self._assumed.items()):
            seen = self._claims.get(key)
            if (
                seen is None
                or seen.metadata.uid != assumed.metadata.uid
                or is_newer(seen.metadata.resource_version, assumed.metadata.resource_version)
            ):
                del self._assumed[key]
                self._changed(assumed)

    def _changed(self, claim: ResourceClaim) -> None:
        """What a claim holds may be another thing now; another one may have taken its name."""
        known = self.claim(claim.key)
        if known is None or known.metadata.uid != claim.metadata.uid:
            self._tracker.hold(claim.metadata.uid, "", None)
        if known is not None:
            self._tracker.hold(known.metadata.uid, str(known.key), known.status.allocation)

    def snapshot(self) -> Snapshot:
        """The cluster as it is now."""
        if self._slices:
            self._snapshot = self._snapshot.with_slices(*self._slices.take())
        if self._classes:
            self._snapshot = self._snapshot.with_classes(*self._classes.take())
        if self._nodes:
            self._snapshot = self._snapshot.with_nodes(*self._nodes.take())
        return self._snapshot.with_allocated(self._tracker.state)
