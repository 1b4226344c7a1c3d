"""The face of this room: changes come in, questions are answered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace

from controller.allocate.decide.earlier_users import EarlierUsers, kept_others_back
from controller.allocate.decide.groups.gangs import Gangs
from controller.allocate.decide.groups.group_members import Gang, GroupProblem
from controller.allocate.decide.heavy import HeavyQuestions
from controller.allocate.decide.learned import GroupHeld, Learned, NamespaceStruck, QuestionHeavy
from controller.allocate.decide.lending import LoanTerms
from controller.allocate.decide.memory import Memory
from controller.allocate.decide.messages import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    Decision,
    DecisionOverran,
    DevicesSetAside,
    GroupMembers,
    Hard,
    Lane,
    NodeTurnedDown,
    ObjectGone,
    ObjectSeen,
    PodAnswer,
    PodExpected,
    PodGroupsUnknown,
    PodID,
    PodQuestion,
    PoolChanged,
    Refuse,
    SetAside,
    Settings,
    VolumesKnown,
    Wait,
    Watched,
)
from controller.allocate.decide.nodes.node_backoff import NodeBackoff, changed_node
from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placements, same_for_pods
from controller.allocate.decide.nodes.reports import has_node, suitable_nodes
from controller.allocate.decide.questions import NoFit
from controller.allocate.decide.refusals import Refusals
from controller.allocate.decide.set_aside import NOTE, SetAsideDevices
from controller.allocate.decide.solving import PodDecider
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.objects import (
    CLAIM_INDEX,
    GROUP_INDEX,
    GroupKey,
    Objects,
    claims_of,
    group_of_claim,
    groups_by,
    is_finished,
    pod_group_of,
)
from controller.allocate.decide.state.pod_groups import PodGroupView
from controller.allocate.decide.suppositions import Suppositions
from controller.allocate.decide.view import StateView, view_of
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.api.scheduling import PodGroup
from dra_driver.fleet import ShapeCount
from dra_driver.nodefit.volumes import STORAGE_KINDS
from dra_driver.structured import Budget

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
        self._version = 0
        # Counts what may have changed for the better.
        self._improvements = 0
        self._groups_of = groups_by(settings.group_labels)
        self._pods: Objects[Pod] = Objects({CLAIM_INDEX: claims_of, GROUP_INDEX: self._groups_of})
        self._pod_groups = PodGroupView()
        self._claims = ClaimView()
        self._cluster = ClusterState(settings.drivers)
        self._usage = NodeUsage()
        self._placements = Placements(self._cluster.nodes, self._usage)
        self._backoff = NodeBackoff(
            settings.avoid_seconds, settings.longest_avoid_seconds, settings.rest_seconds
        )
        self._heavy = HeavyQuestions(work)
        self._set_aside = SetAsideDevices()
        self._decider = PodDecider(settings, self._cluster, self._claims, self._pods, self._placements)
        self._earlier = EarlierUsers(
            self._pods,
            self._claims,
            self._placements,
            self._avoided,
            self._groups_of,
            self._pod_groups.is_gang,
        )
        self._gangs = Gangs(
            settings,
            self._pods,
            self._claims,
            self._decider,
            self._usage,
            self._avoided,
            self._earlier,
            self._pod_groups.find,
        )
        self._refusals = Refusals(self._pods, self._claims, self._decider)
        self._memory = Memory(self._heavy, self._gangs, self._claims)
        self._supposed = Suppositions(
            self._pods,
            self._claims,
            self._usage,
            self._decider,
            self._gangs,
            self._set_aside,
            self._avoided,
        )

    # --- changes --------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Take in a change."""
        self._version += 1
        match change:
            case ObjectSeen(item):
                self._object_seen(item)
            case ObjectGone(kind, key):
                self._object_gone(kind, key)
            case ClaimSeen(claim):
                self._improved(self._claims.put(claim))
            case ClaimGone(key, uid):
                self._improved(self._claims.remove(key, uid))
            case ClaimAssumed(key, uid, allocation):
                self._improved(self._claims.assume(key, uid, allocation))
            case PoolChanged(pool, blocked, policy, lent):
                if lent == self._cluster.lent(pool):  # else it says nothing new of the node
                    self._backoff.reset(pool.pool)
                self._cluster.set_lent(pool, lent)
                self._claims.set_lent(pool, lent)
                self._decider.set_pool(pool, blocked=blocked, policy=policy)
                self._improved(True)
            case PodExpected(pod_id, node_name):
                self._pod_expected(pod_id, node_name)
            case NodeTurnedDown(uid, node_name, at):
                self._backoff.add(uid, node_name, at)
            case DecisionOverran(pod_key, at):
                self._heavy.overran(pod_key.namespace, self._key_of(pod_key), at)
            case QuestionHeavy() | NamespaceStruck() | GroupHeld():
                self._memory.restore(change, self._key_of)
            case DevicesSetAside():
                self._set_aside.put(change)
                self._improved(True)
            case VolumesKnown(known):
                self._placements.know_volumes(known)
                self._improved(True)
            case PodGroupsUnknown(reason):
                self._pod_groups.unknown = reason
                self._improved(True)

    def _key_of(self, key: ObjectKey) -> Hashable | None:
        pod = self._pods.get(key)
        return None if pod is None else self._memory.key(pod, self._group_of(pod))

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

    def _improved(self, perhaps: bool) -> None:
        self._improvements += perhaps

    def _object_seen(self, item: Watched) -> None:
        if isinstance(item, Pod):
            self._pod_seen(item)
        elif isinstance(item, Node):
            self._node_seen(item)
        elif isinstance(item, PodGroup):
            self._pod_groups.objects.put(item)
            self._improved(True)
        elif isinstance(item, STORAGE_KINDS):
            self._placements.storage_seen(item)
            self._improved(True)
        else:
            self._cluster.put(item)
            if isinstance(item, DeviceClass):
                self._placements.class_changed(item.metadata.name, item)
            self._improved(not isinstance(item, DeviceInventory))

    def _pod_seen(self, pod: Pod) -> None:
        old = self._pods.put(pod)
        before = self._usage.neighbours.version
        self._usage.seen(pod)
        self._improved(self._usage.neighbours.version != before)
        self._backoff.seen(pod)
        if old is None:
            return
        ends = is_finished(pod) and not is_finished(old)
        nominated = bool(pod.status.nominated_node_name or pod.spec.node_name)
        freed = changed_node(old, pod)
        left = (bool(old.status.nominated_node_name) and not nominated) or kept_others_back(old, pod)
        self._improved(ends or left or bool(freed))
        self._backoff.reset(freed)
        if has_node(old, pod):
            self._backoff.has_node(pod.metadata.uid)
        if ends or (pod.metadata.deletion_timestamp and not old.metadata.deletion_timestamp):
            self._forget_groups(pod)

    def _node_seen(self, node: Node) -> None:
        old = self._cluster.nodes.get(node.key)
        self._cluster.put(node)
        self._backoff.reset(changed_node(old, node))
        if old is None or not same_for_pods(old, node):
            self._placements.changed(node.metadata.name)
            self._improved(True)

    def _object_gone(self, kind: type[Watched], key: ObjectKey) -> None:
        if kind is Pod:
            pod = self._pods.remove(key)
            if pod is not None:
                self._usage.gone(pod)
                self._backoff.forget(pod.metadata.uid)
                self._forget_groups(pod)
                # It had room on its node, or others that share its claims waited for it.
                has_room = pod.spec.node_name or pod.status.nominated_node_name
                self._improved(bool(has_room) or not pod.spec.scheduling_gates)
                self._backoff.reset(changed_node(pod, None))
            return
        if kind is PodGroup:
            self._pod_groups.objects.remove(key)
            self._improved(True)
            return
        if kind in STORAGE_KINDS:
            self._placements.storage_gone(kind, key)
            self._improved(True)
            return
        self._cluster.remove(kind, key.name)
        if kind is Node:
            self._placements.changed(key.name)
            self._backoff.node_gone(key.name)
        elif kind is DeviceClass:
            self._placements.class_changed(key.name, None)
        self._improved(kind is not DeviceInventory)

    def groups_of(self, pod: Pod) -> Collection[GroupKey]:
        """Return the groups of a pod that are allocated as a whole."""
        return self._earlier.groups_of(pod)

    def _forget_groups(self, pod: Pod) -> None:
        claims = (self._claims.get(key) for key in claims_of(pod))
        of_claims = (key for c in claims if c is not None for key in group_of_claim(c))
        self._gangs.forget({*self._groups_of(pod), *of_claims}, pod)

    def _pod_expected(self, pod_id: PodID, node: str | None) -> None:
        pod = self._pods.get(pod_id.key)
        if pod is None or pod.metadata.uid != pod_id.uid:
            return
        if node is None:
            self._usage.gone(pod)
            self._usage.seen(pod)
        elif not pod.spec.node_name and not is_finished(pod):
            self._usage.place(pod, node)

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
            return PodAnswer(self._version, Wait("the pod does not exist"))
        group = self._group_of(pod)
        if isinstance(group, GroupProblem):
            held = self._gangs.in_disorder(pod, group, now)
            decision = held if isinstance(held, Wait) else self._refusals.of_problem(pod, group, held)
            return self._complete(PodAnswer(self._version, decision, GroupMembers(*group.key)), pod, now)
        if question.set_aside:
            return None
        # Without its members: each of them is told of them once, when the answer is worked out.
        members = None
        if group is not None:
            members = GroupMembers(*group.key, group.size, priority=group.priority)
            known = self._gangs.known_refusal(group, pod, self._improvements, now)
            if known is not None:
                # Those of the others were told of when the answer was worked out.
                own = set(claims_of(pod))
                known = replace(known, claims=tuple(c for c in known.claims if c.key in own))
                if self._supposed.ahead_of(pod, group):
                    known = replace(known, message=known.message + NOTE)
                return self._complete(PodAnswer(self._version, known, members), pod, now)
        if not self._heavy:
            return None
        key = self._memory.key(pod, group)
        if (left := self._heavy.left(key, now)) > 0:
            refusal, gave_up = self._memory.refusal(key, pod, group), self._heavy.was_given_up(key)
            answer = PodAnswer(self._version, refusal, members, pause=left, gave_up=gave_up)
            return self._complete(answer, pod, now)
        if question.lane is Lane.FAST and self._heavy.is_hard(pod.metadata.namespace, key, now):
            return PodAnswer(self._version, Hard(), members)
        return None

    def work_out(self, question: PodQuestion) -> PodAnswer:
        """Work out the answer to a question that none is remembered for; nothing is remembered by this.

        So it can be done in a copy of the process. ``learn`` completes the answer.
        """
        now, pod = question.now, self._pod(question.pod)
        if pod is None:
            return PodAnswer(self._version, Wait("the pod does not exist"))
        group = self._group_of(pod)
        assert not isinstance(group, GroupProblem)
        budget = self._budget(question, is_group=group is not None)
        gave_up = False
        if question.set_aside:
            decision: Decision = self._supposed.soonest(pod, group, budget, now)
        elif ahead := self._supposed.ahead_of(pod, group):
            with self._supposed.beside(ahead):
                decision, gave_up = self._decide(pod, group, budget, question)
            if isinstance(decision, Refuse):
                decision = replace(decision, message=decision.message + NOTE)
        else:
            decision, gave_up = self._decide(pod, group, budget, question)
        cut = budget.exhausted or budget.cut
        answer = PodAnswer(
            self._version,
            decision,
            self._gangs.described(group, decision) if group is not None else None,
            steps=budget.spent,
            seconds=budget.seconds,
            gave_up=gave_up or cut,
            cut=cut,
        )
        return self._complete(answer, pod, now)

    def _decide(
        self, pod: Pod, group: Gang | None, budget: Budget, question: PodQuestion
    ) -> tuple[Decision, bool]:
        """Return what is to be done about a pod or its group, and whether it was given up."""
        now, loan = question.now, LoanTerms(question.lends, self._backoff.came_back(pod.metadata.uid))
        if group is not None:
            return self._gangs.decide(group, pod, budget, self._improvements, now), False
        avoid = self._avoided(pod, now)
        found = self._decider.decide(pod, budget, avoid, earlier=self._earlier.of(pod, now), loan=loan)
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
        return self.learn(question, PodAnswer(self._version, refusal, steps=0, seconds=seconds, gave_up=True))

    def _pod(self, pod_id: PodID) -> Pod | None:
        pod = self._pods.get(pod_id.key)
        return pod if pod is not None and pod.metadata.uid == pod_id.uid else None

    def _budget(self, question: PodQuestion, *, is_group: bool) -> Budget:
        if question.lane is Lane.FAST:
            return self._heavy.fast_budget(question.now)
        settings = self._settings
        return self._heavy.budget(settings.group_decision_seconds if is_group else settings.decision_seconds)

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
