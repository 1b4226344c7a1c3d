"""Whether the API server keeps pools for the controller, and what of them others may allocate all the same.

The rules are the tables of ``dra_driver.publishing.grants``. Here is the state of the policy, of every pool
and of every unit that is granted. What the object has to say follows from it; ``guard`` writes that, looks at
the policy and reports both here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from controller.allocate.signal import Signal
from controller.config import Timings
from controller.publish.listings import Listings
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import NODE_PUBLISHES, DeviceInventory, inventory_name
from dra_driver.api.resource import ResourceSlice
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import (
    MAX_GRANT_BYTES,
    SHARE,
    Grants,
    PoolAllocator,
    PoolID,
    blocks,
    newest_devices,
    pool_of_inventory,
    pool_of_slice,
    units,
)
from dra_driver.ports import Clock
from dra_driver.publishing.grants import (
    Grant,
    GrantEvent,
    GrantState,
    Guard,
    GuardEffect,
    GuardEvent,
    GuardState,
    advance_grant,
    advance_guard,
    grant_stored,
    guard_stored,
    may_allocate,
)
from dra_driver.publishing.handover import HandoverState
from dra_driver.resourceclaim import TRIAL_POOL

__all__ = ["Asked", "PoolGrants", "UnitKey"]

log = structlog.get_logger(__name__)

UnitKey = tuple[PoolID, str]
"""A pool and the name of a unit."""
# A device of the longest names takes so much of the object, at most.
_DEVICE_BYTES: Final = 400
_S, _E = GrantState, GrantEvent


@dataclass(frozen=True, slots=True)
class Asked:
    """What a write, or a read, is for, with the turns in which that was asked."""

    guard: int | None = None
    pools: Mapping[PoolID, int] = field(default_factory=dict)
    units: Mapping[UnitKey, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.guard is not None or bool(self.pools or self.units)


class PoolGrants:
    """The policy, and the grants of all pools.

    Args:
        default: who allocates where no DevicePolicy says otherwise.
        drivers: ours.
        timings: how long an API server may lag, and not everything of a pool is admitted that has become
            kube-scheduler's.
        clock: for that.
        handover: whose a pool is.
        inventories: of all pools.
        slices: what is published.
        slices_of: the slices of a pool.
        taken: forms of a pool that claims hold, assumed ones included.
        being_written: devices of a pool of which this controller is writing an allocation.
        blocked: called at once with a pool, and the units and devices that the allocator must leave alone
            there, where that is another answer.

    Attributes:
        changed: sent with a pool whose grants are in other states.
        guard_changed: sent when the policy is in force, or no more, or its problem is another one.
        asking: set when something may have to be written.
    """

    def __init__(
        self,
        default: PoolAllocator,
        drivers: Collection[DriverName],
        timings: Timings,
        clock: Clock,
        *,
        handover: Callable[[PoolID], HandoverState],
        inventories: Informer[DeviceInventory],
        slices: Informer[ResourceSlice],
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
        taken: Callable[[PoolID], Collection[str]],
        being_written: Callable[[PoolID], Collection[str]],
        blocked: Callable[[PoolID, Collection[str]], None],
    ) -> None:
        self.changed: Signal[[PoolID]] = Signal()
        self.guard_changed: Signal[[]] = Signal()
        self.asking = asyncio.Event()
        self._default = default
        self._drivers = frozenset(drivers)
        self._timings = timings
        self._clock = clock
        self._handover = handover
        self._inventories = inventories
        self._slices_of = slices_of
        self._taken = taken
        self._being_written = being_written
        self._blocked = blocked
        self._guard = Guard()
        # Of what is installed, and of the trial; the second one stays until the policy is proved.
        self._problem = ""
        self._untried = ""
        self._pools: dict[PoolID, Grant] = {}
        self._units: dict[PoolID, dict[str, Grant]] = {}
        self._stored = Grants(default=PoolAllocator.SCHEDULER)
        self._listings = Listings(timings.kept, clock)
        inventories.add_handler(
            Handler(
                added=lambda _: self.asking.set(),
                updated=lambda _, i: self._saw(pool_of_inventory(i)),
                deleted=lambda _: self.asking.set(),
            )
        )
        slices.add_handler(
            Handler(
                added=lambda s: self._saw(pool_of_slice(s)),
                updated=lambda _, s: self._saw(pool_of_slice(s)),
                deleted=lambda s: self._saw(pool_of_slice(s)),
            )
        )

    # --- questions ------------------------------------------------------------------------------------------

    @property
    def guard(self) -> Guard:
        """How far the guard is."""
        return self._guard

    @property
    def problem(self) -> str:
        """Why the policy does not keep devices; empty if it does, or if that is not known yet."""
        return self._problem or self._untried

    def in_force(self) -> bool | None:
        """Return whether the policy is in force; None: it may come to be within seconds."""
        if self._guard.state is GuardState.IN_FORCE:
            return True
        return False if self.problem else None

    def refuses_others(self, pool: PoolID) -> bool:
        """Return whether the controller may allocate from an open pool, units that are granted apart."""
        return may_allocate(self._guard, self._of(pool), Grant())

    # --- what is granted ------------------------------------------------------------------------------------

    def obstacle(self) -> str:
        """Return why nothing can be granted now; empty if something can."""
        if self.problem:
            return self.problem
        return "" if self.in_force() else "the admission policy is being proved"

    def room(self) -> int:
        """Return how many more devices can be granted."""
        return max(0, (MAX_GRANT_BYTES - self._wanted().size) // _DEVICE_BYTES)

    def grant(self, wanted: Mapping[PoolID, Mapping[str, Mapping[str, frozenset[str]]]]) -> bool:
        """Begin to grant devices, all or none; the caller has seen in this very step that they are free."""
        made: dict[UnitKey, Grant] = {}
        for pool, by_unit in wanted.items():
            if self._handover(pool) is not HandoverState.OPEN:
                return False
            unit_of, published = units(self._slices_of(pool)), newest_devices(self._slices_of(pool))
            writing = {unit_of.get(name, name) for name in self._being_written(pool)}
            for unit, claims in by_unit.items():
                before = self._units.get(pool, {}).get(unit, Grant())
                if unit in writing or not may_allocate(self._guard, self._of(pool), before):
                    return False
                names = [name for devices in claims.values() for name in devices]
                if not names or any(unit_of.get(name) != unit for name in names):
                    return False
                shares = frozenset(name for name in names if published[name].allow_multiple_allocations)
                begun = replace(before, claims=dict(claims), shares=shares)
                grant, _ = advance_grant(begun, _E.GRANT, self._now)
                made[pool, unit] = grant
        if not made or not self._wanted(made).fits:
            return False
        for key, grant in made.items():
            self._put_unit(key, grant)
        self.asking.set()
        return True

    def end(self, pool: PoolID, units: Collection[str]) -> None:
        """End grants of a pool; units that are not granted stay as they are."""
        for unit, grant in list(self._units.get(pool, {}).items()):
            if unit in units:
                self._put_unit((pool, unit), advance_grant(grant, _E.END, self._now)[0])
        self.asking.set()

    def grants(self, pool: PoolID) -> Mapping[str, Grant]:
        """Return what is not the controller's of a pool, by unit."""
        return self._units.get(pool, {})

    def count(self, state: GrantState) -> int:
        """Return how many units are in a state."""
        return sum(g.state is state for by_unit in self._units.values() for g in by_unit.values())

    # --- what has to be written -----------------------------------------------------------------------------

    def look(self, stored: Grants) -> tuple[Grants, Asked] | None:
        """Return what should be stored and what that is for; None where nothing is to be written.

        Args:
            stored: as read or answered last.
        """
        self._stored = stored
        self._look_at_pools()
        self._look_at_units()
        guard = self._guard.turn if self._guard.state is GuardState.WRITING and not self._problem else None
        wanted, fits = self._fitting()
        written = (GrantState.GRANTING, GrantState.ENDING)
        asked = Asked(
            guard,
            {pool: g.turn for pool, g in self._pools.items() if g.state in written and pool in fits},
            {key: g.turn for key, g in self._all_units() if g.state in written},
        )
        if not asked and wanted == replace(stored, turn=wanted.turn):
            return None
        return replace(wanted, turn=stored.turn + 1), asked

    def stored(self, grants: Grants, asked: Asked) -> None:
        """Take note of what was written, and what for."""
        self._stored = grants
        if asked.guard is not None:
            self._put_guard(guard_stored(self._guard, asked.guard, self._now))
        for pool, turn in asked.pools.items():
            self._put_pool(pool, grant_stored(self._of(pool), turn, self._now))
        for (pool, unit), turn in asked.units.items():
            before = self._units.get(pool, {}).get(unit)
            if before is not None:
                self._put_unit((pool, unit), grant_stored(before, turn, self._now))

    # --- what is found out about the policy -----------------------------------------------------------------

    def proved(self) -> None:
        """Take note that the policy is as it should be, and has refused the trial."""
        self._untried = ""
        self._happened(GuardEvent.PROVED)

    def not_proved(self, problem: str) -> None:
        """Take note of why the policy cannot be proved: it is tried again until it can."""
        if self._guard.state is not GuardState.PROVING:
            self.failed(problem)
        if problem != self._untried:
            self._untried = problem
            log.error("the admission policy cannot be proved", why=problem)
            self.guard_changed.send()

    def found(self, problem: str) -> None:
        """Take note of why policy, binding or object are not as they should be; empty: they look right."""
        if problem:
            self.failed(problem)
        if problem != self._problem:
            self._problem = problem
            if problem:
                log.error("the admission policy does not keep devices for the controller", why=problem)
            self.asking.set()
            self.guard_changed.send()

    def failed(self, why: str) -> None:
        """Take note that something has changed, or is not known any more: all is proved anew."""
        if self._guard.state is not GuardState.WRITING:
            log.warning("the admission policy has to be proved again", why=why)
            self._happened(GuardEvent.FAILED)

    def tick(self, now: float) -> None:
        """Go on where a time is over.

        Args:
            now: monotonic time in seconds, at which the API server has shown what it knows.
        """
        over = now - self._timings.closing
        if self._guard.state is GuardState.CLOSING and self._guard.since <= over:
            self._happened(GuardEvent.TIME_OVER)
        for pool, grant in list(self._pools.items()):
            if grant.state is _S.CLOSING and grant.since <= over:
                self._put_pool(pool, advance_grant(grant, _E.TIME_OVER, self._now)[0])
        for key, grant in list(self._all_units()):
            if grant.state is _S.CLOSING and grant.since <= over:
                self._put_unit(key, advance_grant(grant, _E.TIME_OVER, self._now)[0])

    def reading(self) -> Asked:
        """Return for what the claims are to be read now."""
        return Asked(
            self._guard.turn if self._guard.state is GuardState.READING else None,
            {pool: grant.turn for pool, grant in self._pools.items() if grant.state is _S.READING},
            {key: grant.turn for key, grant in self._all_units() if grant.state is _S.READING},
        )

    def claims_seen(self, read: Asked) -> None:
        """Take note that the claims were read for this, and that all of them are known."""
        if read.guard is not None and read.guard == self._guard.turn:
            self._happened(GuardEvent.CLAIMS_SEEN)
        for pool, turn in read.pools.items():
            grant = self._of(pool)
            if grant.turn == turn:
                self._put_pool(pool, advance_grant(grant, _E.CLAIMS_SEEN, self._now)[0])
        for key, grant in list(self._all_units()):
            if key in read.units and grant.turn == read.units[key]:
                self._put_unit(key, advance_grant(grant, _E.CLAIMS_SEEN, self._now)[0])

    def left(self) -> float | None:
        """Return the seconds until a time is over; None: none runs."""
        states = (self._guard.state is GuardState.CLOSING, self._guard.since)
        others = ((g.state is _S.CLOSING, g.since) for g in (*self._pools.values(), *self._grants()))
        since = [at for closing, at in (states, *others) if closing]
        return max(0.0, min(since) + self._timings.closing - self._now) if since else None

    # --- inside ---------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._clock.monotonic()

    def _inventory(self, pool: PoolID) -> DeviceInventory | None:
        return self._inventories.get_by_name(inventory_name(pool.pool, pool.driver))

    def _of(self, pool: PoolID) -> Grant:
        """Return the grant of a pool to every claim."""
        known = self._pools.get(pool)
        if known is not None:
            return known
        return Grant() if self._default is PoolAllocator.CONTROLLER else Grant(_S.GRANTED)

    def _all_units(self) -> Iterator[tuple[UnitKey, Grant]]:
        for pool, by_unit in self._units.items():
            for unit, grant in by_unit.items():
                yield (pool, unit), grant

    def _grants(self) -> Iterator[Grant]:
        return (grant for _, grant in self._all_units())

    def _look_at_pools(self) -> None:
        known = {pool_of_inventory(i): i for i in self._inventories.items() if i.spec.driver in self._drivers}
        for pool in known.keys() | self._pools.keys():
            inventory, before = known.get(pool), self._of(pool)
            theirs = inventory is not None and self._is_schedulers(pool, inventory)
            long_since = theirs and pool not in self._pools and self._stored.admits_all(pool)
            self._listings.note(pool, theirs=theirs, harmless=long_since or self._is_new(pool, inventory))
            if self._guard.state is GuardState.WRITING:
                # What the write of the guard ends, the guard's own states wait for.
                after = self._listed(pool) if theirs else Grant()
                after = replace(after, turn=before.turn + (after.state is not before.state))
            elif theirs and before.state is _S.OURS:
                after = replace(advance_grant(before, _E.GRANT, self._now)[0], kept=self._kept(pool))
            elif not theirs:
                after = advance_grant(before, _E.END, self._now)[0]
            else:
                # What has been free since is kube-scheduler's.
                held = frozenset(self._taken(pool)) if before.kept else before.kept
                after = replace(before, kept=before.kept & held)
            if after != before or pool not in self._pools:
                self._put_pool(pool, after)
            if inventory is None and after.state is _S.OURS:
                del self._pools[pool]

    def _is_new(self, pool: PoolID, inventory: DeviceInventory | None) -> bool:
        """Return whether nothing of a pool has been published yet."""
        new = inventory is not None and not inventory.status.publication.generation
        return new and not any(True for _ in self._slices_of(pool))

    def _is_schedulers(self, pool: PoolID, inventory: DeviceInventory) -> bool:
        """Return whether kube-scheduler may allocate from a pool, as far as this process decides that."""
        state = self._handover(pool)
        by_node = state is HandoverState.UNKNOWN and inventory.spec.publisher == NODE_PUBLISHES
        return by_node or state is HandoverState.SCHEDULER

    def _listed(self, pool: PoolID) -> Grant:
        """Return the grant of a pool of kube-scheduler, which waits for room if it is not stored yet."""
        stored = self._stored.admits_some(pool)
        return Grant(_S.GRANTED if stored else _S.GRANTING, kept=self._kept(pool))

    def _kept(self, pool: PoolID) -> frozenset[str]:
        """Return the forms that claims hold because of the controller: what others may not allocate."""
        return frozenset(form for form in self._taken(pool) if not self._stored.admits("", pool, form))

    def _look_at_units(self) -> None:
        """End grants of what kube-scheduler cannot, or must not, allocate any more."""
        for pool in list(self._units):
            devices = newest_devices(self._slices_of(pool))
            inventory = self._inventory(pool)
            there = inventory is not None and inventory.status.registration.registered
            for unit, grant in list(self._units[pool].items()):
                fit = all(
                    name in devices and not any(map(blocks, devices[name].taints)) for name in grant.devices
                )
                if not (there and fit and self._handover(pool) is HandoverState.OPEN):
                    self._put_unit((pool, unit), advance_grant(grant, _E.END, self._now)[0])

    def _wanted(
        self, more: Mapping[UnitKey, Grant] | None = None, without: Collection[PoolID] = ()
    ) -> Grants:
        """Return what the object has to say, in no turn yet."""
        devices: dict[str, set[tuple[PoolID, str]]] = {}
        for (pool, _), grant in (*self._all_units(), *(more or {}).items()):
            for key, names in grant.claims.items() if grant.state.listed else ():
                forms = (name + SHARE if name in grant.shares else name for name in names)
                devices.setdefault(key, set()).update((pool, form) for form in forms)
        theirs = {
            pool: self._listings.of(pool, self._inventory(pool), self._slices_of(pool), grant.kept)
            for pool, grant in self._pools.items()
            if grant.state.listed and pool not in without
        }
        kept = {(pool, form) for pool, listing in theirs.items() for form in listing.kept}
        free = {(pool, form) for pool, listing in theirs.items() for form in listing.free or ()}
        whole = {pool for pool, listing in theirs.items() if listing.free is None}
        controllers = self._default is PoolAllocator.CONTROLLER
        if not controllers:
            # The trial has to be refused here, too.
            kept |= {(PoolID(driver, TRIAL_POOL), "trial") for driver in self._drivers}
        return Grants(
            {key: frozenset(found) for key, found in devices.items()},
            frozenset(whole if controllers else self._pools.keys() - whole),
            frozenset(kept),
            self._default,
            free=frozenset(free),
        )

    def _fitting(self) -> tuple[Grants, frozenset[PoolID]]:
        """Return what the object has to say, as far as it has room, and the pools that are in it."""
        wanted = self._wanted()
        # What is to be granted goes last, and before that what has a list.
        granting = sorted(p for p, g in self._pools.items() if g.state is _S.GRANTED and p in self._listings)
        granting += sorted(p for p, g in self._pools.items() if g.state is _S.GRANTING)
        left: list[PoolID] = []
        while not wanted.fits and granting:
            # They follow when others need no list any more.
            half = max(1, len(granting) // 2)
            left, granting = [*left, *granting[-half:]], granting[:-half]
            wanted = self._wanted(without=left)
        return wanted, frozenset(self._pools) - frozenset(left)

    def _happened(self, event: GuardEvent) -> None:
        guard, effects = advance_guard(self._guard, event, self._now)
        before = self._guard
        self._put_guard(guard)
        if (before.state is GuardState.IN_FORCE) is not (guard.state is GuardState.IN_FORCE):
            self.guard_changed.send()
        if GuardEffect.END_GRANTS in effects:
            # As in a process that starts: what the write of the guard ends, its own states wait for, and
            # where it cannot be written, the pools get their taint and are drained.
            for key, _ in list(self._all_units()):
                self._put_unit(key, Grant())

    def _put_guard(self, guard: Guard) -> None:
        if guard.state is not self._guard.state:
            log.info("admission policy", was=self._guard.state.name, state=guard.state.name)
        self._guard = guard

    def _put_pool(self, pool: PoolID, grant: Grant) -> None:
        before = self._of(pool)
        self._pools[pool] = grant
        if grant.state is not before.state:
            log.info("grant of a pool", pool=str(pool), was=before.state.name, state=grant.state.name)
            self.changed.send(pool)

    def _put_unit(self, key: UnitKey, grant: Grant) -> None:
        pool, unit = key
        by_unit = dict(self._units.get(pool, {}))
        before = by_unit.pop(unit, Grant())
        if grant.state.blocked:
            by_unit[unit] = grant
        if by_unit:
            self._units[pool] = by_unit
        else:
            self._units.pop(pool, None)
        if grant.state is not before.state:
            log.info("grant", pool=str(pool), unit=unit, was=before.state.name, state=grant.state.name)
            self._blocked(pool, frozenset(by_unit).union(*(g.devices for g in by_unit.values())))
            self.changed.send(pool)

    def _saw(self, pool: PoolID) -> None:
        if pool in self._units or pool in self._listings:
            self.asking.set()
