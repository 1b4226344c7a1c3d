"""Grants and the policy in every order of their steps, at small size: no double, and always a way back.

Each rule is shown to be needed: without it there is an order in which a device ends up in two claims.
"""

from __future__ import annotations

import pytest
from grants_model import Left, Scenario, explore

from dra_driver.publishing.grants import GrantState, GuardState

S, G = GrantState, GuardState
# Grants, own allocations, kills, restarts of kube-scheduler, deallocations, losses of the policy, changes of
# the allocator.
CALM: Left = (1, 1, 0, 0, 0, 0, 0)
KILL: Left = (1, 1, 1, 0, 0, 0, 0)
GONE: Left = (0, 1, 0, 0, 0, 1, 0)
GONE_AND_RESTART: Left = (1, 0, 0, 1, 0, 1, 0)
HANDOVER: Left = (0, 1, 0, 0, 0, 0, 1)

SMALL = {
    "a kill": Scenario(left=KILL),
    "a kill, two devices of a unit": Scenario(devices=2, left=KILL),
    "kube-scheduler restarted, a claim deallocated": Scenario(left=(1, 1, 0, 1, 1, 0, 0)),
    "two grants and a kill": Scenario(left=(2, 0, 1, 0, 0, 0, 0)),
    "a change of the allocator and a kill": Scenario(left=(0, 1, 1, 0, 0, 0, 1)),
    "a change of the allocator, two devices of a unit": Scenario(devices=2, left=(0, 1, 1, 0, 0, 0, 1)),
    "changes of the form and of the allocator": Scenario(devices=2, changes=1, left=(0, 1, 0, 0, 0, 0, 1)),
    "the policy gone": Scenario(left=GONE),
}
LARGE = {
    "own allocations, a kill, a claim deallocated": Scenario(left=(1, 2, 1, 0, 1, 0, 0)),
    "two kills": Scenario(left=(1, 1, 2, 0, 0, 0, 0)),
    "the policy gone, a grant and an allocation": Scenario(left=(1, 1, 0, 0, 0, 1, 0)),
    "the policy gone, a grant, and kube-scheduler restarted": Scenario(left=GONE_AND_RESTART),
    "the policy gone and a kill": Scenario(left=(0, 1, 1, 0, 0, 1, 0)),
    "the policy gone, a grant and a kill": Scenario(left=(1, 1, 1, 0, 0, 1, 0)),
    "the policy gone and a change of the allocator": Scenario(left=(0, 1, 0, 0, 0, 1, 1)),
    "changes of the allocator, a claim deallocated": Scenario(left=(0, 1, 1, 0, 1, 0, 2)),
    "a grant and a change of the allocator": Scenario(left=(1, 1, 1, 0, 0, 0, 1)),
    "changes of the form and of the allocator, a kill": Scenario(
        devices=2, changes=1, left=(0, 1, 1, 0, 0, 0, 1)
    ),
    "changes of the form and of the allocator, a claim deallocated": Scenario(
        devices=2, changes=1, left=(0, 1, 0, 0, 1, 0, 2)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SMALL.values(), ids=SMALL)
def test_no_device_is_in_two_claims_and_nothing_is_stuck(scenario: Scenario) -> None:
    found = explore(scenario, back=True)
    assert not found.doubled, "\n".join(map(str, found.doubled))
    assert found.stuck == 0
    assert found.states > 1_000


@pytest.mark.long
@pytest.mark.parametrize("scenario", LARGE.values(), ids=LARGE)
def test_no_device_is_in_two_claims_whatever_else_happens(scenario: Scenario) -> None:
    found = explore(scenario, back=True)
    assert not found.doubled, "\n".join(map(str, found.doubled))
    assert found.stuck == 0
    assert found.states > 3_000


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("policy", CALM),
        ("closing", CALM),
        ("consistent read", CALM),
        # Nothing of its own is under way when the controller grants something.
        ("own writes", CALM),
        # The end of a grant changes the object even where it has none.
        ("real writes", KILL),
        # A process that starts has to prove the policy and read the claims.
        ("guard", KILL),
        # Nothing that a process before has sent can come any more.
        ("settling", KILL),
        # A policy that is not there is not proved.
        ("proof", GONE),
        # A policy that is gone is noticed.
        ("watch", GONE),
        # Then grants end: their devices may have gone to others.
        pytest.param("end of grants", GONE_AND_RESTART, marks=pytest.mark.long),
        # What is allocated in a pool that becomes kube-scheduler's is kept from it.
        ("kept", HANDOVER),
    ],
)
def test_each_rule_is_needed(rule: str, left: Left) -> None:
    assert explore(Scenario(left=left, without=frozenset({rule}))).doubled


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        # With a device, all that exclude it are kept.
        ("excluded", 0),
        # What is not published is not admitted.
        ("forms", 1),
    ],
)
def test_each_rule_about_forms_is_needed(rule: str, changes: int) -> None:
    scenario = Scenario(devices=2, changes=changes, left=HANDOVER, without=frozenset({rule}))
    assert explore(scenario).doubled


@pytest.mark.parametrize(
    ("from_", "to", "left"),
    [
        (S.ENDING, S.CLOSING, CALM),
        (S.CLOSING, S.READING, CALM),
        (S.READING, S.OURS, CALM),
        (G.WRITING, G.PROVING, KILL),
        (G.CLOSING, G.READING, KILL),
        (G.READING, G.IN_FORCE, KILL),
    ],
)
def test_each_state_is_needed(
    from_: GrantState | GuardState, to: GrantState | GuardState, left: Left
) -> None:
    assert explore(Scenario(left=left, skipped=((from_, to),))).doubled


@pytest.mark.parametrize(("from_", "to"), [(S.GRANTING, S.GRANTED), (G.PROVING, G.CLOSING)])
def test_what_no_safety_rests_on(from_: GrantState | GuardState, to: GrantState | GuardState) -> None:
    """Before its grant is stored kube-scheduler is refused; a trial shows what reading the policy cannot."""
    for left in (CALM, KILL, GONE):
        assert not explore(Scenario(left=left, skipped=((from_, to),))).doubled
