"""A device as the node sees it, in the form that planning needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import DeviceAttribute
from dra_driver.preparation.claim import PartitionRecord

__all__ = ["NodeDevice"]

_NO_EDITS: Final = cdi.ContainerEdits()
_NO_PARTS: Final = cdi.Parts()


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device as the node sees it now.

    Attributes:
        uuid: the vendor's identity, as discovery read it last; of a partition, its GPU's.
        published_uuid: the identity in the inventory that the API server has; None where the device is not
            in it.
        model: for the container; empty where unknown.
        memory: quantity, for the container; empty where unknown.
        edits: what a container needs to use it; of a partition, without what only the instance knows.
        own_nodes: paths of the device nodes in ``edits`` that belong to it alone; if None, those whose names
            end in a number.
        partition: where the device is a partition that is made on demand.
        controllable: time slice, compute mode and the mode in which it is cut into partitions can be set.
        partitioning: name, for people, of the mode in which it is cut into partitions and not used as a
            whole, if discovery saw last that it is on; else empty.
        is_partition: whether it is a partition that this driver has not made.
        no_time_slices: why its time slice cannot be set, where it is not ``controllable``, as a clause.
        mps_directory: host directory of the device's MPS daemon; empty where MPS is not available, then
            ``no_mps`` says why, as a clause.
        attributes: as published.
        address: PCI address of a device that can be handed over as a bare function; empty where it cannot be,
            then ``no_passthrough`` says why, as a clause.
        found: the device as discovery described it, where it has an ``address``.
        away: a claim has it under another kernel driver, or had it when discovery last looked: what a
            container needs to use it is not known.
        simulated: there is no such hardware: its nodes and files need not be there.
        parts: what a container gets of its driver beside ``edits``, by capabilities that a claim can choose.
        prepared_by: name of the backend that prepares it for claims itself; empty if none does.
    """

    name: str
    uuid: str
    published_uuid: str | None
    model: str = ""
    memory: str = ""
    edits: cdi.ContainerEdits = _NO_EDITS
    own_nodes: tuple[str, ...] | None = None
    partition: PartitionRecord | None = None
    controllable: bool = False
    partitioning: str = ""
    is_partition: bool = False
    no_time_slices: str = "its time slice cannot be set"
    mps_directory: str = ""
    no_mps: str = "it has no MPS daemon"
    attributes: Mapping[str, DeviceAttribute] = field(default_factory=dict)
    address: str = ""
    no_passthrough: str = "this device cannot be passed through"
    found: InventoryDevice | None = None
    away: bool = False
    simulated: bool = False
    parts: cdi.Parts = _NO_PARTS
    prepared_by: str = ""

    @property
    def shared(self) -> NodeDevice:
        """The device without the nodes that are its own: what discovery can say of its partitions."""
        own = cdi.own_nodes(self.edits, self.own_nodes)
        nodes = tuple(n for n in self.edits.device_nodes if n not in own)
        edits = msgspec.structs.replace(self.edits, device_nodes=nodes)
        return dataclasses.replace(self, edits=edits, own_nodes=())
