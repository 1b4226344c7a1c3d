"""Objects of ``resource.k8s.io/v1beta1`` as the stored ``v1`` and back.

Two structures differ: a device holds its properties under ``basic``, and a request has the fields of
``exactly`` beside its name. ``v1beta2`` has the structure of ``v1``; it is not converted, nor is any other
kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.sim.apiserver.objects.status import Raw

__all__ = ["CONVERTED", "converts", "from_storage", "to_storage"]

CONVERTED = "resource.k8s.io/v1beta1"

_EXACTLY = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
)

Part = Callable[[Raw], Raw]


def converts(api_version: str) -> bool:
    """Return whether objects of this version have another structure than stored ones."""
    return api_version == CONVERTED


def to_storage(api_version: str, kind: str, raw: Raw) -> Raw:
    """Return an object, or a part of it such as an applied configuration, in the structure of ``v1``."""
    if not converts(api_version):
        return raw
    out: Raw = _each(raw, _PLACES.get(kind, ()), _UP.get(kind))
    return out


def from_storage(api_version: str, kind: str, raw: Raw) -> Raw:
    """Return a stored object in the requested version; the original is not changed."""
    if raw.get("apiVersion") != api_version:
        raw = {"kind": kind, **raw, "apiVersion": api_version}
    if not converts(api_version):
        return raw
    out: Raw = _each(raw, _PLACES.get(kind, ()), _DOWN.get(kind))
    return out


def _each(value: Any, path: tuple[str, ...], change: Part | None) -> Any:
    """Return a copy in which each item of the list at ``path`` is changed; other values stay as they are."""
    if change is None:
        return value
    if not path:
        return [change(v) if isinstance(v, dict) else v for v in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _each(value[path[0]], path[1:], change)}


def _flat_device(device: Raw) -> Raw:
    basic = device.get("basic")
    rest = {k: v for k, v in device.items() if k != "basic"}
    return {**rest, **basic} if isinstance(basic, dict) else rest


def _basic_device(device: Raw) -> Raw:
    return {"name": device.get("name", ""), "basic": {k: v for k, v in device.items() if k != "name"}}


def _nested_request(request: Raw) -> Raw:
    exactly = {k: request[k] for k in _EXACTLY if k in request}
    rest = {k: v for k, v in request.items() if k not in _EXACTLY}
    return {**rest, "exactly": exactly} if any(exactly.values()) else rest


def _flat_request(request: Raw) -> Raw:
    rest = {k: v for k, v in request.items() if k != "exactly"}
    return {**rest, **(request.get("exactly") or {})}


_PLACES: Mapping[str, tuple[str, ...]] = {
    "ResourceSlice": ("spec", "devices"),
    "ResourceClaim": ("spec", "devices", "requests"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "requests"),
}
_UP: Mapping[str, Part] = {
    "ResourceSlice": _flat_device,
    "ResourceClaim": _nested_request,
    "ResourceClaimTemplate": _nested_request,
}
_DOWN: Mapping[str, Part] = {
    "ResourceSlice": _basic_device,
    "ResourceClaim": _flat_request,
    "ResourceClaimTemplate": _flat_request,
}
