"""What a look at a pool that changes hands leads to, when, and when the next look is due."""

from __future__ import annotations

from typing import Any

import pytest

from dra_driver.api import codec
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import PROTECTION_TAINT, AllocatorRecord, PoolAllocator
from dra_driver.publishing.grants import PoolKind
from dra_driver.publishing.handover import (
    Handover,
    HandoverEffect,
    HandoverFacts,
    HandoverState,
    deleted,
    look,
    recorded,
    slices_event,
)
from dra_driver.publishing.handover import HandoverEvent as E

S, F, R = HandoverState, HandoverEffect, AllocatorRecord
DRAIN = 15.0


def a_slice(*devices: str, tainted: bool = True) -> ResourceSlice:
    taints = {"taints": [codec.plain(PROTECTION_TAINT)]} if tainted else {}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    body = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n1",
            "pool": pool,
            "devices": [{"name": name, **taints} for name in devices],
        },
    }
    return codec.convert(ResourceSlice, body)


TAINTED, UNTAINTED = (a_slice("gpu-0"),), (a_slice("gpu-0", tainted=False),)


def facts(record: AllocatorRecord, now: float, **more: Any) -> HandoverFacts:
    """What is seen of a pool with a tainted device that the controller should have."""
    return HandoverFacts(
        **{
            "record": record,
            "slices": TAINTED,
            "wanted": PoolKind.TAINTED,
            "refused": False,
            "writing": False,
            "claims_seen": None,
            "now": now,
            "drain": DRAIN,
            **more,
        }
    )


def test_a_pool_is_drained_for_the_whole_time_and_granted_when_every_claim_is_seen() -> None:
    pool = Handover(S.TAINTING)
    pool, effects, again = look(pool, facts(R.DRAINING, 100.0))
    assert (pool, effects, again) == (Handover(S.DRAINING, 100.0), (), DRAIN)
    pool, effects, again = look(pool, facts(R.DRAINING, 114.0, claims_seen=True))
    assert (pool, effects, again) == (Handover(S.DRAINING, 100.0), (), 1.0)
    # From the very end of the time on; what was read before it does not count.
    pool, effects, again = look(pool, facts(R.DRAINING, 115.0))
    assert (pool, effects, again) == (Handover(S.DRAINING, 100.0), (F.READ_CLAIMS,), 0.5)
    pool, effects, _ = look(pool, facts(R.DRAINING, 116.0, claims_seen=False))
    assert (pool.state, effects) == (S.DRAINING, (F.READ_CLAIMS,))
    pool, effects, again = look(pool, facts(R.DRAINING, 117.0, claims_seen=True))
    assert (pool, effects, again) == (Handover(S.GRANTED), (F.READ_CLAIMS,), 0.0)
    pool, effects, again = look(pool, facts(R.CONTROLLER, 118.0))
    assert (pool, effects, again) == (Handover(S.CONTROLLER), (F.UNBLOCK,), 0.0)


@pytest.mark.parametrize("lost", [{"slices": UNTAINTED}, {"record": R.SCHEDULER}, {"record": R.NONE}])
def test_a_pool_without_its_taint_or_its_note_is_drained_from_the_beginning(lost: dict[str, Any]) -> None:
    pool = Handover(S.DRAINING, 100.0)
    pool, _, _ = look(pool, facts(**{"record": R.DRAINING, "now": 114.0, **lost}))
    assert pool.state in (S.TAINTING, S.NOTING)
    pool, _ = recorded(pool, R.DRAINING, 115.0)
    pool, effects, again = look(pool, facts(R.DRAINING, 116.0, claims_seen=True))
    assert (pool, effects, again) == (Handover(S.DRAINING, 116.0), (), DRAIN)


def test_a_pool_goes_back_after_the_time_when_none_of_our_writes_is_under_way() -> None:
    theirs: dict[str, Any] = {"wanted": PoolKind.SCHEDULER}
    pool, effects, again = look(Handover(S.CONTROLLER), facts(R.CONTROLLER, 100.0, **theirs))
    assert (pool, effects, again) == (Handover(S.YIELDING, 100.0), (F.BLOCK,), DRAIN)
    pool, effects, again = look(pool, facts(R.CONTROLLER, 120.0, writing=True, **theirs))
    assert (pool, effects, again) == (Handover(S.YIELDING, 100.0), (), 0.5)
    pool, effects, again = look(pool, facts(R.CONTROLLER, 121.0, **theirs))
    assert (pool, effects, again) == (Handover(S.SCHEDULER), (), 0.0)


def test_a_pool_of_our_own_stays_ours_however_late_it_is() -> None:
    assert look(Handover(S.CONTROLLER), facts(R.CONTROLLER, 1e6)) == (Handover(S.CONTROLLER), (), 0.0)


def test_what_was_found_at_the_start_is_blocked_at_once() -> None:
    for record, seen in ((R.SCHEDULER, UNTAINTED), (R.NONE, UNTAINTED)):
        pool, effects, _ = look(Handover(), facts(record, 1.0, slices=seen, wanted=PoolKind.SCHEDULER))
        assert (pool.state, effects) == (S.SCHEDULER, (F.BLOCK,))
    pool, effects, _ = look(Handover(), facts(R.DRAINING, 1.0))
    assert (pool, effects) == (Handover(S.DRAINING, 1.0), (F.BLOCK,))


@pytest.mark.parametrize(("record", "state"), [(R.SCHEDULER, S.SCHEDULER), (R.DRAINING, S.TAINTING)])
@pytest.mark.parametrize("before", [S.UNKNOWN, S.CONTROLLER])
def test_a_note_that_the_pool_is_not_ours_blocks_it_before_any_look(
    before: HandoverState, record: AllocatorRecord, state: HandoverState
) -> None:
    assert recorded(Handover(before), record, 1.0) == (Handover(state), (F.BLOCK,))


def test_a_pool_without_a_note_is_ours_at_once_only_where_kube_scheduler_cannot_have_allocated() -> None:
    for seen in (TAINTED, ()):
        assert look(Handover(), facts(R.NONE, 1.0, slices=seen)) == (Handover(S.CONTROLLER), (), 0.0)
    pool, effects, _ = look(Handover(), facts(R.NONE, 1.0, slices=UNTAINTED))
    assert (pool, effects) == (Handover(S.NOTING), (F.BLOCK,))
    pool, effects, _ = look(Handover(), facts(R.NONE, 1.0, slices=(), refused=True))
    assert (pool, effects) == (Handover(S.SCHEDULER), (F.BLOCK,))
    assert look(Handover(), facts(R.CONTROLLER, 1.0)) == (Handover(S.CONTROLLER), (), 0.0)


def test_a_pool_whose_inventory_is_deleted_on_the_way_is_noted_anew() -> None:
    assert deleted(Handover(S.DRAINING, 100.0), 101.0) == (Handover(S.NOTING), ())
    assert deleted(Handover(S.SCHEDULER), 101.0) == (Handover(), (F.UNBLOCK,))


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        (S.NOTING, {"record": R.SCHEDULER, "slices": UNTAINTED}),
        (S.TAINTING, {"record": R.DRAINING, "slices": UNTAINTED}),
        (S.DRAINING, {"record": R.DRAINING}),
        (S.GRANTED, {"record": R.DRAINING}),
    ],
)
def test_a_pool_on_its_way_to_us_goes_back_at_once_and_begins_anew_without_its_note(
    state: HandoverState, seen: dict[str, Any]
) -> None:
    """The controller has decided nothing yet."""
    pool = Handover(state, 1.0 if state.timed else 0.0)
    assert look(pool, facts(**{"now": 2.0, **seen}))[0].state is state
    back = facts(**{"now": 2.0, "wanted": PoolKind.SCHEDULER, **seen})
    assert look(pool, back) == (Handover(S.SCHEDULER), (), 0.0)
    assert deleted(pool, 2.0) == (Handover(S.NOTING), ())
    for record in (R.NONE, R.SCHEDULER):
        assert recorded(pool, record, 2.0) == (Handover(S.NOTING), ())


def test_a_pool_that_loses_its_taint_before_it_is_ours_is_drained_again() -> None:
    pool, effects, _ = look(Handover(S.GRANTED), facts(R.DRAINING, 1.0, slices=UNTAINTED))
    assert (pool, effects) == (Handover(S.TAINTING), ())


def test_what_others_have_noted_ends_the_way_back_to_kube_scheduler() -> None:
    """A node agent that takes the pool over, or the controller after this one."""
    pool = Handover(S.YIELDING, 1.0)
    assert recorded(pool, R.SCHEDULER, 2.0) == (Handover(S.SCHEDULER), ())
    assert recorded(pool, R.DRAINING, 2.0) == (Handover(S.TAINTING), ())
    assert recorded(pool, R.CONTROLLER, 2.0) == (pool, ())
    assert deleted(pool, 2.0) == (Handover(), (F.UNBLOCK,))
    assert deleted(Handover(S.CONTROLLER), 2.0) == (Handover(), ())


def test_a_pool_without_devices_is_drained_as_well() -> None:
    """Those that kube-scheduler has decided on may just have gone."""
    pool, _, again = look(Handover(S.TAINTING), facts(R.DRAINING, 100.0, slices=()))
    assert (pool, again) == (Handover(S.DRAINING, 100.0), DRAIN)


def test_a_refusal_counts_only_where_the_controller_is_wanted() -> None:
    sly = facts(R.SCHEDULER, 1.0, slices=UNTAINTED, refused=True)
    assert look(Handover(S.SCHEDULER), sly)[0].state is S.SCHEDULER
    assert look(Handover(S.DRAINING, 1.0), facts(R.DRAINING, 2.0, refused=True))[0].state is S.SCHEDULER
    assert look(Handover(S.YIELDING, 1.0), facts(R.CONTROLLER, 2.0, refused=True))[0].state is S.CONTROLLER


def test_slices_are_tainted_if_every_device_of_them_is() -> None:
    assert slices_event(()) is E.NO_DEVICES
    assert slices_event((a_slice(),)) is E.NO_DEVICES
    assert slices_event((a_slice(), *TAINTED)) is E.TAINTED
    assert slices_event((*TAINTED, *UNTAINTED)) is E.UNTAINTED
    assert slices_event(UNTAINTED) is E.UNTAINTED


@pytest.mark.parametrize("state", S)
def test_slices_are_made_for_whoever_is_noted(state: HandoverState) -> None:
    theirs = state.record is R.SCHEDULER
    assert state.allocator is (PoolAllocator.SCHEDULER if theirs else PoolAllocator.CONTROLLER)
    assert state.blocked is (state not in (S.UNKNOWN, S.CONTROLLER, S.OPEN))
    assert state.timed is (state in (S.DRAINING, S.YIELDING, S.WITHDRAWING))
    assert state.open is (state.record is R.OPEN)
