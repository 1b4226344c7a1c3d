"""Extended resources (KEP-5004) that a pool cannot serve although a DeviceClass promises them.

kube-scheduler makes the claims of extended resources in memory and allocates them itself, so devices of a
pool that the controller allocates are out of their reach. Such a pool is published all the same, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.api.resource import DeviceClass
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice.device_plugins import selected_by
from dra_driver.resourceslice.types import DesiredPool

__all__ = ["extended_resource_conflicts"]


def extended_resource_conflicts(desired: DesiredPool, classes: Iterable[DeviceClass]) -> tuple[str, ...]:
    """Return a text for each class whose pods get none of the pool's devices.

    Args:
        desired: the pool.
        classes: DeviceClasses that serve an extended resource.
    """
    if desired.allocator is not PoolAllocator.CONTROLLER:
        return ()
    found = []
    for class_ in sorted(classes, key=lambda c: c.metadata.name):
        hit = sum(selected_by(class_, desired.driver, d) for s in desired.slices for d in s.devices)
        if hit:
            resource = class_.spec.extended_resource_name
            found.append(
                f"DeviceClass {class_.metadata.name} serves the extended resource {resource}, but pods that "
                f"ask for it get none of its {hit} devices here: kube-scheduler allocates those itself, and "
                "this pool is the controller's, and not open. Have every namespace get the scheduling gate "
                "(allocation-modes.md), let a DevicePolicy give the pool to the scheduler (allocator: "
                "scheduler), or use claims"
            )
    return tuple(found)
