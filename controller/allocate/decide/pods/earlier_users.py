"""Pods that kube-scheduler looks at before another one that shares a claim with them.

Where such a pod fits on no node, kube-scheduler deallocates a claim that kept it from one (``PostFilter``),
unless the claim is reserved for another pod. So what is allocated for the pod behind it would be gone before
kube-scheduler reserves it, each time anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from typing import Final, NamedTuple

from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.nodes.reports import failed_before_nodes, has_no_node
from controller.allocate.decide.pods.sharing import SharingPods
from controller.allocate.decide.state.claims import ClaimView, node_of
from controller.allocate.decide.state.objects import (
    CLAIM_INDEX,
    GroupKey,
    GroupsOf,
    Objects,
    claims_of,
    group_of_claim,
)
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.resourceclaim import claims_named

__all__ = ["EarlierUser", "EarlierUsers", "kept_others_back"]

# That count, and claims of pods that are looked at for that: anybody can make thousands of pods that share a
# claim. What is left out can harm pods of the same namespace only.
_MOST_USERS: Final = 32
_MOST_CLAIMS: Final = 4096


class EarlierUser(NamedTuple):
    """A pod that shares a claim with another one, and that kube-scheduler looks at first.

    Attributes:
        name: of the pod.
        claim: name of the shared claim.
        pending: all its claims that are not allocated.
        nodes: that suit it, as far as devices to be allocated do not matter.
    """

    name: str
    claim: str
    pending: frozenset[ObjectKey]
    nodes: Set[str]

    def goes_along(self, allocated: Set[ObjectKey], nodes: Set[str]) -> Set[str]:
        """Return the nodes on which it has all it needs if these claims are allocated there."""
        return nodes & self.nodes if self.pending <= allocated else frozenset()


def kept_others_back(old: Pod, new: Pod) -> bool:
    """Return whether a pod is no earlier user any more, of whatever claim, by a change of itself."""
    ends = bool(new.metadata.deletion_timestamp and not old.metadata.deletion_timestamp)
    stops = _deallocates_nothing(new) and not _deallocates_nothing(old)
    return (ends or stops) and not (new.spec.node_name or new.spec.scheduling_gates)


def _deallocates_nothing(pod: Pod) -> bool:
    """Return whether kube-scheduler deallocates no claim for a pod as things are."""
    return failed_before_nodes(pod) or has_no_node(pod)


class EarlierUsers:
    """Finds them.

    Args:
        pods: with the index ``CLAIM_INDEX``.
        sharing: those that share claims.
        claims: what is allocated.
        placements: where pods can go.
        avoided: nodes that are left out for a pod at a time.
        groups_of: the groups of a pod.
        is_gang: whether a group is allocated as a whole.
    """

    def __init__(
        self,
        pods: Objects[Pod],
        sharing: SharingPods,
        claims: ClaimView,
        placements: Placements,
        avoided: Callable[[Pod, float], Collection[str]],
        groups_of: GroupsOf,
        is_gang: Callable[[GroupKey], bool],
    ) -> None:
        self._pods = pods
        self._sharing = sharing
        self._is_gang = is_gang
        self._claims = claims
        self._placements = placements
        self._avoided = avoided
        self._of_pod = groups_of

    def of(self, pod: Pod, now: float) -> tuple[EarlierUser, ...]:
        """Return the pods that kube-scheduler looks at before a pod, with a claim that is not allocated."""
        if pod.spec.node_name:
            return ()
        # Most claims have one user, and groups ask for each of their members at each look.
        shared = [key for key in claims_of(pod) if self._pods.count(CLAIM_INDEX, key) > 1]
        found: dict[Uid, EarlierUser] = {}
        for key, user in itertools.islice(self._seen_before(pod, shared), _MOST_USERS):
            if user.metadata.uid not in found:
                pending = frozenset(self._pending(claims_of(user)))
                found[user.metadata.uid] = EarlierUser(
                    user.metadata.name, key.name, pending, self._nodes(user, now)
                )
        return tuple(found.values())

    def _seen_before(self, pod: Pod, shared: Iterable[ObjectKey]) -> Iterator[tuple[ObjectKey, Pod]]:
        left = _MOST_CLAIMS
        for key in self._pending(shared):
            for user in self._sharing.looked_at_before(key, pod):
                left -= len(user.spec.resource_claims)
                if left < 0:
                    return
                if self._keeps_back(user, pod):
                    yield key, user

    def _keeps_back(self, user: Pod, pod: Pod) -> bool:
        # Where a claim is missing it fails before it looks at nodes.
        if _deallocates_nothing(user) or any(self._claims.get(key) is None for key in claims_named(user)):
            return False
        return self.groups_of(user).isdisjoint(self.groups_of(pod))

    def _nodes(self, pod: Pod, now: float) -> Set[str]:
        """Return the nodes that suit a pod, of those where its other claims are allocated already."""
        nodes = self._placements.candidates(pod, self._avoided(pod, now)).nodes
        claims = (self._claims.get(key) for key in claims_of(pod))
        for allocation in (c.status.allocation for c in claims if c is not None):
            node = node_of(allocation) if allocation is not None else None
            nodes = nodes if node is None else nodes & {node}
        return nodes

    def _pending(self, keys: Iterable[ObjectKey]) -> Iterator[ObjectKey]:
        """Yield those of the claims that are not allocated, nor being written."""
        for key in keys:
            claim = self._claims.get(key)
            if claim is not None and claim.status.allocation is None and not self._claims.is_assumed(claim):
                yield key

    def groups_of(self, pod: Pod) -> set[GroupKey]:
        """Return the groups of a pod that are allocated as a whole."""
        claims = (self._claims.get(key) for key in claims_of(pod))
        of_claims = (g for c in claims if c is not None for g in group_of_claim(c))
        return {key for key in (*self._of_pod(pod), *of_claims) if self._is_gang(key)}
