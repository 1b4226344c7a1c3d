"""Devices that a claim gets as bare PCI functions, for a virtual machine or a driver of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.preparation.claim import BindingRecord, FunctionRecord, PreparedClaim

__all__ = ["EVERY_NAMESPACE", "FunctionFacts", "PassthroughPolicy", "bound"]

EVERY_NAMESPACE: Final = "*"
_VFIO: Final = "/dev/vfio"
_IOMMU: Final = "/dev/iommu"


@dataclass(frozen=True, slots=True)
class PassthroughPolicy:
    """Namespaces whose claims may have a device as a bare PCI function; ``*`` stands for every one.

    A bare function is all of the hardware: its memory, its firmware, direct memory access within its IOMMU
    group. A DeviceClass is an administrator's, the parameters of a claim are its tenant's.

    Attributes:
        class_namespaces: where it takes that the parameters of the request's DeviceClass ask for it.
        claim_namespaces: where it is enough that the claim's own parameters do.
    """

    class_namespaces: frozenset[str] = frozenset({EVERY_NAMESPACE})
    claim_namespaces: frozenset[str] = frozenset()

    def refusal(self, namespace: str, *, by_class: bool) -> str:
        """Return why a claim may not have it; empty if it may.

        Args:
            namespace: of the claim.
            by_class: whether the parameters of the DeviceClass ask for it, whatever the claim's own say.
        """
        if {namespace, EVERY_NAMESPACE} & self.claim_namespaces:
            return ""
        if not by_class:
            return (
                "the claim's own parameters ask for passthrough, and in namespace "
                f"{namespace} only those of a DeviceClass may (this node's --passthrough-claim-namespace)"
            )
        if {namespace, EVERY_NAMESPACE} & self.class_namespaces:
            return ""
        return (
            f"namespace {namespace} is none of those whose claims may have devices passed through "
            "(this node's --passthrough-class-namespace)"
        )


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What the node says of a PCI function that is bound to another driver for a claim.

    Attributes:
        group: number of its IOMMU group.
        before: all functions that are bound with it, as they were before, the device itself first.
        cdev: see ``BindingRecord``.
    """

    group: str
    before: tuple[FunctionRecord, ...]
    cdev: str = ""


def bound(record: PreparedClaim, facts: Mapping[str, FunctionFacts]) -> PreparedClaim:
    """Return the record and its document with what the node says of the functions.

    Args:
        record: of a claim some of whose devices are to be bound to another driver.
        facts: of its functions, by the name of the device.
    """
    if record.spec is None or not facts:
        return record
    devices = []
    bindings: dict[str, BindingRecord] = {}
    for device in record.devices:
        if device.binding is None or device.device not in facts:
            devices.append(device)
            continue
        known = facts[device.device]
        itself, *companions = known.before
        binding = msgspec.structs.replace(
            device.binding,
            group=known.group,
            driver_before=itself.driver_before,
            overridden=itself.overridden,
            companions=tuple(companions),
            cdev=known.cdev,
        )
        devices.append(msgspec.structs.replace(device, binding=binding, own_nodes=(_own_node(binding),)))
        bindings[record.cdi_name(device)] = binding
    named = tuple(
        msgspec.structs.replace(d, container_edits=_with_nodes(d.container_edits, bindings[d.name]))
        if d.name in bindings
        else d
        for d in record.spec.devices
    )
    spec = cdi.with_minimum_version(msgspec.structs.replace(record.spec, devices=named))
    return msgspec.structs.replace(record, devices=tuple(devices), spec=spec)


def _with_nodes(edits: cdi.ContainerEdits, binding: BindingRecord) -> cdi.ContainerEdits:
    """Return the edits with the nodes of a binding in place of an earlier one's; the device has no others."""
    paths = [_own_node(binding)]
    if binding.api_device:
        paths.insert(0, _IOMMU if binding.cdev else f"{_VFIO}/vfio")
    return msgspec.structs.replace(edits, device_nodes=tuple(cdi.DeviceNode(path=p) for p in paths))


def _own_node(binding: BindingRecord) -> str:
    return f"{_VFIO}/devices/{binding.cdev}" if binding.cdev else f"{_VFIO}/{binding.group}"
