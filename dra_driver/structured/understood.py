"""Claims without what a later version of the API may have, so that devices can be chosen for the rest."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dra_driver.api.resource import DeviceRequest, DeviceSelector, ResourceClaim

__all__ = ["understood"]


def understood(claim: ResourceClaim) -> ResourceClaim:
    """Return a claim without what a later version of the API may have: the same object where that is nothing.

    Left out are fields that this version does not know, selectors that have no CEL expression, and
    constraints on something else than attributes; so what is chosen for the rest may not suit the claim. An
    unknown allocation mode stays: nothing can be chosen for that.
    """
    if claim.newer:
        claim = msgspec.structs.replace(claim, newer="")
    devices = claim.spec.devices
    requests = tuple(map(_understood_request, devices.requests or ()))
    constraints = tuple(
        c for c in devices.constraints if c.match_attribute is not None or c.distinct_attribute is not None
    )
    if len(constraints) == len(devices.constraints) and all(
        a is b for a, b in zip(requests, devices.requests or (), strict=True)
    ):
        return claim
    known = msgspec.structs.replace(devices, requests=requests, constraints=constraints)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=known))


def _understood_request(request: DeviceRequest) -> DeviceRequest:
    parts = (*((request.exactly,) if request.exactly is not None else ()), *request.first_available)
    if all(selector.cel is not None for part in parts for selector in part.selectors):
        return request
    exactly = request.exactly
    if exactly is not None:
        exactly = msgspec.structs.replace(exactly, selectors=_with_cel(exactly.selectors))
    return msgspec.structs.replace(
        request,
        exactly=exactly,
        first_available=tuple(
            msgspec.structs.replace(sub, selectors=_with_cel(sub.selectors))
            for sub in request.first_available
        ),
    )


def _with_cel(selectors: Iterable[DeviceSelector]) -> tuple[DeviceSelector, ...]:
    return tuple(selector for selector in selectors if selector.cel is not None)
