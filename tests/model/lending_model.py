"""A small world in which devices are lent, and every order in which its steps can come.

One pool with two devices, kube-scheduler, an API server with its admission policy, and the controller, which
is killed and started again. What the controller decides is decided by ``dra_driver.publishing.loans``;
whatever crosses the network takes as long as it likes: what others see of the API server, and what they have
written.

A write holds the version of what it replaces. Instead of numbers it is noted whether that is still the
newest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import exploring
from exploring import Explored

from dra_driver.publishing.loans import Loan, LoanEvent, LoanFacts, LoanState, borrow, look_at_loan, recalled

NONE: Final = -1
"""In place of a device: a claim is not allocated. In place of the devices of a slice: there is no slice."""
HALF: Final = 4
"""With the devices of a slice: another slice of the pool has not its generation yet."""

Kind = Literal["note", "slice", "rest", "book", "claim"]
S, E = LoanState, LoanEvent


class Write(NamedTuple):
    """A write of the controller that the API server has not handled yet.

    Attributes:
        kind: the object: the note in the inventory, the slice, the other slice of the pool, what is recalled,
            the claim of the controller.
        target: what the object shall be: units, untainted devices, or recalled devices as bits; a device.
        newest: whether what it replaces is the newest version; the API server refuses it otherwise.
        ours: whether the process lives that has sent it.
        asked: units whose recall this is.
    """

    kind: Kind
    target: int
    newest: bool
    ours: bool
    asked: int = 0


class State(NamedTuple):
    """All there is. Devices and units are bits where there can be several.

    Attributes:
        note: units that are noted.
        slice: devices without our taint; NONE: the slice is gone; with ``HALF``: the pool is incomplete.
        book: devices that are recalled.
        policy: devices that are recalled as far as the admission policy knows.
        claims: what is allocated, by claim; the last one is the controller's to allocate.
        alive: whether the controller runs.
        begun: whether it has read the claims since nothing of a process before it can be under way.
        loans: by unit, in the memory of the controller.
        seen_note: what the controller sees of ``note``, and whether that is the newest version.
        seen_slice: likewise.
        seen_claims: what it sees of the claims.
        writes: of the controller, also of one that was killed.
        sees_slice: what kube-scheduler sees of the slice.
        sees_claims: what it sees of the claims, its own decisions included.
        decided: what it is about to write: claim, device, whether it knows that itself.
        left: how often loans, own allocations, kills, wipes of the slice, restarts of kube-scheduler, and
            deallocations may still happen.
    """

    note: int
    slice: int
    book: int
    policy: int
    claims: tuple[int, ...]
    alive: bool
    begun: bool
    loans: tuple[Loan, ...]
    seen_note: tuple[int, bool]
    seen_slice: tuple[int, bool]
    seen_claims: tuple[int, ...]
    writes: frozenset[Write]
    sees_slice: int
    sees_claims: tuple[int, ...]
    decided: frozenset[tuple[int, int, bool]]
    left: tuple[int, int, int, int, int, int]


LOANS, OWN, KILLS, WIPES, RESTARTS, FREED = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How large the world is, and which rules it has lost.

    Attributes:
        one_unit: whether the two devices exclude each other.
        borrowers: number of claims that kube-scheduler allocates.
        several: whether the pool has another slice, without devices, that changes with the first one.
        lent: devices that may be lent; those that could take each other's place need not all be.
        before: whether there was a loan before, of the first device, of which a decision is still under way.
        left: see ``State``.
        without: rules that do not hold.
        skipped: states that are left without what they wait for, for another one.
    """

    one_unit: bool = False
    several: bool = False
    borrowers: int = 1
    lent: tuple[int, ...] = (0,)
    before: bool = False
    left: tuple[int, int, int, int, int, int] = (1, 1, 1, 0, 0, 0)
    without: frozenset[str] = frozenset()
    skipped: tuple[tuple[LoanState, LoanState], ...] = ()

    @property
    def units(self) -> tuple[int, ...]:
        """The devices of each unit, as bits."""
        return (0b11,) if self.one_unit else (0b01, 0b10)

    def unit(self, device: int) -> int:
        """Return the unit of a device."""
        return 0 if self.one_unit else device

    def start(self) -> State:
        """Return the world before anything has happened."""
        claims = (NONE,) * (self.borrowers + 1)
        loans = tuple(Loan() for _ in self.units)
        return State(
            note=0,
            slice=0,
            book=self.units[0] if self.before else 0,
            policy=self.units[0] if self.before else 0,
            claims=claims,
            alive=True,
            begun=True,
            loans=loans,
            seen_note=(0, True),
            seen_slice=(0, True),
            seen_claims=claims,
            writes=frozenset(),
            sees_slice=0,
            sees_claims=claims,
            decided=frozenset({(0, 0, True)} if self.before else ()),
            left=self.left,
        )


def is_doubled(scenario: Scenario, state: State) -> bool:
    """Return whether two claims hold what one alone can have."""
    held = [scenario.unit(device) for device in state.claims if device != NONE]
    return len(held) != len(set(held))


def is_quiet(state: State) -> bool:
    """Return whether no loan is under way and kube-scheduler can allocate nothing."""
    return state.alive and all(loan.state is S.OURS for loan in state.loans) and state.slice <= 0


class _Facts(NamedTuple):
    """What the controller sees of a unit: see ``LoanFacts``."""

    noted: bool
    slices: LoanEvent
    complete: bool
    claims_seen: bool


class ScenarioSteps:
    """The steps of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._own = scenario.borrowers
        # There are few different loans and facts, and what follows from them is asked for at every step.
        self._after = functools.cache(self._looked_at)
        self._marked = functools.cache(self._without_differences)

    def steps(self, state: State) -> Iterator[State]:
        """Yield what the world can be next."""
        if state.alive:
            yield from self._sees(state)
            yield from self._looks(state)
            yield from self._lends(state)
            yield from self._writes(state)
            yield from self._allocates(state)
            if state.left[KILLS]:
                yield self._killed(state)
                if any(w.kind == "rest" and w.ours for w in state.writes):
                    # Before the second request was sent.
                    unsent = frozenset(w for w in state.writes if w.kind != "rest" or not w.ours)
                    yield self._killed(state._replace(writes=unsent))
        else:
            yield self._started(state)
        for write in state.writes:
            yield self._landed(state, write)
        yield from self._scheduler(state)
        yield from self._surroundings(state)

    # --- the controller -------------------------------------------------------------------------------------

    def _sees(self, state: State) -> Iterator[State]:
        if not state.seen_note[1]:
            yield self._at_once(state._replace(seen_note=(state.note, True)))
        if not state.seen_slice[1]:
            yield self._at_once(state._replace(seen_slice=(state.slice, True)))
        if state.seen_claims != state.claims:
            yield state._replace(seen_claims=state.claims)

    def _at_once(self, state: State) -> State:
        """Look at units that are ours in the step in which the note or the slice is seen."""
        if "at once" in self._scenario.without:
            return state
        for unit, devices in enumerate(self._scenario.units):
            if state.loans[unit].state is S.OURS:
                facts = self._facts(state, unit, devices)
                after = self._after(state.loans[unit], facts, over=False, late=False)
                state = self._with_loan(state, unit, self._marked(after, unit))
        return state

    def _looks(self, state: State) -> Iterator[State]:
        for unit, devices in enumerate(self._scenario.units):
            loan = state.loans[unit]
            facts = self._facts(state, unit, devices)
            for over in (False, True) if loan.state in (S.NOTING, S.UNTAINTING, S.LENT) else (False,):
                for late in (False, True) if loan.state.timed or loan.state is S.TAINTING else (False,):
                    if late and loan.state is S.CLOSING and not self._closed(state, loan):
                        continue
                    after = self._after(loan, facts, over=over, late=late)
                    if after.state is S.CLOSING and loan.state is S.TAINTING:
                        continue
                    yield self._with_loan(state, unit, self._marked(after, unit))

    def _facts(self, state: State, unit: int, devices: int) -> _Facts:
        slice_ = state.seen_slice[0]
        return _Facts(
            noted=bool(state.seen_note[0] >> unit & 1),
            slices=E.GONE if slice_ == NONE else E.UNTAINTED if slice_ & devices else E.TAINTED,
            complete=slice_ < HALF,
            # Read consistently, and compared with what is seen here.
            claims_seen="consistent read" in self._scenario.without or state.seen_claims == state.claims,
        )

    def _looked_at(self, loan: Loan, facts: _Facts, *, over: bool, late: bool) -> Loan:
        return look_at_loan(
            loan,
            LoanFacts(
                **facts._asdict(), over=over, taken=False, now=1.0 if late else 0.0, drain=1.0, closing=1.0
            ),
        )[0]

    def _closed(self, state: State, loan: Loan) -> bool:
        """Return whether the time to close can be over: what an API server knows is not older than that."""
        return "closing" in self._scenario.without or _bits(loan.touched) & ~state.policy == 0

    def _without_differences(self, loan: Loan, unit: int) -> Loan:
        """Return a loan without what makes equal worlds differ, and without states that are skipped."""
        for from_, to in self._scenario.skipped:
            if loan.state is from_:
                loan = replace(loan, state=to)
        touched = loan.touched
        if loan.state.blocked and not touched:
            # After a restart: what is noted, or seen to be untainted. Here a unit is noted whole.
            touched = _names(self._scenario.units[unit])
        return replace(loan, touched=touched, since=0.0, turn=0)

    def _with_loan(self, state: State, unit: int, loan: Loan) -> State:
        loans = (*state.loans[:unit], loan, *state.loans[unit + 1 :])
        writes = state.writes
        if loan.state is not S.RECALLING:
            # The answer to an earlier recall does not count.
            writes = frozenset(w._replace(asked=w.asked & ~(1 << unit)) for w in writes)
        return state._replace(loans=loans, writes=writes)

    def _lends(self, state: State) -> Iterator[State]:
        if not state.begun:
            settled = not any(w.kind == "claim" for w in state.writes)
            if settled or "settling" in self._scenario.without:
                read = state.seen_claims == state.claims or "first read" in self._scenario.without
                yield state._replace(begun=read)
            return
        if not state.left[LOANS] or any(w.kind == "claim" for w in state.writes if w.ours):
            return
        for unit, devices in enumerate(self._scenario.units):
            held = [d for d in state.seen_claims if d != NONE and devices >> d & 1]
            for device in self._scenario.lent:
                if devices >> device & 1 and not held:
                    loan, _ = borrow(state.loans[unit], _names(1 << device), 0.0)
                    if loan is not state.loans[unit]:
                        yield _spent(self._with_loan(state, unit, self._marked(loan, unit)), LOANS)

    def _writes(self, state: State) -> Iterator[State]:
        busy = {w.kind for w in state.writes if w.ours}
        off = 0
        for loan in state.loans:
            off |= _bits(loan.devices) if loan.state.untainted else 0
        if "note" not in busy:
            note = sum(1 << unit for unit, loan in enumerate(state.loans) if loan.state.noted)
            seen, newest = state.seen_note
            if note != seen:
                yield _sent(state, Write("note", note, newest, ours=True))
        if not busy & {"slice", "rest"}:
            seen, newest = state.seen_slice
            if seen == NONE:
                # Created with every device tainted.
                yield _sent(state, Write("slice", 0, newest, ours=True))
            elif seen != off:
                yield _sent(state, Write("slice", off, newest, ours=True))
        if "book" not in busy:
            yield from self._book(state, off)

    def _book(self, state: State, off: int) -> Iterator[State]:
        asked = [unit for unit, loan in enumerate(state.loans) if loan.state is S.RECALLING]
        book = state.book & ~off
        for unit in asked:
            book |= _bits(state.loans[unit].touched)
        if asked or book != state.book:
            yield _sent(state, Write("book", book, True, ours=True, asked=sum(1 << unit for unit in asked)))

    def _allocates(self, state: State) -> Iterator[State]:
        if not state.left[OWN] or state.seen_claims[self._own] != NONE:
            return
        if any(w.kind == "claim" and w.ours for w in state.writes):
            return
        for device in (0, 1):
            unit = self._scenario.unit(device)
            taken = {self._scenario.unit(d) for d in state.seen_claims if d != NONE}
            if state.loans[unit].state is S.OURS and unit not in taken:
                yield _spent(_sent(state, Write("claim", device, True, ours=True)), OWN)

    def _killed(self, state: State) -> State:
        writes = frozenset(w._replace(ours=False, asked=0) for w in state.writes)
        loans = tuple(Loan() for _ in state.loans)
        return _spent(state._replace(alive=False, begun=False, loans=loans, writes=writes), KILLS)

    def _started(self, state: State) -> State:
        """Start the controller: its first list is consistent."""
        if "consistent list" in self._scenario.without:
            # It sees what it would have seen at the very beginning.
            return self._at_once(state._replace(alive=True, seen_note=(0, False), seen_slice=(0, False)))
        return self._at_once(
            state._replace(
                alive=True,
                seen_note=(state.note, True),
                seen_slice=(state.slice, True),
                seen_claims=state.claims,
            )
        )

    # --- the API server -------------------------------------------------------------------------------------

    def _landed(self, state: State, write: Write) -> State:
        """Handle a write: it is refused where what it replaces has changed."""
        rest = state.writes - {write}
        state = state._replace(writes=rest)
        if write.kind == "claim":
            # Another claim of the same name would have another version; this one is free or not.
            if state.claims[self._own] != NONE:
                return state
            seen = state.seen_claims
            if write.ours:
                # Its answer counts until the watch shows it.
                seen = (*seen[: self._own], write.target)
            return state._replace(claims=(*state.claims[: self._own], write.target), seen_claims=seen)
        if not write.newest:
            return state
        if write.kind == "book" and write.target == state.book and "real recalls" in self._scenario.without:
            return self._recalled(state, write)
        same = ("slice", "rest") if write.kind in ("slice", "rest") else (write.kind,)
        state = state._replace(
            writes=frozenset(w._replace(newest=False) if w.kind in same else w for w in rest)
        )
        if write.kind == "note":
            return state._replace(note=write.target, seen_note=(state.seen_note[0], False))
        if write.kind == "slice" and self._scenario.several:
            # The next request follows the answer to this one, if the process lives.
            half = write.target + HALF
            state = state._replace(slice=half, seen_slice=(state.seen_slice[0], False))
            return _sent(state, write._replace(kind="rest")) if write.ours else state
        if write.kind in ("slice", "rest"):
            return state._replace(slice=write.target, seen_slice=(state.seen_slice[0], False))
        return self._recalled(state._replace(book=write.target), write)

    def _recalled(self, state: State, write: Write) -> State:
        for unit in range(len(state.loans)):
            if write.ours and write.asked >> unit & 1:
                loan, _ = recalled(state.loans[unit], 0, 0.0)
                state = self._with_loan(state, unit, self._marked(loan, unit))
        return state

    def _surroundings(self, state: State) -> Iterator[State]:
        if state.policy != state.book:
            yield state._replace(policy=state.book)
        if state.left[WIPES] and state.slice != NONE:
            slices = ("slice", "rest")
            writes = frozenset(w._replace(newest=False) if w.kind in slices else w for w in state.writes)
            yield _spent(
                state._replace(slice=NONE, writes=writes, seen_slice=(state.seen_slice[0], False)), WIPES
            )
        if state.left[FREED]:
            for claim, device in enumerate(state.claims):
                if device != NONE:
                    freed = (*state.claims[:claim], NONE, *state.claims[claim + 1 :])
                    yield _spent(state._replace(claims=freed), FREED)

    # --- kube-scheduler -------------------------------------------------------------------------------------

    def _scheduler(self, state: State) -> Iterator[State]:
        if state.sees_slice != state.slice:
            yield state._replace(sees_slice=state.slice)
        if state.sees_claims != state.claims:
            yield state._replace(sees_claims=state.claims)
        known = {(c, d) for c, d, lives in state.decided if lives}
        taken = {self._scenario.unit(d) for d in state.sees_claims if d != NONE}
        taken |= {self._scenario.unit(d) for _, d in known}
        for claim in range(self._scenario.borrowers):
            if state.sees_claims[claim] == NONE and not any(c == claim for c, _ in known):
                for device in (0, 1):
                    free = self._scenario.unit(device) not in taken
                    # It takes nothing from an incomplete pool.
                    whole = 0 < state.sees_slice < HALF
                    if whole and state.sees_slice >> device & 1 and free:
                        yield state._replace(decided=state.decided | {(claim, device, True)})
        for decision in state.decided:
            yield self._bound(state, *decision)
        if state.left[RESTARTS] and known:
            gone = frozenset((c, d, False) for c, d, _ in state.decided)
            after = state._replace(decided=gone, sees_slice=state.slice, sees_claims=state.claims)
            yield _spent(after, RESTARTS)

    def _bound(self, state: State, claim: int, device: int, lives: bool) -> State:
        """Handle kube-scheduler's write, which reads the claim again where it has changed."""
        state = state._replace(decided=state.decided - {(claim, device, lives)})
        refused = state.policy >> device & 1 and "policy" not in self._scenario.without
        if state.claims[claim] != NONE or refused:
            return state
        claims = (*state.claims[:claim], device, *state.claims[claim + 1 :])
        sees = state.sees_claims
        if lives:
            sees = (*sees[:claim], device, *sees[claim + 1 :])
        return state._replace(claims=claims, sees_claims=sees)


def explore(scenario: Scenario, *, back: bool = False, most: int = 3_000_000) -> Explored[State]:
    """Try every order of the steps; see ``exploring.explore``."""
    world = ScenarioSteps(scenario)
    doubled = functools.partial(is_doubled, scenario)
    return exploring.explore(scenario.start(), world.steps, doubled, is_quiet, back=back, most=most)


def _bits(names: frozenset[str]) -> int:
    return sum(1 << int(name) for name in names)


def _names(bits: int) -> frozenset[str]:
    return frozenset(str(d) for d in (0, 1) if bits >> d & 1)


def _sent(state: State, write: Write) -> State:
    return state._replace(writes=state.writes | {write})


def _spent(state: State, what: int) -> State:
    left = list(state.left)
    left[what] -= 1
    return state._replace(left=(left[0], left[1], left[2], left[3], left[4], left[5]))
