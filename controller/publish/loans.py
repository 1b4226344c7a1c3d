"""What is lent to kube-scheduler of the controller's pools, and what the allocator must leave alone for that.

The rules are the table of ``dra_driver.publishing.loans``. Here is the state of every pool: what is to be
lent and to come back is asked for here, the publisher looks at it pool by pool, and what is recalled is
reported here. A unit of which the note, or an untainted device, is seen is blocked in the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import structlog

from controller.allocate.signal import Signal
from controller.config import LendingMode, Timings
from controller.publish.gates import PoolGates
from dra_driver.api.own.inventory import NODE_PUBLISHES, DeviceInventory, LentUnit, inventory_name
from dra_driver.api.resource import ResourceSlice
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import (
    MAX_RECALLED,
    MAX_RECALLED_OF_POOL,
    PoolID,
    Recalls,
    pool_of_inventory,
    pool_of_slice,
    refusal_of,
    units,
)
from dra_driver.ports import Clock
from dra_driver.publishing.epochs import EpochState, epoch_state
from dra_driver.publishing.handover import HandoverState
from dra_driver.publishing.loans import (
    MAX_NOTED,
    MAX_UNIT,
    Lending,
    Loan,
    LoanState,
    PoolFacts,
    PoolLook,
    borrow,
    deleted_note,
    look_at_loans,
    notice,
    recalled,
    untainted_devices,
)

__all__ = ["PoolLoans", "UnitKey"]

log = structlog.get_logger(__name__)

UnitKey = tuple[PoolID, str]
"""A pool and the name of a unit."""
_ENDS = (LoanState.NOTING, LoanState.UNTAINTING, LoanState.LENT)


class PoolLoans:
    """The loans of all pools.

    Attributes:
        changed: sent with a pool after its loans have become others.
        asking: sent with a pool that the publisher has to look at because of something that it cannot see.
    """

    def __init__(
        self,
        mode: LendingMode,
        timings: Timings,
        clock: Clock,
        gates: PoolGates,
        *,
        inventories: Informer[DeviceInventory],
        slices: Informer[ResourceSlice],
        slices_of: Callable[[PoolID], tuple[ResourceSlice, ...]],
        blocked: Callable[[PoolID, Collection[str]], None] = lambda _pool, _names: None,
        ungated: Callable[[], str] = lambda: "",
    ) -> None:
        """Follow the informers; ``gates`` must follow them already.

        Args:
            mode: whether anything is lent.
            timings: how long to wait for what.
            clock: for that.
            gates: whose pools are.
            inventories: what is noted.
            slices: what is untainted.
            slices_of: the slices of a pool.
            blocked: called at once with a pool, and the units and devices that the allocator must leave alone
                there, where that is another answer.
            ungated: why pods without the gate could take what is lent; empty if none can.
        """
        self.changed: Signal[[PoolID]] = Signal()
        self.asking: Signal[[PoolID]] = Signal()
        self._mode = mode
        self._timings = timings
        self._clock = clock
        self._gates = gates
        self._inventories = inventories
        self._slices_of = slices_of
        self._blocked = blocked
        self._ungated = ungated
        self._loans: dict[PoolID, Mapping[str, Loan]] = {}
        self._reported: dict[PoolID, frozenset[str]] = {}
        # When a loan ends in any case; and those that have to end now.
        self._ends: dict[UnitKey, float] = {}
        self._over: set[UnitKey] = set()
        # Units whose recall is being written.
        self._asked: set[UnitKey] = set()
        # What the API server refuses; None: that is not known.
        self._recalls: Recalls | None = None
        self._refused: dict[PoolID, frozenset[str]] = {}
        self._begun = False
        inventories.add_handler(
            Handler(
                added=lambda i: self._notice(pool_of_inventory(i)),
                updated=lambda _, i: self._notice(pool_of_inventory(i)),
                deleted=self._deleted,
            )
        )
        slices.add_handler(
            Handler(
                added=lambda s: self._notice(pool_of_slice(s)),
                updated=lambda _, s: self._notice(pool_of_slice(s)),
            )
        )

    # --- what lends -----------------------------------------------------------------------------------------

    def obstacle(self) -> str:
        """Return why nothing can be lent now; empty if something can."""
        if self._mode is not LendingMode.ON:
            return f"lending is {self._mode.value}"
        if not self._begun:
            return "the claims have not been read since this controller leads"
        if self._recalls is None:
            return "what is recalled cannot be read or written"
        if len(self._refused_later()) >= MAX_RECALLED:
            return f"{MAX_RECALLED} devices are recalled, or will be"
        return self._ungated()

    def room(self) -> int:
        """Return how many more devices can be lent, as far as their recall has to fit into its object."""
        return MAX_RECALLED - len(self._refused_later())

    def lend(self, pool: PoolID, devices: Mapping[str, frozenset[str]]) -> bool:
        """Begin to lend devices, all or none; the caller has seen in this very step that they are free.

        Args:
            pool: one of the controller's.
            devices: those to be lent, by their unit.

        Returns:
            Whether they are on their way.
        """
        if self.obstacle() or not devices or not self._may_lend(pool):
            return False
        unit_of, now = units(self._slices_of(pool)), self._clock.monotonic()
        loans = dict(self.loans(pool))
        for unit, names in devices.items():
            if not names or any(unit_of.get(name) != unit for name in names):
                return False
            before = loans.get(unit, Loan())
            loans[unit], _ = borrow(before, names, now)
            if loans[unit] is before or len(loans[unit].touched) > MAX_UNIT:
                return False
        more = {(pool, name) for loan in loans.values() for name in loan.touched}
        of_pool = len(more | {(pool, name) for name in self.refused(pool)})
        if len(loans) > MAX_NOTED or of_pool > MAX_RECALLED_OF_POOL:
            return False
        if len(self._refused_later() | more) > MAX_RECALLED:
            return False
        for unit in devices:
            self._over.discard((pool, unit))
            self._ends[pool, unit] = now + self._timings.lent
        self.put(pool, loans)
        self.asking.send(pool)
        return True

    def end(self, pool: PoolID, names: Collection[str]) -> None:
        """Have loans of a pool end.

        Args:
            pool: any.
            names: of units; others, and those that are not lent, are left out.
        """
        ending = {(pool, unit) for unit, loan in self.loans(pool).items() if loan.state in _ENDS}
        more = {(pool, name) for name in names} & ending - self._over
        if more:
            self._over |= more
            self.asking.send(pool)

    def loans(self, pool: PoolID) -> Mapping[str, Loan]:
        """Return what is not the controller's of a pool, by unit."""
        return self._loans.get(pool, {})

    def count(self, state: LoanState) -> int:
        """Return how many units are in a state."""
        return sum(loan.state is state for loans in self._loans.values() for loan in loans.values())

    # --- what the publisher sees and decides ----------------------------------------------------------------

    def begin(self) -> None:
        """Take note that every claim was read: none of a process before this one is under way."""
        self._begun = True
        log.info("devices can be lent")

    def seen(self, pool: PoolID, *, claims_seen: bool | None = None) -> Lending:
        """Return what is known of the loans of a pool right now."""
        now = self._clock.monotonic()
        loans = self.loans(pool)
        over = {u for u in loans if (pool, u) in self._over or self._ends.get((pool, u), now + 1) <= now}
        return Lending(
            loans=loans,
            # For which pod it was is not known after a restart.
            over=frozenset(loans if self._mode is not LendingMode.ON else over),
            # Without recalls nothing is lent, and no extended resource is served.
            lends=self._mode is LendingMode.ON and not (self._begun and self._recalls is None),
            # Not where recalls cannot be read for a moment: it would have all pools written anew.
            withholds_counters=self._mode is LendingMode.ON,
            strays=self._mode is not LendingMode.OFF,
            recalled=self.refused(pool),
            claims_seen=claims_seen,
            closing=self._timings.closing,
        )

    def put(self, pool: PoolID, loans: Mapping[str, Loan]) -> None:
        """Put the loans of a pool in place: they count from now on."""
        before = self.loans(pool)
        if loans == before:
            return
        for unit in before.keys() | loans.keys():
            self._changed(pool, unit, before.get(unit, Loan()), loans.get(unit, Loan()))
        if loans:
            self._loans[pool] = dict(loans)
        else:
            self._loans.pop(pool, None)
        self._report(pool)
        self.changed.send(pool)

    def left(self, pool: PoolID) -> float:
        """Return the seconds until the time of a loan of the pool is over; 0: there is none."""
        now = self._clock.monotonic()
        times = [self._ends[pool, unit] - now for unit in self.loans(pool) if (pool, unit) in self._ends]
        return min((max(time, 0.001) for time in times), default=0.0)

    def without_inventory(self, name: str) -> PoolID | None:
        """Return the pool of an inventory that is gone, if something of it is not ours yet."""
        if self._inventories.get_by_name(name) is not None:
            return None
        return next((p for p in self._loans if inventory_name(p.pool, p.driver) == name), None)

    def look(self, pool: PoolID, *, claims_seen: bool | None = None) -> PoolLook:
        """Look at the loans of a pool whose inventory is gone: there is nothing to be noted or written."""
        found = look_at_loans(self.loans(pool), self._facts(pool, (), claims_seen))
        self.put(pool, found.loans)
        return found

    # --- what is recalled -----------------------------------------------------------------------------------

    def recalling(self) -> dict[UnitKey, Loan]:
        """Return the units that are to be recalled; their devices go into the write that begins now."""
        found = {
            (pool, unit): loan
            for pool, loans in self._loans.items()
            for unit, loan in loans.items()
            if loan.state is LoanState.RECALLING
        }
        self._asked = set(found)
        return found

    def admitted(self) -> frozenset[tuple[PoolID, str]]:
        """Return the devices that kube-scheduler may allocate."""
        return frozenset(
            (pool, name) for pool, loans in self._loans.items() for name in untainted_devices(loans)
        )

    def touched(self) -> frozenset[tuple[PoolID, str]]:
        """Return every device of which kube-scheduler may have decided, in units that are not ours."""
        return frozenset(
            (pool, name)
            for pool, loans in self._loans.items()
            for loan in loans.values()
            for name in loan.touched
        )

    def refused(self, pool: PoolID) -> frozenset[str]:
        """Return the devices of a pool that are recalled, as far as that is known."""
        return self._refused.get(pool, frozenset())

    def stored(self, recalls: Recalls | None, asked: Mapping[UnitKey, Loan] | None = None) -> None:
        """Take note of what is recalled.

        Args:
            recalls: as the API server has it; None: it is not known any more.
            asked: units for which this was written, as they were then.
        """
        before = self._recalls.devices if self._recalls is not None else frozenset()
        self._recalls = recalls
        devices = recalls.devices if recalls is not None else frozenset()
        by_pool: dict[PoolID, set[str]] = defaultdict(set)
        for pool, name in devices:
            by_pool[pool].add(name)
        self._refused = {pool: frozenset(names) for pool, names in by_pool.items()}
        for (pool, unit), loan in (asked or {}).items():
            now = self.loans(pool).get(unit)
            if now is None or (pool, unit) not in self._asked:
                continue
            # It may have touched more since.
            if {(pool, name) for name in now.touched} <= devices:
                after, _ = recalled(now, loan.turn, self._clock.monotonic())
                self.put(pool, {**self.loans(pool), unit: after})
        recalled_of = {pool for pool, _ in asked or {}}
        for pool in ({pool for pool, _ in before ^ devices} | recalled_of) & self._loans.keys():
            self.asking.send(pool)

    # --- inside ---------------------------------------------------------------------------------------------

    def _may_lend(self, pool: PoolID) -> bool:
        inventory = self._inventory(pool)
        if inventory is None or inventory.spec.publisher == NODE_PUBLISHES or self._gates.blocked(pool):
            return False
        registration, publication = inventory.status.registration, inventory.status.publication
        present = {s.metadata.name for s in self._slices_of(pool)}
        state = epoch_state(registration, publication, begun=0, present=present)
        ours = self._gates.handover(pool).state is HandoverState.CONTROLLER
        return ours and registration.registered and state is EpochState.PUBLISHED

    def _refused_later(self) -> frozenset[tuple[PoolID, str]]:
        """Return what has to fit into the object: of each pool as much as it takes."""
        known = self._recalls.devices if self._recalls is not None else frozenset()
        more: set[tuple[PoolID, str]] = set()
        for pool in self._loans:
            names = sorted({name for loan in self.loans(pool).values() for name in loan.touched})
            more.update((pool, name) for name in names[:MAX_RECALLED_OF_POOL])
        return known | more

    def _inventory(self, pool: PoolID) -> DeviceInventory | None:
        """Return the inventory of a pool, unless it says what is another node's to say."""
        inventory = self._inventories.get_by_name(inventory_name(pool.pool, pool.driver))
        if inventory is None or pool_of_inventory(inventory) != pool or refusal_of(inventory, None):
            return None
        return inventory

    def _notice(self, pool: PoolID) -> None:
        """Block what is noted, or untainted, and was ours until now."""
        inventory = self._inventory(pool)
        noted = inventory.status.publication.lent if inventory is not None else ()
        handover = self._gates.handover(pool).state
        ours = handover is HandoverState.CONTROLLER
        if not noted and (self._mode is LendingMode.OFF or not ours):
            return
        facts = self._facts(pool, noted, None)
        self.put(pool, notice(self.loans(pool), facts))

    def _facts(self, pool: PoolID, noted: tuple[LentUnit, ...], claims_seen: bool | None) -> PoolFacts:
        return PoolFacts(
            noted=noted,
            slices=self._slices_of(pool),
            handover=self._gates.handover(pool).state,
            may_lend=True,
            over=frozenset(),
            claims_seen=claims_seen,
            now=self._clock.monotonic(),
            drain=self._timings.drain,
            closing=self._timings.closing,
            strays=self._mode is not LendingMode.OFF,
        )

    def _deleted(self, inventory: DeviceInventory) -> None:
        pool, now = pool_of_inventory(inventory), self._clock.monotonic()
        after = {unit: deleted_note(loan, now)[0] for unit, loan in self.loans(pool).items()}
        self.put(pool, {unit: loan for unit, loan in after.items() if loan.state.blocked})
        self.asking.send(pool)

    def _changed(self, pool: PoolID, unit: str, before: Loan, now: Loan) -> None:
        key = pool, unit
        if now.state is not before.state:
            log.info("loan", pool=str(pool), unit=unit, was=before.state.name, state=now.state.name)
        if now.state is LoanState.RECALLING and self._mode is LendingMode.OFF:
            log.warning("a unit stays blocked until --lending is ending or on", pool=str(pool), unit=unit)
        if now.state not in _ENDS:
            self._over.discard(key)
            self._ends.pop(key, None)
        if now.state is not LoanState.RECALLING:
            # The answer to that write does not count any more.
            self._asked.discard(key)

    def _report(self, pool: PoolID) -> None:
        loans = self.loans(pool)
        names = frozenset(loans).union(*(loan.touched for loan in loans.values()))
        if names == self._reported.get(pool, frozenset()):
            return
        if names:
            self._reported[pool] = names
        else:
            self._reported.pop(pool, None)
        self._blocked(pool, names)
