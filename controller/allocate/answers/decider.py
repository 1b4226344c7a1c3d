"""Questions about pods, and what keeps an answer from being put into effect that does not hold any more.

Answers come from a worker, and the cluster goes on changing until they are here. Between ``decide`` and
``accepting`` nothing must be awaited.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    ClaimAssumed,
    DecisionOverran,
    GrantDevices,
    GroupWrite,
    Lane,
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

log = structlog.get_logger(__name__)

# After the first time the question is heavy, and a worker that knows that answers it in the slow lane.
_MOST_BLAMED: Final = 3
_GIVEN_UP_SECONDS: Final = 60.0
# Attempts at one question whose answers contradict what the worker was sent.
_MOST_IMPOSSIBLE: Final = 2
# Pods in a row whose questions end like that, before it is the state of the worker that is taken to be wrong.
_DOUBTFUL_PODS: Final = 8
_MISTRUST_SECONDS: Final = 60.0


class _Judgement(enum.Enum):
    HOLDS = "holds"
    OUT_OF_DATE = "something that it rests on has changed"
    IMPOSSIBLE = "it contradicts what it rests on, and nothing of that has changed"


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

    def restart_worker(self, reason: str) -> None:
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
        # Pods given up for impossible answers since an allocation held; when that last replaced the worker.
        self._doubtful: set[PodID] = set()
        self._mistrusted = float("-inf")

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

    async def decide(
        self, pod: Pod, lane: Lane, *, grants: bool = False, awaited: bool = False, shows: bool = False
    ) -> tuple[PodAnswer, Answered] | None:
        """Return what is to be done about a pod; None where it must be asked again, because much has changed.

        Whatever is returned must be put into effect (``accepting``) or given back (``release``) at once.

        Args:
            pod: which one.
            lane: how much work it may take.
            grants: see ``PodQuestion``.
            awaited: see ``PodQuestion``.
            shows: see ``PodQuestion``.
        """
        pod_id = PodID(pod.key, pod.metadata.uid)
        for _ in range(_MOST_IMPOSSIBLE):
            with self._journal.freshness.awaiting(self._journal.version):
                found = await self._ask(pod_id, lane, grants=grants, awaited=awaited, shows=shows)
                judgement = _Judgement.OUT_OF_DATE
                if found.answer is not None:
                    judgement = self._judge(pod, found.answer, found.knowledge)
                if found.answer is not None and judgement is _Judgement.HOLDS:
                    if found.claims:
                        self._doubtful.clear()
                    return found.answer, found
            self.release(found)
            if judgement is _Judgement.OUT_OF_DATE:
                return None
            log.error("an answer about a pod is impossible", pod=str(pod.key), reason=judgement.value)
        self._doubt(pod_id)
        return self._given_up(pod_id), Answered(None, Knowledge(self._journal.version))

    def _doubt(self, pod: PodID) -> None:
        """Replace the worker after impossible answers about many pods in a row.

        One question costs only its own turn: a tenant who can make one impossible must not be able to end
        the process that decides for all others.
        """
        self._doubtful.add(pod)
        now = self._clock.monotonic()
        if len(self._doubtful) >= _DOUBTFUL_PODS and now - self._mistrusted >= _MISTRUST_SECONDS:
            self._doubtful.clear()
            self._mistrusted = now
            self._answers.restart_worker("its answers about many pods are impossible")

    async def _ask(self, pod: PodID, lane: Lane, *, grants: bool, awaited: bool, shows: bool) -> Answered:
        blamed = 0
        while True:
            now = self._clock.monotonic()
            question = PodQuestion(pod, now, lane, grants=grants, awaited=awaited, shows=shows)
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

    def _judge(self, pod: Pod, answer: PodAnswer, knowledge: Knowledge) -> _Judgement:
        match answer.decision:
            case Write():
                own = (PodID(pod.key, pod.metadata.uid), answer.decision)
                return self._judge_writes((own,), knowledge)
            case GroupWrite(writes):
                return self._judge_writes(writes, knowledge)
            case Refuse(undo=undo):
                return self._judge_undo(undo, self._claims_of(pod, answer), knowledge)
            case GrantDevices(pools=pools):
                holds = self._hold(pools, knowledge) and all(
                    self._journal.freshness.knows_taken(pool, knowledge) for pool in pools
                )
            case Proceed():
                claims = self._claims_of(pod, answer)
                holds = all(self._journal.freshness.holds_for_claim(key, knowledge) for key in claims)
            case _:
                holds = True
        return _Judgement.HOLDS if holds else _Judgement.OUT_OF_DATE

    def _claims_of(self, pod: Pod, answer: PodAnswer) -> set[ObjectKey]:
        """Return the claims of the pod, and of all members of its group that the answer names."""
        members = {p.key for p in answer.group.pods} if answer.group is not None else set[ObjectKey]()
        pods = (self._journal.pod(key) for key in members | {pod.key})
        return {key for p in pods if p is not None for key in claims_of(p)}

    def _judge_undo(
        self, undo: Sequence[ResourceClaim], own: set[ObjectKey], knowledge: Knowledge
    ) -> _Judgement:
        """Judge what an answer deallocates: claims of the pod, or of its group, that are not in use."""
        held = (c.status.allocation for c in undo)
        if not self._hold(_pools(a for a in held if a is not None), knowledge):
            return _Judgement.OUT_OF_DATE
        if all(c.key in own and not c.status.reserved_for for c in undo):
            return _Judgement.HOLDS
        unchanged = all(self._journal.freshness.holds_for_claim(c.key, knowledge) for c in undo)
        return _Judgement.IMPOSSIBLE if unchanged else _Judgement.OUT_OF_DATE

    def _judge_writes(self, writes: Sequence[tuple[PodID, Write]], knowledge: Knowledge) -> _Judgement:
        pairs = [pair for _, write in writes for pair in write.allocations]
        # Another allocation of the claim may be on its way to the API server, of another pool: decided for
        # another pod, or in the other lane. Its devices would not count as taken any more.
        free = all(self._journal.assumed(claim.metadata.uid) is None for claim, _ in pairs)
        pools = _pools(allocation for _, allocation in pairs)
        if not free or not self._hold(pools, knowledge):
            return _Judgement.OUT_OF_DATE
        pods = [(self._journal.pod(pod.key), pod.uid, write) for pod, write in writes]
        if any(pod is None or pod.metadata.uid != uid for pod, uid, _ in pods):
            return _Judgement.OUT_OF_DATE
        if self._are_possible([(pod, write) for pod, _, write in pods if pod is not None]):
            return _Judgement.HOLDS
        unchanged = all(self._journal.freshness.knows_taken(pool, knowledge) for pool in pools)
        return _Judgement.IMPOSSIBLE if unchanged else _Judgement.OUT_OF_DATE

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
