"""What must hold of a controller beside a worker that is killed, stopped, or not in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from controller_harness import bind_pods
from fake_client import FakeClient

from controller.allocate.answers.decider import Answers
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Settings
from controller.allocate.worker.child import Child, WorkerChild
from controller.allocate.worker.process import Limits, WorkerProcess
from controller.assembly import AnswersOf
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics
from dra_driver.api.resource import RESOURCE_CLAIMS

__all__ = ["Bench", "audited"]


class Bench:
    """A controller's worker, and what a test has to look at."""

    def __init__(self, start: Callable[[], Awaitable[Child]] = WorkerChild.start) -> None:
        self._start = start
        self.process: WorkerProcess | None = None
        self.journal = Journal()

    def answers_of(self) -> AnswersOf:
        def answers(journal: Journal, settings: Settings, _: ControllerConfig, __: Metrics) -> Answers:
            self.journal = journal
            self.process = WorkerProcess(journal, settings, Limits(), start=self._start)
            return self.process

        return answers

    @property
    def restarts(self) -> int:
        assert self.process is not None
        return self.process.restarts

    def is_clean(self) -> bool:
        """Whether nothing is left of questions and answers."""
        assert self.process is not None
        fresh = self.journal.freshness
        left = (self.process._asked, self.process._begun, fresh._awaited, fresh._pools, fresh._own)
        return not any(left) and not self.journal._assumed


def audited(cluster: FakeClient) -> FakeClient:
    """Have each write looked at: no device in two claims, at any time. Pods are bound at once."""

    def after(*_: str) -> None:
        held = [
            (r.pool, r.device)
            for c in cluster.all(RESOURCE_CLAIMS)
            if c.status.allocation is not None
            for r in c.status.allocation.devices.results
        ]
        assert len(held) == len(set(held)), held
        bind_pods(cluster)

    cluster.after = after
    return cluster
