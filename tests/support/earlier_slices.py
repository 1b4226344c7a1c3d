"""ResourceSlices as an earlier version of the controller stored them: without counters for kube-scheduler."""

from __future__ import annotations

from typing import Any

import msgspec

from dra_driver.api import codec
from dra_driver.api.names import COUNTERS_ANNOTATION
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice

__all__ = ["as_stored", "withheld"]


def withheld(slice_: ResourceSlice) -> dict[str, Any]:
    """Return a slice as plain data, with its counters in the annotation."""
    raw = codec.to_raw(RESOURCE_SLICES, slice_)
    counters: dict[str, Any] = {"sharedCounters": raw["spec"].pop("sharedCounters", [])}
    devices = raw["spec"].get("devices", ())
    consumed = {d["name"]: d.pop("consumesCounters") for d in devices if "consumesCounters" in d}
    counters["consumesCounters"] = consumed
    annotations = {**(raw["metadata"].get("annotations") or {})}
    raw["metadata"]["annotations"] = annotations | {
        COUNTERS_ANNOTATION: msgspec.json.encode(counters).decode()
    }
    return raw


def as_stored(slice_: ResourceSlice) -> dict[str, Any]:
    """Return a slice that was read as the API server has it, and kube-scheduler sees it."""
    return withheld(slice_) if slice_.withholds_counters else codec.to_raw(RESOURCE_SLICES, slice_)
