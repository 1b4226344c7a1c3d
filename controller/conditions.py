"""The condition ``Published`` of a DeviceInventory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dra_driver.api import codec
from dra_driver.api.resource import Condition
from dra_driver.kube.clock import rfc3339
from dra_driver.resourceslice import DesiredPool, PoolAllocator, ServerFeatures

__all__ = ["PUBLISHED", "merged", "published", "refused", "same"]

PUBLISHED = "Published"
_LONGEST = 2000


def published(desired: DesiredPool, wanted: PoolAllocator, features: ServerFeatures | None) -> Condition:
    """Says what was published, what was left out, and which feature gate would be needed for more."""
    slices = len(desired.slices)
    text = (
        f"{desired.devices} device{'s' * (desired.devices != 1)} in {slices} "
        f"ResourceSlice{'s' * (slices != 1)}, allocated by the {_WHO[desired.allocator]}"
    )
    reason = "Published"
    if desired.allocator is not wanted:
        gates = ", ".join(features.missing_gates()) if features else ""
        reason = "FeatureGateDisabled"
        text += (
            f"; asked for was the {_WHO[wanted]}, which needs device taints, and the API server drops them: "
            f"enable the feature gate DRADeviceTaints (off: {gates})"
        )
    elif desired.problems:
        reason = "PublishedInPart"
    if desired.problems:
        text += "; left out: " + "; ".join(desired.problems)
    return Condition(
        type=PUBLISHED, status="True", reason=reason, message=_cut(text), last_transition_time=""
    )


_WHO = {PoolAllocator.CONTROLLER: "controller", PoolAllocator.SCHEDULER: "scheduler"}


def refused(why: str) -> Condition:
    """The inventory is not believed."""
    return Condition(
        type=PUBLISHED, status="False", reason="Refused", message=_cut(why), last_transition_time=""
    )


def same(present: Iterable[Condition], condition: Condition) -> bool:
    """Whether the condition is there already; its time does not count."""
    return any(
        (c.type, c.status, c.reason, c.message)
        == (condition.type, condition.status, condition.reason, condition.message)
        for c in present
    )


def merged(present: Iterable[Condition], condition: Condition, now: float) -> list[dict[str, Any]]:
    """All conditions with this one in place; the time changes only when the status does."""
    before = next((c for c in present if c.type == condition.type), None)
    time = (
        before.last_transition_time
        if before is not None and before.status == condition.status
        else rfc3339(now)
    )
    others = [c for c in present if c.type != condition.type]
    dated = msgspec.structs.replace(condition, last_transition_time=time)
    return [msgspec.json.decode(codec.encode(c)) for c in (*others, dated)]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
