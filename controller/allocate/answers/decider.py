"""Questions about pods, and what keeps an answer from being put into effect that does not hold any more.

Answers come from a worker, and the cluster goes on changing until they are here. Between ``decide`` and
``accepting`` nothing must be awaited.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    ClaimAssumed,
    DecisionOverran,
    Decisions,
    GroupWrite,
    Lane,
    PodAnswer,
    PodExpected,
    PodID,
    PodQuestion,
    Proceed,
    Refuse,
    Settings,
    Write,
    claims_of,
)
from controller.allocate.signal import Signal
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import AllocationResult
from dra_driver.ownership import PoolID
from dra_driver.ports import Clock

__all__ = ["Answered", "Answers", "Decider", "Inline", "WorkerEnded"]


class WorkerEnded(Exception):
    """The worker ended before it answered.

    Attributes:
        blamed: whether it was stopped because of the question.
    """

    def __init__(self, *, blamed: bool) -> None:
        super().__init__("the worker ended")
        self.blamed = blamed


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and what it rests on.

    Attributes:
        answer: if None, it names a claim of which there is another version by now.
        knowledge: what it knows.
        claims: that it allocates.
        pods: that it gives a node.
    """

    answer: PodAnswer | None
    knowledge: Knowledge
    claims: tuple[tuple[ObjectKey, Uid], ...] = ()
    pods: tuple[PodID, ...] = ()


class Answers(Protocol):
    """Whatever answers questions; it follows a ``Journal``."""

    async def run(self) -> None:
        """Work until cancelled; questions that are asked before wait."""
        ...

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        """Return the answer.

        Args:
            question: that is asked.
            unwanted: called with the answer in place of its being returned, where the call was cancelled.

        Raises:
            WorkerEnded: there is none; it may be asked again.
        """
        ...


class Inline:
    """Implements ``Answers`` in this process: for clusters in memory, where nobody is hostile.

    Args:
        journal: that is followed.
        settings: of the decisions.
        work: CPU time of the calling thread, in seconds.
    """

    def __init__(self, journal: Journal, settings: Settings, work: Callable[[], float]) -> None:
        self._journal = journal
        self._decisions = Decisions(settings, work)
        journal.send_to(lambda _, change: self._decisions.apply(change))

    async def run(self) -> None:
        """See ``Answers.run``; there is nothing to be done."""

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        """See ``Answers.ask``."""
        return Answered(self._decisions.decide(question), Knowledge(self._journal.version))


class Decider:
    """Asks, and judges what comes back.

    Args:
        journal: of all changes.
        answers: whatever answers.
        clock: for the times in questions.
        freed: sent when devices that an answer had taken are not taken after all.
    """

    def __init__(self, journal: Journal, answers: Answers, clock: Clock, freed: Signal[[]]) -> None:
        self._journal = journal
        self._answers = answers
        self._clock = clock
        self._freed = freed

    async def decide(self, pod: Pod, lane: Lane) -> tuple[PodAnswer, Answered] | None:
        """Return what is to be done about a pod; None where it must be asked again, because much has changed.

        Whatever is returned must be put into effect (``accepting``) or given back (``release``) at once.
        """
        with self._journal.freshness.awaiting(self._journal.version):
            found = await self._ask(PodID(pod.key, pod.metadata.uid), lane)
            if found.answer is not None and self._holds(pod, found.answer, found.knowledge):
                return found.answer, found
        self.release(found)
        return None

    async def _ask(self, pod: PodID, lane: Lane) -> Answered:
        while True:
            question = PodQuestion(pod, self._clock.monotonic(), lane)
            try:
                return await self._answers.ask(question, self.release)
            except WorkerEnded as e:
                if e.blamed:
                    self._journal.apply(DecisionOverran(pod.key, self._clock.monotonic()))

    @contextlib.contextmanager
    def accepting(self, answered: Answered) -> Iterator[None]:
        """Put an answer into effect: in the block its allocations are assumed."""
        with self._journal.freshness.accepting(answered.knowledge):
            yield

    def release(self, answered: Answered) -> None:
        """Give back what the worker counts as taken by an answer that is not put into effect."""
        for key, uid in answered.claims:
            self._journal.apply(ClaimAssumed(key, uid, self._journal.assumed(uid)))
        for pod in answered.pods:
            self._journal.apply(PodExpected(pod, self._journal.expected(pod.uid)))
        if answered.claims:
            self._freed.send()

    # --- what an answer rests on ----------------------------------------------------------------------------

    def _holds(self, pod: Pod, answer: PodAnswer, knowledge: Knowledge) -> bool:
        match answer.decision:
            case Write():
                return self._may_write((answer.decision,), knowledge)
            case GroupWrite(writes):
                return self._may_write([write for _, write in writes], knowledge)
            case Refuse(undo=undo):
                held = (c.status.allocation for c in undo)
                return self._hold((a for a in held if a is not None), knowledge)
            case Proceed():
                members = [p.key for p in answer.group.pods] if answer.group is not None else [pod.key]
                pods = (self._journal.pod(key) for key in members)
                claims = [key for p in pods if p is not None for key in claims_of(p)]
                return all(self._journal.freshness.holds_for_claim(key, knowledge) for key in claims)
            case _:
                return True

    def _may_write(self, writes: Iterable[Write], knowledge: Knowledge) -> bool:
        pairs = [pair for write in writes for pair in write.allocations]
        # Another allocation of the claim may be on its way to the API server, of another pool: decided for
        # another pod, or in the other lane. Its devices would not count as taken any more.
        free = all(self._journal.assumed(claim.metadata.uid) is None for claim, _ in pairs)
        return free and self._hold((allocation for _, allocation in pairs), knowledge)

    def _hold(self, allocations: Iterator[AllocationResult], knowledge: Knowledge) -> bool:
        pools = {PoolID(r.driver, r.pool) for a in allocations for r in a.devices.results}
        return all(self._journal.freshness.holds_for_pool(pool, knowledge) for pool in pools)
