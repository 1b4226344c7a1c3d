"""DeviceClasses that serve extended resources, and which changes of a Node matter because of them.

Devices that a device plugin of the node hands out are withheld. ``dra_driver.resourceslice`` says which
ones, ``dra_driver.publishing`` for how long after the plugin has gone. The DeviceClasses say what resources
of other than the well-known names stand for.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceClass
from dra_driver.kube import Handler, Informer
from dra_driver.publishing import LEAVING_SECONDS
from dra_driver.resourceslice import counted

__all__ = ["ExtendedResources"]


class ExtendedResources:
    """The classes that serve an extended resource (``spec.extendedResourceName``).

    Args:
        classes: with all DeviceClasses of the cluster.
        changed: called when a class begins, ceases or changes to serve an extended resource.
        leaving: seconds for which the resource of a device plugin that has gone goes on counting.

    Attributes:
        leaving: the same.
    """

    def __init__(
        self,
        classes: Informer[DeviceClass],
        changed: Callable[[], None],
        leaving: float = LEAVING_SECONDS,
    ) -> None:
        self.leaving = leaving
        self._changed = changed
        self._serving: dict[str, DeviceClass] = {}
        self._served: frozenset[str] = frozenset()
        classes.add_handler(Handler(added=self._seen, updated=lambda _, c: self._seen(c), deleted=self._gone))

    @property
    def classes(self) -> tuple[DeviceClass, ...]:
        """Those that serve one now."""
        return tuple(self._serving.values())

    def concerns(self, old: Node, new: Node) -> bool:
        """Whether an update of a Node may change what is withheld; one that counts the same costs nothing."""
        before, now = old.status.capacity, new.status.capacity
        return before != now and counted(before, self._served) != counted(now, self._served)

    def _seen(self, class_: DeviceClass) -> None:
        if not class_.spec.extended_resource_name:
            self._gone(class_)
            return
        before = self._serving.get(class_.metadata.name)
        self._serving[class_.metadata.name] = class_
        if before is None or before.spec != class_.spec:
            self._update()

    def _gone(self, class_: DeviceClass) -> None:
        if self._serving.pop(class_.metadata.name, None) is not None:
            self._update()

    def _update(self) -> None:
        self._served = frozenset(c.spec.extended_resource_name or "" for c in self._serving.values())
        self._changed()
