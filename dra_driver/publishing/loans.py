"""Lending as a table: units of devices that kube-scheduler may allocate from, in a pool of this controller.

To lend, the controller takes its taint off devices. kube-scheduler then decides on what it has seen, and
writes its decision as late as it likes. So what ends a loan is not a time that has passed, but that the API
server refuses the write:

* the loan is noted in ``status.publication.lent`` before the slice changes, and until it is over. A process
  that starts finds the note and ends the loan;
* when it ends, the taint is written, and what was decided before has time to be written (the drain);
* then the devices are *recalled*: written into an object by which an admission policy refuses every
  allocation of them that is not this controller's (``dra_driver.ownership.recalls``);
* when every API server has seen the recall, the claims are read again. Nothing can come any more, and the
  note goes.

The states are those of a unit (``dra_driver.ownership.units``). Nothing is assumed of the time that
kube-scheduler takes, only that an API server follows the recalled devices within the time to close.
``docs/adr/0007-lending.md`` has the races, ``tests/model`` tries all of them at small size.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.api.own.inventory import LentUnit
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import devices_in, is_complete, newest_devices, units, unprotected_devices
from dra_driver.publishing.handover import HandoverState
from dra_driver.publishing.tables import Transition, total

__all__ = [
    "LOAN_TRANSITIONS",
    "MAX_NOTED",
    "MAX_UNIT",
    "Lending",
    "Loan",
    "LoanEffect",
    "LoanEvent",
    "LoanFacts",
    "LoanState",
    "PoolFacts",
    "PoolLook",
    "advance_loan",
    "blocked_devices",
    "borrow",
    "deleted_note",
    "look_at_loan",
    "look_at_loans",
    "notes",
    "notice",
    "recalled",
    "untainted_devices",
]

# How long until the claims are read again.
_POLL_SECONDS: Final = 0.5
# What a note has room for, by the CRD: units of a pool, devices of a unit.
MAX_NOTED: Final = 1024
MAX_UNIT: Final = 256


class LoanState(enum.Enum):
    """Who may allocate from a unit of a pool that is the controller's."""

    OURS = "the controller may"
    NOTING = "on its way to kube-scheduler: the loan is to be noted"
    UNTAINTING = "noted: the taint is to be taken off, and the devices are to be recalled no longer"
    LENT = "kube-scheduler may"
    TAINTING = "on its way back: the taint is to be written"
    DRAINING = "tainted: what kube-scheduler has decided has time to be written"
    RECALLING = "drained: the devices are to be recalled, so that nothing can be written any more"
    CLOSING = "recalled: the API servers that do not know it yet are waited for"
    READING = "closed: the claims are to be read"
    RETURNING = "every allocation is known: the note is to be removed"

    @property
    def blocked(self) -> bool:
        """Whether this controller must neither allocate from the unit nor deallocate what is held of it."""
        return self is not LoanState.OURS

    @property
    def noted(self) -> bool:
        """Whether the loan has to be in ``status.publication.lent``."""
        return self not in (LoanState.OURS, LoanState.RETURNING)

    @property
    def untainted(self) -> bool:
        """Whether the lent devices are published without our taint."""
        return self in (LoanState.UNTAINTING, LoanState.LENT)

    @property
    def timed(self) -> bool:
        """Whether a time runs."""
        return self in (LoanState.DRAINING, LoanState.CLOSING)


class LoanEvent(enum.Enum):
    """What happens to a unit."""

    BORROW = "devices of it are to be lent, and nothing is against it"
    END = "the loan is over: its pod has what it needs, is gone, or has had its time; or a device fails"
    TAKEN = "the pool is kube-scheduler's"
    NOTED = "the inventory has a note of the loan, with all its devices"
    NOT_NOTED = "the inventory has none"
    TAINTED = "devices of it are published, and kube-scheduler can allocate none of them"
    UNTAINTED = "kube-scheduler can allocate devices of it"
    GONE = "no device of it is published"
    TIME_OVER = "the time of the state is over"
    RECALLED = "the API server has stored the recall that this state asked for"
    CLAIMS_SEEN = "every allocation from the pool that the API server has is known here, too"
    INVENTORY_DELETED = "the DeviceInventory is deleted, and with it the note"


class LoanEffect(enum.Enum):
    """What is done besides keeping the note, the slices and the recalled devices as the state wants them."""

    BLOCK = "the allocator has to leave the unit alone from now on"
    UNBLOCK = "the allocator may decide on the unit from now on"
    RECALL = "write the devices to those that are recalled, in a write that changes the object in any case"
    READ_CLAIMS = "read the claims from the API server again and look whether all of them are known"


_S, _E, _F = LoanState, LoanEvent, LoanEffect
_OFF: Final = (_S.UNTAINTING, _S.LENT)
_ON_AGAIN: Final = (_S.DRAINING, _S.RECALLING, _S.CLOSING, _S.READING)

LOAN_TRANSITIONS: Final[Mapping[tuple[LoanState, LoanEvent], Transition[LoanState, LoanEffect]]] = total(
    {
        (_S.OURS, _E.BORROW): Transition(_S.NOTING, (_F.BLOCK,)),
        # A note of a process before this one; or devices that somebody else has untainted.
        (_S.OURS, _E.NOTED): Transition(_S.TAINTING, (_F.BLOCK,)),
        (_S.OURS, _E.UNTAINTED): Transition(_S.TAINTING, (_F.BLOCK,)),
        (_S.NOTING, _E.NOTED): Transition(_S.UNTAINTING),
        (_S.NOTING, _E.UNTAINTED): Transition(_S.TAINTING),
        (_S.NOTING, _E.END): Transition(_S.TAINTING),
        (_S.UNTAINTING, _E.UNTAINTED): Transition(_S.LENT),
        (_S.LENT, _E.TAINTED): Transition(_S.TAINTING),
        # A slice that is created anew has every device tainted. Without its note no loan goes on.
        **{
            (state, event): Transition(_S.TAINTING)
            for state in _OFF
            for event in (_E.END, _E.GONE, _E.NOT_NOTED, _E.INVENTORY_DELETED)
        },
        (_S.TAINTING, _E.TAINTED): Transition(_S.DRAINING),
        (_S.TAINTING, _E.GONE): Transition(_S.DRAINING),
        (_S.DRAINING, _E.TIME_OVER): Transition(_S.RECALLING, (_F.RECALL,)),
        # Until the answer is there.
        (_S.RECALLING, _E.TAINTED): Transition(_S.RECALLING, (_F.RECALL,)),
        (_S.RECALLING, _E.GONE): Transition(_S.RECALLING, (_F.RECALL,)),
        (_S.RECALLING, _E.RECALLED): Transition(_S.CLOSING),
        # What is read before nothing can come any more does not count.
        (_S.CLOSING, _E.TIME_OVER): Transition(_S.READING, (_F.READ_CLAIMS,)),
        (_S.READING, _E.TAINTED): Transition(_S.READING, (_F.READ_CLAIMS,)),
        (_S.READING, _E.GONE): Transition(_S.READING, (_F.READ_CLAIMS,)),
        (_S.READING, _E.CLAIMS_SEEN): Transition(_S.RETURNING),
        (_S.RETURNING, _E.NOT_NOTED): Transition(_S.OURS, (_F.UNBLOCK,)),
        (_S.RETURNING, _E.INVENTORY_DELETED): Transition(_S.OURS, (_F.UNBLOCK,)),
        (_S.RETURNING, _E.UNTAINTED): Transition(_S.TAINTING),
        # Tainted again, it may be lent again. Not from RETURNING: a note that is seen there may be removed
        # already, and it must not be taken for that of the next loan.
        **{(state, _E.BORROW): Transition(_S.NOTING) for state in _ON_AGAIN},
        **{(state, _E.UNTAINTED): Transition(_S.TAINTING) for state in _ON_AGAIN},
        # The handover has the rules for a pool that comes back.
        **{(state, _E.TAKEN): Transition(_S.OURS, (_F.UNBLOCK,)) for state in _S if state.blocked},
    },
    LoanState,
    LoanEvent,
)


@dataclass(frozen=True, slots=True)
class Loan:
    """How far the loan of a unit is.

    Attributes:
        state: as in the table.
        devices: those that are lent now, or were lent last.
        touched: devices that kube-scheduler may have decided to allocate since the unit was ours; they are
            noted, and recalled in the end.
        since: monotonic time in seconds at which the present state began, where a time runs.
        turn: how often devices were to be recalled: the answer to an earlier recall does not count.
    """

    state: LoanState = LoanState.OURS
    devices: frozenset[str] = frozenset()
    touched: frozenset[str] = frozenset()
    since: float = 0.0
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanFacts:
    """What a look at a unit goes by.

    Attributes:
        noted: whether the inventory has the note, with everything that the loan has touched; if None, it has
            one without some of that.
        slices: ``TAINTED``, ``UNTAINTED`` or ``GONE``.
        over: whether the loan has to end.
        taken: whether the pool is kube-scheduler's.
        claims_seen: whether all claims that the API server has are known; if None, they were not read again
            since the last look.
        now: monotonic time in seconds.
        drain: seconds that kube-scheduler has to write what it has decided.
        closing: seconds until every API server knows what is recalled.
        complete: whether the newest generation of the pool is complete. While it is not, kube-scheduler
            allocates nothing from the pool, and devices may be missing whose slice is yet to be written.
    """

    noted: bool | None
    slices: LoanEvent
    over: bool
    taken: bool
    claims_seen: bool | None
    now: float
    drain: float
    closing: float
    complete: bool = True


# --- one unit -----------------------------------------------------------------------------------------------


def advance_loan(loan: Loan, event: LoanEvent, now: float) -> tuple[Loan, tuple[LoanEffect, ...]]:
    """Return the loan after an event, and the effects; a time runs from the entry into a state."""
    move = LOAN_TRANSITIONS[loan.state, event]
    state = move.state
    if state is loan.state:
        return loan, move.effects
    if not state.blocked:
        return Loan(turn=loan.turn), move.effects
    turn = loan.turn + (state is LoanState.RECALLING)
    return replace(loan, state=state, since=now if state.timed else 0.0, turn=turn), move.effects


def borrow(loan: Loan, devices: frozenset[str], now: float) -> tuple[Loan, tuple[LoanEffect, ...]]:
    """Return the unit with devices to be lent, and the effects; where it cannot be lent now, it stays."""
    after, effects = advance_loan(loan, LoanEvent.BORROW, now)
    if after is loan:
        return loan, ()
    return replace(after, devices=devices, touched=loan.touched | devices), effects


def recalled(loan: Loan, turn: int, now: float) -> tuple[Loan, tuple[LoanEffect, ...]]:
    """Return the loan after the API server has stored a recall.

    Args:
        loan: as it is now.
        turn: ``Loan.turn`` when the write was begun.
        now: monotonic time in seconds.
    """
    return advance_loan(loan, LoanEvent.RECALLED, now) if turn == loan.turn else (loan, ())


def deleted_note(loan: Loan, now: float) -> tuple[Loan, tuple[LoanEffect, ...]]:
    """Return the loan after the inventory was deleted, and the effects."""
    return advance_loan(loan, LoanEvent.INVENTORY_DELETED, now)


def look_at_loan(loan: Loan, facts: LoanFacts) -> tuple[Loan, tuple[LoanEffect, ...], float]:
    """Return the loan after all that a look shows, the effects, and seconds to the next look (0: none)."""
    events: list[LoanEvent] = []
    if facts.claims_seen:
        events.append(LoanEvent.CLAIMS_SEEN)
    if facts.noted is not None:
        events.append(LoanEvent.NOTED if facts.noted else LoanEvent.NOT_NOTED)
    events.append(facts.slices)
    if facts.over:
        events.insert(0, LoanEvent.END)
    if facts.taken:
        events = [LoanEvent.TAKEN]
    effects: list[LoanEffect] = []
    for event in events:
        if event is facts.slices and loan.state.untainted and not facts.complete:
            continue  # the slices that are to be lent from are still being written
        loan, more = advance_loan(loan, event, facts.now)
        effects += more
    left = loan.since + (facts.drain if loan.state is LoanState.DRAINING else facts.closing) - facts.now
    if loan.state.timed and left <= 0:
        loan, more = advance_loan(loan, LoanEvent.TIME_OVER, facts.now)
        effects += more
    again = max(left, 0.0) if loan.state.timed else 0.0
    return loan, tuple(effects), _POLL_SECONDS if loan.state is LoanState.READING else again


# --- the units of a pool ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """What a publisher knows of the loans of a pool, besides slices and note.

    Attributes:
        loans: by unit, as of the last look.
        over: units whose loan has to end.
        lends: whether devices are lent where pods need that.
        withholds_counters: whether the counters of a pool are kept from kube-scheduler while nothing of it is
            lent, so that a loan elsewhere costs it little.
        strays: see ``PoolFacts``.
        recalled: devices of which an allocation is refused still; their taint stays until it is not.
        claims_seen: see ``LoanFacts``.
        closing: see ``LoanFacts``.
    """

    loans: Mapping[str, Loan] = field(default_factory=dict)
    over: frozenset[str] = frozenset()
    lends: bool = False
    withholds_counters: bool = False
    strays: bool = False
    recalled: frozenset[str] = frozenset()
    claims_seen: bool | None = None
    closing: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What a look at the loans of a pool goes by.

    Attributes:
        noted: ``status.publication.lent``.
        slices: of the pool, as they are.
        handover: whose the pool is, as of this look.
        may_lend: whether anything may be lent from the pool: its slices are published, the API server keeps
            taints, the controller publishes it.
        over: units whose loan has to end.
        claims_seen: see ``LoanFacts``.
        now: see ``LoanFacts``.
        drain: see ``LoanFacts``.
        closing: see ``LoanFacts``.
        strays: whether devices that somebody else has untainted are dealt with as if they had been lent. If
            not, the pool is not the controller's for as long as there are any.
    """

    noted: tuple[LentUnit, ...]
    slices: tuple[ResourceSlice, ...]
    handover: HandoverState
    may_lend: bool
    over: frozenset[str]
    claims_seen: bool | None
    now: float
    drain: float
    closing: float
    strays: bool = True


@dataclass(frozen=True, slots=True)
class PoolLook:
    """The loans of a pool after a look.

    Attributes:
        loans: by unit; those that are ours are left out.
        effects: by unit.
        again: seconds after which to look again although nothing has changed; 0: not.
    """

    loans: Mapping[str, Loan]
    effects: Mapping[str, tuple[LoanEffect, ...]]
    again: float

    @property
    def reads_claims(self) -> bool:
        """Whether the claims have to be read again, and then the pool looked at again."""
        return any(LoanEffect.READ_CLAIMS in effects for effects in self.effects.values())


def look_at_loans(loans: Mapping[str, Loan], facts: PoolFacts) -> PoolLook:
    """Return the loans of a pool after all that a look shows; also those of a process before this one."""
    noted = {unit.unit: frozenset(unit.devices) for unit in facts.noted}
    taken = facts.handover is HandoverState.SCHEDULER
    ours = facts.handover is HandoverState.CONTROLLER
    bare = unprotected_devices(facts.slices)
    stray: dict[str, set[str]] = {}
    # While a pool changes hands, its taints are the handover's.
    for device, unit in units(facts.slices).items() if ours and bare and facts.strays else ():
        if device in bare:
            stray.setdefault(unit, set()).add(device)
    after: dict[str, Loan] = {}
    effects: dict[str, tuple[LoanEffect, ...]] = {}
    times: list[float] = []
    for unit in sorted({*loans, *noted, *stray}):
        loan = loans.get(unit, Loan())
        touched = loan.touched | noted.get(unit, frozenset()) | stray.get(unit, set())
        unit_facts = LoanFacts(
            noted=unit in noted and (loan.touched <= noted[unit] or None),
            slices=_slices_event(facts.slices, unit, bare),
            complete=is_complete(facts.slices),
            over=unit in facts.over or not (ours and facts.may_lend),
            taken=taken,
            claims_seen=facts.claims_seen,
            now=facts.now,
            drain=facts.drain,
            closing=facts.closing,
        )
        loan, more, again = look_at_loan(loan, unit_facts)
        if more:
            effects[unit] = more
        if again:
            times.append(again)
        if loan.state.blocked:
            after[unit] = replace(loan, touched=touched)
    return PoolLook(after, effects, min(times, default=0.0))


def notice(loans: Mapping[str, Loan], facts: PoolFacts) -> dict[str, Loan]:
    """Return the loans of a pool with units that were ours until now, and cannot be by these facts.

    The others wait for a look: what is there in time for them is decided there.
    """
    found = look_at_loans({}, facts).loans
    return {**found, **loans}


def _slices_event(slices: Iterable[ResourceSlice], unit: str, bare: frozenset[str]) -> LoanEvent:
    known = tuple(slices)
    published = devices_in(known, [unit]) & newest_devices(known).keys()
    if not published:
        return LoanEvent.GONE
    return LoanEvent.UNTAINTED if published & bare else LoanEvent.TAINTED


def notes(loans: Mapping[str, Loan]) -> tuple[LentUnit, ...]:
    """Return what ``status.publication.lent`` has to say.

    What it has no room for was not lent: somebody else has taken the taint off.
    """
    noted = [(unit, loan) for unit, loan in sorted(loans.items()) if loan.state.noted]
    return tuple(
        LentUnit(unit=unit, devices=tuple(sorted(loan.touched)[:MAX_UNIT]))
        for unit, loan in noted[:MAX_NOTED]
    )


def untainted_devices(loans: Mapping[str, Loan]) -> frozenset[str]:
    """Return the devices that are published without our taint, where their slice is there already."""
    return frozenset().union(*(loan.devices for loan in loans.values() if loan.state.untainted))


def blocked_devices(loans: Mapping[str, Loan], slices: Iterable[ResourceSlice]) -> frozenset[str]:
    """Return the devices that this controller must leave alone, whatever their form is now."""
    touched = frozenset().union(*(loan.touched for loan in loans.values()))
    return devices_in(slices, frozenset(loans) | touched) if loans else frozenset()
