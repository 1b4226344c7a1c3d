"""The process that decides, as a real process: what it answers, and what becomes of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import builders
import pytest
from builders import DRIVER
from worker_world import (
    GPU_0,
    NS,
    POOL,
    WorkerCluster,
    copies_of,
    device_of,
    facts_of,
    hard_claim,
    long_text,
    run,
    world,
)

from controller.allocate.decide import (
    ClaimAssumed,
    Decisions,
    DevicesSetAside,
    Lane,
    NeedsSlowLane,
    ObjectGone,
    PodAnswer,
    PodID,
    PodPlacement,
    PodQuestion,
    PoolChanged,
    Proceed,
    Rank,
    Refuse,
    SetAside,
    Settings,
    Wait,
    Write,
)
from controller.allocate.worker.process import Limits
from controller.allocate.worker.sent_answers import Answer, check_answer, packed_answer
from controller.allocate.worker.service import Service
from controller.allocate.worker.wire import LARGEST_ANSWER, Code, Frame, Frames, Start, frame
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import ResourceSlice
from dra_driver.errors import DecodeError
from dra_driver.structured import PoolPolicy

T = TypeVar("T")


def test_an_answer_counts_as_taken_until_it_is_given_back() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            for name in ("a", "b"):
                w.pod(name)
            first, second = await w.ask_together("a", "b")
            assert device_of(first[0]) == "gpu-0"
            assert isinstance(second[0].decision, Refuse)
            w.decider.release(first[1])
            assert w.freed == 1
            w.accept(await w.ask("b"))
            assert isinstance((await w.ask("a"))[0].decision, Refuse)

    run(scenario)


def test_answers_that_come_together_are_put_into_effect_together() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 8)
            for i in range(8):
                w.pod(f"p{i}")
            found = await w.ask_together(*(f"p{i}" for i in range(8)))
            for one in found:
                w.accept(one)
            assert {device_of(answer) for answer, _ in found} == {f"gpu-{i}" for i in range(8)}

    run(scenario)


@pytest.mark.parametrize("change", ["blocked", "taken", "slice", "claim"])
def test_an_answer_that_does_not_know_what_has_changed_is_dropped(change: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            pod = w.pod("a")
            w.decider.release((await w.ask("a"))[1])
            await w.kill(signal.SIGSTOP)
            asking = asyncio.create_task(w.decider.decide(pod, Lane.FAST))
            await asyncio.sleep(0.05)
            match change:
                case "blocked":
                    w.journal.apply(PoolChanged(POOL, True, PoolPolicy()))
                case "taken":
                    w.claim(builders.claim("other", uid="claim-other", status=GPU_0))
                case "slice":
                    w.journal.apply(ObjectGone(ResourceSlice, ObjectKey("", f"n1-{DRIVER}")))
                case _:
                    w.claim(builders.claim("a", uid="claim-a", metadata={"resourceVersion": "2"}))
            assert w.journal.freshness.is_undecided(POOL) is (change in ("blocked", "slice"))
            await w.kill(signal.SIGCONT)
            assert await asking is None
            again, _ = await w.ask("a")
            assert isinstance(again.decision, Write if change == "claim" else Refuse), again

    run(scenario)


def test_a_worker_that_is_killed_is_replaced_and_knows_everything() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 2)
            for name in ("a", "b", "c"):
                w.pod(name)
            w.accept(await w.ask("a"))
            for _ in range(3):
                await w.kill()
                # What was decided and not put into effect is forgotten with it.
                w.decider.release((await w.ask("b"))[1])
            w.accept(await w.ask("c"))
            answer, _ = await w.ask("b")
            assert isinstance(answer.decision, Refuse)
            assert w.worker.restarts == 3

    run(scenario)


def test_a_hard_question_is_worked_out_beside_the_others() -> None:
    async def scenario() -> None:
        async with world(decision_seconds=1.0) as w:
            w.hard_nodes()
            w.pod("hard", hard_claim("hard"))
            w.pod("easy")
            answer, _ = await w.ask("hard")
            assert isinstance(answer.decision, NeedsSlowLane)
            slow = asyncio.create_task(w.ask("hard", Lane.SLOW))
            for _ in range(20):
                easy, answered = await w.ask("easy")
                assert device_of(easy)
                w.decider.release(answered)
            assert not slow.done()
            answer, _ = await slow
            assert isinstance(answer.decision, Refuse)
            assert answer.gave_up
            assert answer.pause > 10
            # From now on it is known to be hard.
            again, _ = await w.ask("hard")
            assert again.remembered
            assert w.worker.restarts == 0

    run(scenario)


async def takes(w: WorkerCluster, name: str, lane: Lane) -> bool:
    """Ask about a pod and put the answer into effect at once: another one may arrive together with it."""
    found = await w.decider.decide(w.pods[name], lane)
    if found is None or not isinstance(found[0].decision, Write):
        return False
    w.accept(found)
    return True


def test_an_answer_of_the_slow_lane_does_not_take_what_was_given_away_meanwhile() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            w.pod("slow")
            w.pod("fast")
            slow = asyncio.create_task(takes(w, "slow", Lane.SLOW))
            fast = asyncio.create_task(takes(w, "fast", Lane.FAST))
            assert [await slow, await fast].count(True) == 1

    run(scenario)


async def asked_of_a_stopped_worker(
    w: WorkerCluster, ask: Callable[[], Coroutine[Any, Any, T]]
) -> asyncio.Task[T]:
    """Return a question about pod "a" that the worker has before it, and does not answer until SIGCONT."""
    w.decider.release((await w.ask("a"))[1])
    await w.kill(signal.SIGSTOP)
    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.05)
    return asking


def test_an_answer_holds_although_another_device_of_its_pool_was_taken_meanwhile() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 8)
            pod = w.pod("a")
            asking = await asked_of_a_stopped_worker(w, lambda: w.decider.decide(pod, Lane.SLOW))
            last = builders.allocation(builders.result("n1", "gpu-7"))
            w.claim(builders.claim("other", uid="claim-other", status=last))
            await w.kill(signal.SIGCONT)
            found = await asking
            assert found is not None
            assert device_of(found[0]) == "gpu-0"

    run(scenario)


def test_one_claim_is_not_allocated_in_two_pools_by_both_lanes() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            w.node("n2", 1)
            w.claim(builders.claim("shared", uid="claim-shared"))
            w.sharing("slow", "shared", "n1")
            w.sharing("fast", "shared", "n2")

            # The copy is made before the fast lane has taken anything; its pool is untouched afterwards.
            slow = asyncio.create_task(takes(w, "slow", Lane.SLOW))
            while not w.worker._asked:
                await asyncio.sleep(0)
            fast = asyncio.create_task(takes(w, "fast", Lane.FAST))
            assert [await slow, await fast].count(True) == 1

    run(scenario)


class Broken(Decisions):
    """Decisions with a bug."""

    def remembered(self, question: PodQuestion) -> PodAnswer | None:
        raise ZeroDivisionError


def test_a_bug_that_one_pod_meets_stops_no_other_decision() -> None:
    sent: list[Frame] = []
    here, there = Frames(), Frames()
    service = Service(lambda data: sent.extend(here.feed(data)), make=Broken)
    question = PodQuestion(PodID(ObjectKey(NS, "p"), Uid("u")), 0.0)
    start = Start(Settings(drivers=(DRIVER,)), 1, 1 << 40)
    for data in (frame(Code.START, 0, start), *(frame(Code.QUESTION, i, question) for i in (1, 2))):
        for message in there.feed(data):
            service.handle(message)
    answers = [codec.decode(Answer, m.body) for m in sent if m.code == Code.ANSWER]
    assert len(answers) == 2
    assert all(a.gave_up and a.pause for a in answers)


def test_a_worker_that_does_not_answer_is_replaced_and_the_question_is_slow_from_then_on() -> None:
    async def scenario() -> None:
        async with world(Limits(seconds=0.1)) as w:
            w.node("n1", 1)
            w.pod("a")
            w.pod("b")
            w.decider.release((await w.ask("a"))[1])
            # A worker that stops in the middle of a question.
            asking = asyncio.create_task(w.ask("a"))
            while not w.worker._asked:
                await asyncio.sleep(0)
            await w.kill(signal.SIGSTOP)
            w.worker._begun = w.worker._number
            answer, _ = await asking
            assert isinstance(answer.decision, NeedsSlowLane)
            assert w.worker.restarts == 1
            w.accept(await w.ask("a", Lane.SLOW))
            assert isinstance((await w.ask("b"))[0].decision, Refuse)

    run(scenario)


def test_a_worker_that_is_stopped_by_a_signal_is_replaced() -> None:
    async def scenario() -> None:
        async with world(Limits(seconds=0.2)) as w:
            w.node("n1", 1)
            w.pod("a")
            w.decider.release((await w.ask("a"))[1])
            await w.kill(signal.SIGSTOP)
            assert device_of((await w.ask("a"))[0])
            assert w.worker.restarts == 1

    run(scenario)


def test_memory_that_a_question_takes_is_bounded_in_both_lanes() -> None:
    async def scenario() -> None:
        async with world(Limits(memory=1 << 20)) as w:
            for i in range(300):
                w.node(f"n{i}", 8, memory=f"{40 + i}Gi")
            w.pod("large", long_text("large"))
            w.pod("small")
            answer, _ = await w.ask("large")
            assert isinstance(answer.decision, NeedsSlowLane)
            assert w.worker.restarts == 1
            answer, _ = await w.ask("large", Lane.SLOW)
            assert isinstance(answer.decision, Refuse)
            assert answer.gave_up
            assert "1 MiB of memory" in answer.decision.message
            assert w.worker.restarts == 1
            assert isinstance((await w.ask("small"))[0].decision, Write | NeedsSlowLane)

    run(scenario)


def test_a_worker_that_ends_while_a_copy_works_is_replaced_at_once() -> None:
    async def scenario() -> None:
        async with world(decision_seconds=30.0) as w:
            w.hard_nodes()
            w.pod("hard", hard_claim("hard"))
            w.pod("easy")
            assert isinstance((await w.ask("hard"))[0].decision, NeedsSlowLane)
            slow = asyncio.create_task(w.ask("hard", Lane.SLOW))
            before = w.child.pid
            while not copies_of(before):
                await asyncio.sleep(0.01)
            (copy,) = copies_of(before)
            await w.kill()
            assert device_of((await w.ask("easy"))[0])
            while facts_of(copy):
                await asyncio.sleep(0.01)
            assert not slow.done()
            slow.cancel()

    run(scenario)


def test_an_answer_that_would_be_too_large_to_read_is_a_refusal_and_the_worker_lives() -> None:
    many = [
        {"opaque": {"driver": DRIVER, "parameters": {"apiVersion": "v1", "kind": "X", "text": "x" * 10_000}}}
    ] * 32
    number = LARGEST_ANSWER // (10_000 * len(many)) + 1
    group = {"labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: str(number)}}

    async def scenario() -> None:
        async with world() as w:
            w.node("n1", number + 1)
            for i in range(number):
                body = builders.claim(f"big-{i}", uid=f"claim-big-{i}")
                body["spec"]["devices"]["config"] = many
                w.pod(f"big-{i}", body, metadata=group)
            assert isinstance((await w.ask("big-0"))[0].decision, NeedsSlowLane)
            answer, _ = await w.ask("big-0", Lane.SLOW)
            assert isinstance(answer.decision, Refuse)
            assert "more than 16 MiB for its allocations and their parameters" in answer.decision.message
            assert answer.gave_up
            assert answer.pause
            w.pod("honest")
            assert isinstance((await w.ask("honest"))[0].decision, Write)
            assert w.worker.restarts == 0

    run(scenario)


def test_a_pod_that_names_its_claim_twice_ends_no_worker() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 2)
            w.claim(builders.claim("c", uid="claim-c"))
            w.pods["twice"] = w.seen(Pod, builders.pod("twice", "c", "c", uid="pod-twice", gated=True))
            w.pod("honest")
            twice, honest = await w.ask_together("twice", "honest")
            assert isinstance(twice[0].decision, Refuse)
            assert isinstance(honest[0].decision, Write)
            assert w.worker.restarts == 0

    run(scenario)


def test_a_call_that_is_cancelled_takes_nothing() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            w.pod("a")
            w.pod("b")
            asking = await asked_of_a_stopped_worker(w, lambda: w.ask("a"))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await w.kill(signal.SIGCONT)
            for _ in range(100):
                found = await w.decider.decide(w.pods["b"], Lane.FAST)
                if found is not None and isinstance(found[0].decision, Write):
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("the device is taken by a question that nobody waits for")

    run(scenario)


def test_what_it_cannot_know_is_answered_too() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            pod = w.pod("a")
            w.journal.apply(ObjectGone(Pod, pod.key))
            answer, _ = await w.ask("a")
            assert answer.decision == Wait("the pod does not exist")
            w.pod("b", builders.claim("b", uid="claim-b", status=GPU_0))
            assert isinstance((await w.ask("b"))[0].decision, Proceed)
            assert PodID(pod.key, pod.metadata.uid).uid

    run(scenario)


def test_what_is_set_aside_is_kept_by_the_next_worker_too() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 2)
            for name in ("a", "b"):
                w.pod(name)
                w.accept(await w.ask(name))
            big = w.pod("big", builders.claim("big", builders.request(count=2), uid="claim-big"))
            found = await w.decider.place(big)
            assert found is not None
            assert [place.node for place in found.places] == ["n1"]
            never = w.pod("never", builders.claim("never", builders.request(count=3), uid="claim-never"))
            assert await w.decider.place(never) is None
            w.journal.apply(DevicesSetAside(found.rank, found.places))
            w.pod("small")
            for killed in (False, True):
                if killed:
                    await w.kill()
                w.journal.apply(ClaimAssumed(ObjectKey(NS, "a"), Uid("claim-a"), None))
                answer = (await w.ask("small"))[0].decision
                assert isinstance(answer, Refuse)
                assert "set aside" in answer.message
            w.journal.apply(ClaimAssumed(ObjectKey(NS, "b"), Uid("claim-b"), None))
            assert isinstance((await w.ask("small"))[0].decision, Refuse)
            assert isinstance((await w.ask("big"))[0].decision, Write)
            w.journal.apply(DevicesSetAside(None, ()))

    run(scenario)


@pytest.mark.parametrize("set_aside", [False, True])
def test_an_answer_to_the_other_kind_of_question_is_none(set_aside: bool) -> None:
    question = PodQuestion(PodID(ObjectKey(NS, "p"), Uid("u")), 0.0, Lane.SLOW, set_aside=set_aside)
    place = PodPlacement(question.pod, "n1", ())
    for decision in (SetAside(Rank(0, "", question.pod.key), (place,)), Proceed("n1")):
        body = packed_answer(PodAnswer(1, decision), 1, 0, slow=True)
        answer = codec.decode(Answer, body)
        if isinstance(decision, SetAside) is set_aside:
            check_answer(answer, question, 1, 1, 0)
        else:
            with pytest.raises(DecodeError):
                check_answer(answer, question, 1, 1, 0)
