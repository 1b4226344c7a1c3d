"""How much work pods may cause, and which pods wait because of the work that they caused.

Decisions run in the loop that also renews the lease, answers probes and publishes, and anybody who may create
pods can ask for what takes long to decide. Three limits keep that from stopping the rest:

* A decision has a limit in CPU time.
* A pod that was refused is not looked at again, whatever changes, for 20 times as long as the refusal took.
  Ordinary ones take less than a millisecond and wait for nothing. Where the decision was given up, the pause
  doubles each time.
* Each decision that is given up halves the limit for the next ones of the same namespace; a minute without
  one doubles it again.

No pod is refused for good by any of this.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from dra_driver.structured import Budget

__all__ = ["DECISION_SECONDS", "HeavyQuestions"]

DECISION_SECONDS: Final = 0.5
"""CPU time that one decision may take, for a pod or for all pods of a group."""
# CPU seconds; ordinary questions take 0.00005 to 0.01.
_HEAVY: Final = 0.02
_PAUSE_PER_WORK: Final = 20
_LONGEST_DELAY: Final = 300.0
_SMALLEST_SHARE: Final = 32
# Steps; ordinary questions use 30 to 1,200, at 1,000 nodes too.
_LEAST_PER_NODE: Final = 3_000
_RECOVERY_SECONDS: Final = 60.0
_MOST_KEPT: Final = 10_000


@dataclass(slots=True)
class _Known:
    until: float
    delay: float
    message: str


@dataclass(slots=True)
class _Strikes:
    number: int
    since: float


class HeavyQuestions:
    """Budgets for decisions, and the questions that have to wait.

    Args:
        work: CPU time of the calling thread, in seconds.
    """

    def __init__(self, work: Callable[[], float]) -> None:
        self._work = work
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()
        self._strikes: OrderedDict[str, _Strikes] = OrderedDict()

    def __bool__(self) -> bool:
        """Return whether there is any question that has to wait."""
        return bool(self._known)

    def budget(self, namespace: str, now: float) -> Budget:
        """Return what the next decision for a pod of the namespace may cost."""
        share = min(_SMALLEST_SHARE, 1 << self._present_strikes(namespace, now))
        whole = Budget()
        return Budget(
            whole.steps // share,
            max(_LEAST_PER_NODE, whole.per_node // share),
            seconds=DECISION_SECONDS / share,
            clock=self._work,
        )

    def left(self, question: Hashable, now: float) -> float:
        """Return the seconds for which the question is not asked again; 0 where it may be asked now."""
        known = self._known.get(question)
        return 0.0 if known is None else max(0.0, known.until - now)

    def message(self, question: Hashable) -> str:
        """Return why pods with the question were refused; empty where nothing is known."""
        known = self._known.get(question)
        return "" if known is None else known.message

    def refused(self, namespace: str, question: Hashable, budget: Budget, message: str, now: float) -> float:
        """Note that pods with the question were refused after the work that the budget shows.

        Returns:
            The seconds for which it is not asked again; 0 where it may be asked at once.
        """
        known = self._known.pop(question, None)
        gave_up = self._note(namespace, budget, now)
        work = budget.seconds
        if work < _HEAVY and not gave_up:
            return 0.0
        delay = _PAUSE_PER_WORK * work
        if gave_up and known is not None:
            delay = max(delay, 2 * known.delay)
        delay = min(delay, _LONGEST_DELAY)
        self._known[question] = _Known(now + delay, delay, message)
        if len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        return delay

    def served(self, namespace: str, question: Hashable, budget: Budget, now: float) -> None:
        """Note that pods with the question were served, after the work that the budget shows."""
        self._known.pop(question, None)
        self._note(namespace, budget, now)

    def _note(self, namespace: str, budget: Budget, now: float) -> bool:
        """Return whether the question was given up; the namespace has less for the next one then."""
        gave_up = budget.exhausted or budget.cut
        if gave_up:
            number = self._present_strikes(namespace, now) + 1
            self._strikes.pop(namespace, None)
            self._strikes[namespace] = _Strikes(min(number, _SMALLEST_SHARE), now)
            if len(self._strikes) > _MOST_KEPT:
                self._strikes.popitem(last=False)
        return gave_up

    def _present_strikes(self, namespace: str, now: float) -> int:
        strikes = self._strikes.get(namespace)
        if strikes is None:
            return 0
        recovered = int((now - strikes.since) / _RECOVERY_SECONDS)
        if recovered >= strikes.number:
            del self._strikes[namespace]
            return 0
        return strikes.number - recovered
