"""``partitionTypeAttribute``: the attribute that names the type of a partition (KEP-5677, Kubernetes 1.37).

kube-controller-manager counts the devices of a pool by it for a ResourcePoolStatusRequest. It takes devices
of one type for equal: all must consume the same of the same counters, or the status of the whole pool is an
error. The API server refuses the field on a slice in which a device that consumes counters does not have the
attribute, or none consumes any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from dra_driver.api.meta import DriverName
from dra_driver.api.resource import Device, DeviceAttribute
from dra_driver.resourceslice.devices import MAX_FACTS
from dra_driver.resourceslice.types import SliceContent

__all__ = ["MAX_TYPES", "PARTITION_TYPE", "WHOLE", "declared", "same_consumption", "with_types"]

PARTITION_TYPE: Final = "partitionType"
WHOLE: Final = "whole"
# ResourcePoolStatusRequest: with more types the status of the pool is an error.
MAX_TYPES: Final = 32


def with_types(
    devices: Sequence[Device], types: Sequence[str], driver: DriverName
) -> tuple[list[Device], str | None]:
    """Return devices with their types as an attribute, and its full name; as they are, and None, without it.

    Args:
        devices: of the whole pool.
        types: of each device; read only of those that consume counters.
        driver: whose domain the attribute is in.
    """
    name = f"{driver}/{PARTITION_TYPE}"
    typed = [
        _with_type(d, t) if d.consumes_counters and _has_room(d, name) else d
        for d, t in zip(devices, types, strict=True)
    ]
    return (typed, name) if same_consumption(typed, PARTITION_TYPE) else (list(devices), None)


def same_consumption(devices: Iterable[Device], attribute: str) -> bool:
    """Return whether an attribute may be said to name the type of each partition of a pool.

    That is: some device consumes counters, each that does has the attribute as a string, those with one value
    consume the same of the same counters, and there are no more values than can be counted.

    Args:
        devices: of the whole pool.
        attribute: its key on the devices.
    """
    consumed: dict[str, object] = {}
    for device in devices:
        if not device.consumes_counters:
            continue
        value = device.attributes.get(attribute)
        if value is None or value.string_value is None:
            return False
        consumption = {
            (c.counter_set, name, counter.value.nano)
            for c in device.consumes_counters
            for name, counter in c.counters.items()
        }
        if consumed.setdefault(value.string_value, consumption) != consumption:
            return False
    return 0 < len(consumed) <= MAX_TYPES


def declared(slices: Iterable[SliceContent], attribute: str | None) -> tuple[SliceContent, ...]:
    """Return slices of a pool with the attribute that names types, where they have devices with types."""
    return tuple(
        replace(s, partition_type_attribute=attribute) if any(d.consumes_counters for d in s.devices) else s
        for s in slices
    )


def _has_room(device: Device, name: str) -> bool:
    # What a node or a policy calls so itself has another meaning.
    known = PARTITION_TYPE in device.attributes or name in device.attributes
    return not known and len(device.attributes) + len(device.capacity) < MAX_FACTS


def _with_type(device: Device, type_: str) -> Device:
    attributes = {**device.attributes, PARTITION_TYPE: DeviceAttribute(string_value=type_)}
    return msgspec.structs.replace(device, attributes=attributes)
