"""Counts request shapes now and then, in a copy of the worker, when there is something new to count."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Final

from controller.allocate.decide import Decisions
from controller.allocate.worker import copies
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


class ShapeLane:
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
        self._decisions = decisions
        self._memory = memory
        self._done = done
        self._connection = connection
        self._clock = clock
        self._counted: object = None
        self._next = 0.0
        # Since when a count is prepared.
        self._preparing: float | None = None
        self._copy: copies.Copy | None = None
        self._started = 0.0

    @property
    def pipes(self) -> Collection[int]:
        """What ``read`` is to be called for when it can be read."""
        return () if self._copy is None else (self._copy.pipe,)

    def look(self) -> None:
        """Begin a count if it is time for one, and stop one that takes too long."""
        now = self._clock()
        if self._copy is not None:
            if now - self._started > 5 * (_SECONDS + copies.GRACE_SECONDS):
                self._copy.stop()
            return
        if now < self._next:
            return
        state = self._decisions.shapes_state()
        if state is None or state == self._counted:
            # It costs the work of a question that everything is up to date.
            self._next = now + _LOOK_SECONDS
            return
        if self._preparing is None:
            self._preparing = now
        # Here, because what a copy builds is lost with it, and would be built anew for each count. Shapes
        # that need more indexes than are kept are never all ready.
        if not self._decisions.prepare_shapes() and now - self._preparing < _LONGEST_PREPARATION:
            self._next = now + _PREPARE_SECONDS
            return
        self._preparing = None
        self._counted, self._next = state, now + _LEAST_SECONDS
        # Without more processes, files or memory, the next look tries again.
        with contextlib.suppress(OSError):
            self._copy = copies.begin(
                lambda: codec.encode(self._decisions.count_shapes(_SECONDS)),
                connection=self._connection,
                memory=self._memory,
                seconds=_SECONDS,
            )
            self._started = now
            return
        self._counted = None

    def read(self, pipe: int) -> None:
        """Take in what a copy has sent, and report the counts when it has ended."""
        copy = self._copy
        if copy is None or copy.pipe != pipe:
            return
        if (ended := copy.read(LARGEST)) is not None:
            self._copy = None
            self._next = max(self._next, self._clock() + _SHARE * ended.seconds)
            if ended.has_result:
                self._done(bytes(copy.data))

    def close(self) -> None:
        """Stop the count."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None
