"""A worker in this process whose answers are late, for scenarios in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from controller.allocate.answers.decider import Answered, Answers
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Change, PodQuestion, Settings
from controller.allocate.plans import PlanAnswer, PlanQuestion
from controller.allocate.worker.process import answered_by
from controller.allocate.worker.sent_answers import Answer, packed_answer
from controller.allocate.worker.service import Service
from controller.allocate.worker.slow_lane import Outcome
from controller.allocate.worker.wire import Code, Frame, Frames, Start, frame, frame_of_change
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics
from dra_driver.api import codec

__all__ = ["SlowLaneInPlace", "late"]


class SlowLaneInPlace:
    """In place of copies of the process: worked out at once, without being assumed."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def add(self, number: int, question: PodQuestion) -> None:
        decisions, version, answers = (
            self._service._decisions,
            self._service._version,
            self._service._answers,
        )
        assert decisions is not None
        body = packed_answer(decisions.work_out(question), version, answers, slow=True)
        self._service._done(Outcome(number, question, codec.decode(Answer, body), version, answers))


class LateAnswers:
    """Implements ``Answers`` with the worker's service, by its messages.

    Args:
        journal: that the worker is told.
        settings: of the decisions.
        delay: gives the seconds until the next answer arrives.
        restarts: whether the worker is to be replaced before the next question.
    """

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        delay: Callable[[], float],
        restarts: Callable[[], bool],
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._delay = delay
        self._restarts = restarts
        self._life = 0
        self._number = 0
        self._received: list[Frame] = []
        self._begin()

    def _begin(self) -> None:
        self._life += 1
        frames, self._frames = Frames(), Frames()
        service = Service(lambda data: self._received.extend(frames.feed(data)))
        self._service = service
        self._tell(frame(Code.START, 0, Start(self._settings, 1, 1 << 40)))
        slow: Any = SlowLaneInPlace(service)
        service.slow = slow
        self._journal.freshness.begin(self._life)
        for change in self._journal.replay():
            self._send(self._journal.version, change)
        self._journal.send_to(self._send)

    def _send(self, version: int, change: Change) -> None:
        self._tell(frame_of_change(version, change))

    def _tell(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._service.handle(message)

    async def run(self) -> None:
        """See ``Answers.run``."""

    async def plan(self, question: PlanQuestion) -> PlanAnswer:
        """See ``Answers.plan``: copies of this process are not made."""
        raise NotImplementedError

    def restart_worker(self, reason: str) -> None:
        """See ``Answers.restart_worker``: nothing here gives a reason for that."""
        raise AssertionError(reason)

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        """See ``Answers.ask``."""
        if self._restarts():
            self._begin()
        self._number += 1
        self._received.clear()
        life = self._life
        self._tell(frame(Code.QUESTION, self._number, question))
        (message,) = (m for m in self._received if m.code == Code.ANSWER)
        answer = codec.decode(Answer, message.body)
        try:
            await asyncio.sleep(self._delay())
        except asyncio.CancelledError:
            unwanted(answered_by(answer, question, life, self._journal))
            raise
        return answered_by(answer, question, life, self._journal)


def late(
    seconds: float, seed: int = 0, restarts: float = 0.0
) -> Callable[[Journal, Settings, ControllerConfig, Metrics], Answers]:
    """Return what makes answers that take up to so many seconds.

    Args:
        seconds: the most that an answer takes.
        seed: of how long each takes.
        restarts: share of the questions before which the worker is replaced.
    """
    rng = random.Random(seed)

    def answers(
        journal: Journal, settings: Settings, _config: ControllerConfig, _metrics: Metrics
    ) -> Answers:
        return LateAnswers(
            journal, settings, lambda: rng.uniform(0, seconds), lambda: rng.random() < restarts
        )

    return answers
