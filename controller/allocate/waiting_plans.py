"""Plans for pods that wait, for the page: asked of whatever decides, about what it knows."""

from __future__ import annotations

from typing import Final

from controller.allocate.answers.decider import Answers, WorkerEnded
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import PodID, is_ending
from controller.allocate.plans import PlanQuestion
from controller.web import Planned
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.kube import Informer

__all__ = ["WaitingPlans"]

PLAN_SECONDS: Final = 10.0


class WaitingPlans:
    """Implements ``PlanSource`` of the page.

    Args:
        answers: whatever answers.
        journal: that it follows.
        pods: all pods.
    """

    def __init__(self, answers: Answers, journal: Journal, pods: Informer[Pod]) -> None:
        self._answers = answers
        self._journal = journal
        self._pods = pods

    @property
    def version(self) -> int:
        """See ``PlanSource.version``."""
        return self._journal.version

    def find(self, pod: ObjectKey) -> Uid | None:
        """See ``PlanSource.find``."""
        found = self._pods.get(pod)
        if found is None or not found.spec.resource_claims:
            return None
        running = bool(found.spec.node_name) and found.status.phase == "Running"
        return None if is_ending(found) or running else found.metadata.uid

    async def ask(self, pod: ObjectKey, uid: Uid) -> Planned:
        """See ``PlanSource.ask``."""
        try:
            answer = await self._answers.plan(PlanQuestion(PodID(pod, uid), PLAN_SECONDS))
        except WorkerEnded:
            return Planned(self._journal.version, 0.0, "the process that works it out has ended", b"")
        return Planned(answer.version, answer.seconds, answer.limit, bytes(answer.plan))
