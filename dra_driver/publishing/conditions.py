"""The condition ``Published`` of a DeviceInventory, written by the publisher of its pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dra_driver.api import codec
from dra_driver.api.resource import Condition
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice import (
    GATES,
    DesiredPool,
    OtherDriver,
    Presence,
    ServerFeatures,
    Withheld,
)

__all__ = [
    "DEVICE_PLUGIN_PRESENT",
    "OTHER_DRIVER_PRESENT",
    "POLICY_NOT_IN_FORCE",
    "PUBLISHED",
    "SERVER_NOT_ASKED",
    "cut",
    "is_publishers_own",
    "is_unguarded",
    "left_behind",
    "left_to_node",
    "merged",
    "merged_all",
    "not_stored",
    "published",
    "refused",
    "same",
    "unasked",
]

PUBLISHED: Final = "Published"
DEVICE_PLUGIN_PRESENT: Final = "DevicePluginPresent"
OTHER_DRIVER_PRESENT: Final = "OtherDriverPresent"
SERVER_NOT_ASKED: Final = "ServerNotAsked"
POLICY_NOT_IN_FORCE: Final = "PolicyNotInForce"
_LONGEST: Final = 2000
_BY_POLICY: Final = "set besideDevicePlugin: publish in a DevicePolicy for devices that it leaves alone"
_OTHERS_BY_POLICY: Final = (
    "set besideOtherDriver: publish in a DevicePolicy for devices that it never gives to pods"
)
_OPEN: Final = " (the gate in every namespace does without: see allocation-modes.md)"
_UNGUARDED: Final = "without its taint the controller would not be the only one to allocate"
# Devices that are named, of each other driver.
_NAMED: Final = 4


def published(
    desired: DesiredPool,
    features: ServerFeatures | None,
    *,
    draining: bool = False,
    unguarded: str = "",
    publish_anyway: str = _BY_POLICY,
    publish_beside_others: str = _OTHERS_BY_POLICY,
) -> Condition:
    """Return what was published, what was left out, and which feature gate would be needed for more.

    Args:
        desired: what is published.
        features: what the server keeps.
        draining: the pool is on its way to the controller, which does not allocate from it yet.
        unguarded: why the pool cannot be open although it is to be.
        publish_anyway: how an admin publishes what is withheld because of a device plugin.
        publish_beside_others: the same of what is withheld because of another driver.
    """
    texts = [_withheld(w, desired.node_name, publish_anyway) for w in desired.withheld]
    texts += [_had(o, desired.node_name, publish_beside_others) for o in desired.other_drivers]
    withheld = "; ".join(texts)
    why_withheld = DEVICE_PLUGIN_PRESENT if desired.withheld else OTHER_DRIVER_PRESENT
    if withheld and not desired.devices:
        return _not_published(why_withheld, withheld)
    slices = len(desired.slices)
    text = (
        f"{desired.devices} device{'s' * (desired.devices != 1)} in {slices} "
        f"ResourceSlice{'s' * (slices != 1)}, allocated by the {_WHO[desired.allocator]}"
    )
    reason = "Published"
    missing = dict(desired.missing)
    if desired.allocator is not desired.wanted and features is not None and not features.taints:
        missing[GATES["taints"]] = f"device taints, so no allocation by the {_WHO[desired.wanted]}{_OPEN}"
    if missing:
        reason = "FeatureGateDisabled"
        gates = features.missing_gates() if features else ()
        off = ", ".join((*gates, *sorted(missing.keys() - set(gates))))
        text += "".join(
            f"; the API server drops what is needed for {what}: enable the feature gate {gate}"
            for gate, what in sorted(missing.items())
        )
        text += f" (off: {off})"
    elif desired.refusal:
        reason = "ToleratingClaims"
        text += f"; {desired.refusal}"
    elif unguarded:
        reason = POLICY_NOT_IN_FORCE
    elif desired.allocator is not desired.wanted or draining:
        reason = "ChangingHands"
        text += f"; it goes to the {_WHO[desired.wanted]} when what is under way has ended"
    elif withheld:
        reason = why_withheld
    elif desired.problems:
        reason = "PublishedInPart"
    elif desired.doubts:
        reason = "DuplicateDevices"
    elif desired.conflicts:
        reason = "ExtendedResourceConflict"
    if unguarded:
        text += f"; {_UNGUARDED}: {unguarded}"
    if withheld:
        text += f"; {withheld}"
    if desired.pending:
        text += "; pending: " + "; ".join(p.text for p in desired.pending)
    if desired.problems:
        text += "; left out: " + "; ".join(desired.problems)
    text += "".join(f"; {text}" for text in (*desired.doubts, *desired.conflicts))
    return Condition(type=PUBLISHED, status="True", reason=reason, message=cut(text), last_transition_time="")


def is_unguarded(condition: Condition) -> bool:
    """Return whether a condition says that a pool cannot be open although it is to be."""
    return condition.type == PUBLISHED and _UNGUARDED in condition.message


def _withheld(withheld: Withheld, node: str, publish_anyway: str) -> str:
    plugin, whose = withheld.plugin, f"the {withheld.devices} {withheld.plugin.whose}"
    if plugin.leaving:
        return (
            f"a device plugin handed out {plugin.text} on node {node} until a moment ago: {whose} here are "
            "published when it stays away"
        )
    return (
        f"a device plugin hands out {plugin.text} on node {node}: {whose} here are withheld, because they "
        f"would be handed out twice. Remove the device plugin from the node, or {publish_anyway}"
    )


def _had(other: OtherDriver, node: str, publish_anyway: str) -> str:
    number = len(other.devices)
    named = ", ".join(sorted(other.devices)[:_NAMED]) + (", …" if number > _NAMED else "")
    whose = f"{number} device{'s' * (number != 1)} ({named})"
    match other.presence:
        case Presence.PUBLISHES:
            return (
                f"DRA driver {other.driver} publishes {whose} of node {node}, too: withheld, because they "
                "would be handed out twice. Keep that driver off the node, delete ResourceSlices that it has "
                f"left behind, or {publish_anyway}"
            )
        case Presence.HOLDS:
            pools = ", ".join(other.pools[:_NAMED])
            return (
                f"DRA driver {other.driver} published {whose} of node {node}, and claims still have, or may "
                f"have, devices of its pool {pools}: withheld here until they have none. Drain the node, or "
                f"{publish_anyway}"
            )
        case Presence.LEAVES:
            return (
                f"DRA driver {other.driver} published {whose} of node {node} until a moment ago: published "
                "here when it stays away"
            )


_WHO: Final = {PoolAllocator.CONTROLLER: "controller", PoolAllocator.SCHEDULER: "scheduler"}


def left_to_node() -> Condition:
    """Return the condition of a pool that the agent of its node publishes (``--publish=node``)."""
    return Condition(
        type=PUBLISHED,
        status="True",
        reason="PublishedByNode",
        message="the node agent publishes the devices of its node; the controller does not",
        last_transition_time="",
    )


def refused(why: str) -> Condition:
    """Return the condition of an inventory that is not believed."""
    return _not_published("Refused", why)


def left_behind(driver: str, drivers: Iterable[str]) -> Condition:
    """Return the condition of an inventory whose driver is gone: another name was configured since, say.

    Args:
        driver: of the inventory.
        drivers: for which the controller publishes that says so.
    """
    text = (
        f"there are no ResourceSlices of driver {driver}, the kubelet does not know its plugin, and this "
        f"controller publishes for {', '.join(sorted(drivers))}; unless another controller serves it, "
        "delete this object"
    )
    return _not_published("DriverGone", text)


def unasked(why: str, present: Iterable[Condition]) -> Condition:
    """Return the condition of a pool while the API server does not say which fields it keeps.

    Args:
        why: it could not be asked.
        present: conditions of the inventory: slices that are published stay as they are.
    """
    there = any(c.type == PUBLISHED and c.status == "True" for c in present)
    effect = "slices that are published stay as they are" if there else "nothing is published"
    text = (
        f"cannot ask the API server by a dry run which fields of ResourceSlices it keeps, so {effect}: {why}"
    )
    condition = _not_published(SERVER_NOT_ASKED, text)
    return msgspec.structs.replace(condition, status="True") if there else condition


def not_stored(slice_name: str, why: str) -> Condition:
    """Return the condition of a pool of which a slice cannot be stored as it should be.

    Args:
        slice_name: of the ResourceSlice.
        why: what the API server says or does.
    """
    text = f"ResourceSlice {slice_name} cannot be stored: {why}; what was published before may be out of date"
    return _not_published("SliceRefused", f"{text} or incomplete")


def _not_published(reason: str, why: str) -> Condition:
    return Condition(type=PUBLISHED, status="False", reason=reason, message=cut(why), last_transition_time="")


def same(present: Iterable[Condition], condition: Condition) -> bool:
    """Whether the condition is there already; its time does not count."""
    return any(
        (c.type, c.status, c.reason, c.message)
        == (condition.type, condition.status, condition.reason, condition.message)
        for c in present
    )


def is_publishers_own(present: Iterable[Condition]) -> bool:
    """Whether a node that publishes writes this condition itself, and replaces it when the reason is gone."""
    reasons = (DEVICE_PLUGIN_PRESENT, OTHER_DRIVER_PRESENT, SERVER_NOT_ASKED)
    return any(c.type == PUBLISHED and c.reason in reasons for c in present)


def merged(present: Iterable[Condition], condition: Condition, now: str) -> list[dict[str, Any]]:
    """Return all conditions with this one in place; the time changes only when the status does.

    Args:
        present: conditions that are there.
        condition: replaces the one of its type.
        now: the time as the API writes it (RFC 3339).
    """
    return merged_all(present, [condition], now)


def merged_all(present: Iterable[Condition], wanted: Iterable[Condition], now: str) -> list[dict[str, Any]]:
    """Return all conditions with these in place, as ``merged`` does with one."""
    result = {c.type: c for c in present}
    for condition in wanted:
        before = result.get(condition.type)
        same_status = before is not None and before.status == condition.status
        time = before.last_transition_time if before is not None and same_status else now
        result[condition.type] = msgspec.structs.replace(condition, last_transition_time=time)
    return [msgspec.json.decode(codec.encode(c)) for c in result.values()]


def cut(text: str) -> str:
    """Return the text, cut where it is longer than people read."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
