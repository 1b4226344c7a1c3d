"""Plans for waiting pods, each worked out in a copy of the worker, which goes on with decisions meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from controller.allocate.decide import Decisions
from controller.allocate.plans import LARGEST_PLAN, PlanAnswer, PlanQuestion, work_out
from controller.allocate.worker.lane import Lane, Limit, Result, Task
from dra_driver.api import codec

__all__ = ["PlanLane"]

# CPU time beyond what a plan counts: between two looks at the clock there may be that much.
_MORE_SECONDS: Final = 4.0
# By the clock: a plan has what everything else leaves of the processors.
_WALL_SECONDS: Final = 60.0
_NICE: Final = 15


class PlanLane(Lane):
    """One plan at a time, beside the questions.

    Args:
        decisions: that are copied.
        memory: bytes that a copy may take beyond what this process has.
        version: of the last change that a copy knows.
        done: called with the number of the question and the answer.
        connection: file descriptor of this process that copies must not keep open.
    """

    def __init__(
        self,
        decisions: Decisions,
        *,
        memory: int,
        version: Callable[[], int],
        done: Callable[[int, PlanAnswer], None],
        connection: int,
    ) -> None:
        super().__init__(
            memory=memory,
            largest=LARGEST_PLAN,
            wall_seconds=_WALL_SECONDS,
            connection=connection,
            nice=_NICE,
        )
        self._decisions = decisions
        self._version = version
        self._done = done
        self._texts = {
            Limit.TIME: f"it takes more than {_WALL_SECONDS:g} s",
            Limit.SIZE: "it is too long; dra-driver plan has no such limit",
            Limit.MEMORY: f"it takes more than {memory >> 20} MiB of memory",
            Limit.FAILED: "it failed; the controller's log says more",
        }

    def add(self, number: int, question: PlanQuestion) -> None:
        """Work out a plan as soon as there is no other."""
        self.put(lambda: self._task(number, question))

    def _task(self, number: int, question: PlanQuestion) -> Task:
        version = self._version()

        def work() -> bytes:
            return codec.encode(work_out(self._decisions, question, time.thread_time))

        def done(result: Result) -> None:
            self._done(number, self._answer(question, version, result))

        return Task(work, question.seconds + _MORE_SECONDS, done)

    def _answer(self, question: PlanQuestion, version: int, result: Result) -> PlanAnswer:
        match result.limit:
            case None:
                return PlanAnswer(version, result.seconds, plan=msgspec.Raw(result.data))
            case Limit.NO_ROOM:
                limit = f"there is no room for it: {result.problem}"
            case Limit.PROCESSOR:
                limit = f"it takes more than {question.seconds:g} s of CPU time, or the memory there is"
            case _:
                limit = self._texts[result.limit]
        return PlanAnswer(version, result.seconds, limit)
