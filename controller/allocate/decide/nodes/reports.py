"""What kube-scheduler reports about a pod that it cannot place: the condition ``PodScheduled=False``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from dra_driver.api.core import Pod
from dra_driver.api.names import CANNOT_ALLOCATE, GRANTS, NOT_ON_NODE
from dra_driver.ownership import PoolID, chosen_devices

__all__ = [
    "Report",
    "failed_before_nodes",
    "has_no_node",
    "has_node",
    "ignores_claims",
    "is_about_own_decision",
    "misses_only_claims",
    "refused_devices",
    "report_of",
    "suitable_nodes",
]

# What its plugin for preemption says, behind what it says of the nodes as they are.
_PREEMPTION: Final = "preemption: "
_FAILURES: Final = ("Unschedulable", "SchedulerError")
# FitError gives reasons with their numbers of nodes, or what PreFilter said, without a number.
_LOOKED_AT_NODES: Final = re.compile(r"^\d+/\d+ nodes are available: ")
_BEFORE_NODES: Final = re.compile(r"\d+ nodes are available: (?!\d+ )")
# Reasons of its plugin for claims. Where it gave one, it looks again when a claim of the pod is allocated.
_OF_CLAIMS: Final = (CANNOT_ALLOCATE, NOT_ON_NODE, "timed out trying to allocate devices")
_SUITABLE: Final = re.compile(rf"(\d+) (?:{CANNOT_ALLOCATE}|{NOT_ON_NODE})")
# Errors of its write (PreBind) where it has chosen the devices itself: it reads the claim again after a
# conflict, and finds it allocated; or the API server refuses its choice by a policy of this driver.
_OWN_DECISION: Final = re.compile(
    r"claim \S+ got allocated elsewhere in the meantime"
    rf"|add allocation and reservation to claim \S+: .*ValidatingAdmissionPolicy '{GRANTS}'"
)


class Report(NamedTuple):
    """The condition PodScheduled=False as kube-scheduler wrote it. Two cycles may report the same.

    Attributes:
        reason: ``Unschedulable`` or ``SchedulerError``.
        message: for people.
        generation: of the pod that it is about (``observedGeneration``, from Kubernetes 1.34 on); else 0.
    """

    reason: str
    message: str
    generation: int = 0


def report_of(pod: Pod) -> Report | None:
    """Return why kube-scheduler could not place the pod; None where it has not said that it could not."""
    for condition in pod.status.conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = str(condition.get("reason") or "")
            if reason in _FAILURES:
                observed = condition.get("observedGeneration")
                generation = observed if isinstance(observed, int) else 0
                return Report(reason, str(condition.get("message") or ""), generation)
    return None


def is_about_own_decision(report: Report) -> bool:
    """Return whether kube-scheduler failed to write an allocation of its own.

    It chose the devices before it could see that the claim is allocated, so it says nothing about the node of
    that. It tries the pod again by itself.
    """
    return report.reason == "SchedulerError" and _OWN_DECISION.search(report.message) is not None


def refused_devices(pod: Pod) -> frozenset[tuple[PoolID, str]]:
    """Return the devices that kube-scheduler has chosen for a pod and may not allocate, as it has reported.

    It has looked at all that the pod demands of its node, and will choose the same again.
    """
    report = report_of(pod)
    if report is None or not is_about_own_decision(report):
        return frozenset()
    return chosen_devices(report.message)


def failed_before_nodes(pod: Pod) -> bool:
    """Return whether kube-scheduler failed before it looked at any node (``PreFilter``).

    So it does for a volume that does not exist, whatever devices the pod has where. It looks again when that
    changes, and reports something else then.
    """
    if pod.spec.node_name or pod.spec.scheduling_gates:
        return False
    report = report_of(pod)
    if report is None or report.reason != "Unschedulable":
        return False
    return _BEFORE_NODES.search(report.message) is not None


def has_no_node(pod: Pod) -> bool:
    """Return whether kube-scheduler says that no node suits a pod, whatever devices it has where.

    Then an allocation is no reason for it to look again. It does when something changes that it looks at, and
    where only claims are missing by then it says so. While it nominates a node it evicts other pods there, or
    binds the pod.
    """
    if pod.spec.node_name or pod.spec.scheduling_gates or pod.status.nominated_node_name:
        return False
    report = report_of(pod)
    return (
        report is not None
        and report.reason == "Unschedulable"
        and _LOOKED_AT_NODES.match(report.message) is not None
        and not any(reason in report.message for reason in _OF_CLAIMS)
    )


def ignores_claims(pod: Pod) -> bool:
    """Return whether kube-scheduler does not look at a pod again when its claims are allocated.

    It asks the plugins that refused a pod whether a change may help it. Where every node lacked something
    else, its plugin for claims was not asked before it tried whether evicting others would be enough, and
    refused that: so kube-scheduler waits for other pods to end, which it does not evict.
    """
    if pod.spec.node_name or pod.spec.scheduling_gates:
        return False
    report = report_of(pod)
    if report is None or report.reason != "Unschedulable" or not _LOOKED_AT_NODES.match(report.message):
        return False
    refused, _, evicting = report.message.partition(_PREEMPTION)
    return CANNOT_ALLOCATE in evicting and not any(reason in refused for reason in _OF_CLAIMS)


def has_node(old: Pod, new: Pod) -> bool:
    """Return whether kube-scheduler says from now on that a node would suit a pod, but for its claims."""
    return misses_only_claims(new) and not misses_only_claims(old)


def suitable_nodes(pod: Pod) -> int:
    """Return how many nodes would suit a pod but for its claims; 0: kube-scheduler does not say."""
    report = report_of(pod)
    if report is None or CANNOT_ALLOCATE not in report.message:
        return 0
    return sum(int(number) for number in _SUITABLE.findall(report.message))


def misses_only_claims(pod: Pod) -> bool:
    """Return whether kube-scheduler says that a node would suit a pod, but for its claims."""
    report = report_of(pod)
    return report is not None and CANNOT_ALLOCATE in report.message
