"""Devices that a claim gets as bare PCI functions, for a virtual machine or a driver of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.preparation.claim import PreparedClaim

__all__ = ["bound"]

_VFIO: Final = "/dev/vfio"


def bound(record: PreparedClaim, facts: Mapping[str, tuple[str, str]]) -> PreparedClaim:
    """Return the record and its document with what the node says of the functions.

    Args:
        record: of a claim some of whose devices are to be bound to another driver.
        facts: IOMMU group and present driver, by the name of the device.
    """
    if record.spec is None or not facts:
        return record
    devices = []
    groups: dict[str, str] = {}
    for device in record.devices:
        if device.binding is None or device.device not in facts:
            devices.append(device)
            continue
        group, before = facts[device.device]
        binding = msgspec.structs.replace(device.binding, group=group, driver_before=before)
        devices.append(msgspec.structs.replace(device, binding=binding, own_nodes=(f"{_VFIO}/{group}",)))
        groups[device.cdi_device_ids[0].partition("=")[2]] = group
    named = tuple(
        msgspec.structs.replace(d, container_edits=cdi.merge(d.container_edits, _nodes(groups[d.name])))
        if d.name in groups
        else d
        for d in record.spec.devices
    )
    spec = cdi.with_minimum_version(msgspec.structs.replace(record.spec, devices=named))
    return msgspec.structs.replace(record, devices=tuple(devices), spec=spec)


def _nodes(group: str) -> cdi.ContainerEdits:
    paths = (f"{_VFIO}/vfio", f"{_VFIO}/{group}")
    return cdi.ContainerEdits(device_nodes=tuple(cdi.DeviceNode(path=p) for p in paths))
