"""Checks of ResourceSlices and DeviceTaintRules. Source: KEP-4381, KEP-4815, KEP-5055, KEP-5075, KEP-5963."""

from __future__ import annotations

import re
from typing import Any

from dra_driver.api.quantity import Quantity
from dra_driver.sim.apiserver.objects import formats
from dra_driver.sim.apiserver.objects.releases import COUNTERS_TOGETHER
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices, node_resources
from dra_driver.sim.apiserver.validation.meta import (
    Surroundings,
    check_conditions,
    check_formats,
    check_node_selector,
)

__all__ = ["check_slice", "check_taint_rule", "check_taint_rule_status"]

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_VALUES = ("bool", "int", "string", "version")
_LISTS = ("bools", "ints", "strings", "versions")


def check_slice(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a ResourceSlice."""
    spec = raw["spec"]
    driver = spec.get("driver", "")
    devices.check_driver(driver, "spec.driver", causes)
    if driver != driver.lower():
        surroundings.warnings.append(
            f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters'
        )
    pool = spec["pool"]
    devices.check_pool_name(pool.get("name", ""), "spec.pool.name", causes)
    if pool.get("resourceSliceCount", 0) <= 0:
        causes.invalid(
            "spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero"
        )
    if pool.get("generation", 0) < 0:
        causes.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")
    if old is not None:
        _check_immutable(spec, old["spec"], causes)
    _check_nodes(spec, causes)
    if COUNTERS_TOGETHER in surroundings.served.gates:
        _check_together(spec, causes)
    elif spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        causes.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    _check_devices(spec, (old or {}).get("spec"), causes)
    devices.check_each(
        spec.get("sharedCounters") or [],
        8,
        "spec.sharedCounters",
        causes,
        lambda item, path: _check_counter_set(item, "name", path, causes),
    )
    if len(spec.get("sharedCounters") or []) <= 8:
        devices.check_unique(
            (s["name"] for s in spec.get("sharedCounters") or []), "spec.sharedCounters", causes
        )
    devices.check_skipped(spec, "spec", causes)
    if spec.get("partitionTypeAttribute") is not None:
        _check_partition_type(spec, spec["partitionTypeAttribute"], causes)


def _check_partition_type(spec: Raw, name: str, causes: Causes) -> None:
    """Check that the devices that consume counters say of which type they are."""
    path = "spec.partitionTypeAttribute"
    consuming = [(i, d) for i, d in enumerate(spec.get("devices") or []) if d.get("consumesCounters")]
    if not consuming:
        causes.invalid(path, name, "may only be set where devices consume counters")
        return
    before = len(causes)
    devices.check_fully_qualified(name, path, causes)
    if len(causes) > before:
        return
    bare = name.removeprefix(f"{spec['driver']}/")
    for i, device in consuming:
        attributes: Raw = device.get("attributes") or {}
        here = f"spec.devices[{i}].attributes[{name}]"
        value = attributes.get(name) or attributes.get(bare)
        if value is None:
            causes.required(here, "a device that consumes counters must have the attribute of its type")
        elif value.get("string") is None:
            causes.invalid(here, value, "must be a string, because it is the attribute of the type")


def _check_together(spec: Raw, causes: Causes) -> None:
    """Check what Kubernetes 1.34 wants of counters."""
    sets = {s.get("name"): s.get("counters") or {} for s in spec.get("sharedCounters") or []}
    defined = sum(len(counters) for counters in sets.values())
    if defined > 32:
        text = "the total number of shared counters must not exceed 32"
        causes.invalid("spec.sharedCounters", defined, text)
    consumed = 0
    for i, device in enumerate(spec.get("devices") or []):
        for j, taken in enumerate(device.get("consumesCounters") or []):
            path = f"spec.devices[{i}].consumesCounters[{j}]"
            counters = taken.get("counters") or {}
            consumed += len(counters)
            name = taken.get("counterSet", "")
            if name not in sets:
                text = "must reference a counterSet defined in the ResourceSlice sharedCounters"
                causes.invalid(f"{path}.counterSet", name, text)
                continue
            for counter in counters.keys() - sets[name].keys():
                text = "must reference a counter defined in the ResourceSlice sharedCounters"
                causes.invalid(f"{path}.counters", counter, text)
    if consumed > 1024:
        text = "the total number of counters in devices must not exceed 1024"
        causes.invalid("spec.devices", consumed, text)


def _check_immutable(spec: Raw, old: Raw, causes: Causes) -> None:
    if spec["pool"].get("name") != old["pool"].get("name"):
        causes.invalid("spec.pool.name", spec["pool"].get("name", ""), "field is immutable")
    for name in ("driver", "nodeName"):
        if spec.get(name) != old.get(name):
            causes.invalid(f"spec.{name}", spec.get(name), "field is immutable")


def _check_flag(holder: Raw, name: str, path: str, causes: Causes) -> bool:
    if name not in holder:
        return False
    if not holder[name]:
        causes.invalid(f"{path}.{name}", False, "must be either unset or set to true")
    return bool(holder[name])


def _check_node_name(holder: Raw, path: str, causes: Causes) -> bool:
    if "nodeName" not in holder:
        return False
    if not holder["nodeName"]:
        causes.invalid(f"{path}.nodeName", "", "must be either unset or set to a non-empty string")
        return False
    check_formats(formats.dns_subdomain_errors, holder["nodeName"], f"{path}.nodeName", causes)
    return True


def _check_nodes(spec: Raw, causes: Causes) -> None:
    given = []
    if _check_node_name(spec, "spec", causes):
        given.append("`nodeName`")
    if "nodeSelector" in spec:
        given.append("`nodeSelector`")
        check_node_selector(spec["nodeSelector"], "spec.nodeSelector", causes)
        terms = spec["nodeSelector"].get("nodeSelectorTerms")
        if len(terms or []) != 1:
            causes.invalid(
                "spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term"
            )
    given += [
        f"`{name}`"
        for name in ("allNodes", "perDeviceNodeSelection")
        if _check_flag(spec, name, "spec", causes)
    ]
    rule = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not given:
        causes.required("spec", rule)
    elif len(given) > 1:
        causes.invalid("spec", f"{{{', '.join(given)}}}", rule)


def _check_devices(spec: Raw, old: Raw | None, causes: Causes) -> None:
    items: list[Raw] = spec.get("devices") or []
    limited = any(d.get("taints") or d.get("consumesCounters") or _has_lists(d) for d in items)
    limit = 64 if limited else 128
    before = {d.get("name"): d for d in (old or {}).get("devices") or []}
    per_device = bool(spec.get("perDeviceNodeSelection"))
    devices.check_each(
        items,
        limit,
        "spec.devices",
        causes,
        lambda d, path: _check_device(d, before.get(d["name"]), per_device, path, causes),
    )
    if len(items) <= limit:
        devices.check_unique((d["name"] for d in items), "spec.devices", causes)


def _check_device(device: Raw, old: Raw | None, per_device: bool, path: str, causes: Causes) -> None:
    devices.check_label(device["name"], f"{path}.name", causes)
    attributes: Raw = device.get("attributes") or {}
    capacity: Raw = device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > 32:
        causes.invalid(path, total, "the total number of attributes and capacities must not exceed 32")
    values = sum(sum(len(a.get(name) or ()) for name in _LISTS) or 1 for a in attributes.values())
    if values > 48:
        causes.invalid(path, values, "the total number of attribute values must not exceed 48")
    for key, value in attributes.items():
        devices.check_qualified(key, f"{path}.attributes", causes)
        _check_attribute(value, f"{path}.attributes[{key}]", causes)
    for key, value in capacity.items():
        devices.check_qualified(key, f"{path}.capacity", causes)
        policy = value.get("requestPolicy")
        if policy is not None:
            here = f"{path}.capacity[{key}].requestPolicy"
            if device.get("allowMultipleAllocations"):
                _check_policy(Quantity.parse(value["value"]), policy, here, causes)
            else:
                causes.forbidden(here, "allowMultipleAllocations must be true")
    taints: list[Raw] = device.get("taints") or []
    if old is None or (old.get("taints") or []) != taints:
        devices.check_each(
            taints, 16, f"{path}.taints", causes, lambda t, p: devices.check_taint(t, None, p, causes)
        )
    _check_consumption(device.get("consumesCounters") or [], f"{path}.consumesCounters", causes)
    node_resources.check_node_resources(device, f"{path}.nodeAllocatableResources", causes)
    _check_device_nodes(device, per_device, path, causes)
    devices.check_bindings(device, path, causes)


def _has_lists(device: Raw) -> bool:
    return any(name in a for a in (device.get("attributes") or {}).values() for name in _LISTS)


def _check_attribute(attribute: Raw, path: str, causes: Causes) -> None:
    for name in ("string", "version"):
        if name in attribute:
            _check_text(name, attribute[name], f"{path}.{name}", causes)
    for name in _LISTS:
        if attribute.get(name) == []:
            causes.invalid(f"{path}.{name}", [], "must not be empty if specified")
    for name in ("strings", "versions"):
        for i, item in enumerate(attribute.get(name) or ()):
            _check_text(name.removesuffix("s"), item, f"{path}.{name}[{i}]", causes)
    given = [name for name in (*_VALUES, *_LISTS) if name in attribute]
    if len(given) != 1:
        causes.invalid(path, "" if not given else attribute, "exactly one value must be specified")


def _check_text(kind: str, text: str, path: str, causes: Causes) -> None:
    if kind == "version" and not _SEMVER.fullmatch(text):
        causes.invalid(path, text, "must be a string compatible with semver.org spec 2.0.0")
    if len(text.encode()) > 64:
        causes.too_long(path, 64)


def _check_consumption(items: list[Raw], path: str, causes: Causes) -> None:
    devices.check_each(items, 2, path, causes, lambda item, p: _check_consumed(item, p, causes))
    if len(items) <= 2:
        devices.check_unique((i["counterSet"] for i in items), path, causes)


def _check_consumed(item: Raw, path: str, causes: Causes) -> None:
    _check_counter_set(item, "counterSet", path, causes)
    groups: list[str] = item.get("compatibilityGroups") or []
    path += ".compatibilityGroups"
    if len(groups) > 2:
        causes.too_many(path, len(groups), 2)
    else:
        devices.check_unique(groups, path, causes)


def _check_counter_set(item: Raw, name: str, path: str, causes: Causes) -> None:
    if item[name]:
        devices.check_label(item[name], f"{path}.{name}", causes)
    else:
        causes.required(f"{path}.{name}")
    counters = item.get("counters") or {}
    if not counters:
        causes.required(f"{path}.counters")
    elif len(counters) > 32:
        causes.too_many(f"{path}.counters", len(counters), 32)
    else:
        for key in counters:
            devices.check_label(key, f"{path}.counters", causes)


def _check_device_nodes(device: Raw, per_device: bool, path: str, causes: Causes) -> None:
    rule = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
        "`perDeviceNodeSelection` is true"
    )
    if not per_device:
        if any(name in device for name in ("nodeName", "nodeSelector", "allNodes")):
            causes.invalid(path, None, "a node can only be set if `perDeviceNodeSelection` is set to true")
        return
    given = []
    if _check_node_name(device, path, causes):
        given.append("`nodeName`")
    if "nodeSelector" in device:
        given.append("`nodeSelector`")
        check_node_selector(device["nodeSelector"], f"{path}.nodeSelector", causes)
    if _check_flag(device, "allNodes", path, causes):
        given.append("`allNodes`")
    if not given:
        causes.required(path, rule)
    elif len(given) > 1:
        causes.invalid(path, f"{{{', '.join(given)}}}", rule)


# --- request policies of capacities (KEP-5075) ---


def _check_policy(capacity: Quantity, policy: Raw, path: str, causes: Causes) -> None:
    values: list[str] = policy.get("validValues") or []
    bounds: Raw | None = policy.get("validRange")
    if values and bounds is not None:
        causes.forbidden(path, 'cannot specify "validValues" and "validRange" at the same time')
        return
    if not values and bounds is None:
        return
    if policy.get("default") is None:
        causes.required(
            f"{path}.default", f"required when {'validValues' if values else 'validRange'} is defined"
        )
        return
    default = Quantity.parse(policy["default"])
    if values:
        _check_valid_values(
            [Quantity.parse(v) for v in values], default, capacity, f"{path}.validValues", causes
        )
    elif bounds is not None:
        _check_range(bounds, default, capacity, f"{path}.validRange", causes)


def _check_valid_values(
    values: list[Quantity], default: Quantity, capacity: Quantity, path: str, causes: Causes
) -> None:
    for i in range(len(values) - 1):
        if values[i] > values[i + 1]:
            causes.invalid(f"{path}[{i + 1}]", str(values[i + 1]), "values must be sorted in ascending order")
    if len(values) > 10:
        causes.too_many(path, len(values), 10)
    else:
        for i, value in enumerate(values):
            if value > capacity:
                causes.invalid(
                    f"{path}[{i}]", str(value), f"option is larger than capacity value: {capacity}"
                )
        devices.check_unique((v.value() for v in values), path, causes)
    if default not in values or len(values) > 10:
        causes.invalid(path, str(default), "default value is not valid according to the requestPolicy")


def _check_range(bounds: Raw, default: Quantity, capacity: Quantity, path: str, causes: Causes) -> None:
    if bounds.get("min") is None:
        causes.required(f"{path}.min", "required when validRange is defined")
        return
    low = Quantity.parse(bounds["min"])
    high = Quantity.parse(bounds["max"]) if bounds.get("max") is not None else None
    if low > capacity:
        causes.invalid(f"{path}.min", str(low), f"min is larger than capacity value: {capacity}")
    if default < low:
        causes.invalid(f"{path}.min", str(default), f"default is less than min: {low}")
    if high is not None:
        if low > high:
            causes.invalid(f"{path}.max", str(low), f"min is larger than max: {high}")
        if high > capacity:
            causes.invalid(f"{path}.max", str(high), f"max is larger than capacity value: {capacity}")
        if default > high:
            causes.invalid(f"{path}.max", str(default), f"default is more than max: {high}")
    if bounds.get("step") is not None:
        _check_step(Quantity.parse(bounds["step"]), low, [default, high], capacity, f"{path}.step", causes)


def _check_step(
    step: Quantity, low: Quantity, values: list[Any], capacity: Quantity, path: str, causes: Causes
) -> None:
    if Quantity(low.nano + step.nano) > capacity:
        causes.invalid(path, str(step), f"one step is larger than capacity value: {capacity}")
    width = step.value()
    for value in values:
        if value is not None and (width == 0 or (value.value() - low.value()) % width):
            causes.invalid(path, str(value), f"value is not a multiple of a given step ({step}) from ({low})")


# --- taint rules ---


def check_taint_rule(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a DeviceTaintRule."""
    spec = raw["spec"]
    selector: Raw = spec.get("deviceSelector") or {}
    if "driver" in selector:
        devices.check_driver(selector["driver"], "spec.deviceSelector.driver", causes)
    if "pool" in selector:
        devices.check_pool_name(selector["pool"], "spec.deviceSelector.pool", causes)
    if "device" in selector:
        devices.check_label(selector["device"], "spec.deviceSelector.device", causes)
    before = old["spec"].get("taint") if old else None
    devices.check_taint(spec["taint"], before, "spec.taint", causes)


def check_taint_rule_status(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check the status of a DeviceTaintRule."""
    conditions = (raw.get("status") or {}).get("conditions") or []
    check_conditions(conditions, "status.conditions", causes)
    if len(conditions) > 8:
        causes.too_many("status.conditions", len(conditions), 8)
