"""Hard questions, each worked out in a copy of the worker, which goes on with the others meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from controller.allocate.decide import Decisions, PodQuestion
from controller.allocate.worker import copies
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


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    question: PodQuestion
    version: int = 0
    answers: int = 0


@dataclass(slots=True)
class _UnderWay:
    asked: _Asked
    copy: copies.Copy
    started: float
    overdue: bool = False


class SlowLane:
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
        self._decisions = decisions
        self._seconds = seconds
        self._most = most
        self._memory = memory
        self._state = state
        self._done = done
        self._connection = connection
        self._waiting: deque[_Asked] = deque()
        self._copies: dict[int, _UnderWay] = {}  # by pipe

    @property
    def pipes(self) -> Collection[int]:
        """What ``read`` is to be called for when it can be read."""
        return self._copies.keys()

    @property
    def timeout(self) -> float | None:
        """Seconds after which ``look`` is to be called; None while nothing is under way."""
        ends = [c.started + self._wall_seconds for c in self._copies.values() if not c.overdue]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    @property
    def _wall_seconds(self) -> float:
        """Beyond what CPU time allows: a machine with other work gives a copy little of it."""
        return 5 * (self._seconds + copies.GRACE_SECONDS)

    def add(self, number: int, question: PodQuestion) -> None:
        """Work on a question as soon as there is room."""
        self._waiting.append(_Asked(number, question))
        self.look()

    def look(self) -> None:
        """Stop what takes too long, and begin what there is room for."""
        now = time.monotonic()
        for one in self._copies.values():
            if not one.overdue and now - one.started >= self._wall_seconds:
                one.overdue = True
                one.copy.stop()
        while self._waiting and len(self._copies) < self._most:
            asked = self._waiting.popleft()
            self._begin(replace(asked, version=self._state()[0], answers=self._state()[1]))

    def close(self) -> None:
        """Stop everything."""
        self._waiting.clear()
        for one in self._copies.values():
            one.copy.close()
        self._copies.clear()

    def _begin(self, asked: _Asked) -> None:
        def work() -> bytes:
            answer = self._decisions.work_out(asked.question)
            answer = replace(answer, learned=self._decisions.learned(asked.question))
            return packed_answer(answer, asked.version, asked.answers, slow=True)

        try:
            copy = copies.begin(work, connection=self._connection, memory=self._memory, seconds=self._seconds)
        except OSError as e:
            # No more processes, files or memory: this question waits for a while, the others go on.
            text = f"what there is: {e.strerror}"
            found = Outcome(asked.number, asked.question, None, asked.version, asked.answers)
            self._done(replace(found, limit=text, seconds=_NO_ROOM_SECONDS))
            return
        self._copies[copy.pipe] = _UnderWay(asked, copy, time.monotonic())

    def read(self, pipe: int) -> None:
        """Take in what a copy has sent, and report the outcome when it has ended."""
        one = self._copies[pipe]
        if (ended := one.copy.read(LARGEST_ANSWER)) is not None:
            del self._copies[pipe]
            self._done(replace(self._outcome(one, ended), seconds=ended.seconds))
            self.look()

    def _outcome(self, one: _UnderWay, ended: copies.Ended) -> Outcome:
        asked = one.asked
        found = Outcome(asked.number, asked.question, None, asked.version, asked.answers)
        if ended.has_result:
            with contextlib.suppress(DecodeError):
                return replace(found, answer=codec.decode(Answer, bytes(one.copy.data)))
        if len(one.copy.data) > LARGEST_ANSWER:
            return replace(found, limit=ANSWER_LIMIT)
        if one.overdue:
            return replace(found, limit=f"{self._wall_seconds:g} s")
        if ended.lacked_memory:
            return replace(found, limit=f"{self._memory >> 20} MiB of memory")
        if ended.was_stopped:
            return replace(found, limit=f"{self._seconds:g} s of CPU time, or what memory there is")
        return replace(found, limit="what can be worked out: the decision failed")
