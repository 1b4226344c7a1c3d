"""Limits of one question: work counted in steps, and in seconds where the caller passes a clock.

A claim is written by anybody who may create pods, and some claims allow more combinations of devices than can
be tried. So everything that the allocator does for one question (of one pod, or of one group of pods) is
charged to one ``Budget``; when it is used up, the question ends with the best answer so far, or with
``Failed``. What was worked out until then is kept, so the same question gets further the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = [
    "LEAST_STEPS",
    "MAX_STEPS",
    "MAX_STEPS_IN_ALL",
    "STEPS_PER_QUESTION",
    "Budget",
    "BudgetExhausted",
]

# A step is a device that the search tries, or that is looked at for a request: 2 to 7 µs of one core.
MAX_STEPS_IN_ALL: Final = 120_000
# One node must not use up what the others need.
MAX_STEPS: Final = 30_000
# What a node gets when only the reserve is left: enough for every claim without a trap in it.
LEAST_STEPS: Final = 300
_RESERVED: Final = 4
# What a question costs before any device is looked at; the members of a group ask many.
STEPS_PER_QUESTION: Final = 30
# The clock is read once in so many steps.
_STEPS_PER_READING: Final = 64


class BudgetExhausted(Exception):
    """The question has used up its steps or its time."""


class Budget:
    """What one question may cost.

    Args:
        steps: of all its searches together; a quarter of them is kept for nodes that are looked at last.
        per_node: of the search on one node.
        seconds: of work, by ``clock``; ignored without one.
        clock: seconds from any start. CPU time of the thread suits best: a busy machine then changes no
            answer.
    """

    __slots__ = (
        "_clock",
        "_deadline",
        "_read_at",
        "_reserve",
        "_started",
        "cut",
        "left",
        "per_node",
        "steps",
    )

    def __init__(
        self,
        steps: int = MAX_STEPS_IN_ALL,
        per_node: int = MAX_STEPS,
        *,
        seconds: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.steps = steps
        self.left = steps
        self.per_node = per_node
        self.cut = False
        """Whether a search ended earlier than it would have with the whole budget for itself."""
        self._reserve = steps // _RESERVED
        self._clock = clock
        self._started = clock() if clock is not None else 0.0
        self._deadline = self._started + seconds
        self._read_at = max(0, steps - _STEPS_PER_READING)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    @property
    def spent(self) -> int:
        """Steps that were made."""
        return self.steps - max(0, self.left)

    @property
    def seconds(self) -> float:
        """Work since the start by the clock; 0 without one."""
        return self._clock() - self._started if self._clock is not None else 0.0

    def spend(self, steps: int = 1) -> None:
        """Take steps off.

        Raises:
            BudgetExhausted: nothing is left. Whoever asks for more gets the same answer.
        """
        self.left -= steps
        if self.left < self._read_at:
            self._read_clock()

    def grant(self) -> int:
        """Return the steps that the search on one more node may use."""
        return min(self.per_node, max(self.left - self._reserve, LEAST_STEPS))

    def another(self, steps: int, seconds: float) -> Budget:
        """Return a new budget by the same clock, for work after the answer."""
        return Budget(steps, steps, seconds=seconds, clock=self._clock)

    def _read_clock(self) -> None:
        self._read_at = max(0, self.left - _STEPS_PER_READING)
        if self._clock is not None and self._clock() >= self._deadline:
            self.left = 0
        if self.left <= 0:
            self.left, self._read_at = 0, 1
            raise BudgetExhausted
