"""Which pools the allocator must leave alone: those that change hands, and those whose devices change form.

And open ones, while it is not known that the API server refuses others. The rules are the tables of
``dra_driver.publishing``. Here is the state of every pool, and the only place
that reports a change of it to the allocator: at once, before anything else is done about the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceSlice
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, pool_of_inventory, pool_of_slice, recorded_allocator
from dra_driver.ports import Clock
from dra_driver.publishing.freeze import Freeze, FreezeEffect
from dra_driver.publishing.handover import Handover, HandoverEffect, HandoverState, deleted, recorded

__all__ = ["PoolGates"]

T = TypeVar("T")

log = structlog.get_logger(__name__)

_TELLING = {HandoverEffect.BLOCK, HandoverEffect.UNBLOCK, FreezeEffect.BLOCK, FreezeEffect.UNBLOCK}


class PoolGates:
    """The states of all pools.

    Args:
        clock: for the time to drain.
        inventories: what is noted.
        slices: of which it is awaited that they show what was written.
        changed: called at once with a pool and whether it is blocked, where that may be another answer.
        opened: called at once with a pool and whether it is open, likewise.
        refuses_others: whether the API server keeps a pool for the controller; asked of open pools.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        inventories: Informer[DeviceInventory],
        slices: Informer[ResourceSlice],
        changed: Callable[[PoolID, bool], None] = lambda _pool, _blocked: None,
        opened: Callable[[PoolID, bool], None] = lambda _pool, _open: None,
        refuses_others: Callable[[PoolID], bool] = lambda _pool: False,
    ) -> None:
        self._clock = clock
        self._slices = slices
        self._changed = changed
        self._opened = opened
        self._refuses_others = refuses_others
        self._handovers: dict[PoolID, Handover] = {}
        self._freezes: dict[PoolID, Freeze] = {}
        inventories.add_handler(
            Handler(added=self._recorded, updated=lambda _, i: self._recorded(i), deleted=self._deleted)
        )
        slices.add_handler(
            Handler(
                added=self._saw,
                updated=lambda _, s: self._saw(s),
                deleted=self._saw,
            )
        )

    # --- questions ------------------------------------------------------------------------------------------

    def blocked(self, pool: PoolID) -> bool:
        """Whether the allocator must neither allocate from the pool nor deallocate what is held of it."""
        state = self.handover(pool).state
        exposed = state is HandoverState.OPEN and not self._refuses_others(pool)
        return exposed or state.blocked or self.freeze(pool).blocked

    def handover(self, pool: PoolID) -> Handover:
        """Return whose the pool is."""
        return self._handovers.get(pool, Handover())

    def freeze(self, pool: PoolID) -> Freeze:
        """Return whether the pool is frozen."""
        return self._freezes.get(pool, Freeze())

    def look_at_open(self, pool: PoolID | None = None) -> None:
        """Report an open pool, or all, because others may be refused now, or not any more."""
        for one in list(self._handovers) if pool is None else (pool,):
            if self.handover(one).state is HandoverState.OPEN:
                self._changed(one, self.blocked(one))

    def count_open(self) -> int:
        """Return how many pools are open, or were until now."""
        return sum(handover.state.open for handover in self._handovers.values())

    # --- what the publisher decides and does ----------------------------------------------------------------

    def hand_over(self, pool: PoolID, now: Handover, effects: Iterable[HandoverEffect]) -> None:
        """Put the outcome of a look in place: whose the pool is from now on."""
        before = self.handover(pool).state
        if now.state is not before:
            if now.state is HandoverState.GRANTED:
                log.info("pool is drained; the controller allocates from now on", pool=str(pool))
            if before is HandoverState.YIELDING and now.state is HandoverState.SCHEDULER:
                log.info("pool is drained; kube-scheduler allocates from now on", pool=str(pool))
        _put(self._handovers, pool, now, Handover())
        self._report(pool, effects)
        if now.state is HandoverState.OPEN:
            # Before it is said to be ours although it has no taint.
            self._changed(pool, self.blocked(pool))
        if now.state.open and not before.open:
            self._opened(pool, True)
        if before.open and not now.state.open:
            self._opened(pool, False)

    def begin(self, pool: PoolID) -> None:
        """Freeze the pool: slices are about to be written in which devices change their form."""
        self._freeze(pool, *self.freeze(pool).begin())

    def wrote(self, slice_: ResourceSlice) -> None:
        """Take note of a slice as the API server has stored it."""
        pool = pool_of_slice(slice_)
        self._freeze(pool, self.freeze(pool).wrote(slice_, self._slices.resource_version), ())

    def end(self, pool: PoolID) -> None:
        """Open the pool, as far as it was frozen, when the informer shows what was written.

        It is not called after an error: what was written is not known then, and the pool stays frozen.
        """
        self._freeze(pool, *self.freeze(pool).end())

    # --- what informers show --------------------------------------------------------------------------------

    def _recorded(self, inventory: DeviceInventory) -> None:
        pool = pool_of_inventory(inventory)
        record = recorded_allocator(inventory.status.publication)
        self.hand_over(pool, *recorded(self.handover(pool), record, self._clock.monotonic()))

    def _deleted(self, inventory: DeviceInventory) -> None:
        pool = pool_of_inventory(inventory)
        self.hand_over(pool, *deleted(self.handover(pool), self._clock.monotonic()))
        self.end(pool)

    def _saw(self, _: ResourceSlice) -> None:
        for pool, freeze in list(self._freezes.items()):
            self._freeze(pool, *freeze.saw(self._slices.resource_version))

    def _freeze(self, pool: PoolID, now: Freeze, effects: Iterable[FreezeEffect]) -> None:
        _put(self._freezes, pool, now, Freeze())
        self._report(pool, effects)

    def _report(self, pool: PoolID, effects: Iterable[HandoverEffect | FreezeEffect]) -> None:
        if any(effect in _TELLING for effect in effects):
            self._changed(pool, self.blocked(pool))


def _put(states: dict[PoolID, T], pool: PoolID, now: T, default: T) -> None:
    """Keep a state, unless it is the one that every pool begins with."""
    if now == default:
        states.pop(pool, None)
    else:
        states[pool] = now
