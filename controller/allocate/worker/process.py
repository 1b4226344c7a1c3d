"""The worker on the controller's side: starts it, sends changes and questions, checks answers, ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from controller.allocate.answers.decider import Answered, WorkerEnded
from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Change, Lane, PodQuestion, Settings
from controller.allocate.plans import PlanAnswer, PlanQuestion
from controller.allocate.worker.child import Child, WorkerChild
from controller.allocate.worker.sent_answers import (
    Answer,
    OutOfDate,
    check_answer,
    claims_taken,
    counts_of,
    decision_of,
    plan_of,
    pods_placed,
)
from controller.allocate.worker.watch import Facts, Watch
from controller.allocate.worker.wire import Code, Frame, Frames, Start, frame, frame_of_change
from dra_driver.api import codec
from dra_driver.errors import DecodeError
from dra_driver.fleet import ShapeCount
from dra_driver.kube import Backoff

__all__ = ["Limits", "WorkerProcess", "answered_by"]

log = structlog.get_logger(__name__)

# For so long at most the event loop is held while a new worker is sent the journal.
_SLICE_SECONDS: Final = 0.005
# Looks at the worker in the time that a question may take.
_LOOKS: Final = 8
# By the clock, beyond what a question of the slow lane may take by its own count: see ``SlowLane``.
_SLOW_FACTOR: Final = 5
# A worker that has lived for so long is none that cannot work.
_STEADY_SECONDS: Final = 10.0
# Bytes that a worker may leave unread before it is replaced.
_MOST_UNREAD: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What questions may take.

    Attributes:
        seconds: of CPU time for one in the fast lane, until the worker is stopped.
        memory: bytes beyond what the worker has.
        slow: questions of the slow lane at a time.
    """

    seconds: float = 2.0
    memory: int = 256 << 20
    slow: int = 1


@dataclass(slots=True)
class _Asked:
    question: PodQuestion
    answer: asyncio.Future[Answered]
    unwanted: Callable[[Answered], None]


class WorkerProcess:
    """Implements ``Answers`` with a process of its own.

    What it says is not believed: a message that no worker in order sends ends it, and the question that it
    was about is asked in the slow lane. What it allocates, ``Decider`` judges.

    Attributes:
        restarts: how often a worker has ended that should not have.

    Args:
        journal: whose changes the worker is sent.
        settings: of the decisions.
        limits: that end a question.
        report: called with the reason whenever a worker has ended.
        start: starts one.
        counted: called with how often request shapes fit, whenever the worker has counted them.
    """

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        limits: Limits,
        report: Callable[[str], None] = lambda _: None,
        start: Callable[[], Awaitable[Child]] = WorkerChild.start,
        counted: Callable[[Sequence[ShapeCount]], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._limits = limits
        self._report = report
        self._start = start
        self._counted = counted
        self._life = 0
        self._ready = asyncio.Event()
        self._child: Child | None = None
        self._written = 0
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._plans: dict[int, asyncio.Future[PlanAnswer]] = {}
        # The question of the fast lane that is worked on; the one that the worker is stopped for.
        self._begun: int | None = None
        self._blamed: int | None = None
        # Of the fast lane in this life: the last version that was known, and answers with allocations.
        self._known = 0
        self._given = 0
        # Whether it has given an answer in this life, and nothing was wrong with any.
        self._answers = False
        self.restarts = 0

    # --- questions ------------------------------------------------------------------------------------------

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        """See ``Answers.ask``."""
        while not self._ready.is_set():
            await self._ready.wait()
        self._number += 1
        number = self._number
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(question, answer, unwanted)
        self._write(frame(Code.QUESTION, number, question))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                unwanted(answer.result())
            raise

    async def plan(self, question: PlanQuestion) -> PlanAnswer:
        """See ``Answers.plan``."""
        while not self._ready.is_set():
            await self._ready.wait()
        self._number += 1
        answer: asyncio.Future[PlanAnswer] = asyncio.get_running_loop().create_future()
        self._plans[self._number] = answer
        self._write(frame(Code.PLAN, self._number, question))
        return await answer

    def restart_worker(self, reason: str) -> None:
        """See ``Answers.restart_worker``."""
        if self._child is not None:
            log.error("the worker that decides is replaced", reason=reason)
            # It is to blame, no question.
            self._begun, self._answers = None, False
            self._child.kill()

    def _write(self, data: bytes) -> None:
        if self._child is not None:
            self._written += len(data)
            self._child.write(data)
            if self._child.unread > _MOST_UNREAD:
                self.restart_worker("it does not take what it is told")

    def _send(self, version: int, change: Change) -> None:
        self._write(frame_of_change(version, change))

    # --- life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a worker running until cancelled."""
        # One that has given no answer may be unable to; one that has and ends, by whatever hand, is missed.
        useless, useful = Backoff(base=0.05, cap=10.0), Backoff(base=0.05, cap=0.5)
        while True:
            since = asyncio.get_running_loop().time()
            stopped = False
            try:
                reason = await self._live()
                # For a question that was too much for it: the next one can work.
                stopped = self._blamed is not None
            except (OSError, DecodeError) as e:
                self._answers = False
                reason = str(e)
            except Exception as e:
                # Whatever a worker sends must not end the controller.
                self._answers = False
                log.exception("what the worker that decides has sent led to an error")
                reason = f"{type(e).__name__}: {e}"
            self.restarts += 1
            self._report("limit" if stopped else "ended")
            if asyncio.get_running_loop().time() - since >= _STEADY_SECONDS:
                useful.reset()
                useless.reset()
            elif self._answers:
                useless.reset()
            delay = 0.0 if stopped else (useful if self._answers else useless).next()
            log.warning("the worker that decides has ended", reason=reason, again_in=round(delay, 2))
            self._blamed = None
            await asyncio.sleep(delay)

    async def _live(self) -> str:
        """Run one worker until it ends; return why it did."""
        child = self._child = await self._start()
        self._life += 1
        self._journal.freshness.begin(self._life)
        self._written = self._known = self._given = 0
        self._answers = False
        watching = asyncio.get_running_loop().create_task(self._watch(child))
        try:
            await self._bring_up_to_date(child)
            await self._listen(child)
        finally:
            watching.cancel()
            self._end()
            status = await child.end()
        return status

    async def _bring_up_to_date(self, child: Child) -> None:
        """Send a new worker all that the journal has; changes are passed on meanwhile."""
        limits = self._limits
        began = since = time.monotonic()
        self._write(frame(Code.START, 0, Start(self._settings, limits.slow, limits.memory)))
        self._journal.send_to(self._send)
        for count, change in enumerate(self._journal.replay(), 1):
            self._write(frame_of_change(self._journal.version, change))
            if count % 16 == 0 and time.monotonic() - since > _SLICE_SECONDS:
                await child.drain()
                await asyncio.sleep(0)
                since = time.monotonic()
        self._write(frame(Code.READY, self._journal.version))
        await child.drain()
        log.info("the worker that decides has started", seconds=round(time.monotonic() - began, 3))
        self._ready.set()

    async def _listen(self, child: Child) -> None:
        frames = Frames()
        while data := await child.read():
            for message in frames.feed(data):
                self._received(message)

    def _end(self) -> None:
        self._journal.send_to(None)
        self._ready.clear()
        self._child = None
        asked, self._asked = self._asked, {}
        if self._blamed is None:
            # It ended by itself while it worked on this one, if it worked.
            self._blamed = self._begun
        self._begun = None
        for number, one in asked.items():
            if not one.answer.done():
                one.answer.set_exception(WorkerEnded(blamed=number == self._blamed))
        plans, self._plans = self._plans, {}
        for plan in plans.values():
            if not plan.done():
                plan.set_exception(WorkerEnded(blamed=False))

    # --- messages -------------------------------------------------------------------------------------------

    def _received(self, message: Frame) -> None:
        if message.code == Code.SHAPES:
            self._counted(counts_of(message, self._settings.shapes))
            return
        if message.code == Code.PLANNED:
            self._planned(message)
            return
        number, asked = message.number, self._asked.get(message.number)
        if message.code not in (Code.BEGUN, Code.ANSWER):
            raise DecodeError(f"a message of unknown code {message.code}")
        if asked is None:
            raise DecodeError(f"a message about question {number}, which was not asked")
        is_fast = asked.question.lane is Lane.FAST
        if message.code == Code.BEGUN:
            if self._begun is not None or number != self._next():
                raise DecodeError(f"a message that question {number} has begun, out of turn")
            self._begun = number
            return
        try:
            if is_fast and number != self._next():
                raise DecodeError("out of turn")
            answer = codec.decode(Answer, message.body)
            check_answer(answer, asked.question, self._known, self._journal.version, self._given)
        except DecodeError as e:
            self._blamed = number
            raise DecodeError(f"an answer to question {number}: {e}") from e
        if is_fast:
            self._begun, self._known = None, answer.version
            self._given += answer.allocates
        self._answers = True
        del self._asked[number]
        if answer.learned is not None:
            self._journal.learn(asked.question.pod.key, answer.group, answer.learned)
        answered = answered_by(answer, asked.question, self._life, self._journal)
        if asked.answer.done():
            asked.unwanted(answered)
        else:
            asked.answer.set_result(answered)

    def _planned(self, message: Frame) -> None:
        plan = self._plans.pop(message.number, None)
        if plan is None:
            raise DecodeError(f"plan {message.number}, which was not asked for")
        answer = plan_of(message, self._journal.version)
        if not plan.done():
            plan.set_result(answer)

    def _next(self) -> int | None:
        """Return the oldest question of the fast lane: they are answered one after the other."""
        return next((n for n, one in self._asked.items() if one.question.lane is Lane.FAST), None)

    # --- limits ---------------------------------------------------------------------------------------------

    async def _watch(self, child: Child) -> None:
        """Stop a worker that works on one question for too long, or does not work."""
        limit, settings = self._limits.seconds, self._settings
        longest = max(settings.decision_seconds, settings.group_decision_seconds)
        watch = Watch(limit, _SLOW_FACTOR * (longest + 1.0))
        try:
            while not child.has_ended:
                await asyncio.sleep(limit / _LOOKS)
                found = watch.look(self._facts(child), limit / _LOOKS)
                if found is not None:
                    self._blame(found.reason, found.question)
                    break
            else:
                # Something of it may live on and hold the connection.
                child.abort()
        finally:
            child.kill()

    def _blame(self, reason: str, question: int | None) -> None:
        asked = self._asked.get(question) if question is not None else None
        pod = str(asked.question.pod.key) if asked is not None else ""
        log.error("the worker that decides is replaced", reason=reason, pod=pod)
        self._blamed = question

    def _facts(self, child: Child) -> Facts:
        return Facts(
            begun=self._begun,
            fast=self._next(),
            slow=tuple(n for n, one in self._asked.items() if one.question.lane is Lane.SLOW),
            taken=self._written - child.unread,
            unread=child.unread,
            cpu_seconds=child.cpu_seconds,
            is_stopped=child.is_stopped,
            switches=child.switches,
        )


def answered_by(answer: Answer, question: PodQuestion, life: int, journal: Journal) -> Answered:
    """Return what an answer says with the claims as they are known here.

    Args:
        answer: as it was received.
        question: that it is to.
        life: of the worker that gave it.
        journal: of the changes that the worker was sent.
    """
    # Answers of the slow lane are not assumed by the worker, so nothing of them is to be given back.
    taken = () if answer.slow else tuple((ref.key, ref.uid) for ref in claims_taken(answer))
    placed = () if answer.slow else tuple(pods_placed(answer, question.pod))
    knowledge = Knowledge(answer.version, life, answer.answers, answer.slow)
    try:
        decision = decision_of(answer, journal.claim)
    except OutOfDate:
        return Answered(None, knowledge, taken, placed)
    return Answered(answer.with_decision(decision), knowledge, taken, placed)
