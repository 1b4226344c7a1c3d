"""Whose a pool and its slices are, by what API objects say of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import DRIVER, device, inventory, node, resource_slice

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DeviceInventory, OtherDriverNote, Publication
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import (
    AllocatorRecord,
    is_complete,
    is_newer,
    is_owned_by,
    is_published_by_node,
    missing_slices,
    newest_devices,
    newest_generation,
    owner_of,
    raw_other_drivers,
    raw_publication,
    recorded_allocator,
    refusal_of,
    slice_name,
    slices_of_node,
)

NODE = codec.convert(Node, node("n1", uid="uid-n1"))


def slice_(name: str, *devices: str, generation: int = 1, count: int = 1, **more: Any) -> ResourceSlice:
    found = map(device, devices)
    return codec.convert(
        ResourceSlice, resource_slice("n1", *found, name=name, generation=generation, count=count, **more)
    )


def described(allocator: str = "", publisher: str = "", **more: Any) -> DeviceInventory:
    body = inventory("n1", **more)
    if publisher:
        body["spec"]["publisher"] = publisher
    body["status"]["publication"] = {"allocator": allocator}
    return codec.convert(DeviceInventory, body)


@pytest.mark.parametrize(
    ("allocator", "record", "controllers"),
    [
        ("", AllocatorRecord.NONE, False),
        ("scheduler", AllocatorRecord.SCHEDULER, False),
        ("draining", AllocatorRecord.DRAINING, True),
        ("controller", AllocatorRecord.CONTROLLER, True),
        ("of a later version", AllocatorRecord.DRAINING, True),
    ],
)
def test_an_allocator_that_this_version_does_not_know_lets_none_allocate(
    allocator: str, record: AllocatorRecord, controllers: bool
) -> None:
    assert recorded_allocator(Publication(allocator=allocator)) is record
    assert record.is_controllers is controllers
    # The node publishes what no controller allocates from any more.
    assert is_published_by_node(described(allocator, "node")) is not controllers
    assert not is_published_by_node(described(allocator))


def test_the_notes_of_a_publication_are_everything_that_there_is() -> None:
    """A merge patch keeps what it does not name."""
    publication = Publication(
        epoch=3,
        attempted=4,
        generation=5,
        slices=("a", "b"),
        devices=6,
        allocator="controller",
        withheld_for=("vendor.com/gpu",),
        other_drivers=(OtherDriverNote(driver=DriverName("d"), pools=(PoolName("p"),), devices=("gpu-0",)),),
    )
    parts = [
        raw_publication(publication),
        raw_other_drivers(publication.other_drivers),
    ]
    whole = {key: value for part in parts for key, value in part.items()}
    assert codec.convert(Publication, whole) == publication
    # What is lent is only removed.
    assert len(whole) == sum(map(len, parts)) == len(msgspec.structs.fields(Publication)) - 1
    nothing = [raw_publication(Publication()), raw_other_drivers(())]
    assert {key for part in nothing for key in part} == whole.keys()


def test_a_recorded_slice_that_is_not_there_is_missing() -> None:
    assert missing_slices(Publication(slices=("a", "b")), ["b", "c"]) == ("a",)
    assert missing_slices(Publication(), ["b"]) == ()


def test_a_node_describes_only_itself() -> None:
    assert refusal_of(described(), NODE) == ""
    assert refusal_of(described(), None) == ""
    assert "UID uid-n1" in refusal_of(described(node_uid="another"), NODE)
    assert refusal_of(described(node_uid="another"), None) == ""
    other = msgspec.structs.replace(described().metadata, name=f"n2.{DRIVER}")
    assert f"named n1.{DRIVER}" in refusal_of(msgspec.structs.replace(described(), metadata=other), NODE)
    assert "must be published" in refusal_of(msgspec.structs.replace(described(), metadata=other), None)


@pytest.mark.parametrize(
    ("owners", "believed"),
    [
        ([], False),
        (None, False),
        ([{"kind": "Node", "name": "n1", "uid": "uid-n1"}], True),
        ([{"kind": "Node", "name": "n2", "uid": "uid-n1"}], False),
        ([{"kind": "Pod", "name": "n1", "uid": "uid-n1"}], False),
        ([{"kind": "Pod", "name": "p", "uid": "u"}, {"kind": "Node", "name": "n1", "uid": "uid-n1"}], True),
    ],
)
def test_an_inventory_belongs_to_its_node(owners: list[dict[str, str]] | None, believed: bool) -> None:
    body = inventory("n1")
    body["metadata"]["ownerReferences"] = owners and [{"apiVersion": "v1", **o} for o in owners]
    assert (refusal_of(codec.convert(DeviceInventory, body), NODE) == "") is believed


def test_names_of_slices_fit_and_sort_and_never_meet() -> None:
    names = [slice_name("n1", DRIVER, i) for i in range(300)]
    assert names == sorted(set(names))
    assert all(name.startswith(f"n1-{DRIVER}-") for name in names)
    assert slice_name("a-b", "c", 0) != slice_name("a", "b-c", 0)
    assert slice_name("n1", "Driver", 0) != slice_name("n1", "driver", 0)
    for length in range(190, 254):
        name = slice_name("n" * length + ".x", DRIVER, 1)
        assert len(name) <= 253
        assert name == name.lower()
        assert ".-" not in name
        assert "--" not in name


@pytest.mark.parametrize(
    ("changes", "owned"),
    [
        ({}, True),
        ({"uid": "another"}, False),
        ({"kind": "Pod"}, False),
        ({"controller": False}, False),
        (None, False),
    ],
)
def test_a_slice_is_its_nodes_while_that_node_controls_it(
    changes: dict[str, Any] | None, owned: bool
) -> None:
    owner = owner_of(NODE)
    assert (owner.api_version, owner.kind, owner.name, owner.controller) == ("v1", "Node", "n1", True)
    owners = None if changes is None else (msgspec.structs.replace(owner, **changes),)
    found = slice_("s")
    metadata = msgspec.structs.replace(found.metadata, owner_references=owners)
    assert is_owned_by(msgspec.structs.replace(found, metadata=metadata), owner) is owned


def test_slices_of_another_node_are_not_the_pools() -> None:
    ours, other = slice_("s"), slice_("t", nodeName="n2")
    assert slices_of_node([ours, other], "n1") == (ours,)


def test_the_newest_generation_counts_where_it_is_complete() -> None:
    old = slice_("old", "gpu-0", "gpu-9", generation=1)
    first = slice_("first", "gpu-0", generation=2, count=2)
    second = slice_("second", "gpu-1", generation=2, count=2)
    assert is_complete([])
    assert newest_generation([]) == ()
    assert is_complete([old])
    assert not is_complete([old, first])
    assert is_complete([first, old, second])
    assert newest_generation([second, old, first]) == (second, first)
    assert newest_devices([second, old, first]).keys() == {"gpu-0", "gpu-1"}


@pytest.mark.parametrize(
    ("a", "b", "newer"),
    [
        ("2", "1", True),
        ("1", "2", False),
        ("1", "1", True),
        ("10", "9", True),
        ("x", "x", True),
        ("x", "1", False),
        ("1", "x", False),
    ],
)
def test_versions_are_compared_as_numbers(a: str, b: str, newer: bool) -> None:
    assert is_newer(a, b) is newer
