"""The face of this room: changes come in, questions are answered."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection
from dataclasses import replace

from controller.allocate.decide.groups.gangs import Gangs
from controller.allocate.decide.groups.group_members import Gang, GroupProblem
from controller.allocate.decide.heavy import UPKEEP_SECONDS, HeavyQuestions
from controller.allocate.decide.intake import Intake
from controller.allocate.decide.learned import Learned
from controller.allocate.decide.memory import Memory
from controller.allocate.decide.messages import (
    Change,
    Decision,
    GroupMembers,
    Lane,
    NeedsSlowLane,
    NotYet,
    PodAnswer,
    PodID,
    PodQuestion,
    Refuse,
    SetAside,
    Settings,
    Wait,
)
from controller.allocate.decide.nodes.node_backoff import NodeBackoff
from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.nodes.reports import suitable_nodes
from controller.allocate.decide.pods.earlier_users import EarlierUsers
from controller.allocate.decide.pods.granting import GrantTerms
from controller.allocate.decide.pods.questions import NoFit
from controller.allocate.decide.pods.sharing import SharingPods
from controller.allocate.decide.pods.solving import PodDecider
from controller.allocate.decide.refusals import Refusals
from controller.allocate.decide.set_aside import NOTE, SetAsideDevices
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.objects import (
    CLAIM_INDEX,
    GROUP_INDEX,
    GroupKey,
    Objects,
    claims_of,
    groups_by,
    pod_group_of,
)
from controller.allocate.decide.state.pod_groups import PodGroupView
from controller.allocate.decide.view import StateView, view_of
from controller.allocate.decide.what_if import WhatIf
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim
from dra_driver.fleet import ShapeCount
from dra_driver.structured import Budget, IndexUnfinished

__all__ = ["Decisions"]


class Decisions:
    """Everything that decides what pods get, with the state that it decides on.

    An answer takes nothing: what becomes of it comes back as changes. Two instances that are given the same
    changes and questions give the same answers, as far as the clock for work agrees.

    Args:
        settings: what does not change.
        work: CPU time of the calling thread in seconds, by which decisions are limited.
    """

    def __init__(self, settings: Settings, work: Callable[[], float]) -> None:
        self._settings = settings
        self._work = work
        groups_of = groups_by(settings.group_labels)
        self._pods: Objects[Pod] = Objects({CLAIM_INDEX: claims_of, GROUP_INDEX: groups_of})
        pod_groups = PodGroupView()
        self._claims = ClaimView()
        self._cluster = ClusterState(settings.drivers)
        usage = NodeUsage()
        self._placements = Placements(self._cluster.nodes, usage)
        self._backoff = NodeBackoff(
            settings.avoid_seconds, settings.longest_avoid_seconds, settings.rest_seconds
        )
        self._heavy = HeavyQuestions(work)
        set_aside = SetAsideDevices()
        sharing = SharingPods(self._pods)
        self._decider = PodDecider(
            settings, self._cluster, self._claims, self._pods, sharing, self._placements
        )
        self._earlier = EarlierUsers(
            self._pods,
            sharing,
            self._claims,
            self._placements,
            self._avoided,
            groups_of,
            pod_groups.is_gang,
        )
        self._gangs = Gangs(
            settings,
            self._pods,
            sharing,
            self._claims,
            self._decider,
            usage,
            self._avoided,
            self._earlier,
            pod_groups.find,
        )
        self._refusals = Refusals(self._pods, self._claims, self._decider)
        self._memory = Memory(self._heavy, self._gangs, self._claims)
        self._supposed = WhatIf(
            self._pods,
            self._claims,
            usage,
            self._decider,
            self._gangs,
            set_aside,
            self._avoided,
        )
        self._intake = Intake(
            pods=self._pods,
            pod_groups=pod_groups,
            claims=self._claims,
            cluster=self._cluster,
            usage=usage,
            placements=self._placements,
            backoff=self._backoff,
            heavy=self._heavy,
            set_aside=set_aside,
            decider=self._decider,
            gangs=self._gangs,
            memory=self._memory,
            group_of=self._group_of,
            groups_of=groups_of,
        )

    # --- changes --------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Take in a change."""
        self._intake.apply(change)

    def _group_of(self, pod: Pod) -> Gang | GroupProblem | None:
        """Return the group of a pod as far as it concerns us.

        What is wrong with a PodGroup does not keep a pod whose claims kube-scheduler allocates.
        """
        group = self._gangs.of(pod)
        if isinstance(group, GroupProblem) and pod_group_of(group.key) is not None:
            claims = [self._claims.get(key) for key in claims_of(pod)]
            if claims and all(c is not None and self._decider.is_theirs(c) for c in claims):
                return None
        return group

    def groups_of(self, pod: Pod) -> Collection[GroupKey]:
        """Return the groups of a pod that are allocated as a whole."""
        return self._earlier.groups_of(pod)

    def refresh(self) -> None:
        """Work into the state what has been taken in, which else the next question does."""
        self._decider.refresh()

    def view(self, pod_id: PodID) -> StateView:
        """Return the state around a pod that waits, for a question that decides nothing."""
        self.refresh()
        pod = self._pod(pod_id)
        group = self._group_of(pod) if pod is not None else None
        gang = group if isinstance(group, Gang) else None
        ahead = self._supposed.ahead_of(pod, gang) if pod is not None else ()
        return view_of(
            pod,
            group,
            claims=self._claims,
            cluster=self._cluster,
            pods=self._pods,
            terms=self._decider.terms,
            set_aside=(a for one in ahead for a in one.allocations),
        )

    # --- shapes ---------------------------------------------------------------------------------------------

    def shapes_state(self) -> tuple[object, ...] | None:
        """Return a value that is another one when the counts may be; None if there is nothing to count."""
        return self._decider.shapes_state() if self._settings.shapes else None

    def prepare_shapes(self) -> bool:
        """Prepare for a short time to count the request shapes; return whether all is ready."""
        budget = self._heavy.budget(UPKEEP_SECONDS, upkeep=UPKEEP_SECONDS)
        try:
            self._decider.prepare_shapes(self._settings.shapes, budget)
        except IndexUnfinished:
            return False
        return True

    def count_shapes(self, seconds: float) -> tuple[ShapeCount, ...]:
        """Count the request shapes in our pools.

        Args:
            seconds: of CPU time that this may take; each shape gets its part.
        """
        each = seconds / max(1, len(self._settings.shapes))
        return self._decider.count_shapes(
            self._settings.shapes, lambda: Budget(sys.maxsize, seconds=each, clock=self._work)
        )

    # --- questions ------------------------------------------------------------------------------------------

    def decide(self, question: PodQuestion) -> PodAnswer:
        """Return what is to be done about a pod, or about all pods of its group."""
        return self.remembered(question) or self.learn(question, self.work_out(question))

    def remembered(self, question: PodQuestion) -> PodAnswer | None:
        """Return an answer that takes no work; None where there is none."""
        now, pod = question.now, self._pod(question.pod)
        if pod is None:
            return PodAnswer(self._intake.version, Wait("the pod does not exist"))
        group = self._group_of(pod)
        if isinstance(group, GroupProblem):
            held = self._gangs.in_disorder(pod, group, now)
            decision = held if isinstance(held, Wait) else self._refusals.of_problem(pod, group, held)
            return self._complete(
                PodAnswer(self._intake.version, decision, GroupMembers(*group.key)), pod, now
            )
        if question.set_aside:
            return None
        # Without its members: each of them is told of them once, when the answer is worked out.
        members = None
        if group is not None:
            members = GroupMembers(*group.key, group.size, priority=group.priority)
            known = self._gangs.known_refusal(group, pod, self._intake.improvements, now)
            if known is not None and not question.shows:
                # Those of the others were told of when the answer was worked out.
                own = set(claims_of(pod))
                known = replace(known, claims=tuple(c for c in known.claims if c.key in own))
                if self._supposed.ahead_of(pod, group, awaited=question.awaited):
                    known = replace(known, message=known.message + NOTE)
                return self._complete(PodAnswer(self._intake.version, known, members), pod, now)
        if not self._heavy:
            return None
        key = self._memory.key(pod, group)
        if (left := self._heavy.left(key, now)) > 0:
            refusal, gave_up = self._memory.refusal(key, pod, group), self._heavy.was_given_up(key)
            answer = PodAnswer(self._intake.version, refusal, members, pause=left, gave_up=gave_up)
            return self._complete(answer, pod, now)
        if self._heavy.is_unfinished(key):
            # Copies of the process cannot prepare its index, as they end; the fast lane can.
            return None
        if question.lane is Lane.FAST and self._heavy.is_hard(pod.metadata.namespace, key, now):
            return PodAnswer(self._intake.version, NeedsSlowLane(), members)
        return None

    def work_out(self, question: PodQuestion) -> PodAnswer:
        """Work out the answer to a question that none is remembered for; nothing is remembered by this.

        So it can be done in a copy of the process. ``learn`` completes the answer.
        """
        now, pod = question.now, self._pod(question.pod)
        if pod is None:
            return PodAnswer(self._intake.version, Wait("the pod does not exist"))
        group = self._group_of(pod)
        assert not isinstance(group, GroupProblem)
        budget = self._budget(question, pod, group)
        decision, gave_up = self._look(pod, group, budget, question)
        cut = budget.exhausted or budget.cut
        answer = PodAnswer(
            self._intake.version,
            decision,
            self._gangs.described(group, decision) if group is not None else None,
            steps=budget.spent,
            seconds=budget.seconds,
            overrun=budget.overrun,
            gave_up=gave_up or cut,
            cut=cut,
        )
        return self._complete(answer, pod, now)

    def keep_up(self, question: PodQuestion) -> bool:
        """Prepare for a short time what a question lacked that was answered with ``NotYet``.

        Returns:
            Whether there is more to be prepared.
        """
        pod = self._pod(question.pod)
        group = self._group_of(pod) if pod is not None else None
        if pod is None or isinstance(group, GroupProblem):
            return False
        # Of the question itself only as much is worked out as leads to the index.
        namespace = question.pod.key.namespace
        budget = self._heavy.budget(UPKEEP_SECONDS, upkeep=UPKEEP_SECONDS, namespace=namespace)
        return isinstance(self._look(pod, group, budget, question)[0], NotYet)

    def _look(
        self, pod: Pod, group: Gang | None, budget: Budget, question: PodQuestion
    ) -> tuple[Decision, bool]:
        """Return what a question leads to, and whether it was given up."""
        try:
            if question.set_aside:
                return self._supposed.soonest(pod, group, budget, question.now), False
            ahead = self._supposed.ahead_of(pod, group, awaited=question.awaited)
            with self._supposed.beside(ahead) if ahead else contextlib.nullcontext():
                decision, gave_up = self._decide(pod, group, budget, question)
            if not isinstance(decision, Refuse):
                return decision, gave_up
            if question.shows and decision.new_node and (ahead or group is not None):
                decision = replace(decision, new_node=not self._looks_free(pod, group, budget, question.now))
            return replace(decision, message=decision.message + NOTE) if ahead else decision, gave_up
        except IndexUnfinished as e:
            return self._refusals.not_yet(pod, group, e, self._avoided(pod, question.now)), False

    def _looks_free(self, pod: Pod, group: Gang | None, budget: Budget, now: float) -> bool:
        """Return whether devices look free that would serve a pod, or a member of its group, by itself."""
        pods = (pod,) if group is None else self._gangs.kinds(group)
        return any(self._decider.looks_free(one, budget, self._avoided(one, now)) for one in pods)

    def _decide(
        self, pod: Pod, group: Gang | None, budget: Budget, question: PodQuestion
    ) -> tuple[Decision, bool]:
        """Return what is to be done about a pod or its group, and whether it was given up."""
        now, terms = question.now, GrantTerms(question.grants, self._backoff.came_back(pod.metadata.uid))
        if group is not None:
            changes = self._intake.improvements
            known = self._gangs.known_refusal(group, pod, changes, now) if question.shows else None
            return known or self._gangs.decide(group, pod, budget, changes, now), False
        avoid = self._avoided(pod, now)
        found = self._decider.decide(pod, budget, avoid, earlier=self._earlier.of(pod, now), terms=terms)
        if isinstance(found, NoFit):
            return self._refusals.of(pod, found, avoid), found.gave_up
        return found, False

    def learn(self, question: PodQuestion, answer: PodAnswer) -> PodAnswer:
        """Remember what was worked out, as far as it spares work; return the answer with what follows."""
        pod = self._pod(question.pod)
        if pod is None or question.set_aside:
            return answer
        if answer.learned is not None and answer.group is not None:
            # Of a copy of this process.
            held = answer.learned.group
            since = held.since if held is not None else None
            self._gangs.restore((answer.group.namespace, answer.group.name), since)
        return self._memory.learn(question, pod, self._group_of(pod), answer)

    def learned(self, question: PodQuestion) -> Learned:
        """Return what is remembered of a question that was worked out, or that has to wait."""
        pod = self._pod(question.pod)
        return self._memory.learned(question, pod, self._group_of(pod) if pod is not None else None)

    # --- devices that are set aside -------------------------------------------------------------------------

    def place_without(self, pod_id: PodID, gone: Collection[ObjectKey], now: float) -> SetAside | None:
        """Return the devices that a pod, or its group, would get if some pods had ended.

        Args:
            pod_id: which one.
            gone: pods that are taken to have ended; a claim that others use as well stays.
            now: the time.

        Returns:
            None where it would not fit, or more work might show that it does.
        """
        pod = self._pod(pod_id)
        group = self._gangs.of(pod) if pod is not None else None
        if pod is None or isinstance(group, GroupProblem):
            return None
        budget = self._heavy.budget(self._settings.group_decision_seconds)
        return self._supposed.without(pod, group, gone, budget, now)

    # --- limits ---------------------------------------------------------------------------------------------

    def claim(self, key: ObjectKey) -> ResourceClaim | None:
        """Return the newest version of a claim."""
        return self._claims.get(key)

    def stopped(self, question: PodQuestion, limit: str, seconds: float) -> PodAnswer:
        """Return the answer to a question whose working out was stopped.

        Args:
            question: that was asked.
            limit: that was met, such as ``2 s of CPU time``.
            seconds: of CPU time that it took.
        """
        refusal = self._refusals.of_stopped(question.pod.key, self._pod(question.pod), limit)
        return self.learn(
            question, PodAnswer(self._intake.version, refusal, steps=0, seconds=seconds, gave_up=True)
        )

    def _pod(self, pod_id: PodID) -> Pod | None:
        pod = self._pods.get(pod_id.key)
        return pod if pod is not None and pod.metadata.uid == pod_id.uid else None

    def _budget(self, question: PodQuestion, pod: Pod, group: Gang | None) -> Budget:
        namespace = question.pod.key.namespace
        if question.lane is Lane.FAST:
            return self._heavy.fast_budget(namespace, question.now)
        settings = self._settings
        seconds = settings.decision_seconds if group is None else settings.group_decision_seconds
        return self._heavy.slow_budget(namespace, self._memory.key(pod, group), seconds)

    def _complete(self, answer: PodAnswer, pod: Pod, now: float) -> PodAnswer:
        uids = {
            pod.metadata.uid,
            *(p.uid for p in (answer.group.waiting if answer.group is not None else ())),
        }
        avoided: dict[str, float] = {}
        for uid in uids:
            for node, seconds in self._backoff.nodes(uid, now).items():
                avoided[node] = min(seconds, avoided.get(node, seconds))
        return replace(answer, avoided=tuple(sorted(avoided.items()))) if avoided else answer

    def _avoided(self, pod: Pod, now: float) -> Collection[str]:
        """Return the nodes that are left out for a pod.

        Where kube-scheduler says that more nodes would suit the pod than are left, something has changed that
        only it looks at, such as a volume: then only those that it turned down just now are left out.
        """
        avoided = self._backoff.avoided(pod, self._cluster.node_names, now)
        suitable = suitable_nodes(pod) if avoided else 0
        if suitable and suitable > len(self._placements.candidates(pod, avoided).nodes):
            return self._backoff.recent(pod.metadata.uid, now)
        return avoided
