"""Publication records: what API objects say of the publication of a pool, and by which its slices are known.

On a ResourceSlice: the name, the label of the program that created it, ``spec.nodeName``, and the Node that
owns it. On a DeviceInventory: the Node that owns it, ``spec.publisher`` and ``status.publication`` (for which
registration epoch, with which pool generation and which slices, and who may allocate).

Everything that must survive a crash of a publisher is in these fields and nowhere else.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from dra_driver.api.core import Node
from dra_driver.api.meta import OwnerReference
from dra_driver.api.names import ALLOCATOR_LABEL
from dra_driver.api.own.inventory import (
    NODE_PUBLISHES,
    DeviceInventory,
    OtherDriverNote,
    Publication,
    inventory_name,
)
from dra_driver.api.resource import Device, ResourceSlice

__all__ = [
    "CREATED_BY_CONTROLLER",
    "CREATED_BY_NODE",
    "OPEN_POOL",
    "AllocatorRecord",
    "is_complete",
    "is_marked_open",
    "is_owned_by",
    "is_published_by_node",
    "missing_slices",
    "newest_devices",
    "newest_generation",
    "owner_of",
    "raw_other_drivers",
    "raw_publication",
    "recorded_allocator",
    "refusal_of",
    "slice_name",
    "slices_of_node",
]

_MAX_NAME: Final = 253
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

CREATED_BY_CONTROLLER: Final[Mapping[str, str]] = {_MANAGED_BY: "dra-driver-controller"}
"""Labels of slices that the controller creates."""
CREATED_BY_NODE: Final[Mapping[str, str]] = {_MANAGED_BY: "dra-driver-kubelet-plugin"}
"""Labels of slices that the agent of a node creates (``--publish=node``)."""


OPEN_POOL: Final[Mapping[str, str]] = {ALLOCATOR_LABEL: "controller"}
"""Label of slices of an open pool: for people and commands, nothing that is safe rests on it."""


def is_marked_open(slice_: ResourceSlice) -> bool:
    """Return whether a slice says that its pool is the controller's although it has no taint of ours."""
    labels = slice_.metadata.labels or {}
    return labels.items() >= OPEN_POOL.items()


class AllocatorRecord(enum.Enum):
    """``status.publication.allocator`` of a DeviceInventory: who may allocate from the pool."""

    NONE = ""
    SCHEDULER = "scheduler"
    DRAINING = "draining"
    CONTROLLER = "controller"
    # For an older controller it counts as ``draining``: devices without our taint are tainted, and what
    # kube-scheduler may have decided is waited for.
    OPEN = "open"

    @property
    def is_controllers(self) -> bool:
        """Whether a controller allocates from the pool, or is about to."""
        return self in (AllocatorRecord.DRAINING, AllocatorRecord.CONTROLLER, AllocatorRecord.OPEN)


def recorded_allocator(publication: Publication) -> AllocatorRecord:
    """Return who may allocate; a value that this version does not know counts as ``draining``: none may.

    So does a note of devices that a controller of an earlier version has lent to kube-scheduler: its pool
    comes back like one that was kube-scheduler's, until another allocator is noted, and nothing lent.
    """
    try:
        record = AllocatorRecord(publication.allocator)
    except ValueError:
        return AllocatorRecord.DRAINING
    if publication.lent and record is not AllocatorRecord.SCHEDULER:
        return AllocatorRecord.DRAINING
    return record


def raw_publication(publication: Publication) -> dict[str, Any]:
    """Return every field, also those with default values: a merge patch keeps what it does not name.

    All but what is noted by itself, before slices change: ``raw_other_drivers``.
    """
    return {
        "epoch": publication.epoch,
        "attempted": publication.attempted,
        "generation": publication.generation,
        "slices": list(publication.slices),
        "devices": publication.devices,
        "allocator": publication.allocator,
        "withheldFor": list(publication.withheld_for),
    }


def raw_other_drivers(notes: Iterable[OtherDriverNote]) -> dict[str, Any]:
    """Return the note of other drivers, as a field of ``status.publication``."""
    found = [{"driver": n.driver, "pools": list(n.pools), "devices": list(n.devices)} for n in notes]
    return {"otherDrivers": found}


def missing_slices(publication: Publication, present: Collection[str]) -> tuple[str, ...]:
    """Return the recorded slices that are not there.

    Args:
        publication: the record.
        present: names of slices that exist.
    """
    return tuple(name for name in publication.slices if name not in present)


def is_published_by_node(inventory: DeviceInventory) -> bool:
    """Whether the agent of the node publishes, and no controller allocates from the pool any more."""
    record = recorded_allocator(inventory.status.publication)
    return inventory.spec.publisher == NODE_PUBLISHES and not record.is_controllers


def refusal_of(inventory: DeviceInventory, node: Node | None) -> str:
    """Return why an inventory is not believed, empty if it is: a node describes only itself.

    Args:
        inventory: written by a node, and not trusted.
        node: the Node that it names; if None, its owner is not looked at.
    """
    spec = inventory.spec
    expected = inventory_name(spec.node_name, spec.driver)
    if inventory.metadata.name != expected:
        what = f"node {spec.node_name!r} and driver {spec.driver!r}"
        return f"{what} must be published in an object named {expected}"
    if node is None:
        return ""
    owners = [o for o in inventory.metadata.owner_references or () if o.kind == "Node"]
    if not any(o.name == node.metadata.name and o.uid == node.metadata.uid for o in owners):
        return f"its owner is not Node {node.metadata.name} with UID {node.metadata.uid}"
    return ""


def slice_name(node_name: str, driver: str, index: int) -> str:
    """Return the name of the n-th slice: readable, and unique however node and driver names are put together.

    Slices sort in the order of their index, in which kube-scheduler reads them.
    """
    digest = hashlib.sha256(f"{node_name}/{driver}".encode()).hexdigest()[:8]
    tail = f"-{digest}-{index:03x}"
    head = f"{node_name}-{driver.lower()}"[: _MAX_NAME - len(tail)].rstrip(".-")
    return head + tail


def owner_of(node: Node) -> OwnerReference:
    """Return the owner of a slice, which is garbage when this Node is gone, even if another has its name."""
    return OwnerReference(
        api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid, controller=True
    )


def is_owned_by(slice_: ResourceSlice, owner: OwnerReference) -> bool:
    """Whether the slice has this owner."""
    return any(
        o.uid == owner.uid and o.kind == owner.kind and o.controller
        for o in slice_.metadata.owner_references or ()
    )


def slices_of_node(slices: Iterable[ResourceSlice], node_name: str) -> tuple[ResourceSlice, ...]:
    """Return those of a pool's slices that are the node's; no publisher of ours has written the others."""
    return tuple(s for s in slices if s.spec.node_name == node_name)


def newest_generation(slices: Iterable[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    """Return the slices of a pool's newest generation, which alone count."""
    known = tuple(slices)
    newest = max((s.spec.pool.generation for s in known), default=0)
    return tuple(s for s in known if s.spec.pool.generation == newest)


def is_complete(slices: Iterable[ResourceSlice]) -> bool:
    """Return whether all slices of a pool's newest generation are there; readers use no other pool.

    A pool without any slice is complete: there is none that would have to follow.
    """
    newest = newest_generation(slices)
    return not newest or len(newest) == newest[0].spec.pool.resource_slice_count


def newest_devices(slices: Iterable[ResourceSlice]) -> dict[str, Device]:
    """Return the devices of a pool's newest generation, by name."""
    return {d.name: d for s in newest_generation(slices) for d in s.spec.devices}
