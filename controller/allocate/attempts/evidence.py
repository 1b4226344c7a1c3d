"""What kube-scheduler has reported about a pod since its claims were allocated, and what follows from it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from controller.allocate.decide import PodID, Report, is_about_own_decision, report_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import CANNOT_ALLOCATE, GANG_REPORTS, NOT_ON_NODE
from dra_driver.ownership import is_newer

__all__ = ["Attempt", "Bound", "Deallocate", "Hold", "TakenBack", "failed_before_claims", "judge"]

# Pods of a PodGroup that are bound at the same time reserve its claim for it; all but the first one fail, and
# find the reservation when they are tried again.
_RESERVED: Final = re.compile(r"status\.reservedFor\[\d+\]: Duplicate value")
# Until victims of a preemption show after the report.
_PREEMPTION_SECONDS: Final = 1.5


@dataclass(frozen=True, slots=True)
class Attempt:
    """A pod with all its claims allocated, handed to kube-scheduler.

    Attributes:
        pod: which one.
        claims: that it uses.
        node: where its claims are allocated.
        before: the last report when the claims were allocated: it says nothing about this attempt.
        sign: the last report and nominated node that were seen.
        then: likewise, when the claims were allocated, and when evidence was found: what differs is newer.
        since: when that was, or when the pod was handed over, whichever is later.
        seconds: without a sign after which the claims are deallocated.
        handed_over: kube-scheduler can see the pod: our gate is off.
        nominated: resourceVersion of the pod at which ``status.nominatedNodeName`` was written for this
            attempt, by us or by kube-scheduler; empty: it was not.
        probe: kube-scheduler had no node for the pod by its last report, and nothing shows that it has looked
            at the pod since; ``seconds`` are few.
        failed: evidence was found; allocations that are left are used by other pods, or being deallocated.
        requeued: kube-scheduler was made to look at the pod again.
    """

    pod: PodID
    claims: tuple[ObjectKey, ...]
    node: str
    before: Report | None
    sign: tuple[Report | None, str]
    then: tuple[Report | None, str]
    since: float
    seconds: float
    handed_over: bool = False
    nominated: str = ""
    probe: bool = False
    failed: bool = False
    requeued: bool = False

    @property
    def namespace(self) -> str:
        """Of the pod."""
        return self.pod.key.namespace


@dataclass(frozen=True, slots=True)
class Bound:
    """The pod has a node: its allocations are tentative no longer."""


@dataclass(frozen=True, slots=True)
class Hold:
    """There is no evidence against the allocations.

    Attributes:
        seconds: after which to look again if nothing happens.
    """

    seconds: float


class TakenBack(enum.Enum):
    """Why a pod that is not bound loses its allocations."""

    UNSCHEDULABLE = "unschedulable"
    """kube-scheduler cannot place it."""
    TIMEOUT = "timeout"
    """kube-scheduler has said nothing."""
    DISPLACED = "displaced"
    """A pod that is bound needs them."""


@dataclass(frozen=True, slots=True)
class Deallocate:
    """The claims are to be deallocated, unless they are reserved or another pod needs them.

    Attributes:
        reason: for metrics, and for what is done about the pod next.
        message: for people.
        everywhere: no node suits the pod, whatever devices it has there.
    """

    reason: TakenBack
    message: str
    everywhere: bool = False


def failed_before_claims(pod: Pod) -> bool:
    """Return whether kube-scheduler failed before it looked at claims, and so left the nomination."""
    report = report_of(pod)
    return (
        report is not None
        and report.reason == "Unschedulable"
        and bool(pod.status.nominated_node_name)
        and not (pod.spec.node_name or pod.spec.scheduling_gates)
        and CANNOT_ALLOCATE not in report.message
        and NOT_ON_NODE not in report.message
    )


def judge(attempt: Attempt, pod: Pod, now: float, *, preempting: bool = False) -> Bound | Hold | Deallocate:
    """Decide what becomes of the allocations of a pod.

    A report counts where it is newer than the allocation: it differs from the one before, or the nomination
    is gone again. kube-scheduler clears ``nominatedNodeName`` in the write in which it reports a failure, but
    not while it preempts other pods for this one, and not where it fails before it looks at claims (a claim
    of a volume that does not exist). Victims of a preemption tell the two apart. At the end of a *probe* the
    report before counts again: kube-scheduler has not looked at the pod meanwhile, or has found the same.

    Args:
        attempt: what is known of it.
        pod: as it is now.
        now: the time.
        preempting: kube-scheduler evicts pods from the nominated node.
    """
    if pod.spec.node_name:
        return Bound()
    report = report_of(pod)
    if report is not None and not preempting and _is_new(report, attempt, pod):
        everywhere = report.reason == "Unschedulable" and NOT_ON_NODE not in report.message
        wait = attempt.since + _PREEMPTION_SECONDS - now if pod.status.nominated_node_name else 0.0
        if wait > 0:
            return Hold(wait)
        text = f"{report.reason}: {report.message}"
        return Deallocate(TakenBack.UNSCHEDULABLE, text, everywhere)
    if not attempt.handed_over:
        return Hold(attempt.seconds)
    left = attempt.since + attempt.seconds - now
    if left > 0:
        return Hold(left)
    if attempt.probe and report is not None:
        return Deallocate(TakenBack.UNSCHEDULABLE, f"{report.reason}: {report.message}", everywhere=True)
    text = f"kube-scheduler has not said anything about it for {attempt.seconds:g} s"
    return Deallocate(TakenBack.TIMEOUT, text)


def _is_new(report: Report, attempt: Attempt, pod: Pod) -> bool:
    """Return whether a report is about the allocations of an attempt.

    A cycle that found a claim not allocated, or was to allocate it, began before it could see the allocation,
    however late its report comes. What is said of a pod because of other members of its PodGroup says nothing
    about its own node: there is a report about one of those as well, and with that one its group gives back
    what it holds.
    """
    if any(text in report.message for text in GANG_REPORTS) or _RESERVED.search(report.message):
        return False
    if is_about_own_decision(report):
        return False
    seen = bool(attempt.nominated) and is_newer(pod.metadata.resource_version, attempt.nominated)
    nominated = bool(pod.status.nominated_node_name)
    if nominated and (report.reason == "SchedulerError" or NOT_ON_NODE in report.message):
        return False  # claims were looked at, so it cleared the nomination: this is a later one
    cleared = seen and not nominated
    return (cleared or report != attempt.before) and CANNOT_ALLOCATE not in report.message
