"""What kube-scheduler says about a pod, and what follows from it for the pod's allocations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import builders
import pytest

from controller.allocate.attempts import Attempts, BindingWindow, Bound, Deallocate, Hold, TakenBack
from controller.allocate.attempts.turns import Turns
from controller.allocate.attempts.window import LEAST, LEAST_OF_NAMESPACE
from controller.allocate.decide import Rank, report_of
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.names import GRANTS

P = Uid("uid-p")
NO_ROOM = "0/2 nodes are available: 1 Insufficient cpu."
PREBIND = 'running PreBind plugin "DynamicResources": '
# As kube-scheduler 1.36.3 says them.
REFUSED = (
    'add allocation and reservation to claim tenant/c: resourceclaims.resource.k8s.io "c" is forbidden:'
    f" ValidatingAdmissionPolicy '{GRANTS}' with binding '{GRANTS}' denied request: these devices are"
    " allocated by the controller of dra-driver"
)
OWN_DECISIONS = ("claim tenant/c got allocated elsewhere in the meantime", REFUSED)


def pod(
    message: str = "", nominated: str = "", *, version: int = 1, reason: str = "Unschedulable", **spec: Any
) -> Pod:
    body = builders.pod("p", "c", uid=P, metadata={"resourceVersion": str(version)}, **spec)
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    body["status"] = {"conditions": [condition] if message else [], "nominatedNodeName": nominated}
    return codec.convert(Pod, body)


def handed_over(before: Pod, *, nominated: str = "", known: bool = True) -> Attempts:
    attempts = Attempts(60.0)
    if known:
        attempts.look(before, 0.0, was_allocated=False)
    attempts.begin(before, "n1", 0.0)
    attempts.handed_over(P, 0.0, nominated)
    return attempts


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError"])
def test_a_report_without_a_nominated_node_is_evidence(reason: str) -> None:
    attempts = handed_over(pod())
    verdict = attempts.judge(pod(NO_ROOM, reason=reason), 1.0)
    assert verdict == Deallocate(
        TakenBack.UNSCHEDULABLE, f"{reason}: {NO_ROOM}", everywhere=reason == "Unschedulable"
    )


def test_a_node_that_would_suit_the_pod_is_another_attempt() -> None:
    verdict = handed_over(pod()).judge(pod(NO_ROOM + " 1 resourceclaim not available on the node."), 1.0)
    assert isinstance(verdict, Deallocate)
    assert not verdict.everywhere


def test_a_gated_pod_has_not_been_looked_at() -> None:
    gated = pod("Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated")
    assert report_of(gated) is None
    attempts = Attempts(60.0)
    attempts.begin(gated, "n1", 0.0)
    assert attempts.judge(gated, 1000.0) == Hold(60.0)


def test_while_a_node_is_nominated_victims_of_a_preemption_may_still_show() -> None:
    attempts = handed_over(pod())
    attempts.seen(pod(NO_ROOM, "n1"), 10.0)
    assert attempts.judge(pod(NO_ROOM, "n1"), 11.0) == Hold(0.5)
    assert attempts.judge(pod(NO_ROOM, "n1"), 11.5, preempting=True) == Hold(58.5)
    assert isinstance(attempts.judge(pod(NO_ROOM, "n1"), 11.5), Deallocate)


def test_after_a_report_that_no_node_suits_the_pod_an_allocation_lasts_for_seconds() -> None:
    old = pod(NO_ROOM)
    attempts = handed_over(old)
    assert attempts.is_probed("default")
    assert attempts.judge(old, 0.5) == Hold(1.5)
    assert attempts.judge(old, 2.0) == Deallocate(
        TakenBack.UNSCHEDULABLE, f"Unschedulable: {NO_ROOM}", everywhere=True
    )
    attempts.fail(P, timeout=False)
    assert not attempts.is_probed("default")
    # It may be about to bind the pod, for all that is known.
    attempts.end(old, 2.0)
    assert attempts.unsettled(old, 2.0) > 10.0


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(lambda: pod(NO_ROOM, "n1", version=2), id="it binds the pod"),
        pytest.param(
            lambda: pod("0/2 nodes are available: 2 cannot allocate all claims."), id="claims missed"
        ),
    ],
)
def test_a_sign_that_it_looks_at_the_pod_again_lets_the_pod_keep_its_devices(seen: Callable[[], Pod]) -> None:
    attempts = handed_over(pod(NO_ROOM))
    attempts.seen(seen(), 1.0)
    assert not attempts.is_probed("default")
    assert attempts.judge(seen(), 50.0) == Hold(11.0)
    # It could not bind the pod.
    if seen().status.nominated_node_name:
        attempts.seen(pod(NO_ROOM, version=3), 51.0)
        assert isinstance(attempts.judge(pod(NO_ROOM, version=3), 51.0), Deallocate)


def test_the_report_before_the_allocation_counts_only_when_our_nomination_is_gone() -> None:
    old = pod(NO_ROOM, version=5)
    assert isinstance(handed_over(old).judge(old, 1.0), Hold)
    attempts = handed_over(old, nominated="7")
    # The informer is behind our own write.
    assert isinstance(attempts.judge(pod(NO_ROOM, version=6), 1.0), Hold)
    assert isinstance(attempts.judge(pod(NO_ROOM, "n1", version=7), 1.0), Hold)
    assert isinstance(attempts.judge(pod(NO_ROOM, version=8), 1.0), Deallocate)


def test_a_nomination_by_kube_scheduler_that_is_gone_again_is_news_too() -> None:
    old = pod(NO_ROOM, version=5)
    attempts = handed_over(old)
    attempts.seen(pod(NO_ROOM, "n1", version=6), 1.0)
    assert isinstance(attempts.judge(pod(NO_ROOM, "n1", version=6), 20.0), Hold)
    attempts.seen(pod(NO_ROOM, version=7), 20.0)
    assert isinstance(attempts.judge(pod(NO_ROOM, version=7), 20.0), Deallocate)


def test_a_cycle_that_could_not_see_the_allocation_is_no_evidence() -> None:
    early = pod("0/2 nodes are available: 2 cannot allocate all claims.")
    assert isinstance(handed_over(pod(NO_ROOM)).judge(early, 1.0), Hold)


@pytest.mark.parametrize("message", OWN_DECISIONS)
@pytest.mark.parametrize("nominated", ["", "7"])
@pytest.mark.parametrize("known", [True, False])
def test_the_write_of_its_own_decision_that_failed_is_no_evidence(
    message: str, nominated: str, known: bool
) -> None:
    """Its cycle began before it could see the allocation, and its next one looks at the node of that."""
    attempts = handed_over(pod(version=5), nominated=nominated, known=known)
    late = pod(PREBIND + message, version=8, reason="SchedulerError")
    attempts.seen(late, 1.0)
    assert attempts.judge(late, 1.0) == Hold(60.0)
    # The next one looks at the allocation, and clears no nomination: there is none any more.
    assert isinstance(attempts.judge(pod(NO_ROOM, version=9), 2.0), Deallocate)
    # Without a word of it the claims are not kept for ever.
    verdict = attempts.judge(late, 61.0)
    assert isinstance(verdict, Deallocate)
    assert verdict.reason is TakenBack.TIMEOUT


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param("claim tenant/c got deallocated elsewhere in the meantime", "SchedulerError", id="gone"),
        pytest.param(
            "claim got-allocated-elsewhere-in-the-meantime/c got deleted in the meantime",
            "SchedulerError",
            id="a namespace of that name",
        ),
        pytest.param(
            "add reservation to claim tenant/dra-driver-grants: it is forbidden",
            "SchedulerError",
            id="a claim of the policy's name",
        ),
        pytest.param(OWN_DECISIONS[0], "Unschedulable", id="no error"),
        pytest.param(
            OWN_DECISIONS[1].replace("add allocation and reservation", "add reservation"),
            "SchedulerError",
            id="a reservation that the policy does not refuse",
        ),
    ],
)
def test_what_only_resembles_a_failed_write_of_its_own_decision_is_evidence(
    message: str, reason: str
) -> None:
    assert isinstance(handed_over(pod()).judge(pod(PREBIND + message, reason=reason), 1.0), Deallocate)


def test_who_has_just_started_takes_what_it_finds_for_evidence() -> None:
    found = pod(NO_ROOM)
    assert isinstance(handed_over(found, known=False).judge(found, 1.0), Deallocate)
    assert isinstance(handed_over(found, known=True).judge(found, 1.0), Hold)


@pytest.mark.parametrize("known", [True, False])
def test_a_nomination_after_claims_were_looked_at_is_a_later_attempt(known: bool) -> None:
    for message, reason in (
        (NO_ROOM + " 1 resourceclaim not available on the node.", "Unschedulable"),
        ("claim c got deallocated elsewhere in the meantime", "SchedulerError"),
    ):
        found = pod(message, "n1", reason=reason)
        assert isinstance(handed_over(found, known=known).judge(found, 30.0), Hold)


def test_every_sign_begins_the_time_anew() -> None:
    attempts = handed_over(pod())
    assert attempts.judge(pod(), 59.0) == Hold(1.0)
    preempting = pod(NO_ROOM, "n1")
    attempts.seen(preempting, 50.0)
    assert attempts.judge(preempting, 59.0, preempting=True) == Hold(51.0)
    attempts.seen(pod(NO_ROOM, "n1", version=2), 58.0)  # nothing of kube-scheduler's
    assert attempts.judge(preempting, 59.0, preempting=True) == Hold(51.0)
    verdict = attempts.judge(preempting, 110.0, preempting=True)
    assert isinstance(verdict, Deallocate)
    assert verdict.reason is TakenBack.TIMEOUT


def test_a_bound_pod_is_settled() -> None:
    assert handed_over(pod()).judge(pod(NO_ROOM, nodeName="n1"), 1000.0) == Bound()


def test_a_pod_that_failed_is_live_again_when_it_is_nominated() -> None:
    attempts = handed_over(pod())
    attempts.seen(pod(NO_ROOM), 1.0)
    assert attempts.fail(P, timeout=False) is not None
    assert attempts.fail(P, timeout=False) is None
    assert len(attempts) == 0
    attempts.seen(pod(NO_ROOM, "n1"), 2.0)
    assert len(attempts) == 1


def test_claims_are_allocated_anew_when_kube_scheduler_has_seen_the_deallocation() -> None:
    failed = pod(NO_ROOM)
    attempts = handed_over(pod())
    attempts.seen(failed, 5.0)
    assert attempts.fail(P, timeout=False) is not None
    attempts.end(failed, 10.0)
    assert attempts.unsettled(failed, 10.25) == 19.75  # a third of the time-out
    assert attempts.unsettled(pod("got deallocated", reason="SchedulerError"), 10.25) == 0.75
    assert attempts.unsettled(pod(NO_ROOM, "n1"), 10.25) == 0.0  # which keeps them there
    assert attempts.unsettled(failed, 10.25) == 19.75
    assert attempts.unsettled(pod("0/1 nodes are available: 1 cannot allocate all claims."), 10.25) == 0.0
    assert attempts.unsettled(failed, 10.25) == 0.0  # it does not come back


def test_without_a_word_claims_are_allocated_anew_when_no_request_can_be_left() -> None:
    attempts = handed_over(pod(NO_ROOM))
    attempts.end(pod(NO_ROOM), 10.0)
    assert attempts.unsettled(pod(NO_ROOM), 29.9) > 0
    assert attempts.unsettled(pod(NO_ROOM), 30.1) == 0.0


def test_what_kube_scheduler_says_of_its_own_deallocation_may_be_seen_before_that() -> None:
    attempts = handed_over(pod())
    attempts.end(pod(NO_ROOM), 10.0)
    assert attempts.unsettled(pod(NO_ROOM), 10.25) == 0.75
    attempts = handed_over(pod())
    missing = pod("0/1 nodes are available: 1 cannot allocate all claims.")
    attempts.end(missing, 10.0)
    assert attempts.unsettled(missing, 10.25) == 0.0


def test_what_is_deallocated_as_soon_as_it_is_reported_is_soon_allocated_anew() -> None:
    attempts = handed_over(pod())
    attempts.seen(pod(NO_ROOM), 9.9)
    attempts.fail(P, timeout=False)
    attempts.end(pod(NO_ROOM), 10.0)
    assert attempts.unsettled(pod(NO_ROOM), 10.25) == 0.75


def test_after_its_own_deallocation_kube_scheduler_may_say_nothing_before_the_next_allocation() -> None:
    attempts = handed_over(pod(NO_ROOM))
    attempts.end(pod(NO_ROOM), 10.0, by_scheduler=True)
    assert attempts.unsettled(pod(NO_ROOM), 10.25) == 0.75
    assert attempts.unsettled(pod(NO_ROOM), 11.0) == 0.0


def test_who_has_just_started_does_not_know_what_was_deallocated_before() -> None:
    attempts = Attempts(60.0)
    attempts.look(pod(NO_ROOM), 100.0, was_allocated=True)
    assert attempts.unsettled(pod(NO_ROOM), 110.0) == 10.0
    fresh = Attempts(60.0)
    fresh.look(pod(NO_ROOM), 100.0, was_allocated=False)
    assert fresh.unsettled(pod(NO_ROOM), 100.0) == 0.0


def test_a_pod_that_kube_scheduler_has_not_seen_is_not_being_bound() -> None:
    gated = pod(schedulingGates=[{"name": "example.com/gate"}])
    attempts = Attempts(60.0)
    attempts.begin(gated, "n1", 0.0)
    attempts.end(gated, 1.0)
    assert attempts.unsettled(gated, 1.0) == 0.0


def test_a_pod_that_is_gone_leaves_nothing_behind() -> None:
    attempts = handed_over(pod())
    attempts.fail(P, timeout=True)
    attempts.end(pod(), 1.0)
    attempts.forget(P)
    fresh = Attempts(60.0)
    kept = ("_attempts", "_live", "_timeouts", "_settling", "_known")
    assert [getattr(attempts, name) for name in kept] == [getattr(fresh, name) for name in kept]


# --- the window ---------------------------------------------------------------------------------------------


def test_the_window_follows_the_rate_of_bindings() -> None:
    window = BindingWindow(60.0)
    assert window.size(0.0) == LEAST
    for i in range(500):
        window.bound(i / 50)  # 50 a second: 20 seconds of them
    assert window.size(10.0) == pytest.approx(1000, abs=5)
    assert window.size(15.0) == pytest.approx(500, abs=5)
    assert window.size(30.0) == LEAST


def test_pods_have_their_turns_in_the_order_of_their_ranks() -> None:
    attempts = Attempts(60.0)
    for i in range(LEAST):
        uid = Uid(f"u{i}")
        attempts.begin(codec.convert(Pod, builders.pod(f"p{i}", uid=uid)), "n1", 0.0)
    keys = [ObjectKey("default", name) for name in ("z", "a", "m")]
    for age, key in reversed([*enumerate(keys)]):
        attempts.wait(key, Rank(0, f"2026-01-01T00:00:0{age}Z", key))
    assert (attempts.room("default", 0.0), attempts.next(0.0)) == (0, [])
    attempts.bound(Uid("u0"), 0.0)
    attempts.fail(Uid("u1"), timeout=False)
    assert attempts.next(0.0) == keys[:2]
    attempts.end(codec.convert(Pod, builders.pod("p1", uid="u1")), 0.0)  # was counted when it failed
    assert attempts.room("default", 0.0) == 2


def rank(pod: ObjectKey, priority: int = 0) -> Rank:
    return Rank(-priority, "2026-01-01T00:00:00Z", pod)


def test_pods_that_are_never_bound_keep_no_other_namespace_waiting() -> None:
    attempts = Attempts(60.0)
    for i in range(LEAST + 40):
        uid = Uid(f"u{i}")
        attempts.begin(codec.convert(Pod, builders.pod(f"p{i}", uid=uid)), "n1", 0.0)
    others = [ObjectKey("other", f"p{i:02}") for i in range(40)]
    for key in [ObjectKey("default", "waits"), *others]:
        attempts.wait(key, rank(key))
    assert attempts.room("default", 0.0) < 0
    assert attempts.room("other", 0.0) == LEAST_OF_NAMESPACE
    assert attempts.next(0.0) == others[:LEAST_OF_NAMESPACE]


def test_namespaces_take_turns() -> None:
    attempts = Attempts(60.0)
    for namespace in ("a", "b"):
        for i in range(LEAST // 2):
            pod_ = builders.pod(f"p{i}", uid=f"{namespace}{i}", namespace=namespace)
            attempts.begin(codec.convert(Pod, pod_), "n1", 0.0)
    keys = [ObjectKey("a", name) for name in ("1", "2", "3")] + [ObjectKey("b", "4")]
    for key in keys:
        attempts.wait(key, rank(key))
    assert attempts.next(0.0) == []
    attempts.bound(Uid("a0"), 0.0)
    attempts.bound(Uid("a1"), 0.0)
    assert attempts.next(0.0) == [keys[0], keys[3]]


def test_priority_goes_before_the_turns_of_namespaces() -> None:
    turns = Turns()
    low = [ObjectKey("a", f"low-{i}") for i in range(3)] + [ObjectKey("b", "low")]
    high = [ObjectKey("a", "high-0"), ObjectKey("c", "high"), ObjectKey("a", "high-1")]
    for key in low:
        turns.wait(key, rank(key))
    for key in high:
        turns.wait(key, rank(key, 1000))
    assert turns.take(lambda _: 0, 2) == high[:2]
    assert turns.take(lambda _: 0, 2) == [high[2], low[3]]
    turns.forget(low[1])
    assert turns.take(lambda _: 0, 10) == [low[0], low[2]]
    assert turns.take(lambda _: 10, 10) == []


def test_each_namespace_has_room_of_its_own() -> None:
    turns = Turns()
    keys = [ObjectKey(namespace, f"p{i}") for namespace in ("a", "b") for i in range(3)]
    for key in keys:
        turns.wait(key, rank(key, 9 if key.namespace == "a" else 0))
    assert turns.take(lambda _: 1, 0) == [keys[0], keys[3]]
    assert turns.take(lambda namespace: 2 if namespace == "b" else 0, -5) == keys[4:]
    assert turns.take(lambda _: 0, 1) == [keys[1]]
