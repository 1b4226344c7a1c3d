"""Requests, results and configuration of one claim."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from dra_driver.api.resource import (
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_driver.api.scheduling import POD_GROUPS, SCHEDULING_GROUP
from dra_driver.ownership import PoolID

__all__ = [
    "ALL_REQUESTS",
    "RequestName",
    "allocated_pools",
    "config_for_request",
    "consumer_names",
    "is_allocated",
    "is_reserved_for",
    "join_request",
    "own_results",
    "request_names",
    "requests_match",
    "results_for_request",
    "split_request",
]

# A container, a constraint or a configuration that names no request means all of them.
ALL_REQUESTS: Final = ""


class RequestName(NamedTuple):
    """The parts of ``request`` or ``request/subrequest``."""

    request: str
    subrequest: str = ""

    def __str__(self) -> str:
        return join_request(self.request, self.subrequest)


def split_request(name: str) -> RequestName:
    """Split ``request`` or ``request/subrequest`` into its parts."""
    request, _, subrequest = name.partition("/")
    return RequestName(request, subrequest)


def join_request(request: str, subrequest: str = "") -> str:
    """Return the name in results: ``request``, or ``request/subrequest`` for one of ``firstAvailable``."""
    return f"{request}/{subrequest}" if subrequest else request


def requests_match(requests: Collection[str], name: str) -> bool:
    """Return whether a list of requests (of a constraint or a configuration) covers the request ``name``.

    An empty list covers all; ``req`` covers all its subrequests; ``req/sub`` covers that one only.
    """
    return not requests or name in requests or split_request(name).request in requests


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


def own_results(claim: ResourceClaim, driver: str) -> tuple[DeviceRequestAllocationResult, ...]:
    """Return the allocated devices that belong to ``driver``; none if the claim is not allocated."""
    if claim.status.allocation is None:
        return ()
    return tuple(r for r in claim.status.allocation.devices.results if r.driver == driver)


def results_for_request(claim: ResourceClaim, request: str) -> tuple[DeviceRequestAllocationResult, ...]:
    """Return the allocated devices of one request as a container names it.

    ``ALL_REQUESTS`` names all of them; the name of a request with ``firstAvailable`` names the devices of the
    alternative that was chosen.
    """
    if claim.status.allocation is None:
        return ()
    results = claim.status.allocation.devices.results
    if request == ALL_REQUESTS:
        return results
    return tuple(r for r in results if request in (r.request, split_request(r.request).request))


def allocated_pools(claim: ResourceClaim) -> frozenset[PoolID]:
    """Return the pools that the claim's devices are from; empty while it is not allocated."""
    if claim.status.allocation is None:
        return frozenset()
    return frozenset(PoolID(r.driver, r.pool) for r in claim.status.allocation.devices.results)


def config_for_request(
    claim: ResourceClaim, request: str, driver: str
) -> tuple[DeviceAllocationConfiguration, ...]:
    """Return the configuration that applies to a result's request for one driver, weakest first.

    Class configuration comes before the claim's, so a driver that applies them in order lets the claim
    override the class (API field ``allocation.devices.config``).
    """
    if claim.status.allocation is None:
        return ()
    return tuple(_ordered(claim.status.allocation.devices.config, request, driver))


def _ordered(
    config: Sequence[DeviceAllocationConfiguration], request: str, driver: str
) -> Iterator[DeviceAllocationConfiguration]:
    for source in ("FromClass", "FromClaim"):
        seen: list[DeviceAllocationConfiguration] = []
        for entry in config:
            if entry.source != source or entry.opaque is None or entry.opaque.driver != driver:
                continue
            # Kubernetes' allocator repeats an entry once for each request that it matches.
            if requests_match(entry.requests, request) and entry not in seen:
                seen.append(entry)
                yield entry
