"""A fleet that does not exist: nodes of profiles, published as the controller would publish them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.inventory import DeviceInventory, DeviceInventorySpec, InventoryDevice
from dra_driver.api.meta import DriverName, ObjectMeta
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.policy import DevicePolicy, DevicePolicySpec, PartitionPolicy
from dra_driver.api.resource import (
    CelSelector,
    DeviceClass,
    DeviceClassSpec,
    DeviceSelector,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.discovery.registry import open_backend
from dra_driver.errors import ConfigurationError, DraError
from dra_driver.resourceslice import PoolAllocator, PublishOptions, build_slices

__all__ = ["FleetObjects", "described_fleet"]

_GROUP: Final = re.compile(r"(.+):([1-9][0-9]{0,4})")
_MOST_NODES: Final = 10_000
_TYPES: Final = ("gpu", "mig", "partition", "vf")
_VENDORS: Final = ("nvidia", "amd", "intel")


@dataclass(frozen=True, slots=True)
class FleetObjects:
    """What the allocator needs of a cluster."""

    nodes: tuple[Node, ...]
    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]


def described_fleet(text: str, partitions: Sequence[str] = ()) -> FleetObjects:
    """Return the fleet of ``PROFILE:NODES,…``.

    Args:
        text: profiles as for ``--backend simulated=``, with numbers of nodes.
        partitions: profiles of partitions that are published beside whole devices; ``*`` for all.

    Raises:
        ConfigurationError: with every finding.
    """
    findings: list[str] = []
    wanted: list[tuple[str, int]] = []
    for group in map(str.strip, text.split(",")):
        found = _GROUP.fullmatch(group)
        if found is None:
            findings.append(f"--fleet {group!r}: must be PROFILE:NODES, such as dgx-h100:16")
        else:
            wanted.append((found[1], int(found[2])))
    total = sum(number for _, number in wanted)
    if total > _MOST_NODES:
        findings.append(f"--fleet: {total} nodes; at most {_MOST_NODES} can be simulated")
    devices: dict[str, tuple[InventoryDevice, ...]] = {}
    for profile, _ in wanted:
        try:
            devices[profile] = _devices(profile)
        except DraError as e:
            findings.append(f"--fleet {profile}: {e}")
    if findings:
        raise ConfigurationError(list(dict.fromkeys(findings)))
    nodes: list[Node] = []
    slices: list[ResourceSlice] = []
    for profile in _mixed(wanted):
        name = f"node-{len(nodes):05}"
        nodes.append(Node(metadata=ObjectMeta(name=name)))
        slices += _slices(name, devices[profile], partitions)
    return FleetObjects(tuple(nodes), tuple(slices), _classes())


def _mixed(groups: Sequence[tuple[str, int]]) -> list[str]:
    """Return the profile of each node; first fit goes by names, which say nothing of what nodes are."""
    places = [
        ((i + 0.5) / number, group, profile)
        for group, (profile, number) in enumerate(groups)
        for i in range(number)
    ]
    return [profile for *_, profile in sorted(places)]


def _devices(profile: str) -> tuple[InventoryDevice, ...]:
    backend = open_backend(
        f"simulated={profile}", sysfs_root=Path("/sys"), dev_root=Path("/dev"), node_name="node"
    )
    try:
        return tuple(found.device for found in backend.discover())
    finally:
        backend.close()


def _slices(
    node: str, devices: tuple[InventoryDevice, ...], partitions: Sequence[str]
) -> list[ResourceSlice]:
    driver = DriverName(DEFAULT_DRIVER_NAME)
    inventory = DeviceInventory(spec=DeviceInventorySpec(node_name=node, driver=driver, devices=devices))
    cut = DevicePolicy(
        metadata=ObjectMeta(name="partitions"),
        spec=DevicePolicySpec(partitions=PartitionPolicy(profiles=tuple(partitions))),
    )
    # Without our taint: there is nobody else here to be kept away.
    options = PublishOptions(allocator=PoolAllocator.SCHEDULER)
    pool = build_slices(inventory, [cut] if partitions else (), options=options)
    return [
        ResourceSlice(
            metadata=ObjectMeta(name=f"{node}-{i}"),
            spec=ResourceSliceSpec(
                driver=driver,
                node_name=node,
                pool=ResourcePool(name=pool.pool, generation=1, resource_slice_count=len(pool.slices)),
                devices=content.devices,
                shared_counters=content.shared_counters,
            ),
        )
        for i, content in enumerate(pool.slices)
    ]


def _classes() -> tuple[DeviceClass, ...]:
    """Return the classes that the chart installs, as far as a request in words can name them."""
    driver = DEFAULT_DRIVER_NAME
    found = {
        driver if type_ == "gpu" else f"{type_}.{driver}": f'{{0}}.type == "{type_}"' for type_ in _TYPES
    }
    found |= {
        f"{vendor}.{driver}": f'{{0}}.type == "gpu" && {{0}}.vendor == "{vendor}"' for vendor in _VENDORS
    }
    return tuple(
        DeviceClass(
            metadata=ObjectMeta(name=name),
            spec=DeviceClassSpec(
                selectors=(
                    DeviceSelector(
                        cel=CelSelector(
                            expression=f'device.driver == "{driver}" && '
                            + text.format(f'device.attributes["{driver}"]')
                        )
                    ),
                )
            ),
        )
        for name, text in found.items()
    )
