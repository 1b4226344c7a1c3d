"""Rounds of preemption as a table, and the rate of victims: plain rules."""

from __future__ import annotations

import itertools

import pytest
from nonempty import nonempty

from controller.allocate.preempting.rate import VictimRate
from controller.allocate.preempting.rounds import TABLE, Effect, Event, State, step

ENDS = (Event.SERVED, Event.CHANGED, Event.GONE, Event.TIMED_OUT, Event.OTHER)


def test_nobody_is_removed_before_the_decision_is_written_down_or_found_again() -> None:
    removing = {pair for pair, (_, effects) in TABLE.items() if Effect.REMOVE in effects}
    assert removing == {(State.RECORDING, Event.RECORDED), (State.FOUND, Event.SAME)}


def test_what_is_removed_for_a_pod_is_set_aside_for_it_first() -> None:
    for effects in nonempty(effects for _, effects in TABLE.values() if Effect.REMOVE in effects):
        assert effects.index(Effect.SET_ASIDE) < effects.index(Effect.REMOVE)


@pytest.mark.long
def test_whatever_happens_a_round_removes_once_and_rests_until_its_time_out() -> None:
    """All sequences of five events, from the beginning and from what a process before this one has left."""
    for start in (State.RECORDING, State.FOUND):
        for events in itertools.product(Event, repeat=5):
            state, removals, set_aside, removing_ended = start, 0, start is State.FOUND, False
            for event in events:
                before = state
                state, effects = step(state, event)
                removals += Effect.REMOVE in effects
                set_aside = (set_aside or Effect.SET_ASIDE in effects) and Effect.RELEASE not in effects
                if before is State.REMOVING and state is not State.REMOVING:
                    removing_ended = True
                if removing_ended:
                    assert state is not State.REMOVING, events
                if before is State.RESTING:
                    assert state in (State.RESTING, State.OVER)
                if state in (State.RESTING, State.OVER):
                    assert not set_aside, events
                if before is not State.OVER and state is State.OVER:
                    assert event in (Event.GONE, Event.TIMED_OUT, Event.NOT_RECORDED)
            assert removals <= 1, events


@pytest.mark.parametrize("killed", list(State))
def test_a_process_that_is_killed_in_any_state_is_gone_on_from_what_is_written_down(killed: State) -> None:
    """What the next process begins with: FOUND where the record is open, RESTING where it is closed."""
    if killed in (State.RECORDING, State.OVER):
        return  # nothing has been removed, or nothing is to be
    start = State.RESTING if killed is State.RESTING else State.FOUND
    for events in itertools.product(Event, repeat=3):
        state = start
        for event in events:
            state, effects = step(state, event)
            # Nobody is removed but by the same answer to the same question.
            assert (Effect.REMOVE not in effects) or event is Event.SAME
            if start is State.RESTING:
                assert Effect.REMOVE not in effects


def test_every_round_that_goes_on_can_end_in_every_way() -> None:
    for state in (State.RECORDING, State.REMOVING, State.WAITING, State.FOUND):
        for event in (Event.SERVED, Event.CHANGED, Event.GONE, Event.TIMED_OUT):
            after, effects = step(state, event)
            assert after in (State.RESTING, State.OVER)
            assert Effect.RELEASE in effects


def test_a_large_round_may_begin_and_is_paid_for_afterwards() -> None:
    rate = VictimRate(10, now=0.0)
    assert rate.wait(0.0) == 0
    rate.take(25, 0.0)
    assert rate.wait(0.0) == pytest.approx(90.0)
    assert rate.wait(60.0) == pytest.approx(30.0)
    assert rate.wait(90.1) == 0
    rate.take(10, 600.0)
    assert rate.wait(606.0) == 0, "what was not used is not saved up beyond a minute's worth"


def test_over_hours_no_more_are_removed_than_the_rate_says() -> None:
    rate, now, removed = VictimRate(10, now=0.0), 0.0, 0
    for number in range(2_000):
        size = 1 + number % 8
        now += rate.wait(now) + 0.5
        rate.take(size, now)
        removed += size
    assert removed <= 10 * (now / 60 + 1) + 8
