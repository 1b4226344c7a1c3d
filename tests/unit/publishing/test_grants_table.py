"""Grants and the guard as tables: what leads back to the controller, and of which kind a pool is."""

from __future__ import annotations

import itertools

import pytest

from dra_driver.publishing.grants import (
    GRANT_TRANSITIONS,
    GUARD_TRANSITIONS,
    Grant,
    GrantEffect,
    GrantEvent,
    GrantState,
    Guard,
    GuardEffect,
    GuardEvent,
    GuardState,
    PoolKind,
    advance_grant,
    advance_guard,
    grant_stored,
    guard_stored,
    kind_of,
    may_allocate,
)

S, E, F = GrantState, GrantEvent, GrantEffect
G, H, D = GuardState, GuardEvent, GuardEffect


def granted() -> Grant:
    claims = {"c": frozenset({"gpu-0"}), "d": frozenset({"gpu-0", "gpu-1"})}
    grant, effects = advance_grant(Grant(claims=claims), E.GRANT, 1.0)
    assert effects == (F.BLOCK, F.WRITE)
    return grant_stored(grant, grant.turn, 2.0)


def test_a_grant_ends_by_a_write_a_time_and_a_read() -> None:
    grant = granted()
    assert (grant.state, grant.devices) == (S.GRANTED, frozenset({"gpu-0", "gpu-1"}))
    grant, effects = advance_grant(grant, E.END, 3.0)
    assert effects == (F.WRITE,)
    grant = grant_stored(grant, grant.turn, 4.0)
    assert (grant.state, grant.since) == (S.CLOSING, 4.0)
    grant, effects = advance_grant(grant, E.TIME_OVER, 9.0)
    assert (grant.state, grant.since, effects) == (S.READING, 0.0, (F.READ_CLAIMS,))
    grant, effects = advance_grant(grant, E.CLAIMS_SEEN, 10.0)
    assert (grant, effects) == (Grant(turn=2), (F.UNBLOCK,))


def test_the_answer_to_an_earlier_write_does_not_count() -> None:
    first, _ = advance_grant(Grant(), E.GRANT, 0.0)
    ending, _ = advance_grant(first, E.END, 0.0)
    assert grant_stored(ending, first.turn, 0.0) is ending
    assert grant_stored(ending, ending.turn, 0.0).state is S.CLOSING
    guard = Guard()
    proving = guard_stored(guard, guard.turn, 0.0)
    again, _ = advance_guard(proving, H.FAILED, 0.0)
    assert guard_stored(again, guard.turn, 0.0) is again
    assert guard_stored(again, again.turn, 0.0).state is G.PROVING


def test_only_a_read_after_the_end_leads_back_to_the_controller() -> None:
    for (state, event), move in GRANT_TRANSITIONS.items():
        if state.blocked and not move.state.blocked:
            assert (state, event) == (S.READING, E.CLAIMS_SEEN)
            assert F.UNBLOCK in move.effects
        if move.state.blocked and not state.blocked:
            assert move.effects[0] is F.BLOCK


def test_only_a_proof_and_a_read_put_the_guard_in_force() -> None:
    """Whatever comes in which order: each step asks for what it needs."""
    need = (H.STORED, H.PROVED, H.TIME_OVER, H.CLAIMS_SEEN)
    for events in itertools.product(H, repeat=5):
        guard, since = Guard(), -1
        for number, event in enumerate(events):
            guard, _ = advance_guard(guard, event, 0.0)
            since = number if event is H.FAILED else since
        if guard.state is G.IN_FORCE:
            left = iter(events[since + 1 :])
            assert all(one in left for one in need)


@pytest.mark.parametrize("state", [G.PROVING, G.CLOSING, G.READING, G.IN_FORCE])
def test_a_failure_begins_anew_and_ends_grants_that_were_good(state: GuardState) -> None:
    move = GUARD_TRANSITIONS[state, H.FAILED]
    assert move.state is G.WRITING
    assert D.WRITE in move.effects
    assert ({D.BLOCK, D.END_GRANTS} <= {*move.effects}) == (state is G.IN_FORCE)


def test_the_controller_allocates_where_nothing_is_against_it() -> None:
    for guard, pool, unit in itertools.product(G, S, S):
        allowed = may_allocate(Guard(guard), Grant(pool), Grant(unit))
        assert allowed == ((guard, pool, unit) == (G.IN_FORCE, S.OURS, S.OURS))


@pytest.mark.parametrize(
    ("ours", "taints", "gates", "policy", "kind"),
    [
        (True, True, True, True, PoolKind.OPEN),
        (True, False, True, True, PoolKind.OPEN),
        (True, True, True, False, PoolKind.TAINTED),
        (True, True, False, True, PoolKind.TAINTED),
        (True, False, False, True, PoolKind.SCHEDULER),
        (True, False, True, False, PoolKind.SCHEDULER),
        (False, True, True, True, PoolKind.SCHEDULER),
    ],
)
def test_pools_are_open_where_policy_and_gate_allow_it(
    ours: bool, taints: bool, gates: bool, policy: bool, kind: PoolKind
) -> None:
    assert kind_of(ours=ours, taints=taints, gates=gates, policy=policy) is kind
