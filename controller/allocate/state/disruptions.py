"""Whether kube-scheduler is making room for a pod, which others leave to it then."""

from __future__ import annotations

from controller.allocate.decide import NODE_INDEX, is_finished
from dra_driver.api.core import Pod
from dra_driver.kube import Informer

__all__ = ["is_cleared_by_scheduler"]


def is_cleared_by_scheduler(pods: Informer[Pod], node: str) -> bool:
    """Return whether kube-scheduler evicts pods from a nominated node (KEP-3329, DisruptionTarget)."""
    return bool(node) and any(
        condition.get("type") == "DisruptionTarget" and condition.get("reason") == "PreemptionByScheduler"
        for victim in pods.each(NODE_INDEX, node)
        for condition in victim.status.conditions
        if not is_finished(victim)
    )
