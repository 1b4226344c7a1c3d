"""What a third party needs to write a driver: the stable part of ``dra_driver``.

A driver is a *backend*: a class that finds devices, and may prepare them for claims, cut them into
partitions, watch their health and measure them. Which of these it does is seen by the methods that it has;
each group of methods is a Protocol here. An entry point of the group ``dra_driver.backends`` names its
factory, one of the group ``dra_driver.parameters`` its kinds of opaque parameters, for the admission webhook.

Promise: names in ``__all__``, their parameters and their meanings stay through a major version of the
package. New names, new optional parameters and new attributes of the schema may come with any version. What
is to go is first marked deprecated, with its successor named, for at least one minor version. All that is not
in this module's ``__all__`` may change at any time, wherever it is imported from. The import path is the same
in a checkout and in the wheel.

The whole way, with an example: docs/sdk.md.
"""

from __future__ import annotations

from msgspec import Meta

from dra_driver.api.names import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT
from dra_driver.api.own.inventory import (
    DeviceHealth,
    DeviceLink,
    InventoryDevice,
    PartitionPlacement,
    PartitionProfile,
)
from dra_driver.api.own.kinds import BackendParameters as Parameters
from dra_driver.cdi import ContainerEdits, DeviceNode, Hook, Mount, read_only_mount
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
from dra_driver.discovery.registry import BackendFactory, DemoFactory
from dra_driver.errors import ConfigurationError, DiscoveryError, InvalidParameters, PrepareError
from dra_driver.hardware import (
    BackendMetric,
    DevicePlan,
    DeviceSample,
    DeviceUse,
    DeviceWork,
    DiscoveredDevice,
    HealthEvent,
)
from dra_driver.hardware import GpuInstance as Partition
from dra_driver.ports import (
    ClaimPreparation,
    DeviceBackend,
    HealthSource,
    MetricsSource,
    PartitionMaker,
    TelemetrySource,
)
from dra_driver.sdk.describing import describe_device, partition_profile

__all__ = [
    "NUMA_NODE",
    "PCIE_ROOT",
    "PCI_BUS_ID",
    "BackendFactory",
    "BackendMetric",
    "ClaimPreparation",
    "ConfigurationError",
    "ContainerEdits",
    "DemoFactory",
    "DeviceBackend",
    "DeviceHealth",
    "DeviceLink",
    "DeviceNode",
    "DevicePlan",
    "DeviceSample",
    "DeviceUse",
    "DeviceWork",
    "DiscoveredDevice",
    "DiscoveryError",
    "HardwareAbsent",
    "HealthEvent",
    "HealthSource",
    "Hook",
    "HotplugHints",
    "HotplugSource",
    "InvalidParameters",
    "InventoryDevice",
    "Meta",
    "MetricsSource",
    "Mount",
    "Parameters",
    "Partition",
    "PartitionMaker",
    "PartitionPlacement",
    "PartitionProfile",
    "PciAddress",
    "PrepareError",
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
    "partition_profile",
    "pci_function",
    "pci_id",
    "pcie_root",
    "read_number",
    "read_only_mount",
    "read_text",
    "semantic_version",
]
