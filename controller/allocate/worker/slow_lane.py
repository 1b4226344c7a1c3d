"""Hard questions, each worked out in a copy of the worker, which goes on with the others meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from controller.allocate.decide import Decisions, PodQuestion
from controller.allocate.worker import copies
from controller.allocate.worker.lane import Lane, Limit, Result, Task
from controller.allocate.worker.sent_answers import Answer, packed_answer
from controller.allocate.worker.wire import ANSWER_LIMIT, LARGEST_ANSWER
from dra_driver.api import codec
from dra_driver.errors import DecodeError

__all__ = ["Outcome", "SlowLane"]

# What a question counts for that no copy could be made for.
_NO_ROOM_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a question.

    Attributes:
        number: of the question.
        question: that was asked.
        answer: as the copy sent it; None where the copy was stopped.
        version: of the last change that the answer knows.
        answers: with allocations that it knows.
        limit: that the copy met.
        seconds: of CPU time that it took.
    """

    number: int
    question: PodQuestion
    answer: Answer | None
    version: int
    answers: int
    limit: str = ""
    seconds: float = 0.0


class SlowLane(Lane):
    """Questions that are worked out in copies of this process, a few at a time.

    Args:
        decisions: that are copied.
        seconds: CPU time that a decision takes at most by its own count.
        most: copies at a time.
        memory: bytes that a copy may take beyond what this process has.
        state: version and number of answers that a copy knows.
        done: called with each outcome.
        connection: file descriptor of this process that copies must not keep open.
    """

    def __init__(
        self,
        decisions: Decisions,
        *,
        seconds: float,
        most: int,
        memory: int,
        state: Callable[[], tuple[int, int]],
        done: Callable[[Outcome], None],
        connection: int,
    ) -> None:
        # Beyond what CPU time allows: a machine with other work gives a copy little of it.
        wall_seconds = 5 * (seconds + copies.GRACE_SECONDS)
        super().__init__(
            memory=memory, largest=LARGEST_ANSWER, wall_seconds=wall_seconds, connection=connection, most=most
        )
        self._decisions = decisions
        self._seconds = seconds
        self._state = state
        self._done = done
        self._texts = {
            Limit.TIME: f"{wall_seconds:g} s",
            Limit.SIZE: ANSWER_LIMIT,
            Limit.MEMORY: f"{memory >> 20} MiB of memory",
            Limit.PROCESSOR: f"{seconds:g} s of CPU time, or what memory there is",
            Limit.FAILED: "what can be worked out: the decision failed",
        }

    def add(self, number: int, question: PodQuestion) -> None:
        """Work on a question as soon as there is room."""
        self.put(lambda: self._task(number, question))

    def _task(self, number: int, question: PodQuestion) -> Task:
        version, answers = self._state()

        def work() -> bytes:
            answer = self._decisions.work_out(question)
            answer = replace(answer, learned=self._decisions.learned(question))
            return packed_answer(answer, version, answers, slow=True)

        def done(result: Result) -> None:
            found = Outcome(number, question, None, version, answers, seconds=result.seconds)
            self._done(self._outcome(found, result))

        return Task(work, self._seconds, done)

    def _outcome(self, found: Outcome, result: Result) -> Outcome:
        if result.limit is Limit.NO_ROOM:
            # This question waits for a while, the others go on.
            return replace(found, limit=f"what there is: {result.problem}", seconds=_NO_ROOM_SECONDS)
        if result.limit is None:
            with contextlib.suppress(DecodeError):
                return replace(found, answer=codec.decode(Answer, result.data))
        return replace(found, limit=self._texts[result.limit or Limit.FAILED])
