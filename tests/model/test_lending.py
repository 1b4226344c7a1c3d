"""Lending in every order of its steps, at small size: no device in two claims, and nothing gets stuck.

Each rule is shown to be needed: without it there is an order in which a device ends up in two claims.
"""

from dataclasses import replace

import pytest
from lending_model import Scenario, explore

from dra_driver.publishing.loans import LoanState

S = LoanState
# Loans, own allocations, kills, wipes of the slice, restarts of kube-scheduler, deallocations.
SMALL = {
    "another allocation": Scenario(one_unit=True, left=(1, 1, 0, 0, 0, 0)),
    "two devices": Scenario(left=(1, 1, 0, 0, 0, 0)),
    "a kill": Scenario(one_unit=True, left=(1, 0, 1, 0, 0, 0)),
    "the slice wiped": Scenario(one_unit=True, left=(1, 0, 0, 1, 0, 0)),
    "a loan before": Scenario(one_unit=True, before=True, left=(1, 1, 0, 0, 0, 0)),
    "several slices": Scenario(one_unit=True, several=True, left=(1, 1, 0, 0, 0, 0)),
}
LARGE = {
    "the slice wiped and another allocation": Scenario(one_unit=True, left=(1, 1, 0, 1, 0, 0)),
    "a kill and another allocation": Scenario(one_unit=True, left=(1, 1, 1, 0, 0, 0)),
    "two devices and a kill": Scenario(left=(1, 1, 1, 0, 0, 0)),
    "a kill and the slice wiped": Scenario(one_unit=True, left=(1, 0, 1, 1, 0, 0)),
    "kube-scheduler restarted, a claim deallocated": Scenario(one_unit=True, left=(1, 1, 0, 0, 1, 1)),
    "a kill after a loan before": Scenario(one_unit=True, before=True, left=(1, 1, 1, 0, 0, 0)),
    "several slices and a kill": Scenario(one_unit=True, several=True, left=(1, 0, 1, 0, 0, 0)),
    "several slices and a wipe": Scenario(one_unit=True, several=True, left=(1, 1, 0, 1, 0, 0)),
    "another loan": Scenario(one_unit=True, left=(2, 1, 0, 0, 0, 0)),
    "two borrowers and the slice wiped": Scenario(lent=(0, 1), borrowers=2, left=(1, 0, 1, 0, 0, 0)),
}
KILLED = Scenario(one_unit=True, left=(1, 1, 1, 0, 0, 0))
CALM = Scenario(one_unit=True, left=(1, 1, 0, 0, 0, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        # The long tests have kills and wipes in larger scenarios as well.
        pytest.param(
            scenario, id=name, marks=[pytest.mark.long] if name in ("a kill", "the slice wiped") else []
        )
        for name, scenario in SMALL.items()
    ],
)
def test_no_device_is_in_two_claims_and_nothing_is_stuck(scenario: Scenario) -> None:
    found = explore(scenario, back=True)
    assert not found.doubled, "\n".join(map(str, found.doubled))
    assert found.stuck == 0
    assert found.states > 5_000


@pytest.mark.long
@pytest.mark.parametrize("scenario", LARGE.values(), ids=LARGE)
def test_no_device_is_in_two_claims_whatever_else_happens(scenario: Scenario) -> None:
    found = explore(scenario)
    assert not found.doubled, "\n".join(map(str, found.doubled))
    assert found.states > 50_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "rule"),
    [
        (CALM, "policy"),
        (CALM, "closing"),
        (CALM, "consistent read"),
        # The shortest way to two claims is the longest of all.
        pytest.param(replace(KILLED, before=True), "real recalls", marks=pytest.mark.long),
        (KILLED, "at once"),
        (KILLED, "settling"),
        (KILLED, "first read"),
        (KILLED, "consistent list"),
    ],
)
def test_each_rule_is_needed(scenario: Scenario, rule: str) -> None:
    assert explore(replace(scenario, without=frozenset({rule}))).doubled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "left", "instead"),
    [
        # The taint goes before the note is stored.
        (KILLED, S.NOTING, S.UNTAINTING),
        # The unit is ours as soon as the taint is there.
        (CALM, S.DRAINING, S.OURS),
        # A time is waited for, and nothing is recalled.
        (CALM, S.RECALLING, S.READING),
        (CALM, S.CLOSING, S.READING),
        (CALM, S.READING, S.RETURNING),
    ],
)
def test_each_state_is_needed(scenario: Scenario, left: LoanState, instead: LoanState) -> None:
    assert explore(replace(scenario, skipped=((left, instead),))).doubled


@pytest.mark.slow
def test_the_drain_is_for_kube_schedulers_sake_alone() -> None:
    """Safety does not rest on a time that kube-scheduler is given: it may write as late as it likes."""
    assert not explore(replace(CALM, skipped=((S.DRAINING, S.RECALLING),))).doubled
