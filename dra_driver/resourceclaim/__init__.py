"""Questions about claims, and about the claims of a pod. Pure functions on API objects.

Sources: KEP-3063 and KEP-4381; the behaviour of ``k8s.io/dynamic-resource-allocation/resourceclaim``.
"""

from __future__ import annotations

from dra_driver.resourceclaim.claims import (
    ALL_REQUESTS,
    RequestName,
    allocated_pools,
    config_for_request,
    consumer_names,
    is_allocated,
    is_reserved_for,
    join_request,
    own_results,
    request_names,
    requests_match,
    results_for_request,
    split_request,
)
from dra_driver.resourceclaim.dropped import (
    LAST_APPLIED,
    ObjectRequests,
    capacity_advice,
    dropped_capacity,
    dropped_from,
)
from dra_driver.resourceclaim.extended import (
    IN_MEMORY_NAME,
    Share,
    classes_by_resource,
    extended_claim,
    extended_resources,
    is_extended_claim,
    is_extended_resource,
    shares,
)
from dra_driver.resourceclaim.gates import for_scheduler, foreign_gates, held_by, is_gated, is_served
from dra_driver.resourceclaim.pods import (
    PodClaim,
    claim_name,
    consumer_of,
    container_requests,
    is_for_pod,
    is_generated,
    pod_claims,
    pod_reference,
    pod_uses_claim,
    uses_claims,
)

__all__ = [
    "ALL_REQUESTS",
    "IN_MEMORY_NAME",
    "LAST_APPLIED",
    "ObjectRequests",
    "PodClaim",
    "RequestName",
    "Share",
    "allocated_pools",
    "capacity_advice",
    "claim_name",
    "classes_by_resource",
    "config_for_request",
    "consumer_names",
    "consumer_of",
    "container_requests",
    "dropped_capacity",
    "dropped_from",
    "extended_claim",
    "extended_resources",
    "for_scheduler",
    "foreign_gates",
    "held_by",
    "is_allocated",
    "is_extended_claim",
    "is_extended_resource",
    "is_for_pod",
    "is_gated",
    "is_generated",
    "is_reserved_for",
    "is_served",
    "join_request",
    "own_results",
    "pod_claims",
    "pod_reference",
    "pod_uses_claim",
    "request_names",
    "requests_match",
    "results_for_request",
    "shares",
    "split_request",
    "uses_claims",
]
