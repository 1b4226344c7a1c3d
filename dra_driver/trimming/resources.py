"""The kinds as the controller lists and watches them."""

from __future__ import annotations

from typing import Final

from dra_driver.api.core import PODS
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.trimming.budgets import trimmed_budget
from dra_driver.trimming.claims import trimmed_claim, trimmed_template
from dra_driver.trimming.pods import trimmed_pod

__all__ = ["KEPT_BUDGETS", "KEPT_CLAIMS", "KEPT_CLAIM_TEMPLATES", "KEPT_PODS"]

KEPT_PODS: Final = PODS.keeping(trimmed_pod)
KEPT_CLAIMS: Final = RESOURCE_CLAIMS.keeping(trimmed_claim)
KEPT_CLAIM_TEMPLATES: Final = RESOURCE_CLAIM_TEMPLATES.keeping(trimmed_template)
KEPT_BUDGETS: Final = POD_DISRUPTION_BUDGETS.keeping(trimmed_budget)
