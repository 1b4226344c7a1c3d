"""Counters of a slice that are stored in an annotation, and are in their fields wherever a slice is read."""

from __future__ import annotations

from typing import Any

import builders
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.names import COUNTERS_ANNOTATION
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.sim.controlplane.stored_slices import STORED_SLICES

MEMORY = {"memory": {"value": "80Gi"}, "slice-0": {"value": "1"}}


def consuming(name: str, *sets: str) -> dict[str, Any]:
    return builders.device(
        name, "10Gi", consumesCounters=[{"counterSet": s, "counters": MEMORY} for s in sets]
    )


def slice_of(
    *devices: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> ResourceSlice:
    raw = builders.resource_slice("n1", *devices, **spec)
    if annotations is not None:
        raw["metadata"]["annotations"] = annotations
    return codec.convert(ResourceSlice, raw)


def withheld(slice_: ResourceSlice) -> ResourceSlice:
    annotations = {**(slice_.metadata.annotations or {}), COUNTERS_ANNOTATION: ""}
    meta = msgspec.structs.replace(slice_.metadata, annotations=annotations)
    return msgspec.structs.replace(slice_, metadata=meta)


COUNTERS = slice_of(sharedCounters=[{"name": "gpu-0", "counters": MEMORY}], annotations={"else": "this"})
DEVICES = slice_of(consuming("p0", "gpu-0"), consuming("p1", "gpu-0", "gpu-1"), builders.device("whole"))


@pytest.mark.parametrize("open_", [COUNTERS, DEVICES])
def test_who_reads_a_slice_sees_its_counters_and_kube_scheduler_does_not(open_: ResourceSlice) -> None:
    raw = withheld(open_).as_stored()
    assert "sharedCounters" not in raw["spec"]
    assert not any("consumesCounters" in d for d in raw["spec"].get("devices", ()))
    read = codec.convert(ResourceSlice, raw)
    assert read.spec == open_.spec
    assert read.withholds_counters
    assert read == withheld(open_)
    seen = codec.convert(STORED_SLICES.type, raw)
    assert not seen.spec.shared_counters
    assert not any(d.consumes_counters for d in seen.spec.devices)
    assert [d.name for d in seen.spec.devices] == [d.name for d in open_.spec.devices]


@pytest.mark.parametrize("open_", [COUNTERS, DEVICES])
def test_a_slice_that_withholds_nothing_is_sent_as_it_is(open_: ResourceSlice) -> None:
    assert open_.as_stored() == codec.to_raw(RESOURCE_SLICES, open_)
    assert not open_.withholds_counters


def test_other_annotations_stay() -> None:
    assert withheld(COUNTERS).as_stored()["metadata"]["annotations"]["else"] == "this"
    read = codec.convert(ResourceSlice, withheld(COUNTERS).as_stored())
    assert read.metadata.annotations == {"else": "this", COUNTERS_ANNOTATION: ""}


def test_what_was_read_can_be_read_again() -> None:
    read = codec.convert(ResourceSlice, withheld(DEVICES).as_stored())
    assert codec.decode(ResourceSlice, codec.encode(read)) == read


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"sharedCounters": 1}', '{"consumesCounters": {"p0": [{}]}}', "x"]
)
def test_an_annotation_that_cannot_be_decoded_leaves_no_devices(text: str) -> None:
    raw = codec.to_raw(RESOURCE_SLICES, DEVICES)
    raw["metadata"]["annotations"] = {COUNTERS_ANNOTATION: text}
    read = codec.convert(ResourceSlice, raw)
    assert read.spec.devices == ()
    assert read.withholds_counters


@given(st.text(max_size=40))
def test_any_annotation_leaves_an_object_that_can_be_read(text: str) -> None:
    raw = codec.to_raw(RESOURCE_SLICES, DEVICES)
    raw["metadata"]["annotations"] = {COUNTERS_ANNOTATION: text}
    assert len(codec.convert(ResourceSlice, raw).spec.devices) in (0, 3)


def test_the_annotation_of_the_largest_slice_has_room() -> None:
    # 64 devices, each with 16 memory slices, compute slices and six engines; names are labels. The API server
    # allows 256 KiB for all annotations of an object.
    counters = {f"memory-slice-{i:02}-{'x' * 8}": {"value": "1" * 19} for i in range(23)}
    devices = [
        builders.device(f"{i:063}", consumesCounters=[{"counterSet": f"{i:063}", "counters": counters}])
        for i in range(64)
    ]
    raw = withheld(slice_of(*devices)).as_stored()
    assert len(raw["metadata"]["annotations"][COUNTERS_ANNOTATION]) < 200_000
