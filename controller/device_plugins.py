"""Extended resources: device plugins beside us, and pools that cannot serve what a class promises.

Two that hand out one node's devices would give each of them away twice.

A DeviceClass with ``spec.extendedResourceName`` serves pods that ask for that resource. Where the node itself
counts the resource in ``status.capacity``, a device plugin hands it out there: kube-scheduler leaves such
pods to the plugin, while claims would take the same devices from us. So a pool whose devices such a class
selects is published empty until the device plugin is gone (its capacity is 0 then, or absent).

kube-scheduler makes the claims of extended resources in memory and allocates them itself, so devices of a
pool that the controller allocates are out of their reach. Such a pool is published all the same, and says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from dra_driver import cel
from dra_driver.api.core import Node
from dra_driver.api.resource import Device, DeviceClass
from dra_driver.kube import Handler, Informer
from dra_driver.resourceslice import DesiredPool, PoolAllocator, SliceContent

__all__ = ["DevicePlugins"]


class DevicePlugins:
    """Answers for each node; deciding costs nothing where no class names an extended resource.

    Args:
        classes: with all DeviceClasses of the cluster.
        changed: called when a class begins, ceases or changes to serve an extended resource.
    """

    def __init__(self, classes: Informer[DeviceClass], changed: Callable[[], None]) -> None:
        self._changed = changed
        self._serving: dict[str, DeviceClass] = {}
        classes.add_handler(Handler(added=self._seen, updated=lambda _, c: self._seen(c), deleted=self._gone))

    def _seen(self, class_: DeviceClass) -> None:
        if not class_.spec.extended_resource_name:
            self._gone(class_)
            return
        before = self._serving.get(class_.metadata.name)
        self._serving[class_.metadata.name] = class_
        if before is None or before.spec != class_.spec:
            self._changed()

    def _gone(self, class_: DeviceClass) -> None:
        if self._serving.pop(class_.metadata.name, None) is not None:
            self._changed()

    def concerned(self, old: Node, new: Node) -> bool:
        """Whether the answer for the node may have changed."""
        return bool(self._serving) and list(self._claimed(old)) != list(self._claimed(new))

    def withhold(self, desired: DesiredPool, node: Node) -> DesiredPool:
        """The pool with its ``conflicts``, or an empty one with the reason in ``withheld``."""
        reason = next(self._reasons(desired, node), "")
        if reason:
            return dataclasses.replace(desired, slices=(SliceContent(),), withheld=reason)
        conflicts = tuple(self._conflicts(desired))
        return dataclasses.replace(desired, conflicts=conflicts) if conflicts else desired

    def _claimed(self, node: Node) -> Iterator[tuple[str, str]]:
        """Class and resource, for each resource that a device plugin of the node hands out."""
        for name, class_ in sorted(self._serving.items()):
            resource = class_.spec.extended_resource_name or ""
            if node.status.capacity.get(resource):
                yield name, resource

    def _hit(self, name: str, desired: DesiredPool) -> int:
        """How many devices of the pool the class selects."""
        class_ = self._serving[name]
        return sum(_selects(class_, desired.driver, d) for s in desired.slices for d in s.devices)

    def _conflicts(self, desired: DesiredPool) -> Iterator[str]:
        if desired.allocator is not PoolAllocator.CONTROLLER:
            return
        for name, class_ in sorted(self._serving.items()):
            if hit := self._hit(name, desired):
                resource = class_.spec.extended_resource_name
                yield (
                    f"DeviceClass {name} serves the extended resource {resource}, but pods that ask for it "
                    f"get none of its {hit} devices here: kube-scheduler allocates those itself, and this "
                    "pool is the controller's. Let a DevicePolicy give the pool to the scheduler "
                    "(allocator: scheduler), or use claims"
                )

    def _reasons(self, desired: DesiredPool, node: Node) -> Iterator[str]:
        for name, resource in self._claimed(node):
            if hit := self._hit(name, desired):
                yield (
                    f"a device plugin hands out {node.status.capacity[resource]} {resource} on node "
                    f"{node.metadata.name}, and DeviceClass {name} serves {resource} with {hit} of the "
                    f"{desired.devices} devices here: they would be given away twice. Remove the device "
                    "plugin from the node, or extendedResourceName from the class"
                )


def _selects(class_: DeviceClass, driver: str, device: Device) -> bool:
    """Whether all selectors of the class accept the device; one that fails selects nothing."""
    view = cel.DeviceView(driver, device)
    try:
        return all(
            s.cel is None or cel.compile_selector(s.cel.expression).matches(view)
            for s in class_.spec.selectors
        )
    except (cel.CelCompileError, cel.CelRuntimeError):
        return False
