"""A described fleet: profiles of simulated machines, and how many nodes of each there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.inventory import DeviceInventory, DeviceInventorySpec
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
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
from dra_driver.discovery.nvidia.products import products
from dra_driver.discovery.simulated import profile as profiles
from dra_driver.discovery.simulated.devices import devices_of
from dra_driver.discovery.simulated.machine import SimulatedMachine
from dra_driver.errors import ConfigurationError
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice import PublishOptions, SliceContent, build_slices
from dra_driver.structured.model.nodeselection import selector_matches

__all__ = ["Fleet", "device_classes", "parse_fleet"]

_MOST_NODES: Final = 20_000
_COUNTED: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*)x([1-9][0-9]?)")
_LINKED: Final = ("SXM", "HBM", "H200", "B200", "GB200", "GB300")


def device_classes(driver: str) -> list[DeviceClass]:
    """Return the DeviceClasses that the chart installs, as far as they only select devices."""

    def made(name: str, condition: str) -> DeviceClass:
        expression = f'device.driver == "{driver}" && device.attributes["{driver}"].{condition}'
        selector = DeviceSelector(cel=CelSelector(expression=expression))
        return DeviceClass(metadata=ObjectMeta(name=name), spec=DeviceClassSpec(selectors=(selector,)))

    kinds = [
        made(driver if k == "gpu" else f"{k}.{driver}", f'type == "{k}"')
        for k in ("gpu", "mig", "partition", "vf")
    ]
    vendors = [
        made(f"{v}.{driver}", f'type == "gpu" && device.attributes["{driver}"].vendor == "{v}"')
        for v in ("nvidia", "amd", "intel")
    ]
    return [*kinds, *vendors]


def machine_of(name: str) -> SimulatedMachine:
    """Return the machine of a profile; ``h100x8`` is eight of a known GPU, linked if they can be.

    Raises:
        ConfigurationError: there is no such profile, or it has mistakes.
    """
    counted = _COUNTED.fullmatch(name)
    if name in profiles.built_in_profiles() or "/" in name or name.endswith((".yaml", ".yml")):
        return profiles.load(name)
    model, number = (counted[1].upper(), int(counted[2])) if counted is not None else ("", 0)
    known = products()
    key = next((k for k in known if k.upper() == model), None)
    key = key or next((k for k in known if k.upper().startswith(f"{model}-")), None)
    if counted is None or key is None:
        models = ", ".join(sorted({k.partition("-")[0].lower() for k in known}))
        raise ConfigurationError(
            f"profile {name!r} is unknown: allowed are GPUs and their number (h100x8; of {models}), "
            f"{', '.join(profiles.built_in_profiles())}, or the path of a YAML file (./NAME.yaml)"
        )
    addresses = [f"0000:{16 + 8 * i:02x}:00.0" for i in range(number)] if number <= 30 else []
    if not addresses:
        raise ConfigurationError(f"profile {name!r}: at most 30 GPUs are on a node")
    lines = [
        f'- {{product: {key}, pciAddress: "{a}", pcieRoot: "pci0000:{15 + 8 * i:02x}", '
        f"numaNode: {2 * i // number}}}"
        for i, a in enumerate(addresses)
    ]
    text = "processors: [96, 96]\ngpus:\n" + "\n".join(lines)
    if number > 1 and any(part in known[key].product_name for part in _LINKED):
        members = ", ".join(f'"{a}"' for a in addresses)
        text += f"\nnvlink:\n- {{members: [{members}], links: 18, switched: true}}"
    return profiles.decode(text, name)


class Fleet:
    """Nodes of profiles, published as the controller would publish them.

    Args:
        driver: name of the driver.
        policies: DevicePolicies.
        partitions: whether partitions are published where no policy is given.
    """

    def __init__(self, driver: str, policies: Sequence[DevicePolicy], *, partitions: bool) -> None:
        self._driver = DriverName(driver)
        cut = DevicePolicy(
            metadata=ObjectMeta(name="partitions"),
            spec=DevicePolicySpec(partitions=PartitionPolicy(profiles=("*",))),
        )
        self._policies = list(policies) or ([cut] if partitions else [])

    def nodes(self, profile: str, names: Sequence[str]) -> tuple[list[Node], list[ResourceSlice]]:
        """Return nodes of one profile, and their slices.

        Raises:
            ConfigurationError: there is no such profile, or it has mistakes.
        """
        machine = machine_of(profile)
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", profile).strip("-._")[:63]
        first = _node(names[0], label) if names else _node("none", label)
        policies = [
            p
            for p in self._policies
            if p.spec.node_selector is None or selector_matches(p.spec.node_selector, first)
        ]
        found = tuple(d.device for d in devices_of(machine, profile))
        spec = DeviceInventorySpec(node_name="node", driver=self._driver, devices=found)
        desired = build_slices(
            DeviceInventory(spec=spec),
            policies,
            options=PublishOptions(allocator=PoolAllocator.SCHEDULER),
        )
        nodes = [_node(name, label) for name in names]
        # Devices are the same objects on all nodes: that is much faster, and only identities would differ.
        slices = [self._slice(name, i, desired.slices) for name in names for i in range(len(desired.slices))]
        return nodes, slices

    def _slice(self, node: str, number: int, contents: Sequence[SliceContent]) -> ResourceSlice:
        content = contents[number]
        pool = ResourcePool(name=PoolName(node), generation=1, resource_slice_count=len(contents))
        return ResourceSlice(
            metadata=ObjectMeta(name=f"{node}-{number}"),
            spec=ResourceSliceSpec(
                driver=self._driver,
                pool=pool,
                node_name=node,
                devices=content.devices,
                shared_counters=content.shared_counters,
            ),
        )


def _node(name: str, profile: str) -> Node:
    labels = {"kubernetes.io/hostname": name, "dra-driver.dev/profile": profile}
    return Node(metadata=ObjectMeta(name=name, labels=labels))


def parse_fleet(text: str, findings: list[str]) -> list[tuple[str, int]]:
    """Return the profiles of ``PROFILE:NODES,…`` with their numbers; mistakes go to ``findings``."""
    found: list[tuple[str, int]] = []
    for item in text.split(","):
        profile, colon, number = item.strip().rpartition(":")
        if not colon:
            profile, number = item.strip(), "1"
        if not profile or not number.isascii() or not number.isdigit() or not 0 < int(number) <= _MOST_NODES:
            findings.append(
                f"--fleet: {item.strip()!r} is not understood; PROFILE:NODES is (1 to {_MOST_NODES} nodes), "
                "for example h100x8:40"
            )
            continue
        try:
            machine_of(profile)
        except ConfigurationError as e:
            findings += [f"--fleet: {finding}" for finding in e.findings]
            continue
        found.append((profile, int(number)))
    if sum(n for _, n in found) > _MOST_NODES:
        findings.append(f"--fleet: more than {_MOST_NODES} nodes in all")
    return found
