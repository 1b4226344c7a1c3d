"""What has happened, worked into the state that decisions are made on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from controller.allocate.decide.groups.gangs import Gangs
from controller.allocate.decide.groups.group_members import Gang, GroupProblem
from controller.allocate.decide.heavy import HeavyQuestions
from controller.allocate.decide.learned import GroupHeld, NamespaceStruck, QuestionHeavy
from controller.allocate.decide.memory import Memory
from controller.allocate.decide.messages import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimRenewed,
    ClaimSeen,
    DecisionOverran,
    DevicesSetAside,
    NodeTurnedDown,
    ObjectGone,
    ObjectSeen,
    PodExpected,
    PodGroupsUnknown,
    PodID,
    PoolBusy,
    PoolChanged,
    VolumesKnown,
    Watched,
)
from controller.allocate.decide.nodes.node_backoff import NodeBackoff, changed_node
from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placements, same_for_pods
from controller.allocate.decide.nodes.reports import has_node
from controller.allocate.decide.pods.earlier_users import kept_others_back
from controller.allocate.decide.pods.solving import PodDecider
from controller.allocate.decide.set_aside import SetAsideDevices
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.objects import (
    GroupKey,
    Objects,
    claims_of,
    group_of_claim,
    is_finished,
)
from controller.allocate.decide.state.pod_groups import PodGroupView
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import DeviceClass
from dra_driver.api.scheduling import PodGroup
from dra_driver.nodefit.volumes import STORAGE_KINDS

__all__ = ["Intake"]


class Intake:
    """Takes in changes, and counts those after which an answer may be another one.

    Attributes:
        version: counts all changes.
        improvements: counts what may have changed for the better.

    Args:
        pods: all of them.
        pod_groups: objects of the group API.
        claims: with what is assumed of them.
        cluster: nodes, slices, classes and pools.
        usage: what pods take of nodes.
        placements: which nodes suit a pod.
        backoff: nodes that kube-scheduler has turned down.
        heavy: questions that took much work.
        set_aside: devices that are kept for pods.
        decider: what a claim gets.
        gangs: what is known of groups.
        memory: what spares work.
        group_of: finds the group of a pod as far as it concerns us.
        groups_of: finds the groups that a pod names.
    """

    def __init__(
        self,
        *,
        pods: Objects[Pod],
        pod_groups: PodGroupView,
        claims: ClaimView,
        cluster: ClusterState,
        usage: NodeUsage,
        placements: Placements,
        backoff: NodeBackoff,
        heavy: HeavyQuestions,
        set_aside: SetAsideDevices,
        decider: PodDecider,
        gangs: Gangs,
        memory: Memory,
        group_of: Callable[[Pod], Gang | GroupProblem | None],
        groups_of: Callable[[Pod], Iterable[GroupKey]],
    ) -> None:
        self.version = 0
        self.improvements = 0
        self._pods = pods
        self._pod_groups = pod_groups
        self._claims = claims
        self._cluster = cluster
        self._usage = usage
        self._placements = placements
        self._backoff = backoff
        self._heavy = heavy
        self._set_aside = set_aside
        self._decider = decider
        self._gangs = gangs
        self._memory = memory
        self._group_of = group_of
        self._groups_of = groups_of

    def apply(self, change: Change) -> None:
        """Take in a change."""
        self.version += 1
        match change:
            case ObjectSeen(item):
                self._object_seen(item)
            case ObjectGone(kind, key):
                self._object_gone(kind, key)
            case ClaimSeen(claim):
                self._improved(self._claims.put(claim))
            case ClaimRenewed(key, uid, version):
                self._claims.renew(key, uid, version)
            case ClaimGone(key, uid):
                self._improved(self._claims.remove(key, uid))
            case ClaimAssumed(key, uid, allocation):
                self._improved(self._claims.assume(key, uid, allocation))
            case PoolChanged(pool, blocked, policy, granted, is_open):
                if granted == self._cluster.granted(pool):  # else it says nothing new of the node
                    self._backoff.reset(pool.pool)
                self._cluster.set_granted(pool, granted)
                self._cluster.set_open(pool, is_open)
                self._claims.set_granted(pool, granted)
                self._decider.set_pool(pool, blocked=blocked, policy=policy)
                self._improved(True)
            case PoolBusy(pool, devices):
                self._cluster.set_busy(pool, devices)
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

    def _improved(self, perhaps: bool) -> None:
        self.improvements += perhaps

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
            self._improved(True)

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
        self._improved(True)

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
