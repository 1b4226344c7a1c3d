"""Checks of ResourceClaims, templates and DeviceClasses. Source: KEP-4381, 4816, 4817, 5018, 6080."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from dra_driver.sim.apiserver.objects import formats
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices
from dra_driver.sim.apiserver.validation.expressions import ClaimExpressions, check_selectors
from dra_driver.sim.apiserver.validation.meta import (
    Surroundings,
    check_conditions,
    check_formats,
    check_node_selector,
)

__all__ = ["check_claim", "check_claim_status", "check_class", "check_template"]

_ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_NAME_RULE = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)
_EXTENDED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)

Names = dict[str, set[str]]


def _same(a: object, b: object) -> bool:
    encode = msgspec.json.encode
    if encode(a, order="deterministic") != encode(b, order="deterministic"):
        return False
    # The order of fields does not count, except in opaque parameters: the real server compares their bytes.
    return [encode(p) for p in _parameters(a)] == [encode(p) for p in _parameters(b)]


def _parameters(value: object) -> Iterator[object]:
    """Yield the opaque parameters of a spec, in an order that does not depend on the order of fields."""
    if isinstance(value, dict):
        for key in sorted(value):
            if key == "parameters":
                yield value[key]
            else:
                yield from _parameters(value[key])
    elif isinstance(value, list):
        for item in value:
            yield from _parameters(item)


def check_claim(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a ResourceClaim; its spec never changes."""
    if old is not None:
        if not _same(raw.get("spec"), old.get("spec")):
            causes.invalid("spec", raw.get("spec"), "field is immutable")
        return
    _check_spec(raw["spec"], "spec", causes, surroundings)
    _check_admin(raw["spec"], "spec", causes, surroundings)


def check_template(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a ResourceClaimTemplate; its spec never changes, and a changed one is validated all the same."""
    spec = raw["spec"]
    if old is not None and not _same(spec, old.get("spec")):
        causes.invalid("spec", spec, "field is immutable")
    metadata = spec.get("metadata") or {}
    for name, value in metadata.items():
        if name not in ("labels", "annotations") and value:
            causes.forbidden(f"spec.metadata.{name}", "cannot be set")
    for key, value in (metadata.get("labels") or {}).items():
        check_formats(formats.qualified_name_errors, key, "spec.metadata.labels", causes)
        check_formats(formats.label_value_errors, value, "spec.metadata.labels", causes)
    for key in metadata.get("annotations") or {}:
        check_formats(formats.qualified_name_errors, key.lower(), "spec.metadata.annotations", causes)
    _check_spec(spec["spec"], "spec.spec", causes, surroundings)
    if old is None:
        _check_admin(spec["spec"], "spec.spec", causes, surroundings)


def _check_admin(spec: Raw, path: str, causes: Causes, surroundings: Surroundings) -> None:
    if surroundings.namespace_labels.get(_ADMIN_LABEL) == "true":
        return
    for i, request in enumerate(spec["devices"].get("requests") or []):
        if (request.get("exactly") or {}).get("adminAccess"):
            causes.forbidden(f"{path}.devices.requests[{i}].adminAccess", _ADMIN_RULE)


_ADMIN_RULE = f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"


def _check_spec(spec: Raw, path: str, causes: Causes, surroundings: Surroundings) -> None:
    claim = spec["devices"]
    names = _request_names(claim)
    expressions = ClaimExpressions(claim, surroundings.environment)
    path += ".devices"
    requests: list[Raw] = claim.get("requests") or []
    devices.check_each(
        requests, 32, f"{path}.requests", causes, lambda r, p: _check_request(r, p, causes, expressions)
    )
    expressions.check_cost(path, causes)
    if len(requests) <= 32:
        devices.check_unique((r["name"] for r in requests), f"{path}.requests", causes)
    devices.check_each(
        claim.get("constraints") or [],
        32,
        f"{path}.constraints",
        causes,
        lambda c, p: _check_constraint(c, names, p, causes),
    )
    devices.check_each(
        claim.get("config") or [],
        32,
        f"{path}.config",
        causes,
        lambda c, p: _check_config(c, names, p, causes),
    )


def _request_names(claim: Raw) -> Names:
    return {
        r["name"]: {s["name"] for s in r.get("firstAvailable") or []} for r in claim.get("requests") or []
    }


def _check_reference(name: str, names: Names, path: str, causes: Causes) -> None:
    segments = name.split("/")
    if len(segments) > 2:
        causes.invalid(path, name, _NAME_RULE)
        return
    for segment in segments:
        devices.check_label(segment, path, causes)
    if segments[0] not in names or (len(segments) == 2 and segments[1] not in names[segments[0]]):
        causes.invalid(path, name, _NAME_RULE)


def _check_references(holder: Raw, names: Names, path: str, causes: Causes) -> None:
    references: list[str] = holder.get("requests") or []
    path += ".requests"
    if len(references) > 32:
        causes.too_many(path, len(references), 32)
        return
    for i, name in enumerate(references):
        _check_reference(name, names, f"{path}[{i}]", causes)
    devices.check_unique(references, path, causes)


def _check_request(request: Raw, path: str, causes: Causes, expressions: ClaimExpressions) -> None:
    devices.check_label(request["name"], f"{path}.name", causes)
    alternatives: list[Raw] = request.get("firstAvailable") or []
    exactly: Raw | None = request.get("exactly")
    rule = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is None and not alternatives:
        causes.required(path, rule)
    elif exactly is not None and alternatives:
        causes.invalid(path, None, f"{rule}, but multiple fields are set")
    elif exactly is not None:
        _check_details(exactly, request["name"], f"{path}.exactly", causes, expressions)
    else:
        devices.check_each(
            alternatives,
            8,
            f"{path}.firstAvailable",
            causes,
            lambda s, p: _check_subrequest(s, request["name"], p, causes, expressions),
        )
        if len(alternatives) <= 8:
            devices.check_unique((s["name"] for s in alternatives), f"{path}.firstAvailable", causes)


def _check_subrequest(
    request: Raw, parent: str, path: str, causes: Causes, expressions: ClaimExpressions
) -> None:
    devices.check_label(request["name"], f"{path}.name", causes)
    _check_details(request, f"{parent}/{request['name']}", path, causes, expressions)


def _check_details(
    request: Raw, reference: str, path: str, causes: Causes, expressions: ClaimExpressions
) -> None:
    name = request.get("deviceClassName", "")
    if name:
        check_formats(formats.dns_subdomain_errors, name, f"{path}.deviceClassName", causes)
    else:
        causes.required(f"{path}.deviceClassName")
    check_selectors(request.get("selectors") or [], f"{path}.selectors", causes, expressions.environment)
    derived: list[Raw] = request.get("derivedAttributes") or []
    expressions.check_derived(derived, reference, f"{path}.derivedAttributes", causes)
    mode, count = request.get("allocationMode", ""), request.get("count", 0)
    if mode == "All":
        if count:
            causes.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount":
        if count <= 0:
            causes.invalid(f"{path}.count", count, "must be greater than zero")
    else:
        causes.not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount"))
    for i, toleration in enumerate(request.get("tolerations") or []):
        devices.check_toleration(toleration, f"{path}.tolerations[{i}]", causes)


def _check_constraint(constraint: Raw, names: Names, path: str, causes: Causes) -> None:
    _check_references(constraint, names, path, causes)
    for name in ("matchAttribute", "distinctAttribute"):
        if name in constraint:
            value = constraint[name]
            devices.check_fully_qualified(value, f"{path}.{name}", causes)
            return
    causes.required(path, 'exactly one of "matchAttribute" or "distinctAttribute" is required')


def _check_config(config: Raw, names: Names, path: str, causes: Causes) -> None:
    _check_references(config, names, path, causes)
    devices.check_opaque(config, path, causes)


# --- status ---


def check_claim_status(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check the status of a ResourceClaim: allocation, reservations, device statuses."""
    status, before = raw.get("status") or {}, (old or {}).get("status") or {}
    names = _request_names(raw["spec"]["devices"])
    allocation: Raw | None = status.get("allocation")
    _check_reservations(raw, status, before, causes)
    _check_device_statuses(status.get("devices") or [], allocation, causes)
    if allocation is None:
        return
    if before.get("allocation") is not None:
        if not _same(allocation, before["allocation"]):
            causes.invalid("status.allocation", allocation, "field is immutable")
    else:
        _check_allocation(allocation, names, "status.allocation", causes, surroundings)


def _check_reservations(raw: Raw, status: Raw, before: Raw, causes: Causes) -> None:
    path = "status.reservedFor"
    consumers: list[Raw] = status.get("reservedFor") or []
    if len(consumers) > 256:
        causes.too_many(path, len(consumers), 256)
    else:
        for i, consumer in enumerate(consumers):
            for name in ("resource", "name", "uid"):
                if not consumer.get(name):
                    causes.required(f"{path}[{i}].{name}")
        devices.check_unique((c.get("uid") for c in consumers), path, causes)
    if not consumers:
        return
    if status.get("allocation") is None:
        causes.forbidden(path, "may not be specified when `allocated` is not set")
    elif raw["metadata"].get("deletionTimestamp"):
        known = before.get("reservedFor") or []
        if any(c not in known for c in consumers):
            causes.forbidden(path, "new entries may not be added while `deletionTimestamp` is set")


def _device_id(raw: Raw) -> Raw:
    return {
        "Driver": raw.get("driver", ""),
        "Pool": raw.get("pool", ""),
        "Device": raw.get("device", ""),
        "ShareID": raw.get("shareID") or "",
    }


def _check_device_statuses(items: list[Raw], allocation: Raw | None, causes: Causes) -> None:
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    allocated = {tuple(_device_id(r).values()) for r in results}
    seen = set()
    for i, item in enumerate(items):
        path = f"status.devices[{i}]"
        devices.check_driver(item["driver"], f"{path}.driver", causes)
        devices.check_pool_name(item["pool"], f"{path}.pool", causes)
        devices.check_label(item["device"], f"{path}.device", causes)
        if "shareID" in item:
            devices.check_uuid(item["shareID"], f"{path}.shareID", causes)
        identity = _device_id(item)
        key = tuple(identity.values())
        if key not in allocated:
            causes.invalid(path, identity, "must be an allocated device in the claim")
        if key in seen:
            causes.duplicate(path, identity)
        seen.add(key)
        conditions = item.get("conditions") or []
        if len(conditions) > 8:
            causes.too_many(f"{path}.conditions", len(conditions), 8)
        check_conditions(conditions, f"{path}.conditions", causes)
        if item.get("data") is not None:
            devices.check_raw(item["data"], f"{path}.data", 10 * 1024, causes)
        _check_network(item.get("networkData") or {}, f"{path}.networkData", causes)


def _check_network(data: Raw, path: str, causes: Causes) -> None:
    for name, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(data.get(name, "").encode()) > limit:
            causes.too_long(f"{path}.{name}", limit)
    addresses: list[str] = data.get("ips") or []
    if len(addresses) > 16:
        causes.too_many(f"{path}.ips", len(addresses), 16)
        return
    for i, address in enumerate(addresses):
        check_formats(formats.cidr_errors, address, f"{path}.ips[{i}]", causes)
    devices.check_unique(addresses, f"{path}.ips", causes)


def _check_allocation(
    allocation: Raw, names: Names, path: str, causes: Causes, surroundings: Surroundings
) -> None:
    found: Raw = allocation.get("devices") or {}
    admin = surroundings.namespace_labels.get(_ADMIN_LABEL) == "true"

    def check_result(result: Raw, here: str) -> None:
        _check_reference(result["request"], names, f"{here}.request", causes)
        devices.check_driver(result["driver"], f"{here}.driver", causes)
        devices.check_pool_name(result["pool"], f"{here}.pool", causes)
        devices.check_label(result["device"], f"{here}.device", causes)
        devices.check_bindings(result, here, causes)
        if "shareID" in result:
            devices.check_uuid(result["shareID"], f"{here}.shareID", causes)
        devices.check_skipped(result, here, causes)
        if result.get("adminAccess") and not admin:
            causes.forbidden(f"{here}.adminAccess", _ADMIN_RULE)

    def check_config(config: Raw, here: str) -> None:
        source = config.get("source", "")
        if not source:
            causes.required(f"{here}.source")
        elif source not in ("FromClass", "FromClaim"):
            causes.not_supported(f"{here}.source", source, ("FromClass", "FromClaim"))
        _check_config(config, names, here, causes)

    devices.check_each(found.get("results") or [], 32, f"{path}.devices.results", causes, check_result)
    devices.check_each(found.get("config") or [], 64, f"{path}.devices.config", causes, check_config)
    if allocation.get("nodeSelector") is not None:
        check_node_selector(allocation["nodeSelector"], f"{path}.nodeSelector", causes)


# --- classes ---


def check_class(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a DeviceClass."""
    spec = raw["spec"]
    before: Raw = (old or {}).get("spec") or {}
    check_selectors(
        spec.get("selectors") or [],
        "spec.selectors",
        causes,
        surroundings.environment,
        stored=old is not None and spec.get("selectors") == before.get("selectors"),
    )
    devices.check_each(
        spec.get("config") or [], 32, "spec.config", causes, lambda c, p: devices.check_opaque(c, p, causes)
    )
    name = spec.get("extendedResourceName")
    if name is not None and not _is_extended(name):
        causes.invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return bool(domain) and not formats.qualified_name_errors("requests." + name)
