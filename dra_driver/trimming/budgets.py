"""What is kept of a PodDisruptionBudget."""

from __future__ import annotations

from typing import Final

import msgspec

from dra_driver.api.pod_affinity import LabelSelector
from dra_driver.api.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from dra_driver.trimming.metadata import size_of, trimmed_metadata

__all__ = ["MOST_REQUIREMENTS", "MOST_SELECTOR_BYTES", "protecting_all", "trimmed_budget"]

MOST_REQUIREMENTS: Final = 512
"""Labels, requirements and values of a selector."""
MOST_SELECTOR_BYTES: Final = 16 * 1024

_ALL: Final = PodDisruptionBudgetSpec(selector=LabelSelector())
_NONE: Final = PodDisruptionBudgetStatus()


def trimmed_budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    """Return a budget as it is kept.

    One whose selector is too large to be kept counts for all pods of its namespace and allows no disruption:
    no pod that it protects is preempted, and its author could have protected all of them anyway.
    """
    selector = budget.spec.selector
    whole = selector is None or (
        _number(selector) <= MOST_REQUIREMENTS and size_of(selector) <= MOST_SELECTOR_BYTES
    )
    kept = msgspec.structs.replace(budget, metadata=trimmed_metadata(budget.metadata))
    return kept if whole else protecting_all(kept)


def protecting_all(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    """Return a budget that protects all pods of its namespace."""
    return msgspec.structs.replace(budget, spec=_ALL, status=_NONE)


def _number(selector: LabelSelector) -> int:
    return len(selector.match_labels) + sum(1 + len(r.values) for r in selector.match_expressions)
