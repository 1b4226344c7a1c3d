"""Names of requests, pools and consumers of one claim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dra_driver.api.resource import ResourceClaim
from dra_driver.api.scheduling import POD_GROUPS, SCHEDULING_GROUP
from dra_driver.ownership import PoolID

__all__ = [
    "RequestName",
    "allocated_pools",
    "consumer_names",
    "is_allocated",
    "is_reserved_for",
    "join_request",
    "request_names",
]


class RequestName(NamedTuple):
    """The parts of ``request`` or ``request/subrequest``."""

    request: str
    subrequest: str = ""

    def __str__(self) -> str:
        return join_request(self.request, self.subrequest)


def join_request(request: str, subrequest: str = "") -> str:
    """Return the name in results: ``request``, or ``request/subrequest`` for one of ``firstAvailable``."""
    return f"{request}/{subrequest}" if subrequest else request


def request_names(claim: ResourceClaim) -> tuple[RequestName, ...]:
    """Return every request of the claim, subrequests one by one, in the order of the spec."""
    names: list[RequestName] = []
    for request in claim.spec.devices.requests or ():
        if request.first_available:
            names += [RequestName(request.name, sub.name) for sub in request.first_available]
        else:
            names.append(RequestName(request.name))
    return tuple(names)


def is_allocated(claim: ResourceClaim) -> bool:
    """Return whether the claim is allocated."""
    return claim.status.allocation is not None


def is_reserved_for(claim: ResourceClaim, uid: str) -> bool:
    """Return whether ``status.reservedFor`` has a pod with this UID."""
    return any(
        ref.uid == uid and ref.resource == "pods" and not ref.api_group for ref in claim.status.reserved_for
    )


def consumer_names(claim: ResourceClaim) -> Iterator[str]:
    """Yield what the claim is reserved for, for people: names of pods, and PodGroups as ``podgroup:NAME``.

    A name of a pod has no colon. Consumers of kinds that are not known are left out.
    """
    for ref in claim.status.reserved_for:
        if ref.resource == "pods" and not ref.api_group:
            yield ref.name
        elif ref.resource == POD_GROUPS and ref.api_group == SCHEDULING_GROUP:
            yield f"podgroup:{ref.name}"


def allocated_pools(claim: ResourceClaim) -> frozenset[PoolID]:
    """Return the pools that the claim's devices are from; empty while it is not allocated."""
    if claim.status.allocation is None:
        return frozenset()
    return frozenset(PoolID(r.driver, r.pool) for r in claim.status.allocation.devices.results)
