"""Plans: what would make a waiting pod fit. Nothing here decides anything.

``work_out`` answers from the state of the decisions, in a copy of the worker; ``dra-driver plan`` uses the
same cluster and the same data for objects of its own. Asked for preemption, it answers which pods would go.
"""

from __future__ import annotations

from controller.allocate.plans.clusters import ClusterBuilder, ClusterObjects, claims_like
from controller.allocate.plans.data import holders_in_order, placement_data, plan_data
from controller.allocate.plans.messages import (
    LARGEST_PLAN,
    BudgetState,
    ChosenVictim,
    PlanAnswer,
    PlanQuestion,
    PreemptionAnswer,
    PreemptionTerms,
)
from controller.allocate.plans.waiting import work_out

__all__ = [
    "LARGEST_PLAN",
    "BudgetState",
    "ChosenVictim",
    "ClusterBuilder",
    "ClusterObjects",
    "PlanAnswer",
    "PlanQuestion",
    "PreemptionAnswer",
    "PreemptionTerms",
    "claims_like",
    "holders_in_order",
    "placement_data",
    "plan_data",
    "work_out",
]
