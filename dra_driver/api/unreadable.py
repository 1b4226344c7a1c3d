"""Claims that do not have the form of their kind, and hold devices all the same.

A version of Kubernetes that is newer than this driver may write what it cannot read. Such a claim is neither
allocated nor deallocated here, and its devices are given to no other claim: ``stand_in`` returns a claim that
has its name and its devices, and is reserved by a consumer of a kind that only this module writes.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from dra_driver.api import codec
from dra_driver.api.meta import ObjectMeta, Uid
from dra_driver.api.resource import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    NodeSelector,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dra_driver.errors import DecodeError

__all__ = ["lenient_metadata", "stand_in", "unreadable_claim"]

T = TypeVar("T")

# No kind of Kubernetes or ours: it never leaves this process and its worker.
_GROUP: Final = "unreadable.dra-driver.dev"
_RESOURCE: Final = "problems"


def stand_in(raw: object, problem: str) -> ResourceClaim | None:
    """Return what stands in for a claim that cannot be read; None where it has devices that are not known.

    A device of which only the name can be read counts as taken altogether, whatever share of it the claim
    has.

    Args:
        raw: the claim as plain data.
        problem: why it cannot be read.
    """
    status = raw.get("status") if isinstance(raw, dict) else None
    allocation = status.get("allocation") if isinstance(status, dict) else status
    held: AllocationResult | None = None
    if allocation is not None:
        results = _results(allocation)
        if results is None:
            return None
        held = AllocationResult(
            devices=DeviceAllocationResult(results=results),
            node_selector=_read(NodeSelector, allocation.get("nodeSelector")),
            allocation_timestamp=_read(str, allocation.get("allocationTimestamp")),
        )
    users = status.get("reservedFor") if isinstance(status, dict) else None
    known = (
        _read(ResourceClaimConsumerReference, user) for user in (users if isinstance(users, list) else ())
    )
    mark = ResourceClaimConsumerReference(api_group=_GROUP, resource=_RESOURCE, name=problem, uid=Uid(""))
    return ResourceClaim(
        metadata=lenient_metadata(raw),
        status=ResourceClaimStatus(
            allocation=held, reserved_for=(*(user for user in known if user is not None), mark)
        ),
    )


def unreadable_claim(claim: ResourceClaim) -> str:
    """Return why the claim that this one stands in for cannot be read; empty where it stands in for none."""
    return next(
        (u.name for u in claim.status.reserved_for if (u.api_group, u.resource) == (_GROUP, _RESOURCE)), ""
    )


def lenient_metadata(raw: object) -> ObjectMeta:
    """Return the metadata of an object as plain data; of what has not their form, the names alone."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    found = _read(ObjectMeta, metadata)
    if found is not None:
        return found
    fields = metadata if isinstance(metadata, dict) else {}

    def text(name: str) -> str:
        value = fields.get(name)
        return value if isinstance(value, str) else ""

    return ObjectMeta(
        name=text("name"),
        namespace=text("namespace"),
        uid=Uid(text("uid")),
        resource_version=text("resourceVersion"),
        deletion_timestamp=text("deletionTimestamp") or None,
    )


def _results(allocation: Any) -> tuple[DeviceRequestAllocationResult, ...] | None:
    """Return the devices of an allocation; None where it is not known which they are."""
    devices = allocation.get("devices") if isinstance(allocation, dict) else False
    results = devices.get("results") if isinstance(devices, dict) else devices
    if results is None:
        return ()
    if not isinstance(results, list):
        return None
    found = [_result(result) for result in results if result is not None]
    return tuple(r for r in found if r is not None) if None not in found else None


def _result(raw: object) -> DeviceRequestAllocationResult | None:
    known = _read(DeviceRequestAllocationResult, raw)
    if known is not None or not isinstance(raw, dict):
        return known
    names = [raw.get(name) for name in ("driver", "pool", "device")]
    if not all(isinstance(name, str) and name for name in names):
        return None
    request = raw.get("request")
    return codec.convert(
        DeviceRequestAllocationResult,
        {
            **dict(zip(("driver", "pool", "device"), names, strict=True)),
            "request": request if isinstance(request, str) else "",
            "adminAccess": raw.get("adminAccess") is True,
        },
    )


def _read(kind: type[T], raw: object) -> T | None:
    """Return a part of an object; None where it is not there or has not the form of its kind."""
    if raw is None:
        return None
    try:
        return codec.convert(kind, raw)
    except DecodeError:
        return None
