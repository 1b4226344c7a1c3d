"""How conditions of NVIDIA GPUs begin and end."""

from __future__ import annotations

import pytest
from nonempty import nonempty

from dra_driver.discovery.nvidia.conditions import Conditions, HealthReading
from dra_driver.discovery.nvidia.xids import (
    APPLICATION_SECONDS,
    UNKNOWN_SECONDS,
    VERDICT_SECONDS,
    XIDS,
    meaning_of_xid,
)

XID = 0x8
GPU = "GPU-0"


class Scenario:
    """Conditions on a clock that the test moves."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.conditions = Conditions(lambda: self.time)

    def xid(self, number: int, instance: int = 0xFFFFFFFF) -> None:
        assert self.conditions.event(GPU, XID, number, instance) is not None

    def reasons(self, uuid: str = GPU) -> list[tuple[str, str]]:
        return [(h.reason, h.severity) for h in self.conditions.health(uuid)]

    def poll(self, **reading: object) -> None:
        self.conditions.poll(GPU, HealthReading(**reading))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "severity"),
    [
        (31, "info"),
        (94, "info"),
        (43, "info"),
        (48, "degraded"),
        (74, "degraded"),
        (79, "failed"),
        (95, "failed"),
    ],
)
def test_each_class_of_xid_has_its_severity(number: int, severity: str) -> None:
    world = Scenario()
    world.xid(number)
    assert world.reasons() == [(f"Xid{number}", severity)]
    assert world.reasons("GPU-1") == []


def test_xids_of_no_consequence_are_reported_but_make_no_condition() -> None:
    world = Scenario()
    event = world.conditions.event(GPU, XID, 63)
    assert event is not None
    assert (event.code, event.severity) == (63, "")
    assert world.reasons() == []


def test_errors_of_applications_expire() -> None:
    world = Scenario()
    world.xid(31)
    world.time += APPLICATION_SECONDS - 1
    assert world.reasons() == [("Xid31", "info")]
    world.xid(31)  # again: counted from now, but it is no news
    before = world.conditions.health(GPU)
    world.time += APPLICATION_SECONDS - 1
    assert world.conditions.health(GPU) == before
    world.time += 1
    assert world.reasons() == []


def test_an_unknown_xid_is_taken_seriously_for_a_while() -> None:
    world = Scenario()
    world.xid(999)
    assert world.reasons() == [("Xid999", "degraded")]
    world.time += UNKNOWN_SECONDS
    assert world.reasons() == []


@pytest.mark.parametrize(("number", "branch"), [(109, 570), (145, 565), (999, 565)])
def test_what_may_be_a_programs_ends_by_the_drivers_word(number: int, branch: int) -> None:
    world = Scenario()
    world.xid(number)
    world.time += VERDICT_SECONDS - 1
    world.poll(recovery_action=0, branch=branch)
    assert world.reasons() == [(f"Xid{number}", "degraded")], "not so soon after the error"
    world.xid(number)
    world.time += VERDICT_SECONDS - 1
    world.poll(recovery_action=0, branch=branch)
    assert world.reasons() == [(f"Xid{number}", "degraded")], "counted from the last one"
    world.time += 1
    for unknown in ({"branch": branch}, {"recovery_action": 0}, {"recovery_action": 0, "branch": branch - 1}):
        world.poll(**unknown)
        assert world.reasons() == [(f"Xid{number}", "degraded")], "the driver does not say it"
    world.poll(recovery_action=0, branch=branch)
    assert world.reasons() == []


@pytest.mark.parametrize("number", [46, 48, 79, 95, 110, 119, 140])
def test_what_is_the_hardwares_stays_whatever_the_driver_asks_for(number: int) -> None:
    world = Scenario()
    world.xid(number)
    world.time += 100 * VERDICT_SECONDS
    world.poll(recovery_action=0, branch=999)
    assert [reason for reason, _ in world.reasons()] == [f"Xid{number}"]


def test_a_verdict_of_the_driver_counts_from_the_last_error_in_a_new_process_too() -> None:
    world = Scenario()
    world.xid(109)
    world.time += VERDICT_SECONDS - 100
    world.xid(109)
    kept = world.conditions.memory("")
    world.conditions = Conditions(lambda: world.time)
    world.conditions.recall(kept, "")
    world.time += 200
    world.poll(recovery_action=0, branch=570)
    assert world.reasons() == [("Xid109", "degraded")]
    world.time += VERDICT_SECONDS - 200
    world.poll(recovery_action=0, branch=570)
    assert world.reasons() == []


def test_a_program_that_repeats_its_fault_has_it_written_once_a_minute() -> None:
    """A new process knows of it all the same, if for a minute less."""
    world = Scenario()
    written: set[bytes] = set()
    for _ in range(600):
        world.xid(31)
        world.conditions.event("GPU-1", XID, 13)
        kept = world.conditions.memory("")
        written.add(kept)
        world.time += 0.5
    assert len(written) == 5, "five minutes"
    world.conditions = Conditions(lambda: world.time)
    world.conditions.recall(kept, "")
    world.time += APPLICATION_SECONDS - 61
    assert world.reasons() == [("Xid31", "info")]


def test_a_new_error_is_written_at_once_however_often_another_one_comes() -> None:
    world = Scenario()
    world.xid(31)
    before = world.conditions.memory("")
    world.time += 0.5
    world.xid(31)
    world.xid(79)
    after = world.conditions.memory("")
    assert b"Xid79" in after
    assert b"Xid79" not in before


def test_what_an_older_version_took_for_more_than_it_is_does_not_outlive_the_update() -> None:
    world = Scenario()
    old = b'{"gpus":{"GPU-0":{"entries":{%s}}}}' % b",".join(
        b'"Xid%d":{"severity":"degraded","message":"XID %d: unknown","reset":false,"since":%d,"expires":%d}'
        % (number, number, world.time, world.time + UNKNOWN_SECONDS)
        for number in (11, 14, 999)
    )
    world.conditions.recall(old, "")
    assert world.reasons() == [("Xid999", "degraded"), ("Xid11", "info")]
    world.time += APPLICATION_SECONDS + 1
    assert world.reasons() == [("Xid999", "degraded")]


def test_what_expires_does_so_though_the_clock_was_ahead_when_it_was_noted() -> None:
    world = Scenario()
    world.time += 365 * 86400.0
    world.xid(999)
    world.time -= 365 * 86400.0
    assert world.reasons() == [("Xid999", "degraded")]
    world.time += UNKNOWN_SECONDS
    assert world.reasons() == []


def test_what_needs_a_reset_stays_until_the_library_is_opened_anew() -> None:
    world = Scenario()
    world.xid(79)
    world.time += 10 * UNKNOWN_SECONDS
    world.poll(uncorrected=0, recovery_action=0)
    assert world.reasons() == [("Xid79", "failed")]
    world.conditions.reopened()
    assert world.reasons() == []


def test_a_recovery_action_that_went_away_means_that_it_was_done() -> None:
    world = Scenario()
    world.xid(119)
    # The driver may tell later than the event: none means nothing before it was something.
    world.poll(recovery_action=0)
    assert world.reasons() == [("Xid119", "failed")]
    world.poll(recovery_action=1)
    assert world.reasons() == [("Xid119", "failed"), ("RecoveryAction", "degraded")]
    world.poll(recovery_action=0)
    assert world.reasons() == []


def test_a_gpu_that_is_back_on_the_bus_was_reset() -> None:
    world = Scenario()
    world.xid(79)
    world.conditions.lost(GPU)
    assert world.reasons() == [("Xid79", "failed")]
    world.poll()
    assert world.reasons() == []


def test_an_error_counter_that_went_down_means_a_reset() -> None:
    world = Scenario()
    world.conditions.event(GPU, 0x2, 0)
    world.poll(uncorrected=1)
    assert world.reasons() == [("DoubleBitEcc", "degraded"), ("UncorrectedMemoryErrors", "info")]
    world.poll(uncorrected=0)
    assert world.reasons() == []


def test_what_polling_sees_ends_when_polling_does_not_see_it() -> None:
    world = Scenario()
    world.poll(remap_pending=True, remap_failed=True)
    first = world.conditions.health(GPU)
    assert [h.reason for h in first] == ["RowRemapFailed", "RowRemapPending"]
    world.time += 60
    world.poll(remap_pending=True, remap_failed=True)
    assert world.conditions.health(GPU) == first  # since the same moment
    world.poll(remap_pending=False, remap_failed=False)
    assert world.reasons() == []
    world.poll(retirement_pending=True)
    assert world.reasons() == [("PageRetirementPending", "degraded")]


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (0x400, [("DramRetirement", "info")]),
        (0x800, [("DramRetirementFailed", "degraded")]),
        (0x1000, [("PoisonError", "info")]),
        (0x2000, [("FatalPoisonError", "failed")]),
        (0x4000, [("GpuUnavailable", "failed")]),
        (0x8000, []),
        (0x4, []),
    ],
)
def test_other_events_have_their_meanings(kind: int, condition: list[tuple[str, str]]) -> None:
    world = Scenario()
    world.conditions.event(GPU, kind, 0)
    assert world.reasons() == condition


def test_an_error_of_a_gpu_instance_names_it() -> None:
    world = Scenario()
    world.xid(31, instance=5)
    assert "GPU instance 5" in world.conditions.health(GPU)[0].message


def test_the_table_is_sane() -> None:
    for number, meaning in nonempty(XIDS.items()):
        assert meaning.severity in ("", "info", "degraded", "failed"), number
        assert meaning == meaning_of_xid(number)
