"""Questions about pods, and what keeps an answer from being put into effect that does not hold any more.

Answers come from a worker, and the cluster goes on changing until they are here. Between ``decide`` and
``accepting`` nothing must be awaited.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    ClaimAssumed,
    DecisionOverran,
    GroupWrite,
    Lane,
    Lend,
    PodAnswer,
    PodExpected,
    PodID,
    PodQuestion,
    Proceed,
    QuestionHeavy,
    Refuse,
    SetAside,
    Write,
    claims_of,
    is_finished,
)
from controller.allocate.plans import PlanAnswer, PlanQuestion
from controller.allocate.signal import Signal
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.ports import Clock

__all__ = ["Answered", "Answers", "Decider", "WorkerEnded", "same_for_the_answer"]

# After the first time the question is heavy, and a worker that knows that answers it in the slow lane.
_MOST_BLAMED: Final = 3
_GIVEN_UP_SECONDS: Final = 60.0


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

    async def plan(self, question: PlanQuestion) -> PlanAnswer:
        """Return what would make a pod fit; it decides nothing.

        Raises:
            WorkerEnded: there is no answer; it may be asked again.
        """
        ...

    def mistrust(self, reason: str) -> None:
        """Replace the process that answers: its answer contradicts the changes that it was sent."""
        ...


class Decider:
    """Asks, and judges what comes back.

    Args:
        journal: of all changes.
        answers: whatever answers.
        clock: for the times in questions.
        freed: sent when devices that an answer had taken are not taken after all.
        allows: whether allocations can be put into effect together, whatever answers.
    """

    def __init__(
        self,
        journal: Journal,
        answers: Answers,
        clock: Clock,
        freed: Signal[[]],
        allows: Callable[[Iterable[AllocationResult]], bool],
    ) -> None:
        self._journal = journal
        self._answers = answers
        self._clock = clock
        self._freed = freed
        self._allows = allows

    async def place(self, pod: Pod) -> SetAside | None:
        """Return the devices to be set aside for a pod; None where nothing would make it fit, or in doubt."""
        pod_id = PodID(pod.key, pod.metadata.uid)
        while True:
            question = PodQuestion(pod_id, self._clock.monotonic(), Lane.SLOW, set_aside=True)
            try:
                found = await self._answers.ask(question, lambda _: None)
            except WorkerEnded as e:
                if e.blamed:
                    return None
                continue
            decision = found.answer.decision if found.answer is not None else None
            return decision if isinstance(decision, SetAside) else None

    async def decide(self, pod: Pod, lane: Lane, *, lends: bool = False) -> tuple[PodAnswer, Answered] | None:
        """Return what is to be done about a pod; None where it must be asked again, because much has changed.

        Whatever is returned must be put into effect (``accepting``) or given back (``release``) at once.

        Args:
            pod: which one.
            lane: how much work it may take.
            lends: see ``PodQuestion``.
        """
        with self._journal.freshness.awaiting(self._journal.version):
            found = await self._ask(PodID(pod.key, pod.metadata.uid), lane, lends)
            if found.answer is not None and self._holds(pod, found.answer, found.knowledge):
                return found.answer, found
        self.release(found)
        return None

    async def _ask(self, pod: PodID, lane: Lane, lends: bool) -> Answered:
        blamed = 0
        while True:
            question = PodQuestion(pod, self._clock.monotonic(), lane, lends=lends)
            try:
                return await self._answers.ask(question, self.release)
            except WorkerEnded as e:
                if not e.blamed:
                    continue
                blamed += 1
                self._journal.apply(DecisionOverran(pod.key, self._clock.monotonic()))
                # In the slow lane no worker ends by a question, whatever that takes.
                if lane is Lane.SLOW or blamed == _MOST_BLAMED:
                    return Answered(self._given_up(pod), Knowledge(self._journal.version))

    def _given_up(self, pod: PodID) -> PodAnswer:
        """Give up a question about which no worker has a proper answer, for a while."""
        text = "the decision about its claims failed; the controller's log says more"
        pause, until = _GIVEN_UP_SECONDS, self._clock.monotonic() + _GIVEN_UP_SECONDS
        self._journal.apply(QuestionHeavy(pod.key, until, pause, text, hard=True, gave_up=True))
        refusal = Refuse(text, signature=str(pod.key).encode())
        return PodAnswer(self._journal.version, refusal, steps=0, gave_up=True, pause=pause)

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
                return self._may_write(((PodID(pod.key, pod.metadata.uid), answer.decision),), knowledge)
            case GroupWrite(writes):
                return self._may_write(writes, knowledge)
            case Refuse(undo=undo):
                return self._may_undo(undo, self._claims_of(pod, answer), knowledge)
            case Lend(devices=devices):
                pools = [pool for pool, _ in devices]
                return self._hold(pools, knowledge) and all(
                    self._journal.freshness.knows_taken(pool, knowledge) for pool in pools
                )
            case Proceed():
                claims = self._claims_of(pod, answer)
                return all(self._journal.freshness.holds_for_claim(key, knowledge) for key in claims)
            case _:
                return True

    def _claims_of(self, pod: Pod, answer: PodAnswer) -> set[ObjectKey]:
        """Return the claims of the pod, and of all members of its group that the answer names."""
        members = {p.key for p in answer.group.pods} if answer.group is not None else set[ObjectKey]()
        pods = (self._journal.pod(key) for key in members | {pod.key})
        return {key for p in pods if p is not None for key in claims_of(p)}

    def _may_undo(self, undo: Sequence[ResourceClaim], own: set[ObjectKey], knowledge: Knowledge) -> bool:
        held = (c.status.allocation for c in undo)
        if not self._hold(_pools(a for a in held if a is not None), knowledge):
            return False
        if all(c.key in own and not c.status.reserved_for for c in undo):
            return True
        if all(self._journal.freshness.holds_for_claim(c.key, knowledge) for c in undo):
            self._answers.mistrust("it deallocates what is in use, or not of the pod")
        return False

    def _may_write(self, writes: Sequence[tuple[PodID, Write]], knowledge: Knowledge) -> bool:
        pairs = [pair for _, write in writes for pair in write.allocations]
        # Another allocation of the claim may be on its way to the API server, of another pool: decided for
        # another pod, or in the other lane. Its devices would not count as taken any more.
        free = all(self._journal.assumed(claim.metadata.uid) is None for claim, _ in pairs)
        pools = _pools(allocation for _, allocation in pairs)
        if not free or not self._hold(pools, knowledge):
            return False
        pods = [(self._journal.pod(pod.key), pod.uid, write) for pod, write in writes]
        if any(pod is None or pod.metadata.uid != uid for pod, uid, _ in pods):
            return False
        if self._are_possible([(pod, write) for pod, _, write in pods if pod is not None]):
            return True
        if all(self._journal.freshness.knows_taken(pool, knowledge) for pool in pools):
            # Nothing of what it rests on has changed: it was wrong from the beginning.
            self._answers.mistrust("it allocates what is taken, or not there to be allocated")
        return False

    def _are_possible(self, writes: Sequence[tuple[Pod, Write]]) -> bool:
        claims = [claim for _, write in writes for claim, _ in write.allocations]
        return (
            all(c.status.allocation is None for c in claims)
            and len({c.metadata.uid for c in claims}) == len(claims)
            and all({c.key for c, _ in write.allocations} <= set(claims_of(pod)) for pod, write in writes)
            and self._allows(allocation for _, write in writes for _, allocation in write.allocations)
        )

    def _hold(self, pools: Iterable[PoolID], knowledge: Knowledge) -> bool:
        return all(self._journal.freshness.holds_for_pool(pool, knowledge) for pool in pools)


def same_for_the_answer(now: Pod, before: Pod) -> bool:
    """Return whether what is known of a pod by now leaves an answer about it as it is."""
    return (
        now.metadata.uid == before.metadata.uid
        and now.spec == before.spec
        and now.metadata.deletion_timestamp == before.metadata.deletion_timestamp
        and is_finished(now) == is_finished(before)
    )


def _pools(allocations: Iterable[AllocationResult]) -> set[PoolID]:
    return {PoolID(r.driver, r.pool) for a in allocations for r in a.devices.results}
