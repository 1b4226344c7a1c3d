"""Extended resources: device plugins beside us, and pools that cannot serve what a class promises.

Devices that a device plugin of the node hands out are withheld. ``dra_driver.resourceslice`` says which ones,
``dra_driver.publishing`` for how long after the plugin has gone. Here are the DeviceClasses, which say what
resources of other than the well-known names stand for, and what of a Node matters.

kube-scheduler makes the claims of extended resources in memory and allocates them itself, so devices of a
pool that the controller allocates are out of their reach. Such a pool is published all the same, and says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from dra_driver.api.core import Node
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.resource import DeviceClass
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolAllocator
from dra_driver.publishing import LeavingPlugins
from dra_driver.resourceslice import (
    DesiredPool,
    PluginDevices,
    counted,
    handed_out,
    selected_by,
)

__all__ = ["DevicePlugins"]


class DevicePlugins:
    """Answers for each node; an update of a Node that counts the same resources as before costs nothing.

    Args:
        classes: with all DeviceClasses of the cluster.
        leaving: how long a device plugin that has gone still counts.
        changed: called when a class begins, ceases or changes to serve an extended resource.
    """

    def __init__(
        self, classes: Informer[DeviceClass], leaving: LeavingPlugins, changed: Callable[[], None]
    ) -> None:
        self._leaving = leaving
        self._changed = changed
        self._serving: dict[str, DeviceClass] = {}
        self._served: frozenset[str] = frozenset()
        classes.add_handler(Handler(added=self._seen, updated=lambda _, c: self._seen(c), deleted=self._gone))

    def _seen(self, class_: DeviceClass) -> None:
        if not class_.spec.extended_resource_name:
            self._gone(class_)
            return
        before = self._serving.get(class_.metadata.name)
        self._serving[class_.metadata.name] = class_
        if before is None or before.spec != class_.spec:
            self._others()

    def _gone(self, class_: DeviceClass) -> None:
        if self._serving.pop(class_.metadata.name, None) is not None:
            self._others()

    def _others(self) -> None:
        self._served = frozenset(c.spec.extended_resource_name or "" for c in self._serving.values())
        self._changed()

    def concerned(self, old: Node, new: Node) -> bool:
        """Whether the answer for the node may have changed."""
        before, now = old.status.capacity, new.status.capacity
        return before != now and counted(before, self._served) != counted(now, self._served)

    def handed_out(self, inventory: DeviceInventory, node: Node) -> tuple[tuple[PluginDevices, ...], float]:
        """Return what device plugins hand out on the node, and seconds after which to ask again (0: not)."""
        resources, again = self._leaving.resources(inventory, node.status.capacity, self._served)
        return handed_out(resources, self._serving.values()), again

    def forget(self, inventory: DeviceInventory) -> None:
        """The inventory is gone."""
        self._leaving.forget(inventory)

    def with_conflicts(self, desired: DesiredPool) -> DesiredPool:
        """Return the pool with its ``conflicts``: classes whose pods get none of its devices."""
        conflicts = tuple(self._conflicts(desired))
        return dataclasses.replace(desired, conflicts=conflicts) if conflicts else desired

    def _conflicts(self, desired: DesiredPool) -> Iterator[str]:
        if desired.allocator is not PoolAllocator.CONTROLLER:
            return
        for name, class_ in sorted(self._serving.items()):
            hit = sum(selected_by(class_, desired.driver, d) for s in desired.slices for d in s.devices)
            if hit:
                resource = class_.spec.extended_resource_name
                yield (
                    f"DeviceClass {name} serves the extended resource {resource}, but pods that ask for it "
                    f"get none of its {hit} devices here: kube-scheduler allocates those itself, and this "
                    "pool is the controller's. Let a DevicePolicy give the pool to the scheduler "
                    "(allocator: scheduler), or use claims"
                )
