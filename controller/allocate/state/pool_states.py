"""What the publishing side says about pools, and the allocator obeys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from controller.allocate.decide import Change, PoolChanged
from controller.allocate.signal import Signal
from dra_driver.api.resource import ResourceSlice
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, devices_in, pool_of_slice
from dra_driver.structured import PoolPolicy

__all__ = ["PoolStates"]

_NOTHING: frozenset[str] = frozenset()


class PoolStates:
    """Which pools and devices must be left alone, and how the devices of each pool are chosen.

    Args:
        default: the policy of pools that none was set for.
        apply: takes each change, before other parts hear of it.
        changed: sent with a pool whose state is another one.
        slices_of: the slices of a pool as they are.
    """

    def __init__(
        self,
        default: PoolPolicy,
        apply: Callable[[Change], None],
        changed: Signal[[PoolID]],
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
    ) -> None:
        self._default = default
        self._apply = apply
        self._changed = changed
        self._slices_of = slices_of
        self._blocked: set[PoolID] = set()
        self._open: set[PoolID] = set()
        self._policies: dict[PoolID, PoolPolicy] = {}
        # Names of units and devices that are granted, as the publishing side says; all devices that these
        # exclude.
        self._names: dict[PoolID, frozenset[str]] = {}
        self._granted: dict[PoolID, frozenset[str]] = {}

    def follow(self, slices: Informer[ResourceSlice]) -> None:
        """Follow which devices the units have that are granted: that depends on what is published."""
        slices.add_handler(Handler(added=self._saw, updated=lambda _, s: self._saw(s), deleted=self._saw))

    def set_blocked(self, pool: PoolID, blocked: bool) -> None:
        """Note whether a pool is kube-scheduler's, changes hands, or has devices that change their form."""
        before = self.of(pool)
        if blocked:
            self._blocked.add(pool)
        else:
            self._blocked.discard(pool)
        self._report(before)

    def set_open(self, pool: PoolID, is_open: bool) -> None:
        """Note whether a pool of ours is published without our taint."""
        before = self.of(pool)
        if is_open:
            self._open.add(pool)
        else:
            self._open.discard(pool)
        self._report(before)

    def set_policy(self, pool: PoolID, policy: PoolPolicy) -> None:
        """Note how the devices of a pool are chosen."""
        before = self.of(pool)
        if policy == self._default:
            self._policies.pop(pool, None)
        else:
            self._policies[pool] = policy
        self._report(before)

    def set_granted(self, pool: PoolID, names: Collection[str]) -> None:
        """Note what of a pool is granted to claims of kube-scheduler, or on its way there or back.

        Args:
            pool: which one.
            names: of units and of devices; empty: nothing.
        """
        _put(self._names, pool, frozenset(names))
        self._look_at_grants(pool)

    def granted(self, pool: PoolID) -> frozenset[str]:
        """Return the devices of a pool that are granted, and all that these exclude."""
        return self._granted.get(pool, _NOTHING)

    def of(self, pool: PoolID) -> PoolChanged:
        """Return the state of a pool."""
        policy = self._policies.get(pool, self._default)
        return PoolChanged(pool, pool in self._blocked, policy, self.granted(pool), pool in self._open)

    def _saw(self, slice_: ResourceSlice) -> None:
        pool = pool_of_slice(slice_)
        if pool in self._names:
            self._look_at_grants(pool)

    def _look_at_grants(self, pool: PoolID) -> None:
        before = self.of(pool)
        names = self._names.get(pool, _NOTHING)
        _put(self._granted, pool, devices_in(self._slices_of(pool), names) if names else _NOTHING)
        self._report(before)

    def _report(self, before: PoolChanged) -> None:
        now = self.of(before.pool)
        if now != before:
            self._apply(now)
            self._changed.send(before.pool)


def _put(known: dict[PoolID, frozenset[str]], pool: PoolID, names: frozenset[str]) -> None:
    if names:
        known[pool] = names
    else:
        known.pop(pool, None)
