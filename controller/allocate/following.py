"""Passes on to the decisions what the informers show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controller.allocate.decide import Change, ObjectGone, ObjectSeen, Watched, same_for_pods
from dra_driver.api.core import Node, Pod
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.resource import DeviceClass, DeviceTaintRule, ResourceSlice
from dra_driver.kube import Handler, Informer

__all__ = ["follow"]

T = TypeVar("T", Node, Pod, DeviceClass, ResourceSlice, DeviceInventory, DeviceTaintRule)


def follow(
    apply: Callable[[Change], None],
    *,
    pods: Informer[Pod],
    nodes: Informer[Node],
    slices: Informer[ResourceSlice],
    classes: Informer[DeviceClass],
    inventories: Informer[DeviceInventory] | None = None,
    taint_rules: Informer[DeviceTaintRule] | None = None,
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
    """
    _follow(apply, Pod, pods)
    _follow(apply, Node, nodes, same_for_pods)
    _follow(apply, ResourceSlice, slices)
    _follow(apply, DeviceClass, classes)
    if inventories is not None:
        _follow(apply, DeviceInventory, inventories, _as_busy)
    if taint_rules is not None:
        _follow(apply, DeviceTaintRule, taint_rules)


def _as_busy(old: DeviceInventory, new: DeviceInventory) -> bool:
    return old.status.activity.busy == new.status.activity.busy


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
