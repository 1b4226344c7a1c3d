"""Lending: the table of a unit, and the units of a pool."""

import itertools

import pytest
from nonempty import nonempty

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.own.inventory import LentUnit, Publication
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    Counter,
    Device,
    DeviceCounterConsumption,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.ownership import PROTECTION_TAINT, raw_loans, raw_publication
from dra_driver.publishing.handover import HandoverState
from dra_driver.publishing.loans import (
    LOAN_TRANSITIONS,
    Loan,
    LoanEffect,
    LoanEvent,
    LoanFacts,
    LoanState,
    PoolFacts,
    advance_loan,
    blocked_devices,
    borrow,
    look_at_loan,
    look_at_loans,
    notes,
    recalled,
    untainted_devices,
)

S, E, F = LoanState, LoanEvent, LoanEffect
Way = tuple[LoanState, tuple[LoanEvent, ...]]


def a_slice(*devices: Device) -> ResourceSlice:
    pool = ResourcePool(name=PoolName("n1"), generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(driver=DriverName("gpu.example.com"), pool=pool, node_name="n1", devices=devices)
    return ResourceSlice(metadata=ObjectMeta(name="s1"), spec=spec)


def a_device(name: str, *, lent: bool = False, counters: str = "") -> Device:
    one = {"c": Counter(value=Quantity.of(1))}
    return Device(
        name=name,
        taints=() if lent else (PROTECTION_TAINT,),
        consumes_counters=(DeviceCounterConsumption(counter_set=counters, counters=one),) if counters else (),
    )


def facts(*noted: LentUnit, slices: tuple[ResourceSlice, ...], now: float = 0.0, **more: object) -> PoolFacts:
    given: dict[str, object] = {
        "handover": HandoverState.CONTROLLER,
        "may_lend": True,
        "over": frozenset(),
        "claims_seen": None,
        "drain": 15.0,
        "closing": 5.0,
    }
    return PoolFacts(noted=noted, slices=slices, now=now, **{**given, **more})  # type: ignore[arg-type]


# --- the table ----------------------------------------------------------------------------------------------


def test_every_state_has_an_answer_to_every_event() -> None:
    assert set(LOAN_TRANSITIONS) == set(itertools.product(S, E))


def test_the_allocator_is_stopped_before_anything_else_and_started_last() -> None:
    for (state, _), move in nonempty(LOAN_TRANSITIONS.items()):
        assert (F.BLOCK in move.effects) == (not state.blocked and move.state.blocked)
        assert (F.UNBLOCK in move.effects) == (state.blocked and not move.state.blocked)


def test_the_taint_goes_only_after_the_note_is_seen() -> None:
    before = {
        (state, event) for (state, event), move in LOAN_TRANSITIONS.items() if move.state is S.UNTAINTING
    }
    assert before - {(S.UNTAINTING, e) for e in E} == {(S.NOTING, E.NOTED)}
    assert all(state.noted for state in S if state.untainted)


def test_a_unit_is_ours_again_only_after_the_recall_and_the_reading() -> None:
    """Every way from a lent unit to one that is ours has these events in this order, or the pool is taken."""
    ways: set[Way] = {(S.LENT, ())}
    ended: set[Way] = set()
    for _ in range(9):
        more: set[Way] = set()
        for state, seen in ways:
            for event in E:
                after = LOAN_TRANSITIONS[state, event].state
                if after is state or event is E.TAKEN:
                    continue
                way = (*seen, event) if event in (E.RECALLED, E.TIME_OVER, E.CLAIMS_SEEN) else seen
                (ended if after is S.OURS else more).add((after, way))
        ways = more
    assert ended
    for _, way in ended:
        assert way[-4:] == (E.TIME_OVER, E.RECALLED, E.TIME_OVER, E.CLAIMS_SEEN)


@pytest.mark.parametrize("state", [s for s in S if s.blocked])
def test_an_untainted_device_is_never_taken_for_ours(state: LoanState) -> None:
    after = LOAN_TRANSITIONS[state, E.UNTAINTED].state
    assert after in (S.LENT, S.TAINTING)
    assert LOAN_TRANSITIONS[S.OURS, E.UNTAINTED].state is S.TAINTING


@pytest.mark.parametrize("state", S)
def test_what_ends_a_loan_and_what_begins_one(state: LoanState) -> None:
    def after(event: LoanEvent) -> LoanState:
        return LOAN_TRANSITIONS[state, event].state

    # On its way to kube-scheduler, or there: without its note or its slices no loan goes on.
    if state.untainted:
        for event in (E.END, E.GONE, E.NOT_NOTED, E.INVENTORY_DELETED):
            assert after(event) is S.TAINTING
    if state in (S.NOTING, S.LENT):
        assert after(E.END) is S.TAINTING
    if state is S.LENT:
        assert after(E.TAINTED) is S.TAINTING
    # Lent again once it is tainted, but not where a note may be removed that is taken for the next one's.
    again = {S.OURS, S.NOTING, S.DRAINING, S.RECALLING, S.CLOSING, S.READING}
    assert (after(E.BORROW) is S.NOTING) == (state in again)
    # The handover has the rules for a pool that is kube-scheduler's.
    assert after(E.TAKEN) is S.OURS
    # The inventory's note goes with it.
    assert (after(E.INVENTORY_DELETED) is S.OURS) == (state in (S.OURS, S.RETURNING))


def test_what_is_waited_for_is_asked_for_again() -> None:
    for state, effect in ((S.RECALLING, F.RECALL), (S.READING, F.READ_CLAIMS)):
        for event in (E.TAINTED, E.GONE):
            move = LOAN_TRANSITIONS[state, event]
            assert (move.state, move.effects) == (state, (effect,))


def test_the_answer_to_an_earlier_recall_does_not_count() -> None:
    loan = Loan(S.DRAINING, frozenset({"a"}), frozenset({"a"}))
    loan, _ = advance_loan(loan, E.TIME_OVER, 1.0)
    first = loan.turn
    for event in (E.UNTAINTED, E.TAINTED, E.TIME_OVER):
        loan, _ = advance_loan(loan, event, 2.0)
    assert loan.state is S.RECALLING
    assert recalled(loan, first, 3.0)[0].state is S.RECALLING
    assert recalled(loan, loan.turn, 3.0)[0] == Loan(S.CLOSING, loan.devices, loan.touched, 3.0, loan.turn)


def test_a_unit_that_is_ours_again_keeps_nothing_but_its_turn() -> None:
    names = frozenset({"a"})
    ours, effects = advance_loan(Loan(S.RETURNING, names, names, turn=3), E.NOT_NOTED, 1.0)
    assert ours == Loan(turn=3)
    assert effects == (F.UNBLOCK,)


def look_once(loan: Loan, **changes: object) -> LoanState:
    """Return the state after a look at a loan that is noted and tainted."""
    return look_whole(loan, **changes)[0].state


def look_whole(loan: Loan, **changes: object) -> tuple[Loan, tuple[LoanEffect, ...], float]:
    values: dict[str, object] = {
        "noted": True,
        "slices": E.TAINTED,
        "over": False,
        "taken": False,
        "claims_seen": None,
        "now": 0.0,
        "drain": 15.0,
        "closing": 5.0,
        **changes,
    }
    return look_at_loan(loan, LoanFacts(**values))  # type: ignore[arg-type]


def test_a_look_says_what_to_do_and_when_to_look_again() -> None:
    drained = look_whole(Loan(S.DRAINING), now=15.0)
    assert (drained[0].state, drained[1:]) == (S.RECALLING, ((F.RECALL,), 0.0))
    assert look_whole(Loan(S.DRAINING), now=10.0)[1:] == ((), 5.0)
    closed = look_whole(Loan(S.CLOSING), now=5.0)
    assert (closed[0].state, closed[1]) == (S.READING, (F.READ_CLAIMS,))
    assert closed[2] > 0, "the claims are read until all of them are known"
    assert look_whole(Loan(S.CLOSING), now=2.0)[1:] == ((), 3.0)
    assert look_whole(Loan(S.LENT), slices=E.UNTAINTED)[1:] == ((), 0.0)


def test_a_note_that_lacks_devices_is_neither_there_nor_gone() -> None:
    for state in (S.NOTING, S.RETURNING):
        assert look_once(Loan(state), noted=None) is state


def test_half_written_slices_say_nothing_of_what_is_lent_but_the_rest_counts() -> None:
    for state in (S.UNTAINTING, S.LENT):
        for slices in (E.TAINTED, E.UNTAINTED, E.GONE):
            assert look_once(Loan(state), slices=slices, complete=False) is state
            for change in ({"over": True}, {"noted": False}):
                after = look_once(Loan(state), slices=slices, complete=False, **change)
                assert after in (S.TAINTING, S.DRAINING)
    assert look_once(Loan(), noted=False, slices=E.UNTAINTED, complete=False) is S.TAINTING
    assert look_once(Loan(S.TAINTING), complete=False) is S.DRAINING


def test_claims_that_were_read_before_the_time_to_close_do_not_count() -> None:
    loan = Loan(S.CLOSING, since=10.0)

    def look(now: float, seen: bool | None) -> Loan:
        fact = LoanFacts(
            noted=True,
            slices=E.TAINTED,
            over=False,
            taken=False,
            claims_seen=seen,
            now=now,
            drain=15.0,
            closing=5.0,
        )
        return look_at_loan(loan, fact)[0]

    assert look(14.9, True).state is S.CLOSING
    loan = look(15.0, True)
    assert loan.state is S.READING
    assert look(15.1, None).state is S.READING
    assert look(15.1, False).state is S.READING
    assert look(15.1, True).state is S.RETURNING


def test_what_was_lent_is_recalled_in_the_end() -> None:
    """Whatever happens, by all states that it leads to."""
    todo = [(borrow(Loan(), frozenset({"a"}), 0.0)[0], False)]
    known, ends = {(S.NOTING, False)}, set()
    for loan, was_recalled in todo:
        for event in (e for e in E if e is not E.TAKEN):
            after, _ = advance_loan(loan, event, 0.0)
            done = was_recalled or (loan.state is S.RECALLING and event is E.RECALLED)
            if not after.state.blocked:
                assert done, (loan.state, event)
                ends.add((loan.state, event))
                continue
            assert after.touched == {"a"}
            now = (after.state, done and not after.state.untainted)
            if now not in known:
                known.add(now)
                todo.append((after, now[1]))
    assert ends == {(S.RETURNING, E.NOT_NOTED), (S.RETURNING, E.INVENTORY_DELETED)}


# --- the units of a pool ------------------------------------------------------------------------------------


def test_a_process_that_starts_ends_the_loans_that_are_noted() -> None:
    noted = LentUnit(unit="gpu-0", devices=("gpu-0-p1",))
    slices = (
        a_slice(
            a_device("gpu-0", counters="gpu-0"), a_device("gpu-0-p1", counters="gpu-0"), a_device("gpu-1")
        ),
    )
    look = look_at_loans({}, facts(noted, slices=slices, now=7.0))
    assert look.loans == {"gpu-0": Loan(S.DRAINING, frozenset(), frozenset({"gpu-0-p1"}), 7.0)}
    assert look.effects == {"gpu-0": (F.BLOCK,)}
    assert look.again == 15.0
    assert blocked_devices(look.loans, slices) == {"gpu-0", "gpu-0-p1"}
    assert notes(look.loans) == (noted,)


def test_an_untainted_device_without_a_known_loan_is_blocked_at_once_and_noted() -> None:
    slices = (a_slice(a_device("gpu-0", lent=True), a_device("gpu-1")),)
    look = look_at_loans({}, facts(slices=slices))
    assert {unit: loan.state for unit, loan in look.loans.items()} == {"gpu-0": S.TAINTING}
    assert notes(look.loans) == (LentUnit(unit="gpu-0", devices=("gpu-0",)),)
    note = raw_loans(notes(look.loans))
    assert note == {"lent": [{"unit": "gpu-0", "devices": ["gpu-0"]}]}
    assert codec.convert(Publication, note).lent == notes(look.loans)
    assert "lent" not in raw_publication(codec.convert(Publication, note))
    assert untainted_devices(look.loans) == frozenset()


def test_other_units_stay_with_the_allocator() -> None:
    slices = (a_slice(a_device("gpu-0"), a_device("gpu-1")),)
    loan, _ = borrow(Loan(), frozenset({"gpu-0"}), 0.0)
    look = look_at_loans({"gpu-0": loan}, facts(LentUnit(unit="gpu-0", devices=("gpu-0",)), slices=slices))
    assert blocked_devices(look.loans, slices) == {"gpu-0"}
    assert untainted_devices(look.loans) == {"gpu-0"}


@pytest.mark.parametrize("handover", [s for s in HandoverState if s is not HandoverState.CONTROLLER])
def test_nothing_is_lent_from_a_pool_that_changes_hands(handover: HandoverState) -> None:
    loan = Loan(S.LENT, frozenset({"gpu-0"}), frozenset({"gpu-0"}))
    noted = LentUnit(unit="gpu-0", devices=("gpu-0",))
    slices = (a_slice(a_device("gpu-0", lent=True)),)
    look = look_at_loans({"gpu-0": loan}, facts(noted, slices=slices, handover=handover))
    if handover is HandoverState.SCHEDULER:
        assert look.loans == {}
        assert look.effects == {"gpu-0": (F.UNBLOCK,)}
    else:
        assert look.loans["gpu-0"].state is S.TAINTING


def test_devices_of_a_pool_of_kube_scheduler_are_no_strays() -> None:
    slices = (a_slice(a_device("gpu-0", lent=True)),)
    for handover in HandoverState:
        if handover is not HandoverState.CONTROLLER:
            assert look_at_loans({}, facts(slices=slices, handover=handover)).loans == {}


def test_a_loan_whose_slices_are_gone_comes_back_tainted() -> None:
    loan = Loan(S.LENT, frozenset({"gpu-0"}), frozenset({"gpu-0"}))
    look = look_at_loans({"gpu-0": loan}, facts(LentUnit(unit="gpu-0", devices=("gpu-0",)), slices=()))
    assert look.loans["gpu-0"].state is S.TAINTING
    assert untainted_devices(look.loans) == frozenset()


def test_a_note_without_all_devices_is_no_note_of_the_loan() -> None:
    slices = (a_slice(a_device("a", counters="g"), a_device("b", counters="g")),)
    loan, _ = borrow(Loan(S.DRAINING, frozenset({"a"}), frozenset({"a"})), frozenset({"b"}), 0.0)
    assert loan.touched == {"a", "b"}
    half, whole = LentUnit(unit="g", devices=("a",)), LentUnit(unit="g", devices=("a", "b"))
    assert look_at_loans({"g": loan}, facts(half, slices=slices)).loans["g"].state is S.NOTING
    after = look_at_loans({"g": loan}, facts(whole, slices=slices)).loans
    assert after["g"].state is S.UNTAINTING
    assert untainted_devices(after) == {"b"}


def test_a_stray_device_is_that_of_its_unit_alone_and_only_where_strays_are_looked_for() -> None:
    slices = (a_slice(a_device("a", lent=True), a_device("b"), a_device("c", lent=True)),)
    found = look_at_loans({}, facts(slices=slices)).loans
    assert {unit: loan.touched for unit, loan in found.items()} == {"a": {"a"}, "c": {"c"}}
    assert {loan.state for loan in found.values()} == {S.TAINTING}
    assert look_at_loans({}, facts(slices=slices, strays=False)).loans == {}


def test_of_a_note_that_lacks_devices_it_is_not_said_that_it_is_gone() -> None:
    slices = (a_slice(a_device("a", counters="g"), a_device("b", counters="g")),)
    returning = {"g": Loan(S.RETURNING, frozenset({"a"}), frozenset({"a", "b"}))}
    part = LentUnit(unit="g", devices=("a",))
    assert look_at_loans(returning, facts(part, slices=slices)).loans["g"].state is S.RETURNING
    assert look_at_loans(returning, facts(slices=slices)).loans == {}


def test_the_next_look_at_a_pool_is_that_at_the_first_unit_that_waits() -> None:
    slices = (a_slice(a_device("a", lent=True), a_device("b"), a_device("c"), a_device("d")),)
    names = {name: frozenset({name}) for name in "abcd"}
    loans = {
        "a": Loan(S.LENT, names["a"], names["a"]),
        "b": Loan(S.DRAINING, names["b"], names["b"], since=10.0),
        "c": Loan(S.CLOSING, names["c"], names["c"], since=18.0),
        "d": Loan(S.DRAINING, names["d"], names["d"], since=20.0),
    }
    noted = [LentUnit(unit=name, devices=(name,)) for name in "abcd"]
    found = look_at_loans(loans, facts(*noted, slices=slices, now=20.0))
    assert {unit: loan.state for unit, loan in found.loans.items()} == {u: x.state for u, x in loans.items()}
    assert found.again == 3.0


def test_a_loan_that_is_on_its_way_ends_where_its_slices_are_gone() -> None:
    """Made anew they have the taint; only what is lent after that may lack it."""
    loan = Loan(S.UNTAINTING, frozenset({"a"}), frozenset({"a"}))
    noted = LentUnit(unit="a", devices=("a",))
    other = a_slice(a_device("b"))
    for slices in ((), (other,)):
        assert look_at_loans({"a": loan}, facts(noted, slices=slices)).loans["a"].state is S.TAINTING


def test_devices_that_have_gone_to_another_unit_since_are_left_alone_with_it() -> None:
    slices = (a_slice(a_device("a", counters="new"), a_device("b", counters="new"), a_device("c")),)
    loans = {"old": Loan(S.DRAINING, frozenset({"a"}), frozenset({"a", "gone"}))}
    assert blocked_devices(loans, slices) == {"old", "a", "b", "gone"}
    assert blocked_devices({}, slices) == set()
