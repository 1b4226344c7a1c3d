"""What is kept of objects that tenants write: as much as decisions read, and no more than a limit.

An object of a tenant's can have megabytes. What decides nothing is dropped as soon as it is decoded. Of what
decides something, each field has a limit; what exceeds one is not served, and ``left_out`` of the object says
which field it is.
"""

from __future__ import annotations

from dra_driver.trimming.budgets import trimmed_budget
from dra_driver.trimming.claims import (
    allocation_only,
    claim_problem,
    trimmed_claim,
    trimmed_template,
)
from dra_driver.trimming.namespaces import NamespaceAllowance
from dra_driver.trimming.pods import MOST_GATES, pod_problem, trimmed_pod, unservable

__all__ = [
    "MOST_GATES",
    "NamespaceAllowance",
    "allocation_only",
    "claim_problem",
    "pod_problem",
    "trimmed_budget",
    "trimmed_claim",
    "trimmed_pod",
    "trimmed_template",
    "unservable",
]
