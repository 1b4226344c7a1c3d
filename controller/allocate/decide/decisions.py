"""The face of this room: changes come in, questions are answered."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import replace

from controller.allocate.decide.claims import ClaimView
from controller.allocate.decide.cluster_state import ClusterState
from controller.allocate.decide.gangs import Gang, Gangs, GroupProblem, signature_of_group
from controller.allocate.decide.heavy import HeavyQuestions, Known, Strikes
from controller.allocate.decide.messages import (
    LONGEST_LEARNED,
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    Decision,
    DecisionOverran,
    DevicesSetAside,
    GroupHeld,
    GroupMembers,
    GroupWrite,
    Hard,
    Lane,
    Learned,
    NamespaceStruck,
    NodeTurnedDown,
    ObjectGone,
    ObjectSeen,
    Place,
    PodAnswer,
    PodExpected,
    PodID,
    PodQuestion,
    PoolChanged,
    QuestionHeavy,
    Refuse,
    SetAside,
    Settings,
    Wait,
    Watched,
    Write,
)
from controller.allocate.decide.node_backoff import NodeBackoff, changed_node
from controller.allocate.decide.objects import (
    CLAIM_INDEX,
    GROUP_INDEX,
    Objects,
    claims_of,
    groups_of,
    is_finished,
)
from controller.allocate.decide.order import Rank, rank_of, rank_of_group
from controller.allocate.decide.placement import NodeUsage, Placements, same_for_pods
from controller.allocate.decide.reports import has_node, suitable_nodes
from controller.allocate.decide.set_aside import NOTE, SetAsideDevices, soonest
from controller.allocate.decide.signatures import requests_of, signature_of
from controller.allocate.decide.solving import NoFit, PodDecider
from dra_driver.api.core import Node, Pod
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.fleet import ShapeCount
from dra_driver.resourceclaim import foreign_gates, is_generated
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
        self._pods: Objects[Pod] = Objects({CLAIM_INDEX: claims_of, GROUP_INDEX: groups_of})
        self._claims = ClaimView()
        self._cluster = ClusterState(settings.drivers)
        self._usage = NodeUsage()
        self._placements = Placements(self._cluster.nodes, self._usage)
        self._backoff = NodeBackoff(settings.avoid_seconds, settings.longest_avoid_seconds)
        self._heavy = HeavyQuestions(work)
        self._set_aside = SetAsideDevices()
        self._decider = PodDecider(settings, self._cluster, self._claims, self._pods, self._placements)
        self._gangs = Gangs(settings, self._pods, self._claims, self._decider, self._usage, self._avoided)

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
            case PoolChanged(pool, blocked, policy):
                self._decider.set_pool(pool, blocked=blocked, policy=policy)
                self._backoff.reset(pool.pool)
                self._improved(True)
            case PodExpected(pod_id, node_name):
                self._pod_expected(pod_id, node_name)
            case NodeTurnedDown(uid, node_name, at):
                self._backoff.add(uid, node_name, at)
            case DecisionOverran(pod_key, at):
                self._heavy.overran(pod_key.namespace, self._key_of(pod_key), at)
            case QuestionHeavy(pod_key, until, delay, message, hard, gave_up):
                question = self._key_of(pod_key)
                if question is not None:
                    self._heavy.restore(question, Known(until, delay, message, hard, gave_up))
            case NamespaceStruck(namespace, number, since):
                self._heavy.restore_strikes(namespace, Strikes(number, since))
            case GroupHeld(namespace, name, since):
                self._gangs.restore((namespace, name), since)
            case DevicesSetAside():
                self._set_aside.put(change)
                self._improved(True)

    def _key_of(self, key: ObjectKey) -> Hashable | None:
        pod = self._pods.get(key)
        return None if pod is None else self._key(pod, self._gangs.of(pod))

    def _improved(self, perhaps: bool) -> None:
        self._improvements += perhaps

    def _object_seen(self, item: Watched) -> None:
        if isinstance(item, Pod):
            self._pod_seen(item)
        elif isinstance(item, Node):
            self._node_seen(item)
        else:
            self._cluster.put(item)
            if isinstance(item, DeviceClass):
                self._placements.class_changed(item.metadata.name, item)
            self._improved(not isinstance(item, DeviceInventory))

    def _pod_seen(self, pod: Pod) -> None:
        old = self._pods.put(pod)
        self._usage.seen(pod)
        self._backoff.seen(pod)
        if old is None:
            return
        ends = is_finished(pod) and not is_finished(old)
        nominated = bool(pod.status.nominated_node_name or pod.spec.node_name)
        freed = changed_node(old, pod)
        self._improved(ends or bool(freed) or (bool(old.status.nominated_node_name) and not nominated))
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
                self._improved(bool(pod.spec.node_name))
                self._backoff.reset(changed_node(pod, None))
            return
        self._cluster.remove(kind, key.name)
        if kind is Node:
            self._placements.changed(key.name)
        elif kind is DeviceClass:
            self._placements.class_changed(key.name, None)
        self._improved(kind is not DeviceInventory)

    def _forget_groups(self, pod: Pod) -> None:
        claims = (self._claims.get(key) for key in claims_of(pod))
        for key in {*groups_of(pod), *(key for c in claims if c is not None for key in groups_of(c))}:
            self._gangs.forget(key)

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
        group = self._gangs.of(pod)
        if isinstance(group, GroupProblem):
            refusal = Refuse(group.message, signature=signature_of_group(group.key))
            return self._complete(PodAnswer(self._version, refusal, GroupMembers(*group.key)), pod, now)
        if question.set_aside:
            return None
        # Without its members: each of them is told of them once, when the answer is worked out.
        members = GroupMembers(*group.key, group.size) if group is not None else None
        if group is not None:
            known = self._gangs.known_refusal(group, self._improvements, now)
            if known is not None:
                # Those of the others were told of when the answer was worked out.
                own = set(claims_of(pod))
                known = replace(known, claims=tuple(c for c in known.claims if c.key in own))
                if self._is_behind(pod, group):
                    known = replace(known, message=known.message + NOTE)
                return self._complete(PodAnswer(self._version, known, members), pod, now)
        if not self._heavy:
            return None
        key = self._key(pod, group)
        if (left := self._heavy.left(key, now)) > 0:
            signature = signature_of_group(group.key) if group is not None else str(pod.key).encode()
            refusal = Refuse(self._heavy.message(key), signature=signature)
            gave_up = self._heavy.was_given_up(key)
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
        group = self._gangs.of(pod)
        assert not isinstance(group, GroupProblem)
        budget = self._budget(question, is_group=group is not None)
        decision: Decision
        gave_up = False
        if question.set_aside:
            decision = self._soonest(pod, group, budget, now)
        elif self._is_behind(pod, group):
            taken = self._set_aside.over(self._claims.allocated)
            nodes = [(place.pod, place.node) for place in self._set_aside.now.places]
            with self._decider.supposing(taken), self._placing(nodes):
                decision, gave_up = self._decide(pod, group, budget, now)
            if isinstance(decision, Refuse):
                decision = replace(decision, message=decision.message + NOTE)
        else:
            decision, gave_up = self._decide(pod, group, budget, now)
        cut = budget.exhausted or budget.cut
        answer = PodAnswer(
            self._version,
            decision,
            group.described() if group is not None else None,
            steps=budget.spent,
            seconds=budget.seconds,
            gave_up=gave_up or cut,
            cut=cut,
        )
        return self._complete(answer, pod, now)

    def _decide(self, pod: Pod, group: Gang | None, budget: Budget, now: float) -> tuple[Decision, bool]:
        """Return what is to be done about a pod or its group, and whether it was given up."""
        if group is not None:
            return self._gangs.decide(group, budget, self._improvements, now), False
        avoid = self._avoided(pod, now)
        found = self._decider.decide(pod, budget, avoid)
        if isinstance(found, NoFit):
            return self._refusal(pod, found, avoid), found.gave_up
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
        namespace, key = pod.metadata.namespace, self._key(pod, self._gangs.of(pod))
        if isinstance(answer.decision, Write | GroupWrite):
            self._heavy.served(namespace, key, question.now)
        elif isinstance(answer.decision, Refuse):
            if answer.cut and question.lane is Lane.FAST:
                self._heavy.gave_up(namespace, key, question.now)
                return replace(answer, decision=Hard())
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

    def learned(self, question: PodQuestion) -> Learned:
        """Return what is remembered of a question that was worked out, or that has to wait."""
        key, namespace = question.pod.key, question.pod.key.namespace
        struck = self._heavy.strikes(namespace)
        strikes = NamespaceStruck(namespace, struck.number, struck.since) if struck is not None else None
        pod = self._pod(question.pod)
        if pod is None:
            return Learned(None, strikes)
        group = self._gangs.of(pod)
        known = self._heavy.known(self._key(pod, group))
        since = self._gangs.held_since(group.key) if group is not None else None
        heavy = held = None
        if known is not None:
            text = known.message[:LONGEST_LEARNED]
            heavy = QuestionHeavy(key, known.until, known.delay, text, known.hard, known.gave_up)
        if group is not None and since is not None:
            held = GroupHeld(*group.key, since)
        return Learned(heavy, strikes, held)

    # --- devices that are set aside -------------------------------------------------------------------------

    def _is_behind(self, pod: Pod, group: Gang | None) -> bool:
        # The kubelet waits for the devices of a pod that is bound: it must not be kept waiting.
        if self._set_aside.now.rank is None or pod.spec.node_name:
            return False
        return self._set_aside.are_before(_rank(pod, group), pod.metadata.uid)

    def _soonest(self, pod: Pod, group: Gang | None, budget: Budget, now: float) -> SetAside | Refuse:
        """Return the devices that the pod, or all of its group, could have soonest."""
        members = (pod,) if group is None else group.members
        own = {key for member in members for key in claims_of(member)}
        holders = [
            (allocation.allocation_timestamp or "", key, uid)
            for key, uid, allocation in self._claims.holders()
            if key not in own and self._decider.is_ours(allocation)
        ]

        def fits(since: str) -> tuple[Place, ...] | None:
            gone = [(key, uid) for at, key, uid in holders if at >= since]
            users = [p for key, _ in gone for p in self._pods.by_index(CLAIM_INDEX, key)]
            away = [(PodID(p.key, p.metadata.uid), None) for p in users]
            taken = self._claims.without({uid for _, uid in gone})
            with self._decider.supposing(taken), self._placing(away):
                found: object
                if group is not None:
                    found = self._gangs.would_fit(group, budget, now)
                else:
                    found = self._decider.decide(pod, budget, self._avoided(pod, now))
            if isinstance(found, Write):
                found = GroupWrite(((PodID(pod.key, pod.metadata.uid), found),))
            if not isinstance(found, GroupWrite):
                return None
            return tuple(
                Place(of, write.node, tuple(result for _, result in write.allocations))
                for of, write in found.writes
            )

        places = soonest([at for at, _, _ in holders], fits)
        if places is None:
            return Refuse("it would not fit if all devices were free", signature=str(pod.key).encode())
        return SetAside(_rank(pod, group), places)

    @contextlib.contextmanager
    def _placing(self, places: Iterable[tuple[PodID, str | None]]) -> Iterator[None]:
        """Count pods on these nodes in the block, or on none."""
        before: list[tuple[Pod, str | None]] = []
        for pod_id, node in places:
            pod = self._pod(pod_id)
            if pod is not None:
                before.append((pod, self._usage.place_of(pod)))
                self._place(pod, node)
        try:
            yield
        finally:
            for pod, node in reversed(before):
                self._place(pod, node)

    def _place(self, pod: Pod, node: str | None) -> None:
        if node is None:
            self._usage.gone(pod)
        else:
            self._usage.place(pod, node)

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
        pod = self._pod(question.pod)
        claims = [c for key in claims_of(pod) if (c := self._claims.get(key)) is not None] if pod else []
        waiting = tuple(c for c in claims if c.status.allocation is None)
        names = ", ".join(c.metadata.name for c in waiting) or "none"
        refusal = Refuse(
            f"the decision about claim {names} was stopped: it took more than {limit}; ask for fewer "
            "alternatives, fewer devices in one claim, or with simpler selectors",
            waiting,
            signature=str(question.pod.key).encode(),
        )
        return self.learn(question, PodAnswer(self._version, refusal, steps=0, seconds=seconds, gave_up=True))

    def _pod(self, pod_id: PodID) -> Pod | None:
        pod = self._pods.get(pod_id.key)
        return pod if pod is not None and pod.metadata.uid == pod_id.uid else None

    def _budget(self, question: PodQuestion, *, is_group: bool) -> Budget:
        if question.lane is Lane.FAST:
            return self._heavy.fast_budget(question.now)
        settings = self._settings
        return self._heavy.budget(settings.group_decision_seconds if is_group else settings.decision_seconds)

    def _key(self, pod: Pod, group: Gang | GroupProblem | None) -> Hashable:
        """Return what makes two questions cost the same work."""
        if group is not None:
            return signature_of_group(group.key)
        claims = (self._claims.get(key) for key in claims_of(pod))
        asked = requests_of(c for c in claims if c is not None and c.status.allocation is None)
        return pod.metadata.namespace, asked

    def _complete(self, answer: PodAnswer, pod: Pod, now: float) -> PodAnswer:
        avoided = self._backoff.nodes(pod.metadata.uid, now)
        return replace(answer, avoided=tuple(sorted(avoided.items()))) if avoided else answer

    def _refusal(self, pod: Pod, decision: NoFit, avoid: Collection[str]) -> Refuse:
        entries = pod.spec.resource_claims
        alone = len(decision.claims) == len(entries) and all(is_generated(e) for e in entries)
        return Refuse(
            decision.message,
            decision.claims,
            # A pod that merely shares a claim lets another pod go first.
            tuple(c for c in decision.undo if not self._serves_another(c, pod)),
            decision.elsewhere,
            signature_of(pod, decision.claims if alone else (), avoid),
        )

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

    def _serves_another(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Return whether another pod that has everything it needs is about to run with the claim."""
        for other in self._pods.by_index(CLAIM_INDEX, claim.key):
            gone = is_finished(other) or bool(other.metadata.deletion_timestamp)
            if gone or foreign_gates(other) or other.metadata.uid == pod.metadata.uid:
                continue
            needed = [self._claims.get(key) for key in claims_of(other)]
            # The claims of a pod are written one after the other.
            if all(
                c is not None and (c.status.allocation is not None or self._claims.is_assumed(c))
                for c in needed
            ):
                return True
        return False


def _rank(pod: Pod, group: Gang | None) -> Rank:
    return rank_of_group(group.members) if group is not None and group.members else rank_of(pod)
