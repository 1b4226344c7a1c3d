"""Checks of example pods against their expectations; pure functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence

from dra_driver.api.meta import ObjectKey
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute
from dra_driver.sim.demo.examples import AllocatedDevice, Outcome

__all__ = ["attribute", "twice_allocated", "verify"]


def verify(outcome: Outcome, all_outcomes: Sequence[Outcome]) -> list[str]:
    """Return what is not as expected; nothing if all is."""
    expect = outcome.example.expect
    if expect.unschedulable:
        return list(_verify_waiting(outcome))
    findings: list[str] = []
    if outcome.phase not in ("Running", "Succeeded"):
        findings.append(f"is {outcome.phase}" + "".join(f": {r}" for r in outcome.reasons[:1]))
    if expect.min_devices and len(outcome.devices) < expect.min_devices:
        findings.append(f"has {len(outcome.devices)} devices, fewer than {expect.min_devices}")
    if not expect.min_devices and len(outcome.devices) != expect.devices:
        findings.append(f"has {len(outcome.devices)} devices instead of {expect.devices}")
    served = {d.result.request for d in outcome.devices}
    if expect.requests and served != set(expect.requests):
        findings.append(f"is served by {', '.join(sorted(served))} instead of {', '.join(expect.requests)}")
    for item in outcome.devices:
        findings += _verify_device(outcome, item)
    for name in expect.same_attributes:
        values = {attribute(d.device, name) for d in outcome.devices}
        if len(values) != 1 or None in values:
            findings.append(f"has devices with different {name}: {', '.join(sorted(str(v) for v in values))}")
    findings += _verify_variables(outcome)
    if expect.shares_claim_with or expect.same_device_as:
        findings += _verify_sharing(outcome, all_outcomes)
    return findings


def _verify_waiting(outcome: Outcome) -> Iterator[str]:
    if outcome.phase != "Pending":
        yield f"is {outcome.phase}, although it cannot be satisfied"
    if outcome.devices:
        yield "has devices, although it cannot be satisfied"
    if not outcome.reasons:
        yield "waits without a reason that people could read"


def _verify_device(outcome: Outcome, item: AllocatedDevice) -> Iterator[str]:
    name, device = item.result.device, item.device
    if device is None:
        yield f"device {name} is in no ResourceSlice of pool {item.result.pool}"
        return
    yield from _verify_facts(outcome, item, device)
    for container, view in (outcome.containers or {}).items():
        if name not in {v for k, v in view.env.items() if k.startswith("DRA_") and k.endswith("_DEVICE")}:
            yield f"container {container} sees no DRA_*_DEVICE={name}"
        uuid = attribute(device, "uuid")
        if uuid is not None and uuid not in view.env.values():
            yield f"container {container} does not see the UUID {uuid} of {name}"
    if outcome.gpu_settings is not None:
        settings = outcome.gpu_settings.get(str(attribute(device, "uuid")), {})
        for key, wanted in outcome.example.expect.gpu_settings.items():
            if settings.get(key) != wanted:
                yield f"GPU {name} is set to {key} {settings.get(key)!r} instead of {wanted!r}"


def _verify_facts(outcome: Outcome, item: AllocatedDevice, device: Device) -> Iterator[str]:
    expect, name = outcome.example.expect, item.result.device
    memory = device.capacity.get("memory")
    if expect.min_memory and (memory is None or memory.value < Quantity.parse(expect.min_memory)):
        found = memory.value if memory is not None else "unknown"
        yield f"device {name} has {found} memory, less than {expect.min_memory}"
    if expect.consumed_memory:
        share = item.result.consumed_capacity.get("memory")
        if share != Quantity.parse(expect.consumed_memory) or item.result.share_id is None:
            yield f"has {share or 'no share'} of the memory of {name} instead of {expect.consumed_memory}"
    for key, wanted in expect.attributes.items():
        if attribute(device, key) != wanted:
            yield f"device {name} has the {key} {attribute(device, key)!r} instead of {wanted!r}"
    for key in expect.without_attributes:
        if attribute(device, key) is not None:
            yield f"device {name} has the {key} {attribute(device, key)!r}"
    if expect.tainted and expect.tainted not in {t.key for t in device.taints}:
        yield f"device {name} has no taint {expect.tainted}"
    if bool(item.result.admin_access) != expect.admin_access:
        yield f"device {name} is allocated with admin access {bool(item.result.admin_access)}"


def _verify_variables(outcome: Outcome) -> Iterator[str]:
    for container, view in (outcome.containers or {}).items():
        for name, wanted in outcome.example.expect.env.items():
            found = view.env.get(name)
            if found is None or not fnmatch.fnmatchcase(found, wanted):
                yield f"container {container} sees {name}={found} instead of {wanted}"


def _verify_sharing(outcome: Outcome, all_outcomes: Sequence[Outcome]) -> Iterator[str]:
    expect = outcome.example.expect
    wanted = expect.shares_claim_with or expect.same_device_as
    for other in all_outcomes:
        if other.example.key != ObjectKey(outcome.example.key.namespace, wanted):
            continue
        if other.node != outcome.node:
            yield f"runs on {outcome.node}, but {wanted} on {other.node}"
        if expect.shares_claim_with and set(other.claims) != set(outcome.claims):
            yield f"uses {', '.join(outcome.claims)}, but {wanted} uses {', '.join(other.claims)}"
        if expect.same_device_as and _names(other) != _names(outcome):
            yield f"has {', '.join(_names(outcome))}, but {wanted} has {', '.join(_names(other))}"
        if expect.same_device_as and set(other.claims) & set(outcome.claims):
            yield f"uses the claim of {wanted}"
        return
    yield f"should share with {wanted}, which is no example"


def _names(outcome: Outcome) -> list[str]:
    return sorted(d.result.device for d in outcome.devices)


def twice_allocated(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the devices that are allocated to more than one claim as a whole."""
    holders: dict[tuple[str, str, str], set[str]] = {}
    for outcome in outcomes:
        for item in outcome.devices:
            if item.result.share_id is None and not item.result.admin_access:
                device = (item.result.driver, item.result.pool, item.result.device)
                holders.setdefault(device, set()).add(item.claim)
    return [
        f"{'/'.join(device)} is allocated to {' and '.join(sorted(claims))}"
        for device, claims in holders.items()
        if len(claims) > 1
    ]


def attribute(device: Device | None, name: str) -> str | int | bool | None:
    """Return the value of an attribute; None if there is none."""
    found: DeviceAttribute | None = device.attributes.get(name) if device is not None else None
    if found is None:
        return None
    for value in (found.string_value, found.int_value, found.bool_value, found.version_value):
        if value is not None:
            return value
    return None
