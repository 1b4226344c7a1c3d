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
    PoolBusy,
    VolumesKnown,
    Watched,
    same_but_reason,
    same_for_pods,
)
from controller.allocate.state.pod_groups import PodGroupInformer
from controller.allocate.state.storage import StorageInformers, same_but_version
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.own.inventory import DeviceInventory, inventory_name
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
from dra_driver.ownership import pool_of_inventory

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
        _PacedActivity(apply, inventories)
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
    """Passes on what nodes report to be busy, of each at most every so often.

    Agents change it once a minute or less. Each change has the pool looked at anew, so one that changes it
    all the time is heard now and then only, with what it says then. Of inventories nothing else is passed on:
    they repeat what slices say, and were three quarters of what a new worker had to be sent.
    """

    def __init__(self, apply: Callable[[Change], None], inventories: Informer[DeviceInventory]) -> None:
        self._apply = apply
        self._inventories = inventories
        # Inventory → what was passed on of it, where something is busy; those that are not looked at for now.
        self._passed: dict[ObjectKey, PoolBusy] = {}
        self._resting: set[ObjectKey] = set()
        inventories.add_handler(
            Handler(
                added=lambda i: self._look(i.key),
                updated=lambda _, i: self._look(i.key),
                deleted=lambda i: self._look(i.key),
            )
        )

    def _look(self, key: ObjectKey) -> None:
        before, now = self._passed.get(key), self._now(key)
        if key in self._resting or before == now:
            return
        if before is not None and (now is None or now.pool != before.pool):
            del self._passed[key]
            self._apply(PoolBusy(before.pool, ()))
        if now is not None:
            self._passed[key] = now
            self._apply(now)
        self._resting.add(key)
        asyncio.get_running_loop().call_later(ACTIVITY_SECONDS, self._rested, key)

    def _rested(self, key: ObjectKey) -> None:
        self._resting.discard(key)
        self._look(key)

    def _now(self, key: ObjectKey) -> PoolBusy | None:
        """Return what an inventory says; None where nothing is busy, or it speaks of another node."""
        inventory = self._inventories.get(key)
        if inventory is None or not inventory.status.activity.busy:
            return None
        spec = inventory.spec
        if inventory.metadata.name != inventory_name(spec.node_name, spec.driver):
            return None
        return PoolBusy(pool_of_inventory(inventory), inventory.status.activity.busy)


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
