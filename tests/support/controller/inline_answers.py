"""Decisions in this process, for controllers that run in a test's own event loop."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from controller.allocate.answers.decider import Answered, Answers
from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Decisions, PodQuestion, Settings
from controller.allocate.plans import PlanAnswer, PlanQuestion, work_out
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics
from dra_driver.api import codec

__all__ = ["Inline", "inline"]


class Inline:
    """Implements ``Answers`` in this process: for clusters in memory, where nobody is hostile.

    Args:
        journal: that is followed.
        settings: of the decisions.
        work: CPU time of the calling thread, in seconds.
    """

    def __init__(self, journal: Journal, settings: Settings, work: Callable[[], float]) -> None:
        self._journal = journal
        self._work = work
        self._decisions = Decisions(settings, work)
        journal.send_to(lambda _, change: self._decisions.apply(change))

    async def run(self) -> None:
        """See ``Answers.run``; there is nothing to be done."""

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        """See ``Answers.ask``."""
        return Answered(self._decisions.decide(question), Knowledge(self._journal.version))

    async def plan(self, question: PlanQuestion) -> PlanAnswer:
        """See ``Answers.plan``."""
        since = self._work()
        plan = codec.encode(work_out(self._decisions, question, self._work))
        return PlanAnswer(self._journal.version, self._work() - since, plan=msgspec.Raw(plan))

    def restart_worker(self, reason: str) -> None:
        """See ``Answers.restart_worker``; it would say the same again."""
        raise AssertionError(reason)


def inline(journal: Journal, settings: Settings, _config: ControllerConfig, _metrics: Metrics) -> Answers:
    """Return answers that are worked out in this process: in virtual time no other one can be waited for."""
    return Inline(journal, settings, time.thread_time)
