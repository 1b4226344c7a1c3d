"""Which differences between a slice that was sent and the stored one are mended by another write."""

from __future__ import annotations

from typing import Any

import builders
import pytest

from dra_driver.api import codec
from dra_driver.api.resource import DeviceAttribute, ResourceSlice, ResourceSliceSpec
from dra_driver.resourceslice import altered
from dra_driver.resourceslice.devices import problem_of_attribute


def spec(more: dict[str, Any] | None = None, **device: Any) -> ResourceSliceSpec:
    body = builders.resource_slice("n1", builders.device("gpu-0", **device))
    body["spec"].update(more or {})
    return codec.convert(ResourceSlice, body).spec


@pytest.mark.parametrize(
    "more",
    [
        # The kubelet would not call the driver for a claim on it.
        {"skipNodeOperations": ["*"]},
        {"partitionTypeAttribute": "example.com/profile"},
    ],
)
def test_a_known_field_that_was_not_sent_is_taken_away(more: dict[str, Any]) -> None:
    assert altered(spec(), spec(more))


def test_a_known_field_of_a_device_is_taken_away() -> None:
    stored = spec(nodeAllocatableResources={"cpu": {"mapping": {"deviceMultiplier": "1"}}})
    assert altered(spec(), stored)


def test_what_a_newer_server_puts_there_is_left_alone() -> None:
    """A default that it sets would be taken away and set again without end."""
    stored = spec({"brandNew": "default"}, brandNew=1, taints=[builders.PROTECTED])
    assert stored.newer
    assert stored.devices[0].newer
    assert not altered(spec(taints=[builders.PROTECTED]), stored)
    assert not altered(spec(), spec(brandNew=1))


def test_the_time_of_a_taint_is_the_servers_unless_it_was_sent() -> None:
    """An administrator's policy may say since when: eviction counts from then."""
    stored = spec(taints=[{**builders.PROTECTED, "timeAdded": "2026-01-01T00:00:00Z"}])
    assert not altered(spec(taints=[builders.PROTECTED]), stored)
    assert altered(spec(taints=[{**builders.PROTECTED, "timeAdded": "2025-01-01T00:00:00Z"}]), stored)
    assert altered(spec(), stored)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [("x" * 64, True), ("x" * 65, False), ("é" * 32, True), ("é" * 33, False)],
)
def test_a_text_has_64_bytes_at_most(text: str, *, accepted: bool) -> None:
    assert bool(problem_of_attribute("text", DeviceAttribute(string_value=text))) is not accepted
