"""By whom a pod is placed, and its scheduling gates (KEP-3521): ours, and those of others, such as Kueue."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from dra_driver.api.core import Pod
from dra_driver.api.names import ALLOCATION_GATE, DEFAULT_SCHEDULER

__all__ = ["for_scheduler", "foreign_gates", "held_by", "is_gated", "is_served"]

# Gates that a message names; a pod's author can write any number of them.
_NAMED: Final = 3


def is_gated(pod: Pod) -> bool:
    """Return whether our gate still keeps the pod from kube-scheduler."""
    return any(gate.name == ALLOCATION_GATE for gate in pod.spec.scheduling_gates)


def foreign_gates(pod: Pod) -> tuple[str, ...]:
    """Return the names of the gates that are not ours.

    As long as there is one, the pod cannot be scheduled, so it must not hold devices that others could use.
    """
    return tuple(gate.name for gate in pod.spec.scheduling_gates if gate.name != ALLOCATION_GATE)


def is_served(pod: Pod, schedulers: Collection[str]) -> bool:
    """Return whether one of these schedulers is to place the pod (``spec.schedulerName``, immutable)."""
    return (pod.spec.scheduler_name or DEFAULT_SCHEDULER) in schedulers


def held_by(pods: Iterable[Pod]) -> str:
    """Return which gates hold all of the pods, for people; empty if a pod has none, or there is no pod."""
    gates: set[str] = set()
    for pod in pods:
        found = foreign_gates(pod)
        if not found:
            return ""
        gates.update(found)
    if not gates:
        return ""
    return f"held by scheduling gate{'s' * (len(gates) > 1)} {_listed(gates)}"


def for_scheduler(pods: Iterable[Pod]) -> str:
    """Return which schedulers are to place the pods, for people; empty if one is for kube-scheduler."""
    names = {pod.spec.scheduler_name or DEFAULT_SCHEDULER for pod in pods}
    if not names or DEFAULT_SCHEDULER in names:
        return ""
    return f"for the scheduler{'s' * (len(names) > 1)} {_listed(names)}"


def _listed(found: Collection[str]) -> str:
    names = sorted(found)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
