"""Passes on to the decisions what the informers show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from controller.allocate.decide import (
    Change,
    ObjectGone,
    ObjectSeen,
    PodGroupsUnknown,
    VolumesKnown,
    Watched,
    same_but_reason,
    same_for_pods,
)
from controller.allocate.state.pod_groups import PodGroupInformer
from controller.allocate.state.storage import StorageInformers, same_but_version
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import DeviceClass, DeviceTaintRule, ResourceSlice
from dra_driver.api.scheduling import PodGroup
from dra_driver.api.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from dra_driver.kube import Handler, Informer

__all__ = ["follow"]

ACTIVITY_SECONDS: Final = 2.0
"""Between two changes of the busy devices of one node that the decisions are told of."""

T = TypeVar(
    "T",
    Node,
    Pod,
    PodGroup,
    DeviceClass,
    ResourceSlice,
    DeviceInventory,
    DeviceTaintRule,
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    CSINode,
    VolumeAttachment,
)


def follow(
    apply: Callable[[Change], None],
    *,
    pods: Informer[Pod],
    nodes: Informer[Node],
    slices: Informer[ResourceSlice],
    classes: Informer[DeviceClass],
    inventories: Informer[DeviceInventory] | None = None,
    taint_rules: Informer[DeviceTaintRule] | None = None,
    storage: StorageInformers | None = None,
    pod_groups: PodGroupInformer | None = None,
) -> None:
    """Report every change of these objects from now on. Claims are reported by the ``AssumeCache``.

    Args:
        apply: takes the changes.
        pods: all: they take CPU and memory of nodes.
        nodes: all.
        slices: of all drivers: claims of other drivers decide where a pod can go.
        classes: all.
        inventories: source of device utilisation; if None, utilisation is ignored.
        taint_rules: taints of admins; if None, there are none.
        storage: what decides where volumes can be used; if None, volumes are not looked at.
        pod_groups: of which pods may be members; if None, there are none.
    """
    _follow(apply, Pod, pods, same_but_reason)
    _follow(apply, Node, nodes, same_for_pods)
    _follow(apply, ResourceSlice, slices)
    _follow(apply, DeviceClass, classes)
    if inventories is not None:
        _follow(_PacedActivity(apply, inventories).apply, DeviceInventory, inventories, _as_busy)
    if taint_rules is not None:
        _follow(apply, DeviceTaintRule, taint_rules)
    if storage is not None:
        _follow(apply, StorageClass, storage.classes, same_but_version)
        _follow(apply, CSINode, storage.nodes, same_but_version)
        _follow(apply, PersistentVolume, storage.volumes, same_but_version)
        _follow(apply, PersistentVolumeClaim, storage.claims, same_but_version)
        _follow(apply, VolumeAttachment, storage.attachments, same_but_version)
        storage.changed.listen(lambda known: apply(VolumesKnown(known)))
    if pod_groups is not None:
        for informer in pod_groups.all():
            _follow(apply, PodGroup, informer, _same_spec)
        apply(PodGroupsUnknown(pod_groups.unknown))
        pod_groups.changed.listen(lambda reason: apply(PodGroupsUnknown(reason)))


class _PacedActivity:
    """Passes on what a node reports to be busy, at most every so often.

    Agents change it once a minute or less. Each change has the pool looked at anew, so one that changes it
    all the time is heard now and then only, with what it says then.
    """

    def __init__(self, apply: Callable[[Change], None], inventories: Informer[DeviceInventory]) -> None:
        self._apply = apply
        self._inventories = inventories
        # Inventory → when something of it was passed on; those of which something waits.
        self._passed: dict[ObjectKey, float] = {}
        self._waiting: set[ObjectKey] = set()

    def apply(self, change: Change) -> None:
        """Pass a change on, now or later."""
        assert isinstance(change, ObjectSeen | ObjectGone)
        gone = isinstance(change, ObjectGone)
        key = change.key if isinstance(change, ObjectGone) else change.object.key
        loop = asyncio.get_running_loop()
        due = self._passed.get(key, float("-inf")) + ACTIVITY_SECONDS
        if gone:
            self._apply(change)
        elif loop.time() >= due:
            self._pass(key, change)
            return
        if key not in self._waiting:
            self._waiting.add(key)
            loop.call_at(max(due, loop.time()), self._again, key)

    def _pass(self, key: ObjectKey, change: Change) -> None:
        self._passed[key] = asyncio.get_running_loop().time()
        self._apply(change)

    def _again(self, key: ObjectKey) -> None:
        self._waiting.discard(key)
        now = self._inventories.get(key)
        if now is None:
            self._passed.pop(key, None)
        else:
            self._pass(key, ObjectSeen(now))


def _as_busy(old: DeviceInventory, new: DeviceInventory) -> bool:
    return old.status.activity.busy == new.status.activity.busy


def _same_spec(old: PodGroup, new: PodGroup) -> bool:
    return old.spec == new.spec and old.metadata.uid == new.metadata.uid


def _differs(_old: object, _new: object) -> bool:
    return False


def _follow(
    apply: Callable[[Change], None],
    kind: type[T],
    informer: Informer[T],
    same: Callable[[T, T], bool] = _differs,
) -> None:
    """Report the objects of one kind, without updates that say nothing new."""

    def seen(item: Watched) -> None:
        apply(ObjectSeen(item))

    def updated(old: T, new: T) -> None:
        if not same(old, new):
            apply(ObjectSeen(new))

    def gone(item: Watched) -> None:
        apply(ObjectGone(kind, item.key))

    informer.add_handler(Handler(added=seen, updated=updated, deleted=gone))
