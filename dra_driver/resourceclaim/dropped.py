"""Requests for capacity that the API server dropped.

Where the feature gate DRAConsumableCapacity is off, as it is by default in Kubernetes 1.34 and 1.35, the API
server removes ``capacity`` from requests in silence (KEP-5075): "32Gi" becomes "any device of the class".
It does so between mutating and validating admission, so the controller's mutating webhook refuses them. Of
those that were stored before, what kubectl applied stands in an annotation, and is compared with what was
stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dra_driver.api import codec
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceRequest, ResourceClaim, ResourceClaimTemplate
from dra_driver.errors import DecodeError

__all__ = [
    "CAPACITY_IS_DROPPED",
    "LAST_APPLIED",
    "ObjectRequests",
    "capacity_advice",
    "capacity_selector",
    "dropped_capacity",
    "dropped_from",
]

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

CAPACITY_IS_DROPPED: Final = (
    "capacity is dropped by this API server, whose feature gate DRAConsumableCapacity is off: any device of "
    "the class will do"
)

# What is kept of an annotation, which anybody may have written.
_MOST_REQUESTS: Final = 64
_MOST_NAMED: Final = 3
_NAME_CHARACTERS: Final = 63
# ``name`` or ``domain/name`` of a capacity, as the API has them.
_CAPACITY: Final = re.compile(r"(?:(?P<domain>[a-z0-9.-]{1,63})/)?(?P<name>[A-Za-z_][A-Za-z0-9_]{0,31})")


class _Capacity(msgspec.Struct):
    requests: dict[str, msgspec.Raw] | None = None


class _Alternative(msgspec.Struct):
    name: str = ""
    capacity: _Capacity | None = None


class _Request(msgspec.Struct, rename="camel"):
    name: str = ""
    # Of v1beta1, where the fields of ``exactly`` stand in the request itself.
    capacity: _Capacity | None = None
    exactly: _Alternative | None = None
    first_available: list[_Alternative] | None = None


class _Devices(msgspec.Struct):
    requests: list[_Request] | None = None


class _Spec(msgspec.Struct):
    devices: _Devices | None = None
    # Of a template.
    spec: _Spec | None = None


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] | None = None


class ObjectRequests(msgspec.Struct):
    """A ResourceClaim or ResourceClaimTemplate of any version, as far as it is looked at here."""

    metadata: _Metadata | None = None
    spec: _Spec | None = None

    def names(self) -> dict[str, bool]:
        """Return name, or ``name/alternative``, of each request, and whether it asks for capacity."""
        spec = self.spec.spec or self.spec if self.spec is not None else None
        found: dict[str, bool] = {}
        for request in spec.devices.requests or () if spec is not None and spec.devices is not None else ():
            asks = _asks(request.capacity) or (
                request.exactly is not None and _asks(request.exactly.capacity)
            )
            found[request.name] = asks
            for alternative in request.first_available or ():
                found[f"{request.name}/{alternative.name}"] = _asks(alternative.capacity)
            if len(found) > _MOST_REQUESTS:
                break
        return found

    def capacities(self) -> Iterator[tuple[str, Mapping[str, msgspec.Raw]]]:
        """Yield what is asked for, by the path in the object (of v1)."""
        path, spec = ("spec", self.spec)
        if spec is not None and spec.spec is not None:
            path, spec = ("spec.spec", spec.spec)
        requests = spec.devices.requests if spec is not None and spec.devices is not None else None
        for i, request in enumerate(requests or ()):
            where = f"{path}.devices.requests[{i}]"
            parts = [(f"{where}.exactly", request.exactly)]
            parts += [
                (f"{where}.firstAvailable[{j}]", a) for j, a in enumerate(request.first_available or ())
            ]
            for place, part in parts:
                if part is not None and part.capacity is not None:
                    yield f"{place}.capacity", part.capacity.requests or {}

    @property
    def applied(self) -> str:
        """What kubectl applied; empty where it was made in another way."""
        return (self.metadata.annotations or {}).get(LAST_APPLIED, "") if self.metadata is not None else ""


_objects = msgspec.json.Decoder(ObjectRequests)


def dropped_capacity(applied: str, stored: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the requests that asked for capacity when they were applied, and do not in what is stored.

    Args:
        applied: the annotation ``LAST_APPLIED``; empty, or unreadable: nothing is known.
        stored: names of requests, and whether they ask for capacity.
    """
    if "capacity" not in applied:
        return ()
    try:
        asked = codec.from_json(_objects, applied).names()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    return tuple(name for name, asks in asked.items() if asks and stored.get(name) is False)


def dropped_from(item: ResourceClaim | ResourceClaimTemplate) -> tuple[str, ...]:
    """Return the requests of a stored object from which the API server has dropped capacity."""
    applied = (item.metadata.annotations or {}).get(LAST_APPLIED, "")
    if "capacity" not in applied:
        return ()
    spec = item.spec if isinstance(item, ResourceClaim) else item.spec.spec
    return dropped_capacity(applied, dict(_stored(spec.devices.requests or ())))


def capacity_advice(requests: Iterable[str] = ()) -> str:
    """Return the text of a warning about requests for capacity that are dropped.

    Args:
        requests: names of those that were; none: it is said of all that may come.
    """
    named = [name[:_NAME_CHARACTERS] for name in requests]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    text = CAPACITY_IS_DROPPED
    if named:
        what = f"capacity of request {', '.join(named[:_MOST_NAMED])}{more} was"
        text = text.replace("capacity is", what, 1)
    return f"{text}; ask with a CEL selector on device.capacity instead"


def capacity_selector(requests: Mapping[str, msgspec.Raw], driver: str) -> str:
    """Return the CEL expression that asks for the same as requests for capacity; empty where there is none.

    A device without the capacity does not match, as with the request; without ``has`` it would be an error.

    Args:
        requests: least amounts by name, as they were written.
        driver: whose capacities the names are that have no domain.
    """
    parts: list[str] = []
    for name, raw in requests.items():
        known = _CAPACITY.fullmatch(name)
        try:
            amount = codec.decode(Quantity, raw)
        except DecodeError:
            return ""
        if known is None:
            return ""
        of = f'device.capacity["{known["domain"] or driver}"].{known["name"]}'
        parts.append(f'has({of}) && {of}.compareTo(quantity("{amount}")) >= 0')
    return " && ".join(parts)


def _stored(requests: Iterable[DeviceRequest]) -> Iterable[tuple[str, bool]]:
    for request in requests:
        yield request.name, request.exactly is not None and request.exactly.capacity is not None
        for alternative in request.first_available:
            yield f"{request.name}/{alternative.name}", alternative.capacity is not None


def _asks(capacity: _Capacity | None) -> bool:
    return capacity is not None and bool(capacity.requests)
