"""What the publishing side says about pools, and the allocator obeys."""

from __future__ import annotations

from collections.abc import Callable

from controller.allocate.decide import Change, PoolChanged
from controller.allocate.signal import Signal
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

__all__ = ["PoolStates"]


class PoolStates:
    """Which pools must be left alone, and how the devices of each are chosen.

    Args:
        default: the policy of pools that none was set for.
        apply: takes each change, before other parts hear of it.
        changed: sent with a pool whose state is another one.
    """

    def __init__(
        self, default: PoolPolicy, apply: Callable[[Change], None], changed: Signal[[PoolID]]
    ) -> None:
        self._default = default
        self._apply = apply
        self._changed = changed
        self._handed_over: set[PoolID] = set()
        self._frozen: set[PoolID] = set()
        self._policies: dict[PoolID, PoolPolicy] = {}

    def set_handed_over(self, pool: PoolID, blocked: bool) -> None:
        """Note whether a pool is kube-scheduler's, or on its way from or to kube-scheduler."""
        self._set(pool, self._handed_over, blocked)

    def set_frozen(self, pool: PoolID, frozen: bool) -> None:
        """Note whether devices of a pool are changing their form."""
        self._set(pool, self._frozen, frozen)

    def set_policy(self, pool: PoolID, policy: PoolPolicy) -> None:
        """Note how the devices of a pool are chosen."""
        before = self.of(pool)
        if policy == self._default:
            self._policies.pop(pool, None)
        else:
            self._policies[pool] = policy
        self._report(before)

    def of(self, pool: PoolID) -> PoolChanged:
        """Return the state of a pool."""
        blocked = pool in self._handed_over or pool in self._frozen
        return PoolChanged(pool, blocked, self._policies.get(pool, self._default))

    def _set(self, pool: PoolID, pools: set[PoolID], member: bool) -> None:
        before = self.of(pool)
        if member:
            pools.add(pool)
        else:
            pools.discard(pool)
        self._report(before)

    def _report(self, before: PoolChanged) -> None:
        now = self.of(before.pool)
        if now != before:
            self._apply(now)
            self._changed.send(before.pool)
