"""Questions about claims, and about the claims of a pod. Pure functions on API objects.

Sources: KEP-3063 and KEP-4381; the behaviour of ``k8s.io/dynamic-resource-allocation/resourceclaim``.
"""

from __future__ import annotations

from dra_driver.resourceclaim.claims import (
    ALL_REQUESTS,
    RequestName,
    allocated_pools,
    config_for_request,
    is_allocated,
    is_reserved_for,
    join_request,
    own_results,
    request_names,
    requests_match,
    results_for_request,
    split_request,
)
from dra_driver.resourceclaim.pods import (
    PodClaim,
    claim_name,
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
    "PodClaim",
    "RequestName",
    "allocated_pools",
    "claim_name",
    "config_for_request",
    "container_requests",
    "is_allocated",
    "is_for_pod",
    "is_generated",
    "is_reserved_for",
    "join_request",
    "own_results",
    "pod_claims",
    "pod_reference",
    "pod_uses_claim",
    "request_names",
    "requests_match",
    "results_for_request",
    "split_request",
    "uses_claims",
]
