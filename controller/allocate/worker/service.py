"""The worker: takes in changes and answers questions, one after the other.

An answer that allocates is assumed here at once, so that the next one knows it; the controller puts it into
effect or takes it back.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controller import process_limits as limits
from controller.allocate.decide import (
    ClaimAssumed,
    Decisions,
    GroupWrite,
    Lane,
    NeedsSlowLane,
    NotYet,
    PodAnswer,
    PodExpected,
    PodID,
    PodQuestion,
    Refuse,
    Settings,
    Write,
)
from controller.allocate.plans import PlanAnswer, PlanQuestion
from controller.allocate.worker.lane import Lane as CopyLane
from controller.allocate.worker.plan_lane import PlanLane
from controller.allocate.worker.sent_answers import OutOfDate, decision_of, packed_answer
from controller.allocate.worker.shape_lane import ShapeLane
from controller.allocate.worker.slow_lane import Outcome, SlowLane
from controller.allocate.worker.wire import (
    ANSWER_LIMIT,
    LARGEST_ANSWER,
    Code,
    Frame,
    Start,
    change_of,
    frame,
    frame_of_answer,
    frame_of_counts,
)
from dra_driver.api import codec

__all__ = ["Service"]

_TIDY_SECONDS: Final = 300.0
_FAILED_PAUSE_SECONDS: Final = 60.0
# While there are messages, an index is prepared for a quarter of the time.
_UPKEEP_SHARE: Final = 4
# Namespaces that have an index prepared; any others have theirs by what their questions do.
_MOST_UNFINISHED: Final = 1_000
# What namespaces had is halved when one of them had so much, and forgotten below the other.
_HALVED_FROM_SECONDS: Final = 2.0
_LEAST_SECONDS: Final = 0.01


class Service:
    """What a worker does with each message.

    Args:
        send: sends bytes to the controller.
        connection: its file descriptor, which copies must not keep open.
        make: makes the decisions, of settings and the CPU time of the calling thread.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        connection: int = -1,
        make: Callable[[Settings, Callable[[], float]], Decisions] = Decisions,
    ) -> None:
        self._make = make
        self._send = send
        self._connection = connection
        self._start: Start | None = None
        self._decisions: Decisions | None = None
        self._version = 0
        # Answers with allocations so far.
        self._answers = 0
        self._tidied = time.monotonic()
        # The last question of each namespace whose index is being prepared, the seconds that namespaces have
        # had for that of late, and when more is to be done.
        self._unfinished: OrderedDict[str, PodQuestion] = OrderedDict()
        self._upkept: dict[str, float] = {}
        self._upkeep_due = 0.0
        self.slow: SlowLane | None = None
        self.shapes: ShapeLane | None = None
        self.plans: PlanLane | None = None

    @property
    def lanes(self) -> list[CopyLane]:
        """What is worked out in copies."""
        return [lane for lane in (self.slow, self.shapes, self.plans) if lane is not None]

    def handle(self, message: Frame) -> None:
        """Take in one message.

        Raises:
            DecodeError: it makes no sense.
        """
        if message.code == Code.START:
            self._start = codec.decode(Start, message.body)
            self._decisions = self._make(self._start.settings, time.thread_time)
            settings = self._start.settings
            self.slow = SlowLane(
                self._decisions,
                seconds=max(settings.decision_seconds, settings.group_decision_seconds),
                most=self._start.slow,
                memory=self._start.memory,
                state=lambda: (self._version, self._answers),
                done=self._done,
                connection=self._connection,
            )
            self.plans = PlanLane(
                self._decisions,
                memory=self._start.memory,
                version=lambda: self._version,
                done=self._planned,
                connection=self._connection,
            )
            return
        assert self._decisions is not None
        if message.code == Code.QUESTION:
            self._answer(message.number, codec.decode(PodQuestion, message.body))
            return
        if message.code == Code.PLAN:
            assert self.plans is not None
            self.plans.add(message.number, codec.decode(PlanQuestion, message.body))
            return
        self._version = message.number
        if message.code == Code.READY:
            self._decisions.refresh()
            gc.freeze()
            gc.enable()
            self._count_shapes()
        else:
            self._decisions.apply(change_of(message))

    def idle(self) -> None:
        """Do what takes long and can wait, while there is nothing else to do."""
        if time.monotonic() - self._tidied > _TIDY_SECONDS:
            self.tidy()

    @property
    def is_preparing(self) -> bool:
        """Whether an index is being prepared, which is to go on while there is nothing else to do."""
        return bool(self._unfinished)

    @property
    def upkeep_is_due(self) -> bool:
        """Whether that is to go on although there are messages."""
        return bool(self._unfinished) and time.monotonic() >= self._upkeep_due

    def keep_up(self) -> None:
        """Go on preparing the index of a question that had no answer yet: of the namespace that had least.

        It may be that of another question: an index is built at a time for a namespace, and each is finished
        before its next one.
        """
        assert self._decisions is not None
        assert self._start is not None
        if not self._unfinished:
            return
        began = time.monotonic()
        namespace = min(self._unfinished, key=lambda name: self._upkept.get(name, 0.0))
        question = self._unfinished.pop(namespace)
        try:
            self._decisions.refresh()
            with limits.memory(self._start.memory):
                more = self._decisions.keep_up(question)
        except (MemoryError, OSError):
            raise
        except Exception:
            # The question will be asked again, and its answer says what is wrong.
            traceback.print_exc()
            more = False
        if more:
            self._unfinished[namespace] = question
        now = time.monotonic()
        self._upkeep_due = now + (_UPKEEP_SHARE - 1) * (now - began)
        self._upkept[namespace] = self._upkept.get(namespace, 0.0) + now - began
        if self._upkept[namespace] > _HALVED_FROM_SECONDS or len(self._upkept) > _MOST_UNFINISHED:
            halved = {name: seconds / 2 for name, seconds in self._upkept.items()}
            self._upkept = {name: seconds for name, seconds in halved.items() if seconds > _LEAST_SECONDS}

    def tidy(self) -> None:
        """Collect garbage, and keep the collector from looking at what is left.

        At 5,000 nodes it took a quarter of a second for that, in the middle of a question.
        """
        gc.unfreeze()
        self._collect()

    def _collect(self) -> None:
        gc.collect()
        gc.freeze()
        self._tidied = time.monotonic()

    def _answer(self, number: int, question: PodQuestion) -> None:
        assert self._decisions is not None
        assert self._start is not None
        assert self.slow is not None
        # No work of the question, and memory that stays.
        self._decisions.refresh()
        try:
            known = self._decisions.remembered(question)
            if known is None and question.lane is Lane.SLOW:
                self.slow.add(number, question)
                return
            if known is None:
                self._send(frame(Code.BEGUN, number))
                with limits.memory(self._start.memory):
                    known = self._decisions.learn(question, self._decisions.work_out(question))
            if known.pause or not known.remembered or isinstance(known.decision, NeedsSlowLane):
                known = replace(known, learned=self._decisions.learned(question))
        except (MemoryError, OSError):
            raise
        except Exception as e:
            # A bug that one pod meets must not stop the decisions about all others.
            traceback.print_exc()
            known = self._failed(question, e)
        known = self._send_answer(number, question, known, (self._version, self._answers), slow=False)
        self._assume(question, known)

    def _send_answer(
        self, number: int, question: PodQuestion, answer: PodAnswer, state: tuple[int, int], *, slow: bool
    ) -> PodAnswer:
        """Send an answer, or a refusal in place of one that the controller would not read; return it.

        An allocation repeats the parameters of its claim, 320 KiB at most, and a group has many claims.

        Args:
            number: of the question.
            question: that was asked.
            answer: to it.
            state: version of the last change, and number of answers with allocations, that it knows.
            slow: whether it is one of the slow lane.
        """
        assert self._decisions is not None
        if isinstance(answer.decision, NotYet):
            # Its index is prepared further between questions.
            self._unfinished[question.pod.key.namespace] = question
            if len(self._unfinished) > _MOST_UNFINISHED:
                self._unfinished.popitem()
        body = packed_answer(answer, *state, slow=slow)
        if len(body) > LARGEST_ANSWER:
            refusal = self._decisions.stopped(question, ANSWER_LIMIT, answer.seconds)
            answer = replace(refusal, learned=self._decisions.learned(question))
            body = packed_answer(answer, *state, slow=slow)
        self._send(frame_of_answer(number, body))
        return answer

    def _failed(self, question: PodQuestion, error: Exception) -> PodAnswer:
        text = f"the decision failed: {type(error).__name__}; the controller's log says more"
        refusal = Refuse(text, signature=str(question.pod.key).encode())
        return PodAnswer(self._version, refusal, steps=0, gave_up=True, pause=_FAILED_PAUSE_SECONDS)

    def _assume(self, question: PodQuestion, answer: PodAnswer) -> None:
        """Count what an answer allocates as taken until the controller says otherwise."""
        assert self._decisions is not None
        writes: tuple[tuple[PodID, Write], ...]
        match answer.decision:
            case Write() as write:
                writes = ((question.pod, write),)
            case GroupWrite(several):
                writes = several
            case _:
                return
        self._answers += 1
        for pod, write in writes:
            for claim, allocation in write.allocations:
                self._decisions.apply(ClaimAssumed(claim.key, claim.metadata.uid, allocation))
            self._decisions.apply(PodExpected(pod, write.node))

    def _count_shapes(self) -> None:
        """Begin to count request shapes: from now on the cluster is known."""
        assert self._start is not None
        if self._decisions is not None and self.shapes is None and self._start.settings.shapes:
            self.shapes = ShapeLane(
                self._decisions, memory=self._start.memory, done=self._counted, connection=self._connection
            )

    def _counted(self, counts: bytes) -> None:
        """Send how often request shapes fit."""
        self._send(frame_of_counts(counts))

    def _planned(self, number: int, answer: PlanAnswer) -> None:
        """Send a plan."""
        self._send(frame(Code.PLANNED, number, answer))

    def _done(self, outcome: Outcome) -> None:
        """Send what the slow lane has found. It is not assumed: others may have its devices by now."""
        assert self._decisions is not None
        decisions, question = self._decisions, outcome.question
        if outcome.answer is None:
            answer = decisions.stopped(question, outcome.limit, outcome.seconds)
        else:
            try:
                decision = decision_of(outcome.answer, decisions.claim)
            except OutOfDate:
                # Asked again by the controller, which sees the same.
                self._send(frame(Code.ANSWER, outcome.number, outcome.answer))
                return
            answer = decisions.learn(question, outcome.answer.with_decision(decision))
        answer = replace(answer, learned=decisions.learned(question))
        self._send_answer(outcome.number, question, answer, (outcome.version, outcome.answers), slow=True)
