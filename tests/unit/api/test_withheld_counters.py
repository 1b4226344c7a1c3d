"""Counters that an earlier version stored in an annotation are in their fields wherever a slice is read."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from earlier_slices import withheld
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.names import COUNTERS_ANNOTATION
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice

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


COUNTERS = slice_of(sharedCounters=[{"name": "gpu-0", "counters": MEMORY}], annotations={"else": "this"})
DEVICES = slice_of(consuming("p0", "gpu-0"), consuming("p1", "gpu-0", "gpu-1"), builders.device("whole"))


@pytest.mark.parametrize("open_", [COUNTERS, DEVICES])
def test_counters_are_read_where_kube_scheduler_does_not_see_them(open_: ResourceSlice) -> None:
    raw = withheld(open_)
    assert "sharedCounters" not in raw["spec"]
    assert not any("consumesCounters" in d for d in raw["spec"].get("devices", ()))
    read = codec.convert(ResourceSlice, raw)
    assert read.spec == open_.spec
    assert read.withholds_counters
    assert not open_.withholds_counters


def test_other_annotations_stay() -> None:
    read = codec.convert(ResourceSlice, withheld(COUNTERS))
    assert read.metadata.annotations == {"else": "this", COUNTERS_ANNOTATION: ""}


def test_what_was_read_can_be_read_again() -> None:
    read = codec.convert(ResourceSlice, withheld(DEVICES))
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
