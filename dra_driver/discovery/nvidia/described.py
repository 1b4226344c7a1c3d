"""What NVML has told of GPUs, as the devices that discovery reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth, DeviceLink, InventoryDevice
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.core import links as link_groups
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.problems import Problem
from dra_driver.discovery.nvidia import products
from dra_driver.discovery.nvidia.driver.loading import Driver
from dra_driver.discovery.nvidia.driver.root import DriverRoot
from dra_driver.discovery.nvidia.gpu import GpuReading
from dra_driver.discovery.nvidia.mig_mode import mig_mode
from dra_driver.hardware import DiscoveredDevice, PartitioningMode

__all__ = ["Descriptions"]

# Nodes that every GPU needs beside its own; which of them exist depends on the driver's modules.
_COMMON_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")

# CUDA images ask for all GPUs with this variable, and NVIDIA's container runtime obeys it, whatever was
# allocated; "void" makes that runtime add nothing to what CDI says.
_ENV: Final = ("NVIDIA_VISIBLE_DEVICES=void",)


class Descriptions:
    """Makes devices of readings.

    Args:
        software: where the driver's device nodes are.
        sysfs_root: where sysfs is mounted.
    """

    def __init__(self, software: Driver, sysfs_root: Path) -> None:
        self._software = software
        self._sysfs_root = sysfs_root

    def of(
        self,
        readings: Sequence[GpuReading],
        common: schema.Facts,
        health: Mapping[str, Sequence[DeviceHealth]],
        root: DriverRoot | None,
        problems: list[Problem],
    ) -> Sequence[DiscoveredDevice]:
        """Return the devices.

        Args:
            readings: each of another GPU; also of those that do not answer now, as they were.
            health: conditions by UUID, beside those that readings show by themselves.
            common: facts of all GPUs.
            root: the driver's, if it is known.
            problems: what could not be learned is added.
        """
        by_name: dict[str, GpuReading] = {}
        for reading in readings:
            first = by_name.setdefault(schema.device_name(reading.address), reading)
            if first is not reading:
                message = f"left out: GPU {first.index} has the same address"
                problems.append(Problem(f"GPU {reading.index}", "GPU", message))
        links = {name: _links(reading, by_name) for name, reading in by_name.items()}
        groups = link_groups.groups({name: [link.peer for link in ls] for name, ls in links.items()})
        material = {name: self._material(name, reading, root, problems) for name, reading in by_name.items()}
        return [
            self._device(
                reading,
                {**common, "nvlinkGroup": groups.get(name)},
                links[name],
                health.get(reading.uuid, ()),
                material[name],
                problems,
            )
            for name, reading in by_name.items()
        ]

    def _device(
        self,
        reading: GpuReading,
        common: schema.Facts,
        links: tuple[DeviceLink, ...],
        health: Sequence[DeviceHealth],
        material: ContainerEdits,
        problems: list[Problem],
    ) -> DiscoveredDevice:
        address = reading.address
        name = schema.device_name(address)
        partitions = tuple(
            products.mig_partition(
                name=row.name,
                profile_id=row.profile_id,
                placements=row.placements,
                capacity=row.capacity,
                parent_uuid=reading.uuid,
            )
            for row in reading.partitions
        )
        properties = schema.build(
            {
                **common,
                **reading.facts,
                "type": "gpu",
                "vendor": "nvidia",
                "uuid": reading.uuid,
                "index": reading.index,
                names.PCI_BUS_ID: str(address),
                names.PCIE_ROOT: pci.pcie_root(self._sysfs_root, address),
                names.NUMA_NODE: pci.numa_node(self._sysfs_root, address),
            },
            {
                **schema.partition_maxima(partitions),
                "memory": reading.memory,
                "multiprocessors": reading.multiprocessors,
            },
        )
        problems += [Problem(name, subject, why) for subject, why in properties.rejected]
        needs_reset = reading.facts.get("architecture") == "Ampere"
        mode = mig_mode(needs_reset=needs_reset) if reading.mig_enabled else None
        return DiscoveredDevice(
            device=InventoryDevice(
                name=name,
                attributes=properties.attributes,
                capacity=properties.capacity,
                partitions=partitions,
                links=links,
                health=(*_health(reading, mode), *health),
            ),
            uuid=reading.uuid,
            material=material,
            own_nodes=_own_nodes(reading),
            partitioning=mode,
        )

    def _material(
        self, name: str, reading: GpuReading, root: DriverRoot | None, problems: list[Problem]
    ) -> ContainerEdits:
        nodes = []
        for path in _own_nodes(reading):
            at, host_path = self._software.node(path, root)
            if not pci.exists(at):
                # Kept all the same: a container that fails to start is better than one without its GPU.
                problems.append(Problem(name, "device node", f"{at} is not there"))
            nodes.append(DeviceNode(path, host_path))
        for path in (f"/dev/{n}" for n in _COMMON_NODES):
            at, host_path = self._software.node(path, root)
            if pci.exists(at):
                nodes.append(DeviceNode(path, host_path))
        return ContainerEdits(device_nodes=tuple(nodes), env=_ENV)


def _own_nodes(reading: GpuReading) -> tuple[str, ...]:
    """Return the paths of the device nodes that are the GPU's alone."""
    return () if reading.minor is None else (f"/dev/nvidia{reading.minor}",)


def _links(reading: GpuReading, by_name: Mapping[str, GpuReading]) -> tuple[DeviceLink, ...]:
    counts: dict[str, int] = {}
    for remote in reading.links:
        if remote is None:
            peer = "switch"
        else:
            peer = schema.device_name(remote)
            if peer not in by_name:
                continue  # A GPU that we do not see: of another virtual machine, or lost.
        counts[peer] = counts.get(peer, 0) + 1
    return tuple(DeviceLink(peer=peer, type="nvlink", count=n) for peer, n in sorted(counts.items()))


def _health(reading: GpuReading, mode: PartitioningMode | None) -> list[DeviceHealth]:
    health = []
    if not reading.confirmed:
        health.append(
            DeviceHealth(
                reason="IdentityUnconfirmed",
                severity="degraded",
                message="NVML does not report its UUID or PCI address; it is taken for the GPU that was "
                "there before",
            )
        )
    if not reading.minor_confirmed or reading.minor is None:
        kept = "no container can get this GPU" if reading.minor is None else "containers get the previous one"
        health.append(
            DeviceHealth(
                reason="DeviceNodeUnknown",
                severity="degraded",
                message=f"NVML does not report the device node, so {kept}",
            )
        )
    if mode is not None:
        health.append(mode.condition)
    return health
