"""How much work pods may cause, and which pods wait because of the work that they caused.

Anybody who may create pods can ask for what takes long to decide. These limits keep that from holding up the
pods of others:

* In the fast lane, where all other questions wait, a decision has little CPU time; what needs more is asked
  again in the slow lane, beside the others. Each decision that is given up halves what the fast lane gives to
  the next ones, whoever asks; ten seconds later it has that back.
* A namespace whose decisions were given up several times has all its questions in the slow lane; each minute
  makes up for one of them.
* What an index of all nodes takes is not held against the pod that needs it first (``IndexUnfinished``). In
  the fast lane a question builds for a short time, and hardly at all if its namespace has just had another
  one do so; where that took much longer than it was given, not at all for 20 times as long. Each question
  that lacked its index halves that time for the next ones, whoever asks; a second later it has that back. The
  worker builds on between questions, for the namespace first that has had least of that of late: an index
  that takes long does not keep another namespace from having its own.
* A pod that was refused is not looked at again, whatever changes, for 20 times as long as the refusal took.
  Ordinary ones take less than a millisecond and wait for nothing. Where the decision was given up, the pause
  doubles each time.

No pod is refused for good by any of this.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.structured import Budget

__all__ = ["FAST_SECONDS", "UPKEEP_SECONDS", "HeavyQuestions", "Known", "Strikes"]

FAST_SECONDS: Final = 0.2
"""CPU time that a decision may take in the fast lane."""
# CPU seconds; ordinary questions take 0.00005 to 0.01.
_HEAVY: Final = 0.02
_PAUSE_PER_WORK: Final = 20
_LONGEST_DELAY: Final = 300.0
# Given up so often, a namespace is slow; more than the most is not counted.
_SLOW_FROM: Final = 3
_MOST_STRIKES: Final = 32
_RECOVERY_SECONDS: Final = 60.0
# The fast lane is halved at most so often.
_MOST_HALVINGS: Final = 4
_HALVED_SECONDS: Final = 10.0
# Upkeep of a question in the fast lane, and between two such questions of a namespace. A copy in the slow
# lane does as much as follows from a few changes; what it builds is lost with it.
UPKEEP_SECONDS: Final = 0.05
_UPKEEP_PAUSE: Final = 0.5
# That time is halved at most so often, by what lacked its index within so long.
_MOST_UPKEEP_HALVINGS: Final = 6
_UPKEEP_HALVED_SECONDS: Final = 1.0
_SLOW_UPKEEP_SECONDS: Final = 0.5
# The whole budget is meant for this much CPU time.
_WHOLE_SECONDS: Final = 0.5
_MOST_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Known:
    """What is held against a question.

    Attributes:
        until: when it may be worked out again.
        delay: seconds of the pause.
        message: of the refusal.
        hard: whether it belongs into the slow lane.
        gave_up: whether the last decision met a limit.
    """

    until: float
    delay: float
    message: str
    hard: bool
    gave_up: bool


@dataclass(slots=True)
class Strikes:
    """Decisions for a namespace that were given up.

    Attributes:
        number: when the last of them was.
        since: when that was.
    """

    number: int
    since: float


@dataclass(frozen=True, slots=True)
class _Upkept:
    """When a question of a namespace last prepared an index, in seconds of the monotonic clock.

    Attributes:
        at: when that was.
        none_until: until when the fast lane prepares none for the namespace, as one node took long.
    """

    at: float
    none_until: float


_NEVER: Final = _Upkept(-math.inf, -math.inf)


class HeavyQuestions:
    """Budgets for decisions, and the questions that have to wait.

    Args:
        work: CPU time of the calling thread, in seconds.
    """

    def __init__(self, work: Callable[[], float]) -> None:
        self._work = work
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._strikes: OrderedDict[str, Strikes] = OrderedDict()
        self._given_up: deque[float] = deque(maxlen=_MOST_HALVINGS)
        # Questions whose index is being prepared; when namespaces last had a question prepare one.
        self._unfinished: OrderedDict[Hashable, None] = OrderedDict()
        self._upkept: OrderedDict[str, _Upkept] = OrderedDict()
        # When the last questions lacked their index.
        self._lacking: deque[float] = deque(maxlen=_MOST_UPKEEP_HALVINGS)

    def __bool__(self) -> bool:
        """Return whether there is any question that has to wait, or belongs into the slow lane."""
        return bool(self._known or self._strikes)

    def fast_budget(self, namespace: str, now: float) -> Budget:
        """Return what the next decision in the fast lane may cost, for a pod of a namespace."""
        halvings = sum(now - at < _HALVED_SECONDS for at in self._given_up)
        upkept = self._upkept.get(namespace, _NEVER)
        paused = now - upkept.at < _UPKEEP_PAUSE
        lacking = sum(now - at < _UPKEEP_HALVED_SECONDS for at in self._lacking)
        # It is not zero: a question whose index lacks a node or two must not wait for other indexes. But a
        # selector may take a tenth of a second for a single node, which is finished whatever is left.
        upkeep = UPKEEP_SECONDS / (1 << (_MOST_UPKEEP_HALVINGS if paused else lacking))
        upkeep = 0.0 if now < upkept.none_until else upkeep
        return self.budget(FAST_SECONDS / (1 << halvings), upkeep=upkeep, namespace=namespace)

    def slow_budget(self, namespace: str, question: Hashable, seconds: float) -> Budget:
        """Return what a decision in the slow lane may cost, for a pod of a namespace."""
        # The fast lane may not come as far as what lacks an index. Then it is built for this one answer.
        unfinished = self.is_unfinished(question)
        upkeep = seconds if unfinished else _SLOW_UPKEEP_SECONDS
        return self.budget(seconds, upkeep=upkeep, namespace=namespace)

    def budget(self, seconds: float, *, upkeep: float = math.inf, namespace: str = "") -> Budget:
        """Return a budget of so much CPU time, and of steps that take about as long.

        Args:
            seconds: of CPU time.
            upkeep: seconds of CPU time for upkeep (``Budget``).
            namespace: for whose pods the upkeep is; "" is the controller itself.
        """
        # As many for each node as ever: what does not fit there within these is not tried again.
        steps = int(Budget().steps * seconds / _WHOLE_SECONDS)
        return Budget(steps, seconds=seconds, clock=self._work, upkeep_seconds=upkeep, owner=namespace)

    def is_hard(self, namespace: str, question: Hashable, now: float) -> bool:
        """Return whether the question belongs into the slow lane, by what is known of it or its namespace."""
        known = self._known.get(question)
        return (known is not None and known.hard) or self._present_strikes(namespace, now) >= _SLOW_FROM

    def is_unfinished(self, question: Hashable) -> bool:
        """Return whether the index of a question is being prepared."""
        return question in self._unfinished

    def not_yet(self, namespace: str, question: Hashable, now: float, overrun: float = 0.0) -> None:
        """Note that the index of a question is being prepared.

        Args:
            namespace: of the pod.
            question: that was asked.
            now: the time.
            overrun: seconds that it took for that beyond those that it was given.
        """
        self._unfinished[question] = None
        self._lacking.append(now)
        none_until = self._upkept.pop(namespace, _NEVER).none_until
        if overrun > _HEAVY:
            none_until = max(none_until, now + _PAUSE_PER_WORK * overrun)
        self._upkept[namespace] = _Upkept(now, none_until)
        for kept in (self._unfinished, self._upkept):
            if len(kept) > _MOST_KEPT:
                kept.popitem(last=False)

    def finished(self, question: Hashable) -> None:
        """Note that the index of a question was whole when it was asked last."""
        self._unfinished.pop(question, None)

    def left(self, question: Hashable, now: float) -> float:
        """Return the seconds for which the question is not asked again; 0 where it may be asked now."""
        known = self._known.get(question)
        return 0.0 if known is None else max(0.0, known.until - now)

    def message(self, question: Hashable) -> str:
        """Return why pods with the question were refused; empty where nothing is known."""
        known = self._known.get(question)
        return "" if known is None else known.message

    def was_given_up(self, question: Hashable) -> bool:
        """Return whether the last decision about the question met a limit."""
        known = self._known.get(question)
        return known is not None and known.gave_up

    def gave_up(self, namespace: str, question: Hashable, now: float) -> None:
        """Note that the fast lane was not enough for the question."""
        self._strike(namespace, now)
        self._make_hard(question, now)

    def _make_hard(self, question: Hashable, now: float) -> None:
        known = self._known.pop(question, None)
        before = known if known is not None else Known(now, 0.0, "", hard=True, gave_up=True)
        self._keep(question, replace(before, until=max(before.until, now), hard=True, gave_up=True))

    def overran(self, namespace: str, question: Hashable | None, at: float) -> None:
        """Note that a decision was stopped from outside.

        Args:
            namespace: of the pod.
            question: that it asked; if None, that is not known, because the pod is gone.
            at: when that was; it may have been counted before.
        """
        strikes = self._strikes.get(namespace)
        if strikes is None or strikes.since < at:
            self._strike(namespace, at)
        if question is not None:
            self._make_hard(question, at)

    def refused(
        self, namespace: str, question: Hashable, seconds: float, message: str, now: float, *, gave_up: bool
    ) -> float:
        """Note that pods with the question were refused.

        Args:
            namespace: of the pods.
            question: what they ask for.
            seconds: CPU time that the refusal took.
            message: of the refusal.
            now: the time.
            gave_up: whether the decision met a limit.

        Returns:
            The seconds for which it is not asked again; 0 where it may be asked at once.
        """
        known = self._known.pop(question, None)
        if gave_up:
            self._strike(namespace, now)
        if seconds < _HEAVY and not gave_up:
            return 0.0
        delay = _PAUSE_PER_WORK * seconds
        if gave_up and known is not None:
            delay = max(delay, 2 * known.delay)
        delay = min(delay, _LONGEST_DELAY)
        hard = gave_up or seconds > FAST_SECONDS
        self._keep(question, Known(now + delay, delay, message, hard, gave_up))
        return delay

    def served(self, namespace: str, question: Hashable, now: float) -> None:
        """Note that pods with the question were served: what it took is not held against the namespace."""
        known = self._known.pop(question, None)
        if known is not None and known.hard:
            strikes = self._strikes.get(namespace)
            if strikes is not None and self._present_strikes(namespace, now):
                strikes.number -= 1

    # --- what another process learned -----------------------------------------------------------------------

    def known(self, question: Hashable) -> Known | None:
        """Return what is held against a question."""
        return self._known.get(question)

    def strikes(self, namespace: str) -> Strikes | None:
        """Return what is held against a namespace."""
        return self._strikes.get(namespace)

    def restore(self, question: Hashable, known: Known) -> None:
        """Hold against a question what was held against it before."""
        self._keep(question, known)

    def restore_strikes(self, namespace: str, strikes: Strikes) -> None:
        """Hold against a namespace what was held against it before."""
        self._keep_strikes(namespace, strikes)

    # --- inside ---------------------------------------------------------------------------------------------

    def _keep(self, question: Hashable, known: Known) -> None:
        self._known.pop(question, None)
        self._known[question] = known
        if len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)

    def _strike(self, namespace: str, now: float) -> None:
        self._given_up.append(now)
        number = self._present_strikes(namespace, now) + 1
        self._keep_strikes(namespace, Strikes(min(number, _MOST_STRIKES), now))

    def _keep_strikes(self, namespace: str, strikes: Strikes) -> None:
        self._strikes.pop(namespace, None)
        self._strikes[namespace] = strikes
        if len(self._strikes) > _MOST_KEPT:
            self._strikes.popitem(last=False)

    def _present_strikes(self, namespace: str, now: float) -> int:
        strikes = self._strikes.get(namespace)
        if strikes is None:
            return 0
        recovered = int((now - strikes.since) / _RECOVERY_SECONDS)
        if recovered >= strikes.number:
            del self._strikes[namespace]
            return 0
        return strikes.number - recovered
