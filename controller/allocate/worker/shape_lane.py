"""Counts request shapes now and then, in a copy of the worker, when there is something new to count."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from controller.allocate.decide import Decisions
from controller.allocate.worker import copies
from controller.allocate.worker.lane import Lane, Limit, Result, Task
from controller.allocate.worker.wire import LARGEST
from dra_driver.api import codec

__all__ = ["ShapeLane"]

# Between the beginnings of two counts; and so many times the CPU time of the last one, so that counting takes
# a twentieth of a core at most.
_LEAST_SECONDS: Final = 15.0
_SHARE: Final = 20
_LOOK_SECONDS: Final = 1.0
# Between two parts of what is prepared for a count.
_PREPARE_SECONDS: Final = 0.2
_LONGEST_PREPARATION: Final = 120.0
# CPU time of a count. What was counted until then is reported as "at least".
_SECONDS: Final = 20.0


class ShapeLane(Lane):
    """One count at a time, beside the questions.

    Args:
        decisions: that are copied.
        memory: bytes that a copy may take beyond what this process has.
        done: called with the counts, as JSON.
        connection: file descriptor of this process that copies must not keep open.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        decisions: Decisions,
        *,
        memory: int,
        done: Callable[[bytes], None],
        connection: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            memory=memory,
            largest=LARGEST,
            wall_seconds=5 * (_SECONDS + copies.GRACE_SECONDS),
            connection=connection,
        )
        self._decisions = decisions
        self._done = done
        self._clock = clock
        self._counted: object = None
        self._next = 0.0
        # Since when a count is prepared.
        self._preparing: float | None = None

    def look(self) -> None:
        """Begin a count if it is time for one, and stop one that takes too long."""
        if not self.pipes and self._is_time():
            self._waiting.append(self._task)
        super().look()

    def _is_time(self) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        state = self._decisions.shapes_state()
        if state is None or state == self._counted:
            # It costs the work of a question that everything is up to date.
            self._next = now + _LOOK_SECONDS
            return False
        if self._preparing is None:
            self._preparing = now
        # Here, because what a copy builds is lost with it, and would be built anew for each count. Shapes
        # that need more indexes than are kept are never all ready.
        if not self._decisions.prepare_shapes() and now - self._preparing < _LONGEST_PREPARATION:
            self._next = now + _PREPARE_SECONDS
            return False
        self._preparing = None
        self._counted, self._next = state, now + _LEAST_SECONDS
        return True

    def _task(self) -> Task:
        return Task(lambda: codec.encode(self._decisions.count_shapes(_SECONDS)), _SECONDS, self._ended)

    def _ended(self, result: Result) -> None:
        self._next = max(self._next, self._clock() + _SHARE * result.seconds)
        if result.limit is None:
            self._done(result.data)
        elif result.limit is Limit.NO_ROOM:
            self._counted = None  # the next look tries again
