"""Questions about claims, and about the claims of a pod. Pure functions on API objects.

Sources: KEP-3063 and KEP-4381; the behaviour of ``k8s.io/dynamic-resource-allocation/resourceclaim``.
"""

from __future__ import annotations

from dra_driver.resourceclaim.bytes import unit_advice
from dra_driver.resourceclaim.claims import (
    RequestName,
    allocated_pools,
    consumer_names,
    is_allocated,
    is_reserved_for,
    join_request,
    request_names,
)
from dra_driver.resourceclaim.dropped import (
    CAPACITY_IS_DROPPED,
    LAST_APPLIED,
    ObjectRequests,
    capacity_advice,
    capacity_selector,
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
    lacks_extended_claim,
    shares,
)
from dra_driver.resourceclaim.gates import for_scheduler, foreign_gates, held_by, is_gated, is_served
from dra_driver.resourceclaim.gating import (
    NAMES_CLAIMS,
    NAMES_CLAIMS_OR_RESOURCES,
    Gating,
    gating_of_policy,
    gating_of_webhook,
    selects,
)
from dra_driver.resourceclaim.gone import (
    allocation_of_gone,
    devices_by_pool,
    gone_allocations,
    listed_claims,
)
from dra_driver.resourceclaim.guard import TRIAL_POOL, evaluated, guard_problem, trial_status, turn_of_refusal
from dra_driver.resourceclaim.pods import (
    PodClaim,
    claims_named,
    consumer_of,
    is_for_pod,
    is_generated,
    named_twice,
    pod_claims,
    pod_reference,
    uses_claims,
)

__all__ = [
    "CAPACITY_IS_DROPPED",
    "IN_MEMORY_NAME",
    "LAST_APPLIED",
    "NAMES_CLAIMS",
    "NAMES_CLAIMS_OR_RESOURCES",
    "TRIAL_POOL",
    "Gating",
    "ObjectRequests",
    "PodClaim",
    "RequestName",
    "Share",
    "allocated_pools",
    "allocation_of_gone",
    "capacity_advice",
    "capacity_selector",
    "claims_named",
    "classes_by_resource",
    "consumer_names",
    "consumer_of",
    "devices_by_pool",
    "dropped_capacity",
    "dropped_from",
    "evaluated",
    "extended_claim",
    "extended_resources",
    "for_scheduler",
    "foreign_gates",
    "gating_of_policy",
    "gating_of_webhook",
    "gone_allocations",
    "guard_problem",
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
    "lacks_extended_claim",
    "listed_claims",
    "named_twice",
    "pod_claims",
    "pod_reference",
    "request_names",
    "selects",
    "shares",
    "trial_status",
    "turn_of_refusal",
    "unit_advice",
    "uses_claims",
]
