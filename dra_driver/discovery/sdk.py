"""What a third party needs to write a backend: the stable part of ``dra_driver``.

Promise: names in ``__all__``, their parameters and their meanings stay through a major version of the
package. New names, new optional parameters and new attributes of the schema may come with any version. What
is to go is first marked deprecated, with its successor named, for at least one minor version. All that is not
in this module's ``__all__`` may change at any time.

The whole way, with an example: docs/backends.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_driver.api.names import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT
from dra_driver.api.own.inventory import DeviceHealth, DeviceLink, InventoryDevice
from dra_driver.api.quantity import Format, Quantity
from dra_driver.api.resource import DeviceAttribute, DeviceCapacity
from dra_driver.cdi import ContainerEdits, DeviceNode, Mount, read_only_mount
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus.pci import PciAddress, exists, numa_node, pcie_root
from dra_driver.discovery.core.bus.pci import read_sysfs as read_text
from dra_driver.discovery.core.host.sysfs import (
    children,
    entries,
    link_address,
    pci_function,
    pci_id,
    read_number,
)
from dra_driver.discovery.core.hotplug import HotplugHints, HotplugSource
from dra_driver.discovery.core.problems import HardwareAbsent, Problem, ProblemLog
from dra_driver.discovery.core.schema import device_name, model_of, semantic_version
from dra_driver.discovery.core.simulation import Simulation
from dra_driver.discovery.registry import BackendFactory
from dra_driver.errors import ConfigurationError, DiscoveryError
from dra_driver.hardware import DeviceSample, DiscoveredDevice, HealthEvent
from dra_driver.ports import DeviceBackend, HealthSource, TelemetrySource

__all__ = [
    "NUMA_NODE",
    "PCIE_ROOT",
    "PCI_BUS_ID",
    "BackendFactory",
    "ConfigurationError",
    "ContainerEdits",
    "DeviceBackend",
    "DeviceHealth",
    "DeviceLink",
    "DeviceNode",
    "DeviceSample",
    "DiscoveredDevice",
    "DiscoveryError",
    "HardwareAbsent",
    "HealthEvent",
    "HealthSource",
    "HotplugHints",
    "HotplugSource",
    "InventoryDevice",
    "Mount",
    "PciAddress",
    "Problem",
    "ProblemLog",
    "Simulation",
    "TelemetrySource",
    "children",
    "describe_device",
    "device_name",
    "entries",
    "exists",
    "link_address",
    "model_of",
    "numa_node",
    "pci_function",
    "pci_id",
    "pcie_root",
    "read_number",
    "read_only_mount",
    "read_text",
    "semantic_version",
]

Facts = Mapping[str, str | int | bool | None]


def describe_device(
    name: str,
    facts: Facts,
    capacity: Mapping[str, int | None] | None = None,
    *,
    own: Facts | None = None,
    own_capacity: Mapping[str, int | None] | None = None,
    health: Sequence[DeviceHealth] = (),
    links: Sequence[DeviceLink] = (),
    note: list[Problem] | None = None,
) -> InventoryDevice:
    """Return a device for the inventory. A fact of None is unknown, and absent from the result.

    Args:
        name: a DNS label that stays the same while the device stays where it is (``device_name``).
        facts: attributes of the common schema (docs/attributes.md).
        capacity: capacities of the common schema, whole numbers: bytes for ``memory``.
        own: attributes that the schema does not have; text, whole number or truth.
        own_capacity: capacities that the schema does not have.
        health: why the device should not be used.
        links: direct connections to other devices of the node.
        note: gets what the API would refuse (text over 64 bytes, numbers beyond 64 bits); it is left out.

    Raises:
        KeyError: ``facts`` or ``capacity`` have a name that is not in the schema, or ``own`` has one that is.
    """
    problems: list[Problem] = [] if note is None else note
    common = schema.build(facts, capacity or {})
    known = {spec.name for spec in (*schema.ATTRIBUTES, *schema.CAPACITIES)}
    taken = sorted(known & {*(own or {}), *(own_capacity or {})})
    if taken:
        raise KeyError(f"in the schema, so not a device's own: {', '.join(taken)}")
    problems += [Problem(name, subject, why) for subject, why in common.rejected]
    attributes = dict(common.attributes)
    for key, value in (own or {}).items():
        if value is None:
            continue
        attribute = _own(value)
        if isinstance(attribute, str):
            problems.append(Problem(name, key, attribute))
        else:
            attributes[key] = attribute
    amounts = dict(common.capacity)
    for key, amount in (own_capacity or {}).items():
        if amount is not None:
            amounts[key] = DeviceCapacity(value=Quantity.of(amount, Format.DECIMAL_SI))
    return InventoryDevice(
        name=name, attributes=attributes, capacity=amounts, health=tuple(health), links=tuple(links)
    )


def _own(value: str | int | bool) -> DeviceAttribute | str:
    kind: schema.Kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
    return schema.typed_attribute(kind, value)
