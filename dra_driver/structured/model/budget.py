"""Limits of one question: work counted in steps, and in seconds if the caller passes a clock.

Anyone who may create pods writes claims, and some claims allow more combinations of devices than can be
tried. So what the allocator does for one question (about one pod, or one group of pods) is charged to one
``Budget``. When it is exhausted, the question ends with the best answer so far, or with ``Failed``. Results
worked out until then stay cached, so the same question gets further the next time.

What grows with the number of nodes and is shared by questions of a kind is *upkeep*: classifying nodes, and
ordering their classes for requests. A question does not pay for it, however many nodes there are. It has an
account of its own, unlimited unless the caller limits it; then a question that needs more ends with
``IndexUnfinished``: neither does it fit nor does it not, and asked again it gets further.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Hashable, Iterator
from typing import Final

__all__ = [
    "LEAST_STEPS",
    "MAX_STEPS",
    "MAX_STEPS_IN_ALL",
    "STEPS_PER_QUESTION",
    "Budget",
    "BudgetExhausted",
    "IndexUnfinished",
]

# A step is a device that the search tries, or that is looked at for a request: 2 to 7 µs of one core.
MAX_STEPS_IN_ALL: Final = 120_000
# Of these for one node: it must not use up what the others need.
MAX_STEPS: Final = 30_000
# For a node when only the reserve is left: enough where no combination has to be tried twice.
LEAST_STEPS: Final = 300
_RESERVED: Final = 4
_FOR_REASONS: Final = 4
# For what a question costs before any device is examined; a group asks many questions.
STEPS_PER_QUESTION: Final = 30
# Reading the clock takes as long as some steps, so it is read once in this many.
_STEPS_PER_READING: Final = 64
_UPKEEP_PER_READING: Final = 32
# At worst, for what is charged before it is done.
_SECONDS_PER_STEP: Final = 5e-6


class BudgetExhausted(Exception):
    """The question has used up its steps or its time."""


class IndexUnfinished(Exception):
    """The answer is not known yet: what is kept about the fleet is not up to date, and upkeep is limited.

    Attributes:
        nodes: that the index has, or is going to have.
        left: of these, how many are not classified yet; 0 where what is left are classes of nodes.
    """

    def __init__(self, nodes: int = 0, left: int = 0) -> None:
        super().__init__()
        self.nodes = nodes
        self.left = left

    def __str__(self) -> str:
        nodes = f"{self.nodes} node" + "s" * (self.nodes != 1)
        done = f", {self.nodes - self.left} of them are done" if self.left else ""
        return f"the allocator is still preparing its index of {nodes} for such claims{done}"


class Budget:
    """Steps and seconds that one question may use.

    Args:
        steps: limit for all searches of the question together; a quarter is reserved for the nodes that are
            searched last.
        per_node: limit for the search on one node.
        seconds: limit by ``clock``; ignored if there is no clock.
        clock: seconds from any start. CPU time of the thread is best: then the load of the machine changes no
            answer.
        upkeep_steps: limit for upkeep. A question that may do any does some at least.
        upkeep_seconds: likewise by ``clock``.
        owner: what upkeep is done for, such as a namespace: each has an index built at a time, so that one
            owner waits for others only where many build indexes at once, or memory is short.

    Attributes:
        cut: whether a search ended earlier than it would have with the whole budget for itself.
        upkeep: steps of upkeep so far.
    """

    __slots__ = (
        "_clock",
        "_read_at",
        "_reserve",
        "_seconds",
        "_started",
        "_upkeep_read_at",
        "_upkeep_seconds",
        "_upkeep_since",
        "_upkeep_steps",
        "_upkept",
        "cut",
        "left",
        "owner",
        "per_node",
        "steps",
        "upkeep",
    )

    def __init__(
        self,
        steps: int = MAX_STEPS_IN_ALL,
        per_node: int = MAX_STEPS,
        *,
        seconds: float = 1.0,
        clock: Callable[[], float] | None = None,
        upkeep_steps: int = sys.maxsize,
        upkeep_seconds: float = math.inf,
        owner: Hashable = "",
    ) -> None:
        self.steps = steps
        self.left = steps
        self.per_node = per_node
        self.cut = False
        self.owner = owner
        self._reserve = steps // _RESERVED
        self._clock = clock
        self._started = clock() if clock is not None else 0.0
        self._seconds = seconds
        self._read_at = max(0, steps - _STEPS_PER_READING)
        self.upkeep = 0
        self._upkeep_steps = upkeep_steps
        self._upkeep_seconds = upkeep_seconds
        self._upkeep_read_at = 0
        # Seconds of upkeep that is over, and since when there is upkeep now.
        self._upkept = 0.0
        self._upkeep_since: float | None = None

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    @property
    def spent(self) -> int:
        """Steps used so far."""
        return self.steps - max(0, self.left)

    @property
    def seconds(self) -> float:
        """Seconds since the start by the clock, without those of upkeep; 0 without a clock."""
        if self._clock is None:
            return 0.0
        now = self._clock()
        return now - self._started - self._upkeep_until(now)

    @property
    def overrun(self) -> float:
        """Seconds of upkeep beyond those meant for it, as what is begun is finished; 0 without a clock."""
        return max(0.0, self._upkept - self._upkeep_seconds) if self.upkeep else 0.0

    def spend(self, steps: int = 1) -> None:
        """Charge steps.

        Raises:
            BudgetExhausted: no steps or no time are left; so does every later call.
        """
        self.left -= steps
        if self.left < self._read_at:
            self._read_clock()

    def spend_ahead(self, steps: int) -> None:
        """Charge steps that are about to be done in one piece, during which nothing looks at the clock.

        Raises:
            BudgetExhausted: as for ``spend``, and also where less time is left than the steps may take.
        """
        if self._clock is not None and self.seconds + steps * _SECONDS_PER_STEP >= self._seconds:
            self.left = 0
        self.spend(steps)

    @contextlib.contextmanager
    def keeping_up(self) -> Iterator[None]:
        """Count the time in the block as upkeep; each part of the work there is charged with ``keep_up``."""
        if self._clock is None or self._upkeep_since is not None:
            yield
            return
        self._upkeep_since = self._clock()
        try:
            yield
        finally:
            self._upkept = self._upkeep_until(self._clock())
            self._upkeep_since = None

    def keep_up(self, steps: int = 1) -> None:
        """Charge upkeep that is about to be done.

        Raises:
            IndexUnfinished: the question may do no more of it; so does every later call.
        """
        if self.upkeep >= self._upkeep_steps:
            raise IndexUnfinished
        if self.upkeep >= self._upkeep_read_at and self._clock is not None:
            may = self._upkeep_seconds
            # Whatever has passed by then, the first part is done: a slow machine must get further, too.
            if may <= 0 or (self.upkeep and self._upkeep_until(self._clock()) >= may):
                self._upkeep_steps = self.upkeep
                raise IndexUnfinished
            self._upkeep_read_at = self.upkeep + _UPKEEP_PER_READING
        self.upkeep += steps

    def kept_up(self, steps: int) -> None:
        """Charge upkeep that is part of something begun: what is broken off would be begun anew each time."""
        self.upkeep += steps

    def _upkeep_until(self, now: float) -> float:
        return self._upkept + (now - self._upkeep_since if self._upkeep_since is not None else 0.0)

    def grant(self) -> int:
        """Return the steps that the search on one more node may use."""
        return min(self.per_node, max(self.left - self._reserve, LEAST_STEPS))

    def for_reasons(self) -> Budget:
        """Return a new budget by the same clock, a quarter of this one, for work after the answer."""
        steps = max(LEAST_STEPS, self.steps // _FOR_REASONS)
        return Budget(
            steps,
            steps,
            seconds=self._seconds / _FOR_REASONS,
            clock=self._clock,
            upkeep_steps=max(0, self._upkeep_steps - self.upkeep),
            upkeep_seconds=max(0.0, self._upkeep_seconds - self._upkept),
            owner=self.owner,
        )

    def _read_clock(self) -> None:
        self._read_at = max(0, self.left - _STEPS_PER_READING)
        if self._clock is not None and self.seconds >= self._seconds:
            self.left = 0
        if self.left <= 0:
            # Whatever is charged from now on comes here and raises again.
            self.left, self._read_at = 0, 1
            raise BudgetExhausted
