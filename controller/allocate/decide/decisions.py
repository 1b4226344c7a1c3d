"""The face of this room: changes come in, questions are answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from controller.allocate.decide.claims import ClaimView
from controller.allocate.decide.cluster_state import ClusterState
from controller.allocate.decide.gangs import Gang, Gangs, GroupProblem, signature_of_group
from controller.allocate.decide.heavy import HeavyQuestions
from controller.allocate.decide.messages import (
    Allocators,
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    GroupMembers,
    GroupWrite,
    NodeTurnedDown,
    ObjectGone,
    ObjectSeen,
    PodAnswer,
    PodExpected,
    PodID,
    PodQuestion,
    PoolChanged,
    PoolsQuestion,
    Refuse,
    Settings,
    Wait,
    Watched,
    Write,
)
from controller.allocate.decide.node_backoff import NodeBackoff
from controller.allocate.decide.objects import (
    CLAIM_INDEX,
    GROUP_INDEX,
    Objects,
    claims_of,
    groups_of,
    is_finished,
)
from controller.allocate.decide.placement import NodeUsage, Placements, same_for_pods
from controller.allocate.decide.solving import NoFit, PodDecider
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import TOPOLOGY_ANNOTATION
from dra_driver.api.resource import ResourceClaim
from dra_driver.resourceclaim import foreign_gates, is_generated

__all__ = ["Decisions", "requests_of", "signature_of"]


class Decisions:
    """Everything that decides what pods get, with the state that it decides on.

    An answer takes nothing: what becomes of it comes back as changes. Two instances that are given the same
    changes and questions give the same answers, as far as the clock for work agrees.

    Args:
        settings: what does not change.
        work: CPU time of the calling thread in seconds, by which decisions are limited.
    """

    def __init__(self, settings: Settings, work: Callable[[], float]) -> None:
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
        self._decider = PodDecider(settings, self._cluster, self._claims, self._placements)
        self._gangs = Gangs(settings, self._pods, self._claims, self._decider, self._usage, self._backoff)

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
                self._improved(True)
            case PodExpected(pod_id, node_name):
                self._pod_expected(pod_id, node_name)
            case NodeTurnedDown(uid, node_name, at):
                self._backoff.add(uid, node_name, at)

    def _improved(self, perhaps: bool) -> None:
        self._improvements += perhaps

    def _object_seen(self, item: Watched) -> None:
        if isinstance(item, Pod):
            self._pod_seen(item)
        elif isinstance(item, Node):
            self._node_seen(item)
        else:
            self._cluster.put(item)
            self._improved(not isinstance(item, DeviceInventory))

    def _pod_seen(self, pod: Pod) -> None:
        old = self._pods.put(pod)
        self._usage.seen(pod)
        if old is None:
            return
        ends = is_finished(pod) and not is_finished(old)
        self._improved(ends)
        if ends or (pod.metadata.deletion_timestamp and not old.metadata.deletion_timestamp):
            self._forget_groups(pod)

    def _node_seen(self, node: Node) -> None:
        old = self._cluster.nodes.get(node.key)
        self._cluster.put(node)
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
            return
        self._cluster.remove(kind, key.name)
        if kind is Node:
            self._placements.changed(key.name)
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

    # --- questions ------------------------------------------------------------------------------------------

    def allocators(self, question: PoolsQuestion) -> Allocators:
        """Return who allocates from some pools at present."""
        return Allocators(
            self._version,
            self._decider.ownership_version,
            self._decider.are_ours(question.pools),
            self._decider.are_left_to_scheduler(question.pools),
        )

    def decide(self, question: PodQuestion) -> PodAnswer:
        """Return what is to be done about a pod, or about all pods of its group."""
        now = question.now
        pod = self._pods.get(question.pod)
        if pod is None:
            return PodAnswer(self._version, Wait("the pod does not exist"))
        group = self._gangs.of(pod)
        if group is None:
            answer = self._decide_pod(pod, now)
        elif isinstance(group, GroupProblem):
            refusal = Refuse(group.message, signature=signature_of_group(group.key))
            answer = PodAnswer(self._version, refusal, GroupMembers(*group.key))
        else:
            answer = replace(self._decide_group(pod, group, now), group=group.described())
        avoided = self._backoff.nodes(pod.metadata.uid, now)
        return replace(answer, avoided=tuple(sorted(avoided.items())))

    def _decide_pod(self, pod: Pod, now: float) -> PodAnswer:
        namespace = pod.metadata.namespace
        claims = (self._claims.get(key) for key in claims_of(pod))
        question = namespace, requests_of(c for c in claims if c is not None and c.status.allocation is None)
        if self._heavy and (left := self._heavy.left(question, now)) > 0:
            refusal = Refuse(self._heavy.message(question), signature=str(pod.key).encode())
            return PodAnswer(self._version, refusal, pause=left)
        budget = self._heavy.budget(namespace, now)
        avoid = self._backoff.nodes(pod.metadata.uid, now)
        decision = self._decider.decide(pod, budget, avoid)
        if isinstance(decision, NoFit):
            refusal = self._refusal(pod, decision, avoid)
            pause = self._heavy.refused(namespace, question, budget, refusal.message, now)
            return PodAnswer(self._version, refusal, steps=budget.spent, pause=pause)
        if isinstance(decision, Write):
            self._heavy.served(namespace, question, budget, now)
        return PodAnswer(self._version, decision, steps=budget.spent)

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

    def _serves_another(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Return whether another pod that has everything it needs is about to run with the claim."""
        for other in self._pods.by_index(CLAIM_INDEX, claim.key):
            gone = is_finished(other) or bool(other.metadata.deletion_timestamp)
            if gone or foreign_gates(other) or other.metadata.uid == pod.metadata.uid:
                continue
            needed = [self._claims.get(key) for key in claims_of(other)]
            if all(c is not None and c.status.allocation is not None for c in needed):
                return True
        return False

    def _decide_group(self, pod: Pod, gang: Gang, now: float) -> PodAnswer:
        namespace, signature = pod.metadata.namespace, signature_of_group(gang.key)
        known = self._gangs.known_refusal(gang, self._improvements, now)
        if known is not None:
            return PodAnswer(self._version, known)
        if self._heavy and (left := self._heavy.left(signature, now)) > 0:
            refusal = Refuse(self._heavy.message(signature), signature=signature)
            return PodAnswer(self._version, refusal, pause=left)
        budget = self._heavy.budget(namespace, now)
        decision = self._gangs.decide(gang, budget, self._improvements, now)
        pause = 0.0
        if isinstance(decision, Refuse):
            pause = self._heavy.refused(namespace, signature, budget, decision.message, now)
        elif isinstance(decision, GroupWrite):
            self._heavy.served(namespace, signature, budget, now)
        return PodAnswer(self._version, decision, steps=budget.spent, pause=pause)


def signature_of(pod: Pod, claims: Sequence[ResourceClaim], avoided: Collection[str]) -> bytes:
    """Return what decides whether a pod fits: equal signatures get equal answers in one state of the cluster.

    Args:
        pod: that waits.
        claims: that it needs allocated, of its own; none where its claims are shared or partly allocated:
            then the pod is a signature of its own.
        avoided: nodes that are left out for this pod.
    """
    if not claims or avoided or pod.spec.node_name:
        return str(pod.key).encode()
    spec = pod.spec
    needs = [c.resources.requests for c in (*spec.init_containers, *spec.containers)]
    return requests_of(claims) + codec.encode([spec.node_selector, spec.affinity, spec.tolerations, needs])


def requests_of(claims: Iterable[ResourceClaim]) -> bytes:
    """Return what claims ask for, without their names: the same for claims from one template."""
    return codec.encode(
        [[c.spec, (c.metadata.annotations or {}).get(TOPOLOGY_ANNOTATION, "")] for c in claims]
    )
