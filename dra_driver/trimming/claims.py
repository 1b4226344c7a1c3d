"""What is kept of ResourceClaims and their templates."""

from __future__ import annotations

from typing import Final

import msgspec

from dra_driver.api.meta import ObjectMeta
from dra_driver.api.names import EXTENDED_RESOURCE_ANNOTATION, POD_CLAIM_ANNOTATION, TOPOLOGY_ANNOTATION
from dra_driver.api.resource import (
    CapacityRequirements,
    DeviceClaim,
    DeviceRequest,
    DeviceToleration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from dra_driver.ownership import PROTECTION_TAINT, tolerates
from dra_driver.resourceclaim import LAST_APPLIED, dropped_from
from dra_driver.structured import READ_ANNOTATIONS, READ_LABELS
from dra_driver.trimming.metadata import LONGEST_NOTE, cut, only, too_large, too_many, trimmed_metadata

__all__ = [
    "MOST_AMOUNTS",
    "MOST_FINALIZERS",
    "MOST_FINALIZER_BYTES",
    "MOST_SPEC_BYTES",
    "MOST_TOPOLOGY_BYTES",
    "allocation_only",
    "claim_problem",
    "least_of_claim",
    "least_of_template",
    "trimmed_claim",
    "trimmed_template",
]

MOST_SPEC_BYTES: Final = 512 * 1024
"""Of a claim: 32 configurations of 10 KiB, which the API allows, and 32 selectors of 6 KiB beside them."""
MOST_TOPOLOGY_BYTES: Final = LONGEST_NOTE
MOST_AMOUNTS: Final = 4_096
"""Amounts that all requests of a claim name."""
MOST_FINALIZERS: Final = 64
MOST_FINALIZER_BYTES: Final = 16 * 1024

_WHAT: Final = "the claim"
_ANNOTATIONS: Final = frozenset(
    {*READ_ANNOTATIONS, TOPOLOGY_ANNOTATION, POD_CLAIM_ANNOTATION, EXTENDED_RESOURCE_ANNOTATION}
)
_LONGEST_APPLIED: Final = 16 * 1024
_FEW_REQUESTS: Final = 4
_ASKS: Final = CapacityRequirements()


def claim_problem(claim: ResourceClaim) -> str:
    """Return which limit a claim exceeds, so that it is not allocated; empty where it exceeds none."""
    finalizers = claim.metadata.finalizers or ()
    topology = (claim.metadata.annotations or {}).get(TOPOLOGY_ANNOTATION, "")
    return (
        claim.left_out
        or too_many(_WHAT, "metadata.finalizers", len(finalizers), MOST_FINALIZERS)
        or too_large(_WHAT, "metadata.finalizers", finalizers, MOST_FINALIZER_BYTES)
        or too_large(_WHAT, f"metadata.annotations[{TOPOLOGY_ANNOTATION}]", topology, MOST_TOPOLOGY_BYTES)
        or too_many(_WHAT, "capacity.requests in spec", _amounts(claim.spec), MOST_AMOUNTS)
        or too_large(_WHAT, "spec", claim.spec, MOST_SPEC_BYTES)
    )


def _amounts(spec: ResourceClaimSpec) -> int:
    asked = (
        one.capacity
        for request in spec.devices.requests or ()
        for one in (request.exactly, *request.first_available)
        if one is not None
    )
    return sum(len(capacity.requests) for capacity in asked if capacity is not None)


def trimmed_claim(claim: ResourceClaim) -> ResourceClaim:
    """Return a claim as it is kept.

    Finalizers are kept as a whole or not at all: the list is written with one more (``left_out``: never).
    """
    meta, problem = claim.metadata, claim_problem(claim)
    return msgspec.structs.replace(
        claim,
        metadata=_metadata(meta, claim, whole=not problem),
        spec=claim.spec if not problem else _without_texts(claim.spec),
        left_out=problem,
    )


def _metadata(meta: ObjectMeta, item: ResourceClaim | ResourceClaimTemplate, *, whole: bool) -> ObjectMeta:
    annotations = dict(only(meta.annotations, _ANNOTATIONS) or {}) if whole else {}
    if LAST_APPLIED in (meta.annotations or {}) and dropped_from(item):
        applied = (meta.annotations or {})[LAST_APPLIED]
        if len(applied) <= _LONGEST_APPLIED:
            annotations[LAST_APPLIED] = applied
    labels = only(meta.labels, READ_LABELS)
    return trimmed_metadata(
        meta, labels=labels, annotations=annotations or None, finalizers=meta.finalizers if whole else None
    )


def least_of_claim(claim: ResourceClaim, why: str) -> ResourceClaim:
    """Return a trimmed claim that is not allocated with nothing that can be large.

    Args:
        claim: as it was kept until now.
        why: it cannot be kept so.
    """
    slim = trimmed_claim(msgspec.structs.replace(claim, left_out=claim.left_out or why))
    meta = msgspec.structs.replace(slim.metadata, annotations=None)
    return msgspec.structs.replace(slim, metadata=meta, spec=_few_requests(slim.spec))


def least_of_template(template: ResourceClaimTemplate, _: str) -> ResourceClaimTemplate:
    """Return a trimmed template with nothing that can be large."""
    return ResourceClaimTemplate(
        metadata=msgspec.structs.replace(template.metadata, annotations=None),
        spec=ResourceClaimTemplateSpec(spec=_few_requests(template.spec.spec)),
    )


def allocation_only(claim: ResourceClaim) -> ResourceClaim:
    """Return a claim with nothing but the devices that it holds, and for how it is identified."""
    return ResourceClaim(
        metadata=trimmed_metadata(claim.metadata),
        status=ResourceClaimStatus(allocation=claim.status.allocation),
    )


def trimmed_template(template: ResourceClaimTemplate) -> ResourceClaimTemplate:
    """Return a template as it is kept: by the controller, claims are all that is allocated."""
    return ResourceClaimTemplate(
        metadata=_metadata(template.metadata, template, whole=False),
        spec=ResourceClaimTemplateSpec(spec=_without_texts(template.spec.spec)),
    )


def _without_texts(spec: ResourceClaimSpec) -> ResourceClaimSpec:
    """Return requests with their names and classes, whether they ask for capacity, and what they tolerate."""
    requests = tuple(map(_request, spec.devices.requests or ()))
    return ResourceClaimSpec(devices=DeviceClaim(requests=requests))


def _request(request: DeviceRequest) -> DeviceRequest:
    replace = msgspec.structs.replace
    exactly = request.exactly
    return DeviceRequest(
        name=cut(request.name),
        exactly=exactly
        and replace(
            exactly,
            device_class_name=cut(exactly.device_class_name),
            selectors=(),
            derived_attributes=(),
            tolerations=_tolerations(exactly.tolerations),
            capacity=exactly.capacity and _ASKS,
        ),
        first_available=tuple(
            replace(
                sub,
                name=cut(sub.name),
                device_class_name=cut(sub.device_class_name),
                selectors=(),
                derived_attributes=(),
                tolerations=_tolerations(sub.tolerations),
                capacity=sub.capacity and _ASKS,
            )
            for sub in request.first_available
        ),
    )


def _few_requests(spec: ResourceClaimSpec) -> ResourceClaimSpec:
    """Return some of the requests, those first that kube-scheduler could give devices of the controller."""
    found: list[tuple[bool, DeviceRequest]] = []
    for request in spec.devices.requests or ():
        if request.exactly is not None:
            found.append((not request.exactly.tolerations, request))
        found += (
            (not sub.tolerations, DeviceRequest(name=request.name, first_available=(sub,)))
            for sub in request.first_available
        )
    found.sort(key=lambda each: each[0])
    return ResourceClaimSpec(devices=DeviceClaim(requests=tuple(r for _, r in found[:_FEW_REQUESTS])))


def _tolerations(tolerations: tuple[DeviceToleration, ...]) -> tuple[DeviceToleration, ...]:
    """Return the one of the tolerations that covers the taint of the controller, if one does."""
    return tuple(t for t in tolerations if tolerates((t,), PROTECTION_TAINT))[:1]
