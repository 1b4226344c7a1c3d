"""The tables of publishing: every state has an answer to every event, and the answers keep the rules."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import pytest

from dra_driver.api.own.inventory import Publication, Registration
from dra_driver.ownership import AllocatorRecord, PoolAllocator, lacks_slices
from dra_driver.publishing.epochs import (
    EPOCH_TRANSITIONS,
    EpochEffect,
    EpochEvent,
    EpochState,
    asks_again,
    confirmed,
    epoch_state,
)
from dra_driver.publishing.freeze import (
    FREEZE_TRANSITIONS,
    Freeze,
    FreezeEffect,
    FreezeEvent,
    FreezeState,
)
from dra_driver.publishing.handover import (
    HANDOVER_TRANSITIONS,
    HandoverEffect,
    HandoverEvent,
    HandoverState,
    takes_over,
)
from dra_driver.publishing.tables import Transition

WRITES = {EpochEffect.WRITE_SLICES, EpochEffect.UPDATE_SLICES}


@pytest.mark.parametrize(
    ("table", "states", "events"),
    [
        (EPOCH_TRANSITIONS, EpochState, EpochEvent),
        (HANDOVER_TRANSITIONS, HandoverState, HandoverEvent),
        (FREEZE_TRANSITIONS, FreezeState, FreezeEvent),
    ],
)
def test_every_state_has_an_answer_to_every_event(
    table: Mapping[tuple[Enum, Enum], Transition[Any, Any]], states: type[Enum], events: type[Enum]
) -> None:
    assert set(table) == {(state, event) for state in states for event in events}
    for (state, _), move in table.items():
        assert isinstance(move.state, type(state))


# --- epochs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pair", "move"), EPOCH_TRANSITIONS.items())
def test_slices_are_written_only_where_it_is_known_what_there_is_and_noted_afterwards(
    pair: tuple[EpochState, EpochEvent], move: Transition[EpochState, EpochEffect]
) -> None:
    state, event = pair
    effects = list(move.effects)
    if EpochEffect.WRITE_SLICES in effects:
        assert event is EpochEvent.LOOK
        assert state in (EpochState.ASKED, EpochState.BEGUN, EpochState.PUBLISHED)
    if state is EpochState.ASKED and WRITES & set(effects):
        assert effects[0] is EpochEffect.NOTE_ATTEMPT
    written = next((i for i, e in enumerate(effects) if e in WRITES), None)
    if written is not None:
        assert effects.index(EpochEffect.NOTE_ALLOCATOR) < written
        assert written < effects.index(EpochEffect.NOTE_PUBLICATION)
        # Out of the record first: else the deletion would read as one by the kubelet.
        assert effects.index(EpochEffect.NOTE_PUBLICATION) < effects.index(EpochEffect.DELETE_STALE)
    if event not in (EpochEvent.LOOK, EpochEvent.LOOK_UNREGISTERED):
        assert set(effects) <= {EpochEffect.FORGET_ATTEMPT}


def test_what_was_begun_counts_no_more_when_slices_may_be_there_or_gone_unseen() -> None:
    """Else a slice would be created a second time, after the kubelet has deleted it for a dead plugin."""
    forgets = {p for p, move in EPOCH_TRANSITIONS.items() if EpochEffect.FORGET_ATTEMPT in move.effects}
    assert forgets == {
        (EpochState.BEGUN, EpochEvent.UNANSWERED),
        (EpochState.BEGUN, EpochEvent.SLICE_DELETED),
        (EpochState.PUBLISHED, EpochEvent.SLICE_DELETED),
        *((state, EpochEvent.INVENTORY_DELETED) for state in EpochState),
    }


@pytest.mark.parametrize("state", [EpochState.UNPUBLISHED, EpochState.VANISHED])
@pytest.mark.parametrize("event", [EpochEvent.LOOK, EpochEvent.LOOK_UNREGISTERED])
def test_what_is_gone_stays_away_until_the_plugin_asks(state: EpochState, event: EpochEvent) -> None:
    assert EPOCH_TRANSITIONS[state, event].effects == ()


@pytest.mark.parametrize(
    ("registration", "publication", "begun", "present", "state"),
    [
        ((False, 0), (0, 0), 0, (), EpochState.UNPUBLISHED),
        ((False, 3), (0, 3), 0, (), EpochState.UNPUBLISHED),
        ((True, 1), (0, 0), 0, (), EpochState.ASKED),
        ((True, 2), (1, 1), 1, ("s",), EpochState.ASKED),
        ((True, 2), (1, 2), 0, ("s",), EpochState.UNCERTAIN),
        ((True, 2), (1, 2), 2, (), EpochState.BEGUN),
        ((True, 2), (2, 2), 2, ("s",), EpochState.PUBLISHED),
        ((True, 2), (2, 2), 0, (), EpochState.VANISHED),
        # The plugin is gone: what there is stays, what vanishes stays away.
        ((False, 3), (2, 2), 0, ("s",), EpochState.PUBLISHED),
        ((False, 3), (2, 2), 0, (), EpochState.VANISHED),
    ],
)
def test_how_far_a_publication_is_follows_from_the_record(
    registration: tuple[bool, int],
    publication: tuple[int, int],
    begun: int,
    present: Sequence[str],
    state: EpochState,
) -> None:
    registered, asked = registration
    epoch, attempted = publication
    record = Publication(epoch=epoch, attempted=attempted, slices=("s",))
    held = Registration(registered=registered, epoch=asked)
    assert epoch_state(held, record, begun=begun, present=present) is state


def test_only_a_confirmation_of_the_kubelet_raises_the_epoch() -> None:
    held = Registration(registered=True, epoch=3)
    assert confirmed(held, registered=None, anew=False) == held
    assert confirmed(held, registered=False, anew=False) == Registration(registered=False, epoch=3)
    assert confirmed(held, registered=None, anew=True) == Registration(registered=True, epoch=4)
    away = Registration(registered=False, epoch=3)
    assert confirmed(away, registered=None, anew=False) == away
    assert confirmed(away, registered=True, anew=True) == Registration(registered=True, epoch=4)
    assert asks_again(held) == Registration(registered=True, epoch=4)


@pytest.mark.parametrize(
    ("registration", "epoch", "present", "lacks"),
    [
        ((True, 2), 2, (), True),
        ((True, 2), 2, ("s",), False),
        ((False, 2), 2, (), False),
        ((True, 3), 2, (), False),  # it has asked already
        ((True, 2), 3, (), False),
    ],
)
def test_slices_are_asked_for_again_that_are_gone_in_this_epoch(
    registration: tuple[bool, int], epoch: int, present: Sequence[str], lacks: bool
) -> None:
    registered, asked = registration
    held = Registration(registered=registered, epoch=asked)
    assert lacks_slices(held, Publication(epoch=epoch, slices=("s",)), present) is lacks


# --- handover -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pair", "move"), HANDOVER_TRANSITIONS.items())
def test_the_allocator_learns_of_every_pool_that_it_loses_or_gets(
    pair: tuple[HandoverState, HandoverEvent], move: Transition[HandoverState, HandoverEffect]
) -> None:
    before, after = pair[0].blocked, move.state.blocked
    assert (HandoverEffect.BLOCK in move.effects) is (after and not before)
    assert (HandoverEffect.UNBLOCK in move.effects) is (before and not after)


def predecessors(state: HandoverState) -> set[tuple[HandoverState, HandoverEvent]]:
    return {
        pair for pair, move in HANDOVER_TRANSITIONS.items() if move.state is state and pair[0] is not state
    }


def test_the_controller_gets_a_pool_of_kube_scheduler_only_drained_and_noted() -> None:
    assert predecessors(HandoverState.GRANTED) == {(HandoverState.DRAINING, HandoverEvent.CLAIMS_SEEN)}
    assert {state for state, _ in predecessors(HandoverState.DRAINING)} == {HandoverState.TAINTING}
    assert predecessors(HandoverState.CONTROLLER) == {
        # After a restart: what was drained before, or what kube-scheduler could never allocate from.
        (HandoverState.UNKNOWN, HandoverEvent.NOTED_CONTROLLER),
        (HandoverState.UNKNOWN, HandoverEvent.TAINTED),
        (HandoverState.UNKNOWN, HandoverEvent.CONTROLLER_WANTED),
        (HandoverState.UNKNOWN, HandoverEvent.OPEN_WANTED),
        (HandoverState.GRANTED, HandoverEvent.NOTED_CONTROLLER),
        (HandoverState.YIELDING, HandoverEvent.CONTROLLER_WANTED),
        (HandoverState.YIELDING, HandoverEvent.REFUSED),
        (HandoverState.YIELDING, HandoverEvent.OPEN_WANTED),
    }


def test_a_pool_is_open_only_where_others_are_refused_or_it_was_noted() -> None:
    """What is noted is no right to allocate: that needs the policy to be in force (``PoolGates``)."""
    assert predecessors(HandoverState.OPEN) == {
        (HandoverState.UNKNOWN, HandoverEvent.NOTED_OPEN),
        (HandoverState.CONTROLLER, HandoverEvent.NOTED_OPEN),
        (HandoverState.CONTROLLER, HandoverEvent.OPEN_WANTED),
        (HandoverState.WITHDRAWING, HandoverEvent.OPEN_WANTED),
    }
    # What is open no more goes all the way of a pool of kube-scheduler.
    assert {
        move.state for (state, _), move in HANDOVER_TRANSITIONS.items() if state is HandoverState.WITHDRAWING
    } == {
        HandoverState.WITHDRAWING,
        HandoverState.OPEN,
        HandoverState.SCHEDULER,
        HandoverState.TAINTING,  # another process has noted that it goes to the controller
        HandoverState.UNKNOWN,
    }


def test_kube_scheduler_gets_a_pool_of_the_controller_only_when_it_has_stopped_for_long_enough() -> None:
    assert predecessors(HandoverState.YIELDING) == {
        (HandoverState.CONTROLLER, HandoverEvent.SCHEDULER_WANTED)
    }
    assert {state for state, _ in predecessors(HandoverState.WITHDRAWING)} == {HandoverState.OPEN}
    given = {
        event
        for state, event in predecessors(HandoverState.SCHEDULER)
        if state in (HandoverState.CONTROLLER, HandoverState.YIELDING, HandoverState.OPEN)
        or state is HandoverState.WITHDRAWING
    }
    # A note of it is somebody else's, of a node agent that has taken the pool over.
    assert given == {HandoverEvent.TIME_OVER, HandoverEvent.NOTED_SCHEDULER}
    assert (
        HANDOVER_TRANSITIONS[HandoverState.CONTROLLER, HandoverEvent.TIME_OVER].state
        is HandoverState.CONTROLLER
    )


@pytest.mark.parametrize("note", [HandoverEvent.NOTED_CONTROLLER, HandoverEvent.NOTED_DRAINING])
def test_a_note_that_is_older_than_a_handover_takes_nothing_back(note: HandoverEvent) -> None:
    """The policy changes twice before the informer shows that ``scheduler`` was noted."""
    state = HandoverState.SCHEDULER
    for event in (note, HandoverEvent.UNTAINTED, HandoverEvent.CONTROLLER_WANTED):
        state = HANDOVER_TRANSITIONS[state, event].state
    assert state is HandoverState.NOTING


@pytest.mark.parametrize("state", HandoverState)
def test_slices_are_tainted_unless_kube_scheduler_allocates_from_them(state: HandoverState) -> None:
    tainted = state.allocator is PoolAllocator.CONTROLLER
    assert tainted is (state.record is not AllocatorRecord.SCHEDULER)
    assert state.record is not AllocatorRecord.NONE
    if state.timed:
        assert state.blocked
        assert tainted


@pytest.mark.parametrize("state", HandoverState)
def test_a_refusal_takes_no_pool_from_the_controller(state: HandoverState) -> None:
    after = HANDOVER_TRANSITIONS[state, HandoverEvent.REFUSED].state
    if state.open:
        # It needs its taint, and is on its way there.
        assert after is HandoverState.WITHDRAWING
        return
    ours = state in (HandoverState.CONTROLLER, HandoverState.YIELDING)
    assert after is (HandoverState.CONTROLLER if ours else HandoverState.SCHEDULER)


def test_an_agent_waits_for_a_controller_as_long_as_it_was_told_to() -> None:
    for record in (AllocatorRecord.NONE, AllocatorRecord.SCHEDULER):
        assert takes_over(record, None, 100.0, 120.0)
    for record in (AllocatorRecord.DRAINING, AllocatorRecord.CONTROLLER):
        assert not takes_over(record, None, 1000.0, 120.0)
        assert not takes_over(record, 900.0, 1019.0, 120.0)
        assert takes_over(record, 900.0, 1020.0, 120.0)


# --- freeze -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pair", "move"), FREEZE_TRANSITIONS.items())
def test_the_allocator_learns_of_every_pool_that_is_frozen_or_opened(
    pair: tuple[FreezeState, FreezeEvent], move: Transition[FreezeState, FreezeEffect]
) -> None:
    before, after = Freeze(pair[0]).blocked, Freeze(move.state).blocked
    assert (FreezeEffect.BLOCK in move.effects) is (after and not before)
    assert (FreezeEffect.UNBLOCK in move.effects) is (before and not after)


def test_a_pool_that_is_being_written_is_opened_by_the_end_of_the_writes_alone() -> None:
    opened = {
        event
        for event in FreezeEvent
        if FREEZE_TRANSITIONS[FreezeState.WRITING, event].state is FreezeState.OPEN
    }
    assert opened == {FreezeEvent.WRITTEN}
