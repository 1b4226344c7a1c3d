"""The part of ``policy/v1`` that the driver reads: PodDisruptionBudget."""

from __future__ import annotations

from dra_driver.api.meta import Resource, Wire, WireObject
from dra_driver.api.pod_affinity import LabelSelector

__all__ = ["POD_DISRUPTION_BUDGETS", "PodDisruptionBudget", "PodDisruptionBudgetSpec"]


class PodDisruptionBudgetSpec(Wire, frozen=True, kw_only=True):
    """``spec``: which pods of the namespace it is for; an empty selector selects all, an absent one none."""

    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Wire, frozen=True, kw_only=True):
    """``status``: how many of them may be disrupted now."""

    disruptions_allowed: int = 0


class PodDisruptionBudget(WireObject, frozen=True, kw_only=True):
    """``policy/v1 PodDisruptionBudget``."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


POD_DISRUPTION_BUDGETS = Resource(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    PodDisruptionBudget,
    namespaced=True,
)
