"""When a worker is not waited for any longer.

Time is counted in looks, not by a clock: while this process itself was held up, a worker could not be heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Facts", "Finding", "Watch"]

# A worker that gets no processor is not to blame for it.
_STARVED_FACTOR: Final = 10
# Between two signs of life of a worker that has something to do, unless it works: to take in 50,000 nodes and
# to classify them takes ten seconds and more of CPU time, in which it can say nothing.
_HUNG_SECONDS: Final = 60.0
# CPU time in which a worker that merely waits for something does not come.
_WORK_SECONDS: Final = 1.0
# For a question, beyond those that are answered before it.
_LOST_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is seen of a worker.

    Attributes:
        begun: the question of the fast lane that it works on.
        fast: the oldest question of the fast lane that is not answered; they are answered in their order.
        slow: questions of the slow lane that are not answered, in the order in which they were asked.
        taken: bytes that it has taken of what was sent.
        unread: bytes that it has not taken.
        cpu_seconds: that it has worked.
        is_stopped: whether a signal has stopped it.
        switches: how often it has given up a processor, or was stopped.
    """

    begun: int | None
    fast: int | None
    slow: tuple[int, ...]
    taken: int
    unread: int
    cpu_seconds: float
    is_stopped: bool
    switches: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a worker is not waited for any longer.

    Attributes:
        reason: as a clause.
        question: that it was stopped for; None where it was not for one.
    """

    reason: str
    question: int | None = None


class Watch:
    """What was seen of one worker so far.

    Args:
        seconds: CPU time for one question of the fast lane.
        slow_seconds: that a question of the slow lane may take by the clock.
    """

    def __init__(self, seconds: float, slow_seconds: float) -> None:
        self._limit = seconds
        self._slow_seconds = slow_seconds
        self._before: Facts | None = None
        self._cpu_before = 0.0
        self._worked = 0.0
        self._silent = 0.0
        self._cpu_at_sign = 0.0
        self._asked = 0.0
        self._slow: Mapping[int, float] = {}

    def look(self, now: Facts, seconds: float) -> Finding | None:
        """Return why the worker is to be stopped; None where it is not.

        Args:
            now: what is seen.
            seconds: since the look before.
        """
        before, self._before = self._before, now
        if before is None or now.begun is None or now.begun != before.begun:
            self._cpu_before, self._worked = now.cpu_seconds, 0.0
        else:
            self._worked += seconds
        silent = before is not None and (now.fast, now.taken) == (before.fast, before.taken)
        self._silent = self._silent + seconds if silent else 0.0
        if not silent:
            self._cpu_at_sign = now.cpu_seconds
        asked = before is not None and now.fast == before.fast
        self._asked = self._asked + seconds if asked else 0.0
        self._slow = {n: self._slow.get(n, -seconds) + seconds for n in now.slow}
        if _stands_still(before, now):
            return Finding("a signal has stopped it")
        if now.begun is not None:
            return self._too_long(now, now.begun)
        hung = self._silent >= _HUNG_SECONDS and not self._works(now)
        if now.unread and hung:
            return Finding("it takes nothing that is sent to it")
        if now.fast is not None and (hung or self._asked >= _LOST_SECONDS):
            return Finding("it does not answer", now.fast)
        return self._lost(now)

    def _works(self, now: Facts) -> bool:
        """Return whether a silent worker may be at work: a machine with other work gives it little time."""
        used = now.cpu_seconds - self._cpu_at_sign
        return _WORK_SECONDS <= used < _HUNG_SECONDS and self._silent < _LOST_SECONDS

    def _too_long(self, now: Facts, question: int) -> Finding | None:
        used = now.cpu_seconds - self._cpu_before
        # This process, or the worker, may have been held up by the machine.
        if used < self._limit and self._worked < _STARVED_FACTOR * self._limit:
            return None
        return Finding(
            f"a decision took too long: {used:.1f} s of CPU time in {self._worked:.1f} s", question
        )

    def _lost(self, now: Facts) -> Finding | None:
        for place, question in enumerate(now.slow, 1):
            if self._slow[question] >= _LOST_SECONDS + place * self._slow_seconds:
                return Finding("it does not answer a question of the slow lane", question)
        return None


def _stands_still(before: Facts | None, now: Facts) -> bool:
    # One that was resumed and stopped again meanwhile works, if slowly, and to start another takes longer.
    return before is not None and before.is_stopped and now.is_stopped and before.switches == now.switches
