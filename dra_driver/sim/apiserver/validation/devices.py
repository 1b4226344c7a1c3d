"""Checks that slices, claims, classes and taint rules share: names, taints, tolerations, configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from dra_driver.sim.apiserver.objects import formats
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation.meta import check_formats, check_label_name

__all__ = [
    "EFFECTS",
    "check_bindings",
    "check_driver",
    "check_each",
    "check_fully_qualified",
    "check_label",
    "check_opaque",
    "check_pool_name",
    "check_qualified",
    "check_raw",
    "check_skipped",
    "check_taint",
    "check_toleration",
    "check_unique",
    "check_uuid",
]

EFFECTS = ("NoSchedule", "NoExecute", "None")
_OPAQUE_LIMIT = 10 * 1024


def check_each(
    items: list[Raw], limit: int, path: str, causes: Causes, check: Callable[[Raw, str], None]
) -> None:
    """Check each item with its path; too many items are one TooMany, and nothing else is checked."""
    if limit >= 0 and len(items) > limit:
        causes.too_many(path, len(items), limit)
        return
    for i, item in enumerate(items):
        check(item, f"{path}[{i}]")


def check_unique(keys: Iterable[object], path: str, causes: Causes) -> None:
    """Report a Duplicate for every key that occurs again."""
    seen: set[object] = set()
    for i, key in enumerate(keys):
        if key in seen:
            causes.duplicate(f"{path}[{i}]", key)
        seen.add(key)


def check_label(value: str, path: str, causes: Causes) -> None:
    """Check a DNS label."""
    check_formats(formats.dns_label_errors, value, path, causes)


def check_uuid(value: str, path: str, causes: Causes) -> None:
    """Check a UUID."""
    check_formats(formats.uuid_errors, value, path, causes)


def check_driver(value: str, path: str, causes: Causes) -> None:
    """Check a driver name: a DNS subdomain of at most 63 bytes, in which upper case is accepted."""
    if not value:
        causes.required(path)
        return
    if len(value) > 63:
        causes.too_long(path, 63)
    for error in formats.dns_subdomain_errors(value.lower()):
        causes.invalid(path, value, error)


def check_pool_name(value: str, path: str, causes: Causes) -> None:
    """Check a pool name: DNS subdomains with slashes between them, at most 253 bytes."""
    if not value:
        causes.required(path)
        return
    if len(value) > 253:
        causes.too_long(path, 253)
    for part in value.split("/"):
        check_formats(formats.dns_subdomain_errors, part, path, causes)


def check_qualified(value: str, path: str, causes: Causes) -> None:
    """Check the name of an attribute or capacity: an optional domain and a slash, then a C identifier.

    Like the real server, a name with two slashes is not checked.
    """
    parts = value.split("/")
    if len(parts) == 2:
        if parts[0]:
            check_driver(parts[0], path, causes)
        else:
            causes.invalid(path, "", "the domain must not be empty")
        if not parts[1]:
            causes.invalid(path, "", "the name must not be empty")
            return
    if len(parts) <= 2:
        if len(parts[-1]) > 32:
            causes.too_long(path, 32)
        check_formats(formats.c_identifier_errors, parts[-1], path, causes)


def check_fully_qualified(value: str, path: str, causes: Causes) -> None:
    """Check the name of an attribute that has to have a domain."""
    check_qualified(value, path, causes)
    if "/" not in value:
        text = "a fully qualified name must be a domain and a name separated by a slash"
        causes.invalid(path, value, text)


_PREPARE, _UNPREPARE, _ALL = _SKIPPED = ("NodePrepareResources", "NodeUnprepareResources", "*")


def check_skipped(holder: Raw, path: str, causes: Causes) -> None:
    """Check ``skipNodeOperations`` (KEP-5945): what is not prepared cannot be unprepared."""
    path += ".skipNodeOperations"
    skipped: list[str] = holder.get("skipNodeOperations") or []
    for i, operation in enumerate(skipped):
        if operation not in _SKIPPED:
            causes.not_supported(f"{path}[{i}]", operation, _SKIPPED)
    check_unique(skipped, path, causes)
    if _PREPARE in skipped and _UNPREPARE not in skipped and _ALL not in skipped:
        causes.invalid(path, skipped, f"{_PREPARE} cannot be skipped unless {_UNPREPARE} is skipped too")


def check_taint(taint: Raw, old: Raw | None, path: str, causes: Causes) -> None:
    """Check a device taint; an effect that has not changed is not checked again."""
    check_label_name(taint["key"], f"{path}.key", causes)
    if taint.get("value"):
        check_formats(formats.label_value_errors, taint["value"], f"{path}.value", causes)
    effect = taint.get("effect", "")
    if old is not None and old.get("effect", "") == effect:
        return
    if not effect:
        causes.required(f"{path}.effect")
    elif effect not in EFFECTS:
        causes.not_supported(f"{path}.effect", effect, EFFECTS)


def check_toleration(toleration: Raw, path: str, causes: Causes) -> None:
    """Check a toleration of a request."""
    if toleration.get("key"):
        check_label_name(toleration["key"], f"{path}.key", causes)
    value = toleration.get("value", "")
    match toleration.get("operator", ""):
        case "Exists":
            if value:
                causes.invalid(f"{path}.value", value, "must be empty for operator `Exists`")
        case "Equal":
            check_formats(formats.label_value_errors, value, f"{path}.value", causes)
        case other:
            causes.not_supported(f"{path}.operator", other, ("Equal", "Exists"))
    effect = toleration.get("effect", "")
    if effect and effect not in EFFECTS:
        causes.not_supported(f"{path}.effect", effect, EFFECTS)


def check_raw(value: object, path: str, limit: int, causes: Causes) -> None:
    """Check a JSON object of at most ``limit`` bytes."""
    if value is None:
        causes.required(path)
    elif len(msgspec.json.encode(value)) > limit:
        causes.too_long(path, limit)
    elif not isinstance(value, dict):
        causes.invalid(path, "<value omitted>", "must be a valid JSON object")


def check_opaque(config: Raw, path: str, causes: Causes) -> None:
    """Check ``opaque`` of a device configuration."""
    opaque = config.get("opaque")
    if opaque is None:
        causes.required(f"{path}.opaque")
        return
    check_driver(opaque.get("driver", ""), f"{path}.opaque.driver", causes)
    check_raw(opaque.get("parameters"), f"{path}.opaque.parameters", _OPAQUE_LIMIT, causes)


def check_bindings(holder: Raw, path: str, causes: Causes) -> None:
    """Check both kinds of binding conditions: both or none are there, at most four, no name twice."""
    lists = {name: holder.get(name) or [] for name in ("bindingConditions", "bindingFailureConditions")}
    for name, values in lists.items():
        if len(values) > 4:
            causes.too_many(f"{path}.{name}", len(values), 4)
        else:
            for i, value in enumerate(values):
                check_label_name(value, f"{path}.{name}[{i}]", causes)
        check_unique(values, f"{path}.{name}", causes)
    first, second = lists["bindingConditions"], lists["bindingFailureConditions"]
    for i, value in enumerate(second):
        if value in first:
            causes.invalid(f"{path}.bindingFailureConditions[{i}]", value, "is a binding condition as well")
    if second and not first:
        causes.invalid(f"{path}.bindingConditions", None, "are required to use bindingFailureConditions")
    if first and not second:
        causes.invalid(f"{path}.bindingFailureConditions", None, "are required to use bindingConditions")
