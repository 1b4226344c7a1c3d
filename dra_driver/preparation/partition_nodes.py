"""Whose the device nodes are with which a partition comes: a backend may name those of another device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from dra_driver import cdi
from dra_driver.errors import PrepareError
from dra_driver.preparation.claim import PreparedClaim, PreparedDevice
from dra_driver.preparation.node_device import NodeDevice

__all__ = ["check_nodes"]


def check_nodes(
    record: PreparedClaim, devices: Mapping[str, NodeDevice], others: Iterable[PreparedClaim]
) -> None:
    """Refuse a partition with a node of another device, or of a partition that another claim holds.

    The nodes of the device that is cut are those of all its partitions. Only nodes that a backend has stated
    to be a device's own count, for others may be the driver's.

    Args:
        record: of a claim whose partitions are made.
        devices: the node's devices by name.
        others: records of claims, this one's too; with the nodes that they had when they were written.

    Raises:
        PrepareError: the text says which; retryable, for numbers change when a driver is loaded anew.
    """
    held = [d for other in others if other.uid != record.uid for d in _of_partitions(other)]
    for device, nodes in _of_partitions(record):
        gpu = devices.get(device.partition.gpu) if device.partition is not None else None
        if gpu is None or gpu.own_nodes is None:
            continue  # at a start, for example: which nodes are of the device that is cut is not known
        own = nodes - _own(gpu)
        for found in devices.values():
            if own & _own(found) and found.uuid != device.uuid and not found.is_partition:
                raise _others(device, own & _own(found), found.name)
        for other, theirs in held:
            if own & theirs and other.partition != device.partition:
                raise _others(device, own & theirs, other.device)


def _of_partitions(record: PreparedClaim) -> Iterable[tuple[PreparedDevice, Set[str]]]:
    """Yield the partitions that a claim holds, with the paths on the host of their own nodes."""
    edits = {d.name: d.container_edits for d in record.spec.devices} if record.spec is not None else {}
    for device in record.devices:
        if device.partition is None or device.admin_access or not device.cdi_device_ids:
            continue
        given = edits.get(record.cdi_name(device), cdi.ContainerEdits())
        yield device, _paths(given, device.own_nodes or ())


def _own(device: NodeDevice) -> Set[str]:
    return _paths(device.edits, device.own_nodes or ())


def _paths(edits: cdi.ContainerEdits, own: Iterable[str]) -> Set[str]:
    return frozenset(n.host_path or n.path for n in cdi.own_nodes(edits, tuple(own)))


def _others(device: PreparedDevice, nodes: Set[str], whose: str) -> PrepareError:
    return PrepareError(
        f"device {device.device}: its partition comes with {', '.join(sorted(nodes))}, which is a device "
        f"node of {whose}",
        retryable=True,
    )
