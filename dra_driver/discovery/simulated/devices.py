"""A simulated machine as devices: what the backends would publish of it if it existed.

``layout.py`` makes the other view of the same machine; ``test_simulated_views.py`` of
``tests/unit/discovery/simulated`` holds that the two agree.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from itertools import permutations

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceLink, InventoryDevice
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.core import links as link_groups
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.schema import Facts
from dra_driver.discovery.nvidia import mig_mode, products
from dra_driver.discovery.simulated.hardware_facts import HardwareFacts, facts_of
from dra_driver.discovery.simulated.machine import (
    AmdGpu,
    PciFunction,
    PublishedGpu,
    SimulatedDevice,
    SimulatedMachine,
    rdma_numbers,
)
from dra_driver.hardware import DiscoveredDevice

__all__ = ["devices_of", "loads_of"]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.dra-driver.dev")

_Links = Mapping[str, tuple[DeviceLink, ...]]


def devices_of(machine: SimulatedMachine, seed: str) -> list[DiscoveredDevice]:
    """Return the machine's devices, by PCI address.

    Args:
        machine: the machine.
        seed: makes the identities of this machine's devices differ from those of an equal one.
    """
    links = _links(machine)
    nvlink = {d: [li.peer for li in ls if li.type == "nvlink"] for d, ls in links.items()}
    groups = link_groups.groups(nvlink)
    numbers = rdma_numbers(machine)
    found: list[DiscoveredDevice] = []
    index = 0
    for device in sorted(machine.devices, key=lambda d: d.function.address):
        if device.published is not None:
            group = groups.get(schema.device_name(device.function.address))
            more: Facts = {
                "index": index,
                "nvlinkGroup": group,
                "cudaDriverVersion": machine.cuda_driver_version,
            }
            found.append(_published_gpu(device.function, device.published, more, links, seed))
            index += 1
        else:
            seeded = uuid.uuid5(_NAMESPACE, f"{seed}/{device.function.address}").hex[:16]
            found += [_device(facts, links) for facts in facts_of(device, seeded, numbers)]
    return found


def loads_of(machine: SimulatedMachine) -> Mapping[str, float]:
    """Return device → share of time in which it works, 0 to 1, of the devices that report it."""
    return {
        schema.device_name(d.function.address): d.published.load / 100
        for d in machine.devices
        if d.published is not None and d.published.load is not None
    }


def _published_gpu(
    function: PciFunction, gpu: PublishedGpu, more: Facts, links: _Links, seed: str
) -> DiscoveredDevice:
    name = schema.device_name(function.address)
    identity = gpu.uuid or f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{function.address}')}"
    partitions = tuple(
        products.mig_partition(
            name=p.name,
            profile_id=p.profile_id,
            placements=p.placements,
            capacity=p.capacity,
            parent_uuid=identity,
        )
        for p in gpu.mig_profiles
    )
    cuda = more["cudaDriverVersion"] if gpu.facts["vendor"] == "nvidia" else None
    properties = schema.build(
        {
            **gpu.facts,
            **more,
            "type": "gpu",
            "uuid": identity,
            "driverVersion": function.driver_version,
            "cudaDriverVersion": cuda,
            names.PCI_BUS_ID: str(function.address),
            names.PCIE_ROOT: function.root,
            names.NUMA_NODE: function.numa_node,
        },
        {
            **schema.partition_maxima(partitions),
            "memory": gpu.memory,
            "multiprocessors": gpu.multiprocessors,
        },
    )
    return DiscoveredDevice(
        device=InventoryDevice(
            name=name,
            attributes=properties.attributes,
            capacity=properties.capacity,
            partitions=partitions,
            links=links.get(name, ()),
            health=gpu.health,
        ),
        uuid=identity,
        material=_material(name, identity, gpu),
        partitioning=mig_mode.described(gpu.health),
    )


def _device(facts: HardwareFacts, links: _Links) -> DiscoveredDevice:
    properties = schema.build(facts.attributes, facts.capacity)
    return DiscoveredDevice(
        device=InventoryDevice(
            name=facts.name,
            attributes=properties.attributes,
            capacity=properties.capacity,
            links=links.get(facts.name, ()),
            health=facts.health,
        ),
        uuid=facts.identity,
        material=_material(facts.name, facts.identity, None),
    )


def _material(name: str, identity: str, gpu: PublishedGpu | None) -> ContainerEdits:
    # One variable per device, for several devices may meet in one container.
    env = {f"SIMULATED_{name.upper().replace('-', '_')}": identity, **(gpu.env if gpu else {})}
    return ContainerEdits(
        device_nodes=tuple(DeviceNode(path) for path in gpu.device_nodes) if gpu else (),
        env=tuple(f"{variable}={value}" for variable, value in env.items()),
    )


def _links(machine: SimulatedMachine) -> _Links:
    """Return device → its links."""
    whole = {
        d.function.address: schema.device_name(d.function.address) for d in machine.devices if _is_whole(d)
    }
    found: dict[str, dict[tuple[str, str], int]] = {name: {} for name in whole.values()}
    for group in machine.links:
        members = [whole[address] for address in group.members if address in whole]
        pairs = [(m, "switch") for m in members] if group.switched else permutations(members, 2)
        for device, peer in pairs:
            key = (group.type, peer)
            found[device][key] = found[device].get(key, 0) + group.links
    return {
        device: tuple(DeviceLink(peer=peer, type=kind, count=n) for (kind, peer), n in sorted(peers.items()))
        for device, peers in found.items()
    }


def _is_whole(device: SimulatedDevice) -> bool:
    return not (isinstance(device.hardware, AmdGpu) and device.hardware.partitioned)
