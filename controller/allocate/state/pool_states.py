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
        self._blocked: set[PoolID] = set()
        self._policies: dict[PoolID, PoolPolicy] = {}

    def set_blocked(self, pool: PoolID, blocked: bool) -> None:
        """Note whether a pool is kube-scheduler's, changes hands, or has devices that change their form."""
        before = self.of(pool)
        if blocked:
            self._blocked.add(pool)
        else:
            self._blocked.discard(pool)
        self._report(before)

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
        return PoolChanged(pool, pool in self._blocked, self._policies.get(pool, self._default))

    def _report(self, before: PoolChanged) -> None:
        now = self.of(before.pool)
        if now != before:
            self._apply(now)
            self._changed.send(before.pool)
