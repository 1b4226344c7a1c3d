"""Fleets that ``plan`` and ``simulate`` describe by profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.api.meta import ObjectMeta
from dra_driver.api.own.policy import DevicePolicy, DevicePolicySpec, PartitionPolicy
from dra_driver.api.resource import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_driver.cli.described_fleet import FleetObjects, described_fleet
from dra_driver.errors import ConfigurationError


def devices_of(fleet: FleetObjects) -> dict[str, int]:
    found = dict.fromkeys((n.metadata.name for n in fleet.nodes), 0)
    for slice_ in fleet.slices:
        found[slice_.spec.node_name or ""] += len(slice_.spec.devices)
    return found


def test_nodes_are_named_by_their_profiles() -> None:
    fleet = described_fleet("h100x8:2,l4x4")
    assert devices_of(fleet) == {"h100x8-1": 8, "h100x8-2": 8, "l4x4-1": 4}
    assert {c.metadata.name for c in fleet.classes} >= {"gpu.dra-driver.dev", "mig.gpu.dra-driver.dev"}


def test_names_go_on_where_a_profile_is_repeated(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "My_node.yml").write_text('gpus: [{product: L4, pciAddress: "0000:01:00.0"}]\n')
    text = f"h100x2,h100x2:2,{tmp_path}/a/My_node.yml,{tmp_path}/b/My_node.yml"
    assert list(devices_of(described_fleet(text))) == [
        "h100x2-1",
        "h100x2-2",
        "h100x2-3",
        "my-node-1",
        "my-node-2",
    ]


def test_names_of_a_mixed_fleet_say_nothing_of_the_profiles() -> None:
    found = devices_of(described_fleet("h100x8:3,l4x4:1", mixed=True))
    assert [found[name] for name in sorted(found)] == [8, 8, 4, 8]
    assert min(found) == "node-00000"


def test_policies_apply_to_the_nodes_that_they_select() -> None:
    requirement = NodeSelectorRequirement(key="kubernetes.io/hostname", operator="In", values=("h100x2-2",))
    policy = DevicePolicy(
        metadata=ObjectMeta(name="cut"),
        spec=DevicePolicySpec(
            node_selector=NodeSelector(
                node_selector_terms=(NodeSelectorTerm(match_expressions=(requirement,)),)
            ),
            partitions=PartitionPolicy(profiles=("7g.80gb",)),
        ),
    )
    found = devices_of(described_fleet("h100x2:3", policies=[policy]))
    assert found == {"h100x2-1": 2, "h100x2-2": 4, "h100x2-3": 2}


def test_every_mistake_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        described_fleet("q:4,h100x8:x,l4x4:0,,l4x31,h100x8:20001,h100x4:15000,h100x4:15000,l4x4:²")
    said = "\n".join(caught.value.findings)
    for text in (
        "profile 'q' is unknown",
        "'h100x8:x' is not understood",
        "'l4x4:0' is not",
        "'' is not",
        "at most 30 GPUs",
        "'h100x8:20001' is not",
        "'l4x4:²' is not",
        "more than 20000 nodes in all",
    ):
        assert text in said


def test_partitions_that_no_device_can_be_cut_into_are_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        described_fleet("h100x2,l4x4", ["9g.99gb", "1g.10gb"])
    (finding,) = caught.value.findings
    assert "--partitions 9g.99gb: no device of the fleet has this profile; there are 1g.10gb, " in finding
    assert devices_of(described_fleet("h100x2", ["7g.80gb"])) == {"h100x2-1": 4}
