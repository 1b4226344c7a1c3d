"""Which pools decisions may use, and how, kept up to date pool by pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.pool_owners import Owner
from dra_driver.ownership import PoolID
from dra_driver.structured import PersistentMap, PoolPolicies, PoolPolicy

__all__ = ["PoolTerms", "UsablePools"]

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """Which pools decisions may use.

    Attributes:
        ours: with their policies.
        withheld: why others are not used.
        blocked: number of pools that are changing hands.
    """

    ours: PoolPolicies
    withheld: Mapping[PoolID, str]
    blocked: int


class UsablePools:
    """What the publishing side says about pools, and what follows for the allocator.

    Args:
        default: policy of pools that none was named for.

    Attributes:
        ours: our pools with their policies.
        every: every pool with its policy.
        grantable: every pool but those of ours that must not be used now: from the others kube-scheduler may
            get devices, by itself or by a grant.
        theirs: pools that are not ours.
        withheld: why the others are not used.
    """

    def __init__(self, default: PoolPolicy) -> None:
        self._default = default
        # Pools that are changing hands; pools with another policy than the default.
        self._blocked: set[PoolID] = set()
        self._policies: dict[PoolID, PoolPolicy] = {}
        self.ours: PoolPolicies = PersistentMap()
        self.every: PoolPolicies = PersistentMap()
        self.grantable: PoolPolicies = PersistentMap()
        self.theirs: PoolPolicies = PersistentMap()
        self.withheld: PersistentMap[PoolID, str] = PersistentMap()
        # Those for which all five are made anew.
        self._stale: set[PoolID] = set()

    @property
    def terms(self) -> PoolTerms:
        """Which pools may be used, as a value."""
        return PoolTerms(self.ours, self.withheld, len(self._blocked))

    def set(self, pool: PoolID, *, blocked: bool, policy: PoolPolicy) -> None:
        """Take in what the publishing side says about a pool."""
        if blocked:
            self._blocked.add(pool)
        else:
            self._blocked.discard(pool)
        if policy == self._default:
            self._policies.pop(pool, None)
        else:
            self._policies[pool] = policy
        self._stale.add(pool)

    def update(self, cluster: ClusterState, changed: Collection[PoolID]) -> bool:
        """Make the maps follow the cluster; return whether there was anything to do.

        Args:
            cluster: as it is now.
            changed: pools that are new, gone, or others than before.
        """
        self._stale |= set(changed)
        if not self._stale:
            return False
        # Maps that come from one another: the allocator looks at the pools that differ, and no others.
        known = {p: self._policies.get(p, self._default) for p in self._stale if p in cluster.pools}
        ours = {p: policy for p, policy in known.items() if p in cluster.own and p not in self._blocked}
        theirs = {p: policy for p, policy in known.items() if p not in cluster.own}
        withheld = {p: _why_withheld(cluster.owner(p), cluster.is_open(p)) for p in known if p not in ours}
        self.every = _changed(self.every, known, self._stale)
        self.grantable = _changed(self.grantable, {**theirs, **ours}, self._stale)
        self.theirs = _changed(self.theirs, theirs, self._stale)
        self.ours = _changed(self.ours, ours, self._stale)
        self.withheld = _changed(self.withheld, withheld, self._stale)
        self._stale = set()
        return True


def _changed(
    known: PersistentMap[PoolID, _V], now: Mapping[PoolID, _V], asked: Collection[PoolID]
) -> PersistentMap[PoolID, _V]:
    """Return what is known, where those pools have these values and no others.

    Where nothing differs, it is the same object.
    """
    set_ = {p: value for p, value in now.items() if known.get(p) != value}
    gone = [p for p in asked if p not in now and p in known]
    return known.updated(set_, gone) if set_ or gone else known


def _why_withheld(owner: Owner | None, is_open: bool) -> str:
    """Return why this controller does not allocate from a pool, as a predicate."""
    match owner:
        case Owner.OTHERS:
            return "allocated by kube-scheduler"
        case Owner.OTHER_CONTROLLER:
            return "allocated by another controller"
        case _ if is_open:
            return "blocked until the API server is known to refuse what others allocate"
        case _:
            return "blocked during republishing or handover"
