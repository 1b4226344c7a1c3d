"""Plans for waiting pods, each worked out in a copy of the worker, which goes on with decisions meanwhile."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.allocate.decide import Decisions
from controller.allocate.plans import LARGEST_PLAN, PlanAnswer, PlanQuestion, work_out
from controller.allocate.worker import copies
from dra_driver.api import codec

__all__ = ["PlanLane"]

# CPU time beyond what a plan counts: between two looks at the clock there may be that much.
_MORE_SECONDS: Final = 4.0
# By the clock: a plan has what everything else leaves of the processors.
_WALL_SECONDS: Final = 60.0
_NICE: Final = 15


@dataclass(slots=True)
class _UnderWay:
    number: int
    question: PlanQuestion
    version: int
    copy: copies.Copy
    started: float
    limit: str = ""


class PlanLane:
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
        self._decisions = decisions
        self._memory = memory
        self._version = version
        self._done = done
        self._connection = connection
        self._waiting: deque[tuple[int, PlanQuestion]] = deque()
        self._plan: _UnderWay | None = None

    @property
    def pipes(self) -> Collection[int]:
        """What ``read`` is to be called for when it can be read."""
        return () if self._plan is None else (self._plan.copy.pipe,)

    def add(self, number: int, question: PlanQuestion) -> None:
        """Work out a plan as soon as there is no other."""
        self._waiting.append((number, question))
        self.look()

    def look(self) -> None:
        """Stop a plan that takes too long, and begin the next one."""
        plan = self._plan
        if plan is not None:
            if not plan.limit and time.monotonic() - plan.started > _WALL_SECONDS:
                plan.limit = f"it takes more than {_WALL_SECONDS:g} s"
                plan.copy.stop()
            return
        if not self._waiting:
            return
        number, question = self._waiting.popleft()
        version = self._version()
        try:
            copy = copies.begin(
                lambda: self._work(question),
                connection=self._connection,
                memory=self._memory,
                seconds=question.seconds + _MORE_SECONDS,
                nice=_NICE,
            )
        except OSError as e:
            self._done(number, PlanAnswer(version, 0.0, f"there is no room for it: {e.strerror}"))
            return
        self._plan = _UnderWay(number, question, version, copy, time.monotonic())

    def _work(self, question: PlanQuestion) -> bytes:
        return codec.encode(work_out(self._decisions, question, time.thread_time))

    def read(self, pipe: int) -> None:
        """Take in what a copy has sent, and report the answer when it has ended."""
        plan = self._plan
        if plan is None or plan.copy.pipe != pipe:
            return
        if (ended := plan.copy.read(LARGEST_PLAN)) is not None:
            self._plan = None
            self._done(plan.number, self._answer(plan, ended))
            self.look()

    def close(self) -> None:
        """Stop everything."""
        self._waiting.clear()
        if self._plan is not None:
            self._plan.copy.close()
            self._plan = None

    def _answer(self, plan: _UnderWay, ended: copies.Ended) -> PlanAnswer:
        if plan.limit:
            limit = plan.limit
        elif len(plan.copy.data) > LARGEST_PLAN:
            limit = "it is too long; dra-driver plan has no such limit"
        elif ended.has_result:
            return PlanAnswer(plan.version, ended.seconds, plan=msgspec.Raw(bytes(plan.copy.data)))
        elif ended.lacked_memory:
            limit = f"it takes more than {self._memory >> 20} MiB of memory"
        elif ended.was_stopped:
            limit = f"it takes more than {plan.question.seconds:g} s of CPU time, or the memory there is"
        else:
            limit = "it failed; the controller's log says more"
        return PlanAnswer(plan.version, ended.seconds, limit)
