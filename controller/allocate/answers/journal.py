"""All changes that decisions have been sent, merged, so that a new worker can be sent them again.

Every change has a number, its *version*. An answer says up to which version it has seen the changes; what it
rests on may have changed since. So here is also which pools and claims changed at which version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from controller.allocate.answers.freshness import Freshness
from controller.allocate.decide import (
    EVERYWHERE,
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimRenewed,
    ClaimSeen,
    DecisionOverran,
    DevicesSetAside,
    GroupHeld,
    GroupMembers,
    Learned,
    NamespaceStruck,
    NodeTurnedDown,
    ObjectGone,
    ObjectSeen,
    PodExpected,
    PodGroupsUnknown,
    PoolBusy,
    PoolChanged,
    QuestionHeavy,
    VolumesKnown,
    Watched,
    changed_node,
    has_node,
    same_devices,
)
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.api.scheduling import PodGroup
from dra_driver.api.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from dra_driver.ownership import PoolID, pool_of_slice

__all__ = ["Journal"]

_K = TypeVar("_K")
_V = TypeVar("_V")

# In this order a new worker learns of them.
_KINDS: Final[tuple[type[Watched], ...]] = (
    Node,
    DeviceClass,
    DeviceTaintRule,
    ResourceSlice,
    PodGroup,
    StorageClass,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
    Pod,
)
# Of one pod and node: doubling ends before that.
_MOST_TURNED_DOWN: Final = 8
_MOST_OVERRUNS: Final = 1_000
_MOST_LEARNED: Final = 10_000


class Journal:
    """All changes so far, merged.

    Attributes:
        version: number of changes so far.
        freshness: what changed at which version.
    """

    def __init__(self) -> None:
        self.version = 0
        self.freshness = Freshness()
        self._send: Callable[[int, Change], None] | None = None
        self._objects: dict[type[Watched], dict[ObjectKey, Any]] = {kind: {} for kind in _KINDS}
        self._claims: dict[ObjectKey, ResourceClaim] = {}
        self._assumed: dict[Uid, ClaimAssumed] = {}
        self._pools: dict[PoolID, PoolChanged] = {}
        self._busy: dict[PoolID, PoolBusy] = {}
        self._expected: dict[Uid, PodExpected] = {}
        self._turned_down: dict[str | None, dict[Uid, list[NodeTurnedDown]]] = {}
        # Of pods that are gone as well: their namespaces go on.
        self._overran: OrderedDict[ObjectKey, DecisionOverran] = OrderedDict()
        self._heavy: dict[ObjectKey, QuestionHeavy] = {}
        self._struck: OrderedDict[str, NamespaceStruck] = OrderedDict()
        self._held_since: OrderedDict[tuple[str, str], GroupHeld] = OrderedDict()
        # By the pod that others were preempted for; empty: the pod that starves.
        self._set_aside: dict[str, DevicesSetAside] = {}
        self._volumes_known = VolumesKnown(False)
        self._pod_groups_unknown = PodGroupsUnknown("")

    def send_to(self, send: Callable[[int, Change], None] | None) -> None:
        """Pass on every change from now on, with its version; None ends that."""
        self._send = send

    def claim(self, key: ObjectKey) -> ResourceClaim | None:
        """Return the newest version of a claim."""
        return self._claims.get(key)

    def pod(self, key: ObjectKey) -> Pod | None:
        """Return the newest version of a pod."""
        found: Pod | None = self._objects[Pod].get(key)
        return found

    def assumed(self, claim: Uid) -> AllocationResult | None:
        """Return what is being written of a claim."""
        known = self._assumed.get(claim)
        return None if known is None else known.allocation

    def expected(self, pod: Uid) -> str | None:
        """Return the node on which a pod will run, as far as that was said."""
        known = self._expected.get(pod)
        return None if known is None else known.node

    # --- changes --------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Take in a change and pass it on."""
        self.version += 1
        self._note(change)
        if self._send is not None:
            self._send(self.version, change)

    def renew(self, claim: ResourceClaim) -> None:
        """Take in a version of a claim that says nothing new to decisions (``same_for_decisions``).

        It is kept whole here, and only its number is passed on: nothing that an answer rests on has changed.
        """
        self._claims[claim.key] = claim
        self.apply(ClaimRenewed(claim.key, claim.metadata.uid, claim.metadata.resource_version))

    def _note(self, change: Change) -> None:
        match change:
            case ObjectSeen(item):
                self._seen(item)
            case ObjectGone(kind, key):
                self._gone(kind, key)
            case ClaimSeen(claim):
                self._claim_seen(claim)
            case ClaimRenewed():
                pass  # ``renew`` has it
            case ClaimGone(key, uid):
                self._claim_gone(key, uid)
            case ClaimAssumed(key, uid, allocation):
                before = self._held(key, uid)
                if allocation is None:
                    self._assumed.pop(uid, None)
                else:
                    self._assumed[uid] = change
                self._taken(before, self._held(key, uid))
            case PoolChanged(pool):
                self._pools[pool] = change
                self._turned_down.pop(pool.pool, None)
                self.freshness.pool_changed(pool, self.version)
            case PoolBusy(pool, devices):
                self._busy.pop(pool, None)
                if devices:
                    self._busy[pool] = change
            case PodExpected(pod_id, node):
                self._expected.pop(pod_id.uid, None)
                known = self._objects[Pod].get(pod_id.key)
                if node is not None and known is not None and known.metadata.uid == pod_id.uid:
                    self._expected[pod_id.uid] = change
            case NodeTurnedDown(uid, node_name):
                pods = self._turned_down.setdefault(node_name, {})
                pods[uid] = [*pods.get(uid, ()), change][-_MOST_TURNED_DOWN:]
            case DecisionOverran(key):
                _keep(self._overran, key, change, _MOST_OVERRUNS)
            case QuestionHeavy(key):
                if key in self._objects[Pod]:
                    self._heavy[key] = change
            case NamespaceStruck(namespace):
                _keep(self._struck, namespace, change, _MOST_LEARNED)
            case GroupHeld(namespace, name):
                _keep(self._held_since, (namespace, name), change, _MOST_LEARNED)
            case DevicesSetAside(rank, _, preemptor):
                self._set_aside.pop(preemptor, None)
                if rank is not None:
                    self._set_aside[preemptor] = change
            case VolumesKnown():
                self._volumes_known = change
            case PodGroupsUnknown():
                self._pod_groups_unknown = change

    def learn(self, pod: ObjectKey, group: GroupMembers | None, learned: Learned) -> None:
        """Keep for the next worker what this one has learned from a question about a pod; it is no change."""
        self._heavy.pop(pod, None)
        self._struck.pop(pod.namespace, None)
        if group is not None:
            self._held_since.pop((group.namespace, group.name), None)
        for change in (learned.question, learned.namespace, learned.group):
            if change is not None:
                self._note(change)

    def _seen(self, item: Watched) -> None:
        kind = type(item)
        old = self._objects[kind].get(item.key)
        self._objects[kind][item.key] = item
        self._turned_down.pop(changed_node(old, item) or None, None)
        if isinstance(old, Pod) and isinstance(item, Pod) and has_node(old, item):
            self._turned_down.get(EVERYWHERE, {}).pop(item.metadata.uid, None)
        if isinstance(item, ResourceSlice):
            self._slices_changed(s for s in (old, item) if s is not None)
        elif isinstance(item, DeviceTaintRule):
            self.freshness.all_changed(self.version)
        elif isinstance(item, Pod):
            if old is not None and old.metadata.uid != item.metadata.uid:
                self._forget_pod(old)
            if item.spec.node_name:
                self._expected.pop(item.metadata.uid, None)

    def _gone(self, kind: type[Watched], key: ObjectKey) -> None:
        old = self._objects[kind].pop(key, None)
        self._turned_down.pop(changed_node(old, None) or None, None)
        if isinstance(old, ResourceSlice):
            self._slices_changed((old,))
        elif isinstance(old, DeviceTaintRule):
            self.freshness.all_changed(self.version)
        elif isinstance(old, Pod):
            self._forget_pod(old)

    def _forget_pod(self, pod: Pod) -> None:
        self._expected.pop(pod.metadata.uid, None)
        for pods in self._turned_down.values():
            pods.pop(pod.metadata.uid, None)
        self._heavy.pop(pod.key, None)

    def _slices_changed(self, slices: Iterable[ResourceSlice]) -> None:
        for slice_ in slices:
            self.freshness.pool_changed(pool_of_slice(slice_), self.version)

    def _claim_seen(self, claim: ResourceClaim) -> None:
        key, uid = claim.key, claim.metadata.uid
        before = self._held(key, uid)
        self._claims[key] = claim
        self.freshness.claim_changed(key, self.version)
        self._taken(before, self._held(key, uid))

    def _claim_gone(self, key: ObjectKey, uid: Uid) -> None:
        known = self._claims.get(key)
        if known is not None and known.metadata.uid == uid:
            del self._claims[key]
        self.freshness.claim_changed(key, self.version)

    def _held(self, key: ObjectKey, uid: Uid) -> AllocationResult | None:
        assumed = self._assumed.get(uid)
        if assumed is not None:
            return assumed.allocation
        known = self._claims.get(key)
        return known.status.allocation if known is not None and known.metadata.uid == uid else None

    def _taken(self, before: AllocationResult | None, now: AllocationResult | None) -> None:
        """Note what is taken now; what has become free takes nothing from an answer."""
        if now is not None and (before is None or not same_devices(before, now)):
            self.freshness.taken(now, self.version)

    # --- replay ---------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Change]:
        """Yield changes that lead to what all changes so far have led to.

        Changes that come in between may be passed on before or after what is yielded, so each value is looked
        up when its turn comes: one of when the replay began would undo what was passed on meanwhile.
        """
        for kind in _KINDS:
            yield from map(ObjectSeen, _each(self._objects[kind]))
        yield from map(ClaimSeen, _each(self._claims))
        yield from _each(self._assumed)
        yield from _each(self._pools)
        yield from _each(self._busy)
        yield from _each(self._expected)
        yield from _each(self._heavy)
        yield from _each(self._struck)
        yield from _each(self._held_since)
        yield from _each(self._overran)
        yield from _each(self._set_aside)
        if self._volumes_known.known:
            yield self._volumes_known
        if self._pod_groups_unknown.reason:
            yield self._pod_groups_unknown
        for pods in _each(self._turned_down):
            for downs in _each(pods):
                yield from downs


def _keep(values: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Keep a value as the newest; the oldest goes where there are too many."""
    values.pop(key, None)
    values[key] = value
    if len(values) > most:
        values.popitem(last=False)


def _each(values: Mapping[_K, _V]) -> Iterator[_V]:
    """Yield the values as they are by then, in the order of now, without those that have gone."""
    for key in tuple(values):
        if (value := values.get(key)) is not None:
            yield value
