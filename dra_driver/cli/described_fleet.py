"""A fleet that does not exist: nodes of simulated profiles, published as the controller would do it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DeviceInventory, DeviceInventorySpec
from dra_driver.api.own.policy import DevicePolicy, DevicePolicySpec, PartitionPolicy
from dra_driver.api.resource import (
    DeviceClass,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.cli.allocator.own_classes import device_classes
from dra_driver.discovery.nvidia.products import products
from dra_driver.discovery.simulated import profile as profiles
from dra_driver.discovery.simulated.devices import devices_of
from dra_driver.discovery.simulated.machine import SimulatedMachine
from dra_driver.errors import ConfigurationError
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice import PublishOptions, SliceContent, build_slices
from dra_driver.resourceslice.partitioning import ALL_PROFILES
from dra_driver.structured.model.nodeselection import selector_matches
from dra_driver.suggestions import did_you_mean

__all__ = ["FleetObjects", "NodeFactory", "described_fleet", "name_of"]

_MOST_NODES: Final = 20_000
_COUNTED: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*)x([1-9][0-9]?)")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LINKED: Final = ("SXM", "HBM", "H200", "B200", "GB200", "GB300")


@dataclass(frozen=True, slots=True)
class FleetObjects:
    """What the allocator needs of a cluster."""

    nodes: tuple[Node, ...]
    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]


def described_fleet(
    text: str,
    partitions: Sequence[str] = (),
    *,
    driver: str = DEFAULT_DRIVER_NAME,
    policies: Sequence[DevicePolicy] = (),
    mixed: bool = False,
) -> FleetObjects:
    """Return the fleet of ``PROFILE:NODES,…``; a profile without a number is one node.

    Args:
        text: profiles as for ``machine_of``, with numbers of nodes.
        partitions: profiles of partitions that are published where there are no policies; ``*`` for all.
        driver: name of the driver.
        policies: DevicePolicies.
        mixed: names that say nothing of what nodes are, the profiles spread evenly over them; otherwise nodes
            are named by their profiles.

    Raises:
        ConfigurationError: with every finding.
    """
    groups = _parsed(text)
    if partitions and not policies:
        _check_partitions(partitions, [profile for profile, _ in groups])
    named = _mixed_names(groups) if mixed else _names_by_profile(groups)
    factory = NodeFactory(driver, policies, partitions)
    nodes: list[Node] = []
    slices: list[ResourceSlice] = []
    for profile, names in named:
        more, of_them = factory.nodes(profile, names)
        nodes += more
        slices += of_them
    return FleetObjects(tuple(nodes), tuple(slices), device_classes(driver))


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
        models = sorted({k.partition("-")[0].lower() for k in known})
        built_in = profiles.built_in_profiles()
        meant = did_you_mean(name, [*built_in, *(f"{m}x{counted[2] if counted else 8}" for m in models)])
        raise ConfigurationError(
            f"profile {name[:80]!r} is unknown{meant or ':'} allowed are GPUs and their number (h100x8; of "
            f"{', '.join(models)}), {', '.join(built_in)}, or the path of a YAML file (./NAME.yaml)"
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


def name_of(profile: str) -> str:
    """Return a profile's name, of a file without its folder and its ending, as nodes may be named."""
    stem = re.sub(r"\.ya?ml$", "", profile.rpartition("/")[2])
    return re.sub(r"[^a-z0-9.-]+", "-", stem.lower()).strip("-.")[:63].strip("-.") or "node"


class NodeFactory:
    """Makes nodes of profiles, and their slices as the controller would publish them.

    Args:
        driver: name of the driver.
        policies: DevicePolicies.
        partitions: profiles of partitions that are published where there are no policies; ``*`` for all.
    """

    def __init__(self, driver: str, policies: Sequence[DevicePolicy], partitions: Sequence[str]) -> None:
        self._driver = DriverName(driver)
        cut = DevicePolicy(
            metadata=ObjectMeta(name="partitions"),
            spec=DevicePolicySpec(partitions=PartitionPolicy(profiles=tuple(partitions))),
        )
        self._policies = tuple(policies) or ((cut,) if partitions else ())

    def nodes(self, profile: str, names: Sequence[str]) -> tuple[list[Node], list[ResourceSlice]]:
        """Return nodes of one profile, and their slices.

        Raises:
            ConfigurationError: there is no such profile, or it has mistakes.
        """
        # Devices are the same objects on all nodes: that is much faster, and only identities would differ.
        devices = tuple(d.device for d in devices_of(machine_of(profile), profile))
        spec = DeviceInventorySpec(node_name="node", driver=self._driver, devices=devices)
        inventory = DeviceInventory(spec=spec)
        # Without our taint: there is no kube-scheduler to be kept away.
        options = PublishOptions(allocator=PoolAllocator.SCHEDULER)
        built: dict[tuple[int, ...], Sequence[SliceContent]] = {}
        nodes: list[Node] = []
        slices: list[ResourceSlice] = []
        for name in names:
            node = _node(name, profile)
            nodes.append(node)
            chosen = self._policies_of(node)
            if chosen not in built:
                policies = [self._policies[i] for i in chosen]
                built[chosen] = build_slices(inventory, policies, options=options).slices
            slices += self._slices(name, built[chosen])
        return nodes, slices

    def _policies_of(self, node: Node) -> tuple[int, ...]:
        return tuple(
            i
            for i, p in enumerate(self._policies)
            if p.spec.node_selector is None or selector_matches(p.spec.node_selector, node)
        )

    def _slices(self, node: str, contents: Sequence[SliceContent]) -> list[ResourceSlice]:
        pool = ResourcePool(name=PoolName(node), generation=1, resource_slice_count=len(contents))
        return [
            ResourceSlice(
                metadata=ObjectMeta(name=f"{node}-{number}"),
                spec=ResourceSliceSpec(
                    driver=self._driver,
                    pool=pool,
                    node_name=node,
                    devices=content.devices,
                    shared_counters=content.shared_counters,
                ),
            )
            for number, content in enumerate(contents)
        ]


def _node(name: str, profile: str) -> Node:
    labels = {"kubernetes.io/hostname": name, "dra-driver.dev/profile": name_of(profile)}
    return Node(metadata=ObjectMeta(name=name, labels=labels))


def _parsed(text: str) -> list[tuple[str, int]]:
    """Return the profiles of ``PROFILE:NODES,…`` with their numbers.

    Raises:
        ConfigurationError: with every finding.
    """
    found: list[tuple[str, int]] = []
    findings: list[str] = []
    for item in map(str.strip, text.split(",")):
        profile, _, number = item.rpartition(":") if ":" in item else (item, "", "1")
        nodes = int(number) if _NUMBER.fullmatch(number) else 0
        if not profile or not 0 < nodes <= _MOST_NODES:
            findings.append(
                f"--fleet: {item!r} is not understood; PROFILE:NODES is (1 to {_MOST_NODES} nodes), "
                "for example h100x8:40"
            )
            continue
        try:
            machine_of(profile)
        except ConfigurationError as e:
            findings += [f"--fleet: {finding}" for finding in e.findings]
        found.append((profile, nodes))
    if sum(n for _, n in found) > _MOST_NODES:
        findings.append(f"--fleet: more than {_MOST_NODES} nodes in all")
    if findings:
        raise ConfigurationError(list(dict.fromkeys(findings)))
    return found


def _check_partitions(partitions: Sequence[str], profiles_of_nodes: Sequence[str]) -> None:
    """Check that some device of a fleet can be cut in each of the ways.

    Raises:
        ConfigurationError: with every finding.
    """
    devices = [d.device for profile in profiles_of_nodes for d in devices_of(machine_of(profile), profile)]
    there = sorted({p.name for d in devices for p in d.partitions})
    known = ", ".join(there) or "none"
    findings = [
        f"--partitions {name}: no device of the fleet has this profile; there are {known}"
        + did_you_mean(name, there)
        for name in partitions
        if name not in (*there, ALL_PROFILES)
    ]
    if findings:
        raise ConfigurationError(findings)


def _names_by_profile(groups: Sequence[tuple[str, int]]) -> list[tuple[str, list[str]]]:
    """Return the names of the nodes of each group: ``h100x8-1`` and so on, also over groups."""
    last: Counter[str] = Counter()
    found = []
    for profile, number in groups:
        stem = name_of(profile)
        found.append((profile, [f"{stem}-{last[stem] + i}" for i in range(1, number + 1)]))
        last[stem] += number
    return found


def _mixed_names(groups: Sequence[tuple[str, int]]) -> list[tuple[str, list[str]]]:
    """Return the names of the nodes of each group, such that names say nothing of the profiles."""
    places = sorted(((i + 0.5) / number, g) for g, (_, number) in enumerate(groups) for i in range(number))
    found: list[tuple[str, list[str]]] = [(profile, []) for profile, _ in groups]
    for position, (_, group) in enumerate(places):
        found[group][1].append(f"node-{position:05}")
    return found
