"""The first questions of a kind in a large fleet: they wait until the index of its nodes is whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import builders
import pytest
from builders import DRIVER, NAMESPACE, PROTECTED
from controller_harness import Harness, claim, cluster_of, node, pod, run
from fake_client import FakeClient
from group_members import allocated, member
from inline_answers import Inline

from controller.allocate.answers.decider import Answers
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    Change,
    ClaimSeen,
    DecisionOverran,
    Decisions,
    Lane,
    NeedsSlowLane,
    NotYet,
    ObjectGone,
    ObjectSeen,
    PodAnswer,
    PodID,
    PodQuestion,
    Refuse,
    Settings,
    Write,
)
from controller.allocate.decide.heavy import UPKEEP_SECONDS, HeavyQuestions
from controller.allocate.worker.sent_answers import Answer, check_answer, decision_of, packed_answer
from controller.allocate.worker.service import Service
from controller.allocate.worker.wire import Code, Frame, Frames, Start, frame, frame_of_change
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics
from dra_driver.api import codec
from dra_driver.api.core import PODS, Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.fleet import parse_shapes
from dra_driver.structured import Budget, IndexUnfinished

NODES = 200
OF = f'device.attributes["{DRIVER}"]'
EXPRESSION = f'{OF}.model == "large" && {OF}.rack == "r0"'
WANTED = builders.request("gpu", selectors=[{"cel": {"expression": EXPRESSION}}])
Body = dict[str, Any]


class SlowMachine:
    """CPU time that passes with each look at it: few nodes take as long as very many on a real machine."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.time = 0.0
        self._seconds = seconds

    def __call__(self) -> float:
        self.time += self._seconds
        return self.time


def gpus(i: int) -> list[Body]:
    facts = {"model": "large" if i >= NODES // 2 else "small", "rack": f"r{i % 5}"}
    return [builders.device(f"gpu-{k}", "40Gi", taints=[PROTECTED], attributes=facts) for k in range(2)]


def large_cluster(nodes: int = NODES) -> FakeClient:
    cluster = cluster_of()
    for i in range(nodes):
        node(cluster, f"n{i:03}")
        cluster.put(RESOURCE_SLICES, builders.resource_slice(f"n{i:03}", *gpus(i), driver=DRIVER))
    return cluster


def from_template(cluster: FakeClient, i: int) -> None:
    """A pod whose claim is made from a template, so that all such pods ask for the same."""
    claim(cluster, f"c{i}", WANTED)
    body = builders.pod(f"p{i}", gated=True, cpu="1")
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    body["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"c{i}"}]}
    made = cluster.put(PODS, body)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": f"p{i}", "uid": made["metadata"]["uid"]}
    owners = [{**owner, "controller": True}]
    cluster.edit(RESOURCE_CLAIMS, f"c{i}", {"metadata": {"ownerReferences": owners}}, NAMESPACE)


def slow_answers(
    journal: Journal, settings: Settings, _config: ControllerConfig, _metrics: Metrics
) -> Answers:
    return Inline(journal, settings, SlowMachine())


# --- decisions ----------------------------------------------------------------------------------------------


def changes() -> list[Change]:
    def seen(kind: type[Any], body: Body) -> ObjectSeen:
        return ObjectSeen(codec.convert(kind, body))

    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    found: list[Change] = [seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))]
    for i in range(NODES):
        found.append(seen(Node, builders.node(f"n{i:03}", allocatable=room)))
        slice_ = builders.resource_slice(f"n{i:03}", *gpus(i), driver=DRIVER)
        found.append(seen(ResourceSlice, slice_))
    body = builders.claim("c", WANTED, uid="claim")
    found.append(ClaimSeen(codec.convert(ResourceClaim, body)))
    found.append(seen(Pod, builders.pod("p", "c", uid="pod", gated=True, cpu="1")))
    return found


ASKED = PodID(ObjectKey(NAMESPACE, "p"), Uid("pod"))


def decisions(seconds: float = 0.02) -> Decisions:
    made = Decisions(Settings(drivers=(DRIVER,)), SlowMachine(seconds))
    for change in changes():
        made.apply(change)
    return made


def ask(made: Decisions, now: float, lane: Lane = Lane.FAST) -> PodAnswer:
    return made.decide(PodQuestion(ASKED, now, lane))


def until_known(asked: Callable[[float], PodAnswer]) -> list[PodAnswer]:
    """Ask each second until there is an answer."""
    answers = []
    for now in range(100, 200):
        answers.append(asked(float(now)))
        if not isinstance(answers[-1].decision, NotYet):
            return answers
    raise AssertionError("it gets no further")


def test_a_question_waits_for_the_index_and_is_not_held_against_the_pod() -> None:
    made = decisions()
    *waits, last = until_known(lambda now: ask(made, now))
    assert len(waits) > 3
    for answer in waits:
        assert isinstance(answer.decision, NotYet)
        assert "still preparing its index of 200 nodes" in answer.decision.message
        assert [c.metadata.name for c in answer.decision.claims] == ["c"]
        assert (answer.gave_up, answer.cut, answer.pause) == (False, False, 0.0)
        assert answer.seconds < 0.2
    assert isinstance(last.decision, Write)
    assert last.decision.node == "n100"
    learned = made.learned(PodQuestion(ASKED, 300.0))
    assert learned.question is None
    assert learned.namespace is None


def test_a_question_of_the_slow_lane_has_its_index_prepared_in_the_fast_one() -> None:
    made = decisions()
    made.apply(DecisionOverran(ASKED.key, 1.0))
    assert isinstance(ask(made, 2.0).decision, NeedsSlowLane)
    slow = PodQuestion(ASKED, 3.0, Lane.SLOW)
    # In a copy of the process: what it builds is lost with it, but not what its answer says.
    answer = decisions(0.1).work_out(slow)
    assert isinstance(answer.decision, NotYet)
    assert isinstance(made.learn(slow, answer).decision, NotYet)
    *waits, last = until_known(lambda now: ask(made, now))
    assert waits
    assert isinstance(last.decision, Write)
    assert isinstance(ask(made, 300.0, Lane.SLOW).decision, Write)


def test_a_question_that_is_too_hard_to_come_as_far_as_its_index_is_answered_in_the_slow_lane() -> None:
    made = decisions(0.21)
    assert isinstance(ask(made, 1.0).decision, NeedsSlowLane)
    assert isinstance(ask(made, 2.0, Lane.SLOW).decision, NotYet)
    # The fast lane tries, with all that it gives used up by the claims; what they lack is not forgotten.
    fast = PodQuestion(ASKED, 3.0)
    assert made.remembered(fast) is None
    assert isinstance(made.learn(fast, PodAnswer(1, Refuse("gave up"), cut=True)).decision, NeedsSlowLane)
    assert made.remembered(fast) is None
    # So the slow lane builds the index itself.
    work = SlowMachine(0.0)
    heavy = HeavyQuestions(work)

    def upkeep_of(budget: Budget) -> float:
        since = work.time
        with budget.keeping_up(), contextlib.suppress(IndexUnfinished):
            while True:
                budget.keep_up(32)
                work.time += 0.01
        return work.time - since

    assert upkeep_of(heavy.slow_budget("team-a", "q", 2.0)) == pytest.approx(0.5, abs=0.05)
    heavy.not_yet("team-a", "q", 1.0)
    assert upkeep_of(heavy.slow_budget("team-a", "q", 2.0)) == pytest.approx(2.0, abs=0.05)


def test_a_pod_that_is_gone_has_nothing_prepared() -> None:
    made = decisions()
    question = PodQuestion(ASKED, 1.0)
    assert made.keep_up(question)
    made.apply(ObjectGone(Pod, ASKED.key))
    assert not made.keep_up(question)


def test_what_has_its_index_does_not_wait_for_that_of_another_question_of_its_namespace() -> None:
    """One node that changed was enough: while another index was prepared, the pod waited as long."""
    made = decisions()
    until_known(lambda now: ask(made, now))
    made._heavy.not_yet(NAMESPACE, "another question", 200.0)
    unlike = builders.device("gpu-0", "41Gi", taints=[PROTECTED], attributes={"serial": "no other"})
    slice_ = builders.resource_slice("n000", unlike, driver=DRIVER)
    made.apply(ObjectSeen(codec.convert(ResourceSlice, slice_)))
    assert isinstance(ask(made, 200.1).decision, Write)


def test_a_namespace_has_one_question_at_a_time_prepare_an_index() -> None:
    work = SlowMachine(0.0)
    heavy = HeavyQuestions(work)

    def upkeep(namespace: str, now: float) -> bool:
        budget, since = heavy.fast_budget(namespace, now), work.time
        with budget.keeping_up(), contextlib.suppress(IndexUnfinished):
            while True:
                budget.keep_up(1)
                work.time += 0.000001
        return work.time - since > 0.01

    assert upkeep("team-a", 10.0)
    heavy.not_yet("team-a", "q", 10.0)
    assert not upkeep("team-a", 10.1)
    assert upkeep("team-b", 10.1)
    assert upkeep("team-a", 11.0)
    for i in range(10_050):
        heavy.not_yet(f"ns-{i}", i, 12.0)
    assert len(heavy._unfinished) == len(heavy._upkept) == 10_000


def test_a_namespace_whose_selectors_take_long_for_one_node_prepares_nothing_for_a_while() -> None:
    """Forty of its pods took a tenth of a second each, however little they were given: all others waited."""
    work = SlowMachine(0.0)
    heavy = HeavyQuestions(work)

    def upkeep(namespace: str, now: float, piece: float) -> float:
        budget, since = heavy.fast_budget(namespace, now), work.time
        with budget.keeping_up(), contextlib.suppress(IndexUnfinished):
            while True:
                budget.keep_up(1_000)
                work.time += piece
        heavy.not_yet(namespace, "q", now, budget.overrun)
        return work.time - since

    assert upkeep("hard", 10.0, 0.1) == pytest.approx(0.1)
    assert upkeep("hard", 10.2, 0.1) == 0
    assert upkeep("hard", 10.9, 0.1) == 0
    assert upkeep("other", 10.9, 0.001) > 0
    assert upkeep("hard", 11.5, 0.1) == pytest.approx(0.1)
    # One that takes no longer than it was given is not told from any other.
    assert upkeep("easy", 20.0, 0.001) == pytest.approx(UPKEEP_SECONDS, abs=0.01)
    assert upkeep("easy", 20.1, 0.001) > 0


def test_questions_of_many_namespaces_prepare_little_altogether() -> None:
    work = SlowMachine(0.0)
    heavy = HeavyQuestions(work)

    def upkeep(number: int, now: float) -> float:
        budget, since = heavy.fast_budget(f"ns-{number}", now), work.time
        with budget.keeping_up(), contextlib.suppress(IndexUnfinished):
            while True:
                budget.keep_up(1)
                work.time += 0.000001
        heavy.not_yet(f"ns-{number}", number, now)
        return work.time - since

    # All of them together hold up the questions of others for a fifth of the second, not for five.
    assert sum(upkeep(number, 10.0) for number in range(100)) < 0.2
    assert upkeep(100, 10.99) < 0.002
    assert upkeep(101, 12.0) == pytest.approx(UPKEEP_SECONDS, abs=0.01)


def test_what_counting_shapes_needs_is_prepared_in_parts() -> None:
    spec = {"devices": {"requests": [WANTED]}}
    shapes = parse_shapes([f"large={json.dumps(spec)}"], DRIVER)
    made = Decisions(Settings(drivers=(DRIVER,), shapes=shapes), SlowMachine())
    for change in changes():
        made.apply(change)
    parts = 0
    while not made.prepare_shapes():
        parts += 1
        assert parts < 100
    assert parts > 3
    (count,) = made.count_shapes(1_000.0)
    assert count.fits == NODES // 5


# --- the worker ---------------------------------------------------------------------------------------------


class Worker:
    """A worker without a process."""

    def __init__(self) -> None:
        self._frames, self._sent = Frames(), Frames()
        self.answers: list[Answer] = []
        self.service = Service(self._send, make=lambda settings, _: Decisions(settings, SlowMachine()))
        self._version = 0
        self._handle(frame(Code.START, 0, Start(Settings(drivers=(DRIVER,)), 1, 1 << 40)))
        for change in changes():
            self.apply(change)
        self._handle(frame(Code.READY, self._version))

    def _send(self, data: bytes) -> None:
        found: Iterable[Frame] = self._sent.feed(data)
        self.answers += [codec.decode(Answer, m.body) for m in found if m.code == Code.ANSWER]

    def _handle(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self.service.handle(message)

    def apply(self, change: Change) -> None:
        self._version += 1
        self._handle(frame_of_change(self._version, change))

    def ask(self, asked: PodID = ASKED) -> Answer:
        question = PodQuestion(asked, 1000.0)
        self._handle(frame(Code.QUESTION, len(self.answers) + 1, question))
        check_answer(self.answers[-1], question, 0, self._version, 0)
        return self.answers[-1]


def test_the_worker_prepares_an_index_between_questions() -> None:
    worker = Worker()
    assert not worker.ask().allocates
    assert worker.service.is_preparing
    parts = 0
    while worker.service.is_preparing:
        worker.service.keep_up()
        parts += 1
        assert parts < 200
    assert parts > 2
    assert worker.ask().allocates
    assert not worker.service.is_preparing


def test_the_worker_prepares_indexes_for_the_namespace_that_has_had_least() -> None:
    worker = Worker()
    claimed = builders.claim("c", WANTED, uid="other-claim", namespace="other")
    worker.apply(ClaimSeen(codec.convert(ResourceClaim, claimed)))
    body = builders.pod("p", "c", uid="other-pod", namespace="other", gated=True, cpu="1")
    worker.apply(ObjectSeen(codec.convert(Pod, body)))
    other = PodID(ObjectKey("other", "p"), Uid("other-pod"))
    worker.ask()
    worker.service._upkept[NAMESPACE] = 1.0  # for what it asked before
    worker.ask(other)
    turns = 0
    while "other" in worker.service._unfinished:
        turns += 1
        worker.service.keep_up()
    assert turns > 2
    assert worker.service._upkept[NAMESPACE] == 1.0
    assert worker.ask(other).allocates


def test_what_namespaces_had_of_upkeep_is_forgotten() -> None:
    worker = Worker()
    worker.ask()
    worker.service._upkept |= {f"gone-{i}": 0.011 for i in range(2_000)}
    worker.service.keep_up()
    assert worker.service._upkept.keys() <= {NAMESPACE}


def test_an_answer_that_is_not_known_yet_is_understood_by_the_controller() -> None:
    wanted = codec.convert(ResourceClaim, builders.claim("c", WANTED, uid="claim"))
    decision = NotYet("the allocator is still preparing", (wanted,), b"s")
    for question in (PodQuestion(ASKED, 0.0), PodQuestion(ASKED, 0.0, Lane.SLOW, set_aside=True)):
        slow = question.lane is Lane.SLOW
        answer = codec.decode(Answer, packed_answer(PodAnswer(1, decision), 1, 0, slow=slow))
        check_answer(answer, question, 1, 1, 0)
        assert not answer.allocates
        assert decision_of(answer, lambda _: wanted) == decision


# --- the controller -----------------------------------------------------------------------------------------


def test_pods_wait_for_the_index_and_say_so() -> None:
    cluster = large_cluster()

    async def scenario(h: Harness) -> None:
        for i in range(20):
            from_template(cluster, i)
        while not h.devices("c0"):
            await asyncio.sleep(0.1)
        # Each was asked about once before the index was whole, and then only the first of them.
        assert 25 < h.decisions() < 200
        assert h.events("PreparingIndex")
        await h.quiet()
        assert all(h.devices(f"c{i}") for i in range(20))
        for wrong in ("FailedAllocation", "DecisionLimit", "DecisionDelayed"):
            assert not h.events(wrong)
        assert all("still preparing its index of 200 nodes" in text for text in h.events("PreparingIndex"))

    run(cluster, scenario, answers_of=slow_answers)


def test_a_pod_that_waits_long_for_the_index_has_a_condition_that_says_so() -> None:
    cluster = large_cluster(120)

    def very_slow(journal: Journal, settings: Settings, *_: object) -> Answers:
        return Inline(journal, settings, SlowMachine(1.2 * UPKEEP_SECONDS))

    async def scenario(h: Harness) -> None:
        claim(cluster, "c", WANTED)
        pod(cluster, "p", "c")
        await asyncio.sleep(16.5)
        assert not h.devices("c")
        assert h.reason("p").reason == "PreparingIndex"
        assert "still preparing its index of 120 nodes" in h.reason("p").message
        assert len(h.events("PreparingIndex")) == 1
        # However little is done at a time, it comes to an end.
        while not h.devices("c"):
            await asyncio.sleep(1.0)

    run(cluster, scenario, answers_of=very_slow)


@pytest.mark.parametrize("served", ["deleted", "allocated"])
def test_the_next_pod_is_asked_about_when_the_first_one_has_gone(served: str) -> None:
    cluster = large_cluster()

    async def scenario(h: Harness) -> None:
        for name in ("a", "b"):
            claim(cluster, name, WANTED)
            pod(cluster, name, name)
        await asyncio.sleep(0.6)
        assert not h.devices("a")
        if served == "deleted":
            cluster.remove(PODS, "a", NAMESPACE)
        while not h.devices("b"):
            await asyncio.sleep(0.1)

    run(cluster, scenario, answers_of=slow_answers)


def test_a_group_waits_for_the_index_as_well() -> None:
    cluster = large_cluster()

    async def scenario(h: Harness) -> None:
        for i in range(3):
            member(cluster, str(i), 3)
        while allocated(h, "012") != "012":
            await asyncio.sleep(0.1)
        assert not h.events("DecisionLimit")

    run(cluster, scenario, answers_of=slow_answers)
