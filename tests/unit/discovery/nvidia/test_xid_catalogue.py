"""The table of XIDs: complete, as NVIDIA's catalogue has it, and no tenant can use one against others."""

from __future__ import annotations

import json

import hardware_support as hw
import pytest

from dra_driver.discovery.nvidia.xids import (
    ROWS,
    SOURCE,
    UNKNOWN_SECONDS,
    Effect,
    Ends,
    meaning_of_xid,
)

RECORDED = json.loads((hw.GOLDEN / "xids.json").read_text())
ACTIONS = {int(code): action for code, (_, action) in RECORDED["xids"].items()}
EFFECTS = {code: row.effect for row in ROWS for code in row.numbers}

# What a program brings about by itself, and a few that NVIDIA's own drivers skip: 13, 31, 43, 45, 68.
OF_PROGRAMS = (11, 25, *range(75, 78), *range(82, 87), 88, 89, *range(96, 106), *range(126, 136), 139)


def test_every_code_of_the_catalogue_is_in_the_table_once() -> None:
    codes = [code for row in ROWS for code in row.numbers]
    assert sorted(codes) == list(range(1, 173))
    assert sorted(codes) == sorted(ACTIONS)
    assert RECORDED["source"] == SOURCE


def test_the_advised_action_is_that_of_the_catalogue() -> None:
    assert {code: row.action for row in ROWS for code in row.numbers} == ACTIONS


def test_the_recordings_say_the_same() -> None:
    compiled = json.loads(hw.recording("nvidia/xids.json").read_text())["xids"]
    assert len(compiled) > 50
    assert {int(c): x["action"] or "" for c, x in compiled.items()} == {
        int(c): ACTIONS[int(c)] for c in compiled
    }


@pytest.mark.parametrize("number", OF_PROGRAMS)
def test_a_programs_own_fault_keeps_nobody_from_the_gpu(number: int) -> None:
    assert meaning_of_xid(number).severity == "info"


def test_the_faults_of_programs_are_thirty_three_more_than_before() -> None:
    assert len(OF_PROGRAMS) == 33


@pytest.mark.parametrize("number", [14, 107, 108, 152, 153])
def test_what_is_to_be_ignored_makes_no_condition(number: int) -> None:
    assert meaning_of_xid(number).severity == ""


def test_the_effect_follows_the_action_but_for_those_that_are_explained() -> None:
    expected = {
        "RESTART_APP": {Effect.APPLICATION},
        "IGNORE": {Effect.IGNORE},
        "RESET_GPU": {Effect.RESET, Effect.FAILED, Effect.DRIVER},
        "RESTART_BM": {Effect.FAILED},
        "CHECK_MECHANICALS": {Effect.FAILED},
        "WORKFLOW_XID_48": {Effect.RESET},
        "WORKFLOW_NVLINK_ERR": {Effect.DRIVER},
        "WORKFLOW_NVLINK5_ERR": {Effect.DRIVER},
        "RESTART_VM": {Effect.RESET},
        "UPDATE_SWFW": {Effect.RESET},
        "CONTACT_SUPPORT": {Effect.DOUBT},
        "CHECK_UVM": {Effect.DOUBT},
        "XID_154": {Effect.IGNORE},
    }
    otherwise = {
        code: effect
        for code, effect in EFFECTS.items()
        if ACTIONS[code] and effect not in expected.get(ACTIONS[code], set())
    }
    assert otherwise == dict.fromkeys((43, 45, 47, 65, 73, 137, 142), Effect.APPLICATION)


def test_nothing_that_a_program_may_have_caused_evicts_or_stays_for_good() -> None:
    """Only hardware that is broken evicts; what may be a program's ends by the driver's own word."""
    doubtful = [c for c, e in EFFECTS.items() if e in (Effect.DRIVER, Effect.DOUBT)]
    assert {74, 109, 155, *range(144, 151)} <= set(doubtful)
    for code in (*doubtful, 173, 100_000):
        meaning = meaning_of_xid(code)
        assert meaning.severity == "degraded"
        assert meaning.verdicts >= 565
        assert meaning.ends is Ends.RESET or meaning.seconds == UNKNOWN_SECONDS


def test_a_codes_driver_branch_is_known_where_the_driver_is_to_judge() -> None:
    assert {r.summed_up for r in ROWS if r.effect is Effect.DRIVER} == {565, 570}
