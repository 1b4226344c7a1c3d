"""What is remembered of questions that were worked out, so that they cost no work again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from controller.allocate.decide.groups.gangs import Gangs
from controller.allocate.decide.groups.group_members import Gang, GroupProblem, signature_of_group
from controller.allocate.decide.heavy import HeavyQuestions, Known, Strikes
from controller.allocate.decide.learned import (
    LONGEST_LEARNED,
    GroupHeld,
    Learned,
    NamespaceStruck,
    QuestionHeavy,
)
from controller.allocate.decide.messages import (
    GroupWrite,
    Lane,
    NeedsSlowLane,
    NotYet,
    PodAnswer,
    PodQuestion,
    Refuse,
    Write,
)
from controller.allocate.decide.nodes.signatures import requests_of
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.objects import claims_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey

__all__ = ["Group", "Memory"]

Group = Gang | GroupProblem | None
"""The group of a pod as far as it concerns the controller."""


class Memory:
    """Remembers answers, as far as that spares work.

    Args:
        heavy: questions that have to wait.
        gangs: since when parts of groups have held devices.
        claims: what pods ask for.
    """

    def __init__(self, heavy: HeavyQuestions, gangs: Gangs, claims: ClaimView) -> None:
        self._heavy = heavy
        self._gangs = gangs
        self._claims = claims

    def key(self, pod: Pod, group: Group) -> Hashable:
        """Return what makes two questions cost the same work."""
        if group is not None:
            return signature_of_group(group.key)
        claims = (self._claims.get(key) for key in claims_of(pod))
        asked = requests_of(c for c in claims if c is not None and c.status.allocation is None)
        return pod.metadata.namespace, asked

    def refusal(self, key: Hashable, pod: Pod, group: Group) -> Refuse:
        """Return the refusal of a question that has to wait."""
        signature = signature_of_group(group.key) if group is not None else str(pod.key).encode()
        return Refuse(self._heavy.message(key), signature=signature)

    def learn(self, question: PodQuestion, pod: Pod, group: Group, answer: PodAnswer) -> PodAnswer:
        """Remember what was worked out; return the answer with what follows.

        Args:
            question: that was asked.
            pod: that it is about.
            group: of the pod.
            answer: that was worked out, here or in a copy of this process.
        """
        namespace, key = pod.metadata.namespace, self.key(pod, group)
        if isinstance(answer.decision, NotYet):
            self._heavy.not_yet(namespace, key, question.now, answer.overrun)
            return answer
        if isinstance(answer.decision, Refuse) and answer.cut and question.lane is Lane.FAST:
            # Perhaps it did not come as far as what lacks an index: the slow lane may build that itself.
            self._heavy.gave_up(namespace, key, question.now)
            return replace(answer, decision=NeedsSlowLane())
        self._heavy.finished(key)
        if isinstance(answer.decision, Write | GroupWrite):
            self._heavy.served(namespace, key, question.now)
        elif isinstance(answer.decision, Refuse):
            pause = self._heavy.refused(
                namespace,
                key,
                answer.seconds,
                answer.decision.message,
                question.now,
                gave_up=answer.gave_up,
            )
            return replace(answer, pause=pause)
        return answer

    def learned(self, question: PodQuestion, pod: Pod | None, group: Group) -> Learned:
        """Return what is remembered of a question that was worked out, or that has to wait."""
        key, namespace = question.pod.key, question.pod.key.namespace
        struck = self._heavy.strikes(namespace)
        strikes = NamespaceStruck(namespace, struck.number, struck.since) if struck is not None else None
        if pod is None:
            return Learned(None, strikes)
        known = self._heavy.known(self.key(pod, group))
        since = self._gangs.held_since(group.key) if group is not None else None
        heavy = held = None
        if known is not None:
            text = known.message[:LONGEST_LEARNED]
            heavy = QuestionHeavy(key, known.until, known.delay, text, known.hard, known.gave_up)
        if group is not None and since is not None:
            held = GroupHeld(*group.key, since)
        return Learned(heavy, strikes, held)

    def restore(
        self,
        learned: QuestionHeavy | NamespaceStruck | GroupHeld,
        key_of: Callable[[ObjectKey], Hashable | None],
    ) -> None:
        """Remember what another process learned; ``key_of`` gives the key of a pod's question."""
        match learned:
            case QuestionHeavy(pod, until, delay, message, hard, gave_up):
                key = key_of(pod)
                if key is not None:
                    self._heavy.restore(key, Known(until, delay, message, hard, gave_up))
            case NamespaceStruck(namespace, number, since):
                self._heavy.restore_strikes(namespace, Strikes(number, since))
            case GroupHeld(namespace, name, since):
                self._gangs.restore((namespace, name), since)
