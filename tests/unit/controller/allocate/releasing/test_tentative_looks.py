"""What one look at a pod does that is allocated and not bound, and what an update of such a pod makes due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from builders import reserved
from releasing_world import BINDING_SECONDS, OTHER, ReleasingWorld, key, play

from controller.allocate.attempts import TakenBack
from controller.allocate.decide import EVERYWHERE, ClaimSeen, NodeTurnedDown, PodExpected, PodID
from controller.allocate.state.records import Mark
from dra_driver.api.core import PODS
from dra_driver.api.meta import Uid
from dra_driver.api.names import (
    CANNOT_ALLOCATE,
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
    NOT_ON_NODE,
)
from dra_driver.errors import Conflict

NOWHERE = "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."
# Found before claims were looked at, so kube-scheduler leaves the nomination.
VOLUME = '0/2 nodes are available: persistentvolumeclaim "data" not found.'
DELETED = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/keeps"]}}
ENDED = [DELETED, {"status": {"phase": "Failed"}}, {"status": {"phase": "Succeeded"}}]
BOUND = {"spec": {"nodeName": "n1"}}


async def handed_over(world: ReleasingWorld, name: str, *claims: str, node: str = "n1", **more: Any) -> None:
    """Have kube-scheduler be about to place a pod, and forget what was due until now."""
    world.pod(name, *claims, **more)
    await world.seen()
    world.hand_over(name, node)
    await idle(world)


async def idle(world: ReleasingWorld) -> None:
    await world.seen()
    for queue in (world.wakeups.queue, world.wakeups.tentative):
        await world.due(queue)


async def looked_at(world: ReleasingWorld, name: str = "p") -> None:
    await idle(world)
    await world.tentative.reconcile(key(name))


async def not_placed(world: ReleasingWorld, name: str = "p", message: str = NOWHERE) -> None:
    """Look at a pod that kube-scheduler could not place."""
    await world.report(name, message)
    await looked_at(world, name)


# --- updates ------------------------------------------------------------------------------------------------


async def one_waits(world: ReleasingWorld) -> None:
    """Have one pod be with kube-scheduler, a failed one share its claim, and another wait for its turn."""
    world.claim("c", "n1/gpu-0")
    await handed_over(world, "failed", "c")
    world.attempts.fail(Uid("uid-failed"), timeout=False)
    world.pod("next", "own")
    await handed_over(world, "p", "c")
    world.wait_for_turn("next")


def test_a_pod_that_is_bound_is_followed_no_longer_and_it_is_the_turn_of_the_next() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await one_waits(world)
        await world.edit("p", BOUND)
        assert world.attempts.get(Uid("uid-p")) is None
        assert "next" in await world.due(world.wakeups.queue)
        assert await world.due(world.wakeups.tentative) == []

    play(scenario)


@pytest.mark.parametrize("change", [*ENDED, None], ids=["deleted", "failed", "succeeded", "gone"])
def test_when_a_pod_ends_before_it_is_bound_pods_with_its_claim_and_the_next_are_looked_at(
    change: dict[str, Any] | None,
) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await one_waits(world)
        await (world.remove("p") if change is None else world.edit("p", change))
        assert world.attempts.get(Uid("uid-p")) is None
        assert "next" in await world.due(world.wakeups.queue)
        assert await world.due(world.wakeups.tentative) == ["failed"]

    play(scenario)


def test_only_pods_that_are_with_kube_scheduler_are_looked_at_when_it_reports() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        await handed_over(world, "p", "c")
        world.pod("waits", "free")
        await idle(world)
        await world.report("waits", NOWHERE)
        assert await world.due(world.wakeups.tentative) == []
        await world.report("p", NOWHERE)
        assert await world.due(world.wakeups.tentative) == ["p"]

    play(scenario)


# --- looks that find nothing to be given back ---------------------------------------------------------------


def test_a_pod_that_is_gone_needs_no_look() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await world.tentative.reconcile(key("gone"))
        assert world.cluster.writes == []

    play(scenario)


def test_a_pod_about_which_nothing_is_known_yet_is_looked_at_again_when_its_time_is_over() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        await handed_over(world, "p", "c")
        await looked_at(world)
        await asyncio.sleep(BINDING_SECONDS - 1)
        assert await world.due(world.wakeups.tentative) == []
        await asyncio.sleep(1)
        assert await world.due(world.wakeups.tentative) == ["p"]
        assert world.allocated("c") == ["c"]

    play(scenario)


def test_a_pod_is_not_judged_while_one_of_its_claims_is_being_written() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("written", "n1/gpu-0")
        world.claim("being-written")
        await handed_over(world, "p", "written", "being-written")
        world.assume("being-written", "n1/gpu-1")
        await not_placed(world)
        assert world.allocated("written") == ["written"]
        await asyncio.sleep(0.1)
        assert await world.due(world.wakeups.tentative) == []
        await asyncio.sleep(0.15)
        assert await world.due(world.wakeups.tentative) == ["p"]

    play(scenario)


def test_a_pod_whose_devices_are_all_of_others_is_followed_no_longer() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("nic", "n1/nic-0", driver=OTHER)
        world.claim("free")
        await handed_over(world, "p", "nic", "free")
        await not_placed(world)
        assert world.attempts.get(Uid("uid-p")) is None
        assert await world.due(world.wakeups.queue) == []
        await asyncio.sleep(10)
        assert await world.due(world.wakeups.tentative) == []
        assert world.allocated("nic") == ["nic"]

    play(scenario)


def test_a_pod_with_devices_of_a_pool_that_changes_hands_is_looked_at_again() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("nic", "n1/nic-0", driver=OTHER)
        world.claim("gpu", "n1/gpu-0")
        world.block("n1")
        await handed_over(world, "p", "nic", "gpu")
        await not_placed(world)
        attempt = world.attempts.get(Uid("uid-p"))
        assert attempt is not None
        assert not attempt.failed
        await asyncio.sleep(4)
        assert await world.due(world.wakeups.tentative) == []
        await asyncio.sleep(2)
        assert await world.due(world.wakeups.tentative) == ["p"]
        assert world.allocated("nic", "gpu") == ["nic", "gpu"]

    play(scenario)


def test_a_pod_that_has_reserved_one_of_its_claims_keeps_all_and_is_looked_at_again() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("reserved", "n1/gpu-0", **reserved("p"))
        world.claim("other", "n1/gpu-1")
        await handed_over(world, "p", "reserved", "other")
        await not_placed(world)
        assert world.allocated("reserved", "other") == ["reserved", "other"]
        await asyncio.sleep(4)
        assert await world.due(world.wakeups.tentative) == []
        await asyncio.sleep(2)
        assert await world.due(world.wakeups.tentative) == ["p"]

    play(scenario)


def test_a_pod_for_which_others_are_evicted_keeps_its_devices() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        await handed_over(world, "p", "c")
        world.pod("victim", nodeName="n1")
        await world.seen()
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        await world.edit("victim", {"status": {"conditions": [condition]}})
        await world.report("p", VOLUME, nominated="n1")
        await asyncio.sleep(10)
        await looked_at(world)
        assert world.allocated("c") == ["c"]
        await world.remove("victim")
        await looked_at(world)
        assert world.allocated("c") == []

    play(scenario)


# --- what is given back -------------------------------------------------------------------------------------


def test_a_pod_that_cannot_be_placed_gives_back_what_is_ours_and_nothing_else_keeps() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        sent: list[tuple[str, TakenBack]] = []
        world.taken_back.listen(lambda pod, why: sent.append((pod.metadata.name, why)))
        for i in range(2):
            world.claim(f"gpu-{i}", f"n1/gpu-{i}")
        world.claim("held", "n1/gpu-4", **reserved("runs"))
        world.claim("shared", "n1/gpu-2")
        world.claim("nic", "n1/nic-0", driver=OTHER)
        world.claim("deleted", "n1/gpu-3", metadata=DELETED["metadata"])
        await handed_over(world, "q", "shared")
        await handed_over(world, "p", "gpu-0", "gpu-1", "held", "shared", "nic", "deleted")
        await not_placed(world)
        names = ("gpu-0", "gpu-1", "held", "shared", "nic", "deleted")
        assert world.allocated(*names) == ["held", "shared", "nic", "deleted"]
        assert sent == [("p", TakenBack.UNSCHEDULABLE)]
        assert "p" in await world.due(world.wakeups.queue)
        await world.seen()
        assert [NOWHERE in text for text in world.events("Deallocated")] == [True]
        assert world.released("unschedulable") == 1
        # The same evidence again is no news.
        await looked_at(world)
        await world.seen()
        assert len(sent) == len(world.events("Deallocated")) == 1

    play(scenario)


def test_a_pod_with_claims_of_others_only_makes_room_for_the_next_and_reports_nothing() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("shared", "n1/gpu-0")
        await handed_over(world, "q", "shared")
        await handed_over(world, "p", "shared")
        world.pod("next", "own")
        await world.seen()
        world.wait_for_turn("next")
        await not_placed(world)
        assert sorted(await world.due(world.wakeups.queue)) == ["next", "p"]
        await world.seen()
        assert world.allocated("shared") == ["shared"]
        assert world.events("Deallocated") == []

    play(scenario)


def test_what_was_kept_for_another_pod_is_given_back_when_that_one_ends_and_nothing_is_reported() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        sent: list[str] = []
        world.taken_back.listen(lambda pod, _: sent.append(pod.metadata.name))
        world.claim("shared", "n1/gpu-0")
        await handed_over(world, "q", "shared")
        await handed_over(world, "p", "shared")
        await not_placed(world)
        assert world.allocated("shared") == ["shared"]
        await world.remove("q")
        await looked_at(world)
        await world.seen()
        assert world.allocated("shared") == []
        assert sent == ["p"]
        assert world.events("Deallocated") == []

    play(scenario)


@pytest.mark.parametrize(
    ("message", "node"),
    [(NOWHERE, EVERYWHERE), ("0/2 nodes are available: 1 Too many pods, 1 " + NOT_ON_NODE, "n1")],
    ids=["no node", "not this one"],
)
def test_the_node_that_does_not_suit_a_pod_is_known_before_its_devices_are_free(
    message: str, node: str
) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        await handed_over(world, "p", "c")
        await world.report("p", message)
        await idle(world)
        now = asyncio.get_running_loop().time()
        world.changes.clear()
        await world.tentative.reconcile(key("p"))
        pod = PodID(key("p"), Uid("uid-p"))
        assert world.changes[:2] == [NodeTurnedDown(pod.uid, node, now), PodExpected(pod, None)]
        assert ClaimSeen in map(type, world.changes[2:])

    play(scenario)


def test_a_pod_about_which_kube_scheduler_says_nothing_has_twice_the_time_when_it_is_tried_again() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        for seconds in (BINDING_SECONDS, BINDING_SECONDS, 2 * BINDING_SECONDS, 4 * BINDING_SECONDS):
            world.claim("c", "n1/gpu-0")
            await handed_over(world, "p", "c")
            if seconds == BINDING_SECONDS and not world.released("unschedulable"):
                await not_placed(world)  # which is no time-out
                continue
            await asyncio.sleep(seconds - 1)
            await looked_at(world)
            assert world.allocated("c") == ["c"]
            await asyncio.sleep(1)
            await looked_at(world)
            assert world.allocated("c") == []
        assert (world.released("unschedulable"), world.released("timeout")) == (1, 3)

    play(scenario)


# --- nominations that kube-scheduler leaves -----------------------------------------------------------------


async def left_nominated(world: ReleasingWorld, message: str = VOLUME, *devices: str) -> None:
    world.claim("c", *devices)
    world.pod("p", "c")
    await world.seen()
    await world.report("p", message, nominated="n1")
    await looked_at(world)


def nominated(world: ReleasingWorld) -> str:
    return world.cluster.obj(PODS, "p", key("p").namespace).status.nominated_node_name


def test_a_nomination_that_is_left_is_cleared_when_no_cycle_can_need_it_any_more() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await left_nominated(world)
        await asyncio.sleep(BINDING_SECONDS - 0.5)
        assert await world.due(world.wakeups.tentative) == []
        await looked_at(world)
        assert nominated(world) == "n1"
        await asyncio.sleep(1)
        assert await world.due(world.wakeups.tentative) == ["p"]
        await looked_at(world)
        assert nominated(world) == ""

    play(scenario)


@pytest.mark.parametrize(
    "why", [(CANNOT_ALLOCATE,), (VOLUME, "n1/gpu-0")], ids=["for a cycle", "for the claim"]
)
def test_a_nomination_that_is_needed_stays_and_costs_no_looks(why: tuple[str, ...]) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await left_nominated(world, *why)
        await asyncio.sleep(BINDING_SECONDS + 1)
        assert await world.due(world.wakeups.tentative) == []
        await looked_at(world)
        assert nominated(world) == "n1"

    play(scenario)


def test_a_nomination_with_which_a_pod_had_devices_in_between_is_given_the_whole_time_again() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await left_nominated(world)
        await asyncio.sleep(BINDING_SECONDS - 5)
        world.claim("c", "n1/gpu-0")
        await world.seen()
        world.hand_over("p")
        await looked_at(world)
        world.claim("c")
        await looked_at(world)
        await asyncio.sleep(BINDING_SECONDS - 1)
        await looked_at(world)
        assert nominated(world) == "n1"
        await asyncio.sleep(2)
        await looked_at(world)
        assert nominated(world) == ""

    play(scenario)


def test_a_nomination_that_was_needed_in_between_is_given_the_whole_time_again() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await left_nominated(world)
        await asyncio.sleep(BINDING_SECONDS - 5)
        await world.report("p", CANNOT_ALLOCATE, nominated="n1")
        # Although it has no allocation that is followed.
        assert await world.due(world.wakeups.tentative) == ["p"]
        await looked_at(world)
        await world.report("p", VOLUME, nominated="n1")
        await looked_at(world)
        await asyncio.sleep(BINDING_SECONDS - 1)
        await looked_at(world)
        assert nominated(world) == "n1"
        await asyncio.sleep(2)
        await looked_at(world)
        assert nominated(world) == ""

    play(scenario)


# --- groups -------------------------------------------------------------------------------------------------


def member(number: int, least: int = 0, some_run: str = "wait") -> dict[str, Any]:
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: str(number)}
    least_label = {GROUP_MIN_LABEL: str(least)} if least else {}
    annotations = {GROUP_SOME_RUN_ANNOTATION: some_run}
    return {"metadata": {"labels": {**labels, **least_label}, "annotations": annotations}}


async def group_of(
    world: ReleasingWorld, number: int, least: int = 0, some_run: str = "wait", running: int = 0
) -> list[str]:
    """Have a pod without devices and others of its group that have some; return the names of their claims."""
    of_group = member(number, least, some_run)
    world.claim("p")
    world.pod("p", "p", **of_group)
    names = [f"m{i}" for i in range(number - 1)]
    for i, name in enumerate(names):
        world.claim(name, f"n1/gpu-{i}", **(reserved(name) if i < running else {}))
        await handed_over(world, name, name, **of_group)
    return names


@pytest.mark.parametrize("lost", [True, False])
def test_a_group_gives_back_what_it_holds_only_where_a_member_has_lost_its_devices(lost: bool) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        (other,) = await group_of(world, 2)
        if lost:
            world.mark("p", Mark.LOST_TO_SCHEDULER)
        await looked_at(world)
        assert world.allocated(other) == ([] if lost else [other])
        assert world.records.number(Mark.LOST_TO_SCHEDULER) == 0

    play(scenario)


async def lost(world: ReleasingWorld) -> None:
    world.mark("p", Mark.LOST_TO_SCHEDULER)
    await looked_at(world)
    await world.seen()


def test_all_members_of_a_large_group_give_back_what_they_hold() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        names = await group_of(world, 70)
        await lost(world)
        assert world.allocated(*names) == []
        texts = world.events("Deallocated")
        assert len(texts) == world.released("group") == len(names)
        text = "pod p of group g was not placed, so devices are given back: none of 70 pods runs"
        assert all(text in found for found in texts)

    play(scenario)


def test_members_that_run_keep_their_devices_where_the_others_give_theirs_back() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        names = await group_of(world, 4, some_run="release", running=1)
        # Used by one that runs and one that does not: the reservation is for the first.
        world.claim("shared", "n1/gpu-7")
        world.pod("m0", "m0", "shared", **member(4, some_run="release"))
        await lost(world)
        assert world.allocated(*names, "shared") == ["m0", "shared"]
        assert ["1 of 4 pods run and keep theirs" in t for t in world.events("Deallocated")] == [True, True]

    play(scenario)


def test_a_group_gives_back_what_it_holds_when_a_member_cannot_be_placed() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        names = await group_of(world, 3)
        world.claim("p", "n1/gpu-5")
        await world.seen()
        world.hand_over("p")
        await not_placed(world)
        assert world.allocated("p", *names) == []

    play(scenario)


def test_a_group_gives_back_what_it_holds_when_a_member_does_that_another_pod_kept_from_it() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        (other,) = await group_of(world, 2)
        world.claim("p", "n1/gpu-5")
        await handed_over(world, "outside", "p")
        world.hand_over("p")
        await not_placed(world)
        assert world.allocated("p", other) == ["p", other]
        await world.remove("outside")
        await looked_at(world)
        assert world.allocated("p", other) == []

    play(scenario)


def test_the_member_that_was_not_placed_is_told_apart_from_those_that_give_back_because_of_it() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("shared", "n1/gpu-0")
        world.claim("own", "n1/gpu-1")
        for name, claims in (("m0", ["shared"]), ("p", ["shared", "own"])):
            await handed_over(world, name, *claims, **member(2))
        await not_placed(world)
        await world.seen()
        assert world.allocated("shared", "own") == []
        because_of_it, itself = sorted(world.events("Deallocated"), reverse=True)
        assert because_of_it.startswith("pod p of group g was not placed")
        assert NOWHERE in itself
        assert (world.released("unschedulable"), world.released("group")) == (1, 1)

    play(scenario)


def test_what_a_group_gives_back_counts_against_none_of_its_other_members() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        (other,) = await group_of(world, 2)
        await lost(world)
        world.claim(other, "n1/gpu-0")
        await world.seen()
        world.hand_over(other)
        attempt = world.attempts.get(Uid(f"uid-{other}"))
        assert attempt is not None
        assert attempt.seconds == BINDING_SECONDS

    play(scenario)


def test_a_member_that_cannot_give_back_its_devices_with_the_group_does_so_later_and_reports_it_once() -> (
    None
):
    async def scenario(world: ReleasingWorld) -> None:
        (other,) = await group_of(world, 2)

        def refuse(verb: str, kind: str, name: str, subresource: str) -> None:
            if (kind, name) == ("ResourceClaim", other):
                raise Conflict("it has changed in the meantime", code=409)

        world.cluster.before = refuse
        await lost(world)
        assert world.allocated(other) == [other]
        world.cluster.before = lambda *_: None
        await not_placed(world, other)
        await world.seen()
        assert world.allocated(other) == []
        assert len(world.events("Deallocated")) == 1
        assert world.released("unschedulable") == 0

    play(scenario)


@pytest.mark.parametrize("state", ["has devices", "is bound"])
def test_a_group_keeps_what_it_holds_where_the_member_that_had_lost_devices(state: str) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        (other,) = await group_of(world, 2)
        if state == "has devices":
            world.claim("p", "n1/gpu-7")
        else:
            await world.edit("p", {"spec": {"nodeName": "n2"}})
        await lost(world)
        assert world.allocated(other) == [other]
        assert world.events("GroupInPart") == []

    play(scenario)


def test_members_that_suffice_keep_what_they_hold_and_that_is_reported() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        names = await group_of(world, 3, least=2)
        await lost(world)
        assert world.allocated(*names) == names
        (text,) = world.events("GroupInPart")
        assert "0 of 2 to 3 pods run, 2 more keep their devices until they are bound" in text

    play(scenario)


def test_members_that_have_reserved_their_claims_keep_their_whole_group() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        names = await group_of(world, 3, running=2)
        await lost(world)
        assert world.allocated(*names) == names
        (text,) = world.events("GroupInPart")
        assert "2 of 3 pods run; this pod waits" in text

    play(scenario)


def test_a_member_keeps_what_is_being_written_or_used_by_pods_of_no_group() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("p")
        world.pod("p", "p", **member(4))
        world.claim("shared", "n1/gpu-0")
        world.claim("first", "n1/gpu-1")
        world.claim("second")
        world.claim("own", "n1/gpu-2")
        await handed_over(world, "a", "shared", **member(4))
        await handed_over(world, "outside", "shared")
        await handed_over(world, "b", "first", "second", **member(4))
        world.assume("second", "n1/gpu-3")
        world.claim("own-too", "n1/gpu-4")
        await handed_over(world, "c", "own", "own-too", **member(4))
        await lost(world)
        assert world.allocated("shared", "first", "own", "own-too") == ["shared", "first"]
        assert len(world.events("Deallocated")) == world.released("group") == 1
        attempt = world.attempts.get(Uid("uid-a"))
        assert attempt is not None
        assert not attempt.failed

    play(scenario)


def test_members_give_back_a_claim_that_they_share_among_themselves() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("p")
        world.pod("p", "p", **member(3))
        world.claim("shared", "n1/gpu-0")
        for name in ("a", "b"):
            await handed_over(world, name, "shared", **member(3))
        await lost(world)
        assert world.allocated("shared") == []

    play(scenario)


# --- pods that are bound without devices --------------------------------------------------------------------


async def bound_without_devices(world: ReleasingWorld) -> None:
    world.claim("needed")
    world.pod("bound", "needed", nodeName="n1")
    await world.seen()


def test_a_bound_pod_without_devices_is_looked_at_before_the_one_that_has_made_room_for_it() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        for name in ("a", "b"):
            world.claim(name, f"n1/gpu-{name}")
            await handed_over(world, name, name)
        await bound_without_devices(world)
        await looked_at(world, "bound")
        left = world.allocated("a", "b")
        assert len(left) == 1
        (displaced,) = {"a", "b"}.difference(left)
        assert (await world.due(world.wakeups.queue))[:2] == ["bound", displaced]
        await world.seen()
        (text,) = world.events("Deallocated")
        assert "a pod that is bound there needs them" in text
        assert world.released("displaced") == 1

    play(scenario)


async def _elsewhere(world: ReleasingWorld) -> None:
    await handed_over(world, "p", "c", "d", node="n2")


async def _failed(world: ReleasingWorld) -> None:
    await handed_over(world, "p", "c", "d")
    world.attempts.fail(Uid("uid-p"), timeout=False)


async def _not_followed(world: ReleasingWorld) -> None:
    world.pod("p", "c", "d")


async def _reserved(world: ReleasingWorld) -> None:
    world.claim("d", "n1/gpu-1", **reserved("p"))
    await handed_over(world, "p", "c", "d")


async def _being_written(world: ReleasingWorld) -> None:
    world.claim("d")
    await handed_over(world, "p", "c", "d")
    world.assume("d", "n1/gpu-1")


async def _shared(world: ReleasingWorld) -> None:
    await handed_over(world, "q", "c", "d", node="n2")
    await handed_over(world, "p", "c", "d")


@pytest.mark.parametrize("state", [_elsewhere, _failed, _not_followed, _reserved, _being_written, _shared])
def test_a_bound_pod_takes_nothing_from_a_pod(state: Callable[..., Any]) -> None:
    async def scenario(world: ReleasingWorld) -> None:
        for i, name in enumerate(("c", "d")):
            world.claim(name, f"n1/gpu-{i}")
        await state(world)
        await bound_without_devices(world)
        await looked_at(world, "bound")
        assert world.allocated("c") == ["c"]
        assert await world.due(world.wakeups.queue) == []

    play(scenario)


def test_a_bound_pod_with_devices_takes_nothing_from_others() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        world.claim("c", "n1/gpu-0")
        await handed_over(world, "p", "c")
        world.claim("has", "n1/gpu-1")
        world.pod("bound", "has", nodeName="n1")
        await looked_at(world, "bound")
        assert world.allocated("c") == ["c"]

    play(scenario)


def test_sixteen_pods_at_most_make_room_for_one_that_is_bound() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        names = [f"p{i}" for i in range(18)]
        for i, name in enumerate(names):
            world.claim(name, f"n1/gpu-{i}")
            await handed_over(world, name, name)
        await bound_without_devices(world)
        for _ in names:
            await looked_at(world, "bound")
        assert len(world.allocated(*names)) == 2

    play(scenario)


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    async def scenario(world: ReleasingWorld) -> None:
        await left_nominated(world)
        world.claim("held", "n1/gpu-0")
        await handed_over(world, "placed", "held")
        await bound_without_devices(world)
        await looked_at(world, "bound")
        assert world.allocated("held") == []
        assert len(world.records) > 0
        for name in ("p", "bound", "placed"):
            await world.remove(name)
        assert len(world.records) == 0

    play(scenario)
