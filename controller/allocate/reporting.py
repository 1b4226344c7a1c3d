"""What is reported about pods that are allocated, and about those that wait: Events, conditions, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

import structlog

from controller.allocate.decide import (
    CLAIM_INDEX,
    GroupMembers,
    NotYet,
    PodAnswer,
    PodID,
    Refuse,
    Wait,
    Write,
    called,
    is_finished,
)
from controller.allocate.pending import PendingPods
from controller.allocate.state.records import Mark, PodRecords
from controller.observe.metrics import Metrics
from controller.observe.reasons import WaitingReasons
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocationResult, ResourceClaim
from dra_driver.errors import ApiError
from dra_driver.kube import EventRecorder, Informer
from dra_driver.ports import Clock
from dra_driver.resourceclaim import is_gated, is_generated

__all__ = ["AllocationReports"]

log = structlog.get_logger(__name__)

# A group of 1,024 would hold the event loop for 0.1 s.
_MEMBERS_AT_A_TIME: Final = 32
_ALIKE_AT_A_TIME: Final = 256
_OF_GROUP: Final = "WaitingForGroup"
_NODE_MAY_COME: Final = "autoscalers see the pod, and may add a node if they have a kind that fits"
_NO_NODE: Final = (
    "; no node is added for it as long as devices look free to an autoscaler that would serve it, or one of "
    "its group, by themselves"
)
_NAMED_DEVICES: Final = 8
_NO_ROOM: Final = (
    "pods before it are allocated and not bound yet; it is its turn when kube-scheduler has bound them"
)


class AllocationReports:
    """Reports what becomes of pods, and why those that are not served wait.

    Args:
        recorder: for Events.
        reasons: why pods wait.
        metrics: to report to.
        clock: for the time in which pods are allocated.
        records: of the pods.
        pods: all namespaces, with the index ``CLAIM_INDEX``.
        pending: pods that could not be served.
        is_shown: whether autoscalers see a pod without a gate for that; with whether it is of a group.
        kept_back: signatures of pods that are not shown to them, because devices look free.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        reasons: WaitingReasons,
        metrics: Metrics,
        clock: Clock,
        records: PodRecords,
        pods: Informer[Pod],
        pending: PendingPods,
        is_shown: Callable[[Pod, bool], bool],
        kept_back: Container[bytes] = (),
    ) -> None:
        self._recorder = recorder
        self._reasons = reasons
        self._metrics = metrics
        self._clock = clock
        self._pods = pods
        self._pending = pending
        self._is_shown = is_shown
        self._kept_back = kept_back
        self._records = records

    def reason(self, pod: ObjectKey) -> str:
        """Return why a pod waits; empty where it does not."""
        return self._reasons.reason(pod)

    # --- looks ----------------------------------------------------------------------------------------------

    def seen(self, pod: Pod) -> None:
        """Note when a pod is looked at for the first time."""
        record = self._records.of(pod)
        if record.first_seen is None:
            record.first_seen = self._clock.monotonic()

    def answered(self, answer: PodAnswer | None) -> None:
        """Count an answer; None stands for one that was out of date."""
        if answer is None:
            self._metrics.outdated_answers.inc()
        elif not answer.remembered:
            self._metrics.decision_seconds.observe(answer.seconds)

    def served(self, pod: Pod, *, allocated: bool) -> None:
        """Report that a pod waits no longer."""
        self._records.clear(pod, Mark.INDEX_REPORTED)
        self._reasons.served(pod, allocated=allocated)

    # --- pods that wait -------------------------------------------------------------------------------------

    def other_scheduler(self, pod: Pod, served: str) -> None:
        """Report that a pod is left to a scheduler that is not served."""
        text = f"its devices are left to {pod.spec.scheduler_name}: pods of {served} are served here"
        self._recorder.event(PODS, pod, "Normal", "OtherScheduler", text)

    def waits_for_turn(self, pod: Pod) -> None:
        """Report that kube-scheduler has enough to do without a pod."""
        self._reasons.waits(pod, "WaitingForTurn", _NO_ROOM, passing=True)

    def waits_for_grant(self, pod: Pod, why: str) -> None:
        """Report why nothing is granted yet for a pod that only kube-scheduler can place."""
        self._reasons.waits(
            pod, "WaitingForGrant", f"only kube-scheduler can allocate what it asks for: {why}"
        )

    def refuses_grant(self, pod: Pod, why: str) -> None:
        """Report why nothing is granted for a pod, which does not pass by itself."""
        self.waits_for_grant(pod, why)
        text = f"only kube-scheduler can allocate what it asks for, and nothing is granted to it: {why}"
        self._recorder.event(PODS, pod, "Warning", "WaitingForGrant", text)

    def grants(self, pod: Pod, granted: Mapping[str, Sequence[str]]) -> None:
        """Report that devices are granted for a pod, by node."""
        named = "; ".join(f"{_named(devices)} of node {node}" for node, devices in granted.items())
        which = "those of one node" if len(granted) > 1 else "them"
        text = f"{named} are granted to kube-scheduler for it, which allocates {which} and places the pod"
        self._recorder.event(PODS, pod, "Normal", "DevicesGranted", text)
        self._reasons.waits(pod, "DevicesGranted", text, passing=True)

    def grants_in_vain(self, pod: Pod, nodes: Sequence[str], why: str) -> None:
        """Report that devices of some nodes were granted for a pod that has not got them."""
        text = f"devices of node {', '.join(nodes)} were granted to kube-scheduler in vain: {why}"
        self._recorder.event(PODS, pod, "Warning", "GrantInVain", text)

    def grants_ended(self, why: str) -> None:
        """Count a pod for which the grants are over."""
        self._metrics.grants.labels(why).inc()

    def delayed(self, pod: Pod) -> None:
        """Report that a pod waits for its turn in the slow lane."""
        text = "the decision about its claims takes much work; it is made beside those of other pods"
        self._reasons.waits(pod, "DecisionDelayed", text)
        self._recorder.event(PODS, pod, "Normal", "DecisionDelayed", text)

    @property
    def preparing(self) -> int:
        """Number of pods of which it is not known yet whether they can be served."""
        return self._records.number(Mark.INDEX_REPORTED)

    def prepares(self, pod: Pod, decision: NotYet) -> None:
        """Report that it is not known yet whether a pod can be served."""
        self._reasons.waits(pod, "PreparingIndex", decision.message, passing=True)
        # One Event, not one for each part of the index.
        if not self._records.has(pod, Mark.INDEX_REPORTED):
            self._records.mark(pod, Mark.INDEX_REPORTED)
            self._recorder.event(PODS, pod, "Normal", "PreparingIndex", decision.message)

    def waits(self, pod: Pod, group: GroupMembers | None, decision: Wait) -> None:
        """Report that a pod waits for its group, for its volumes, or for its claims."""
        if decision.volumes and group is None:
            self._reasons.waits(pod, "WaitingForVolumes", decision.reason)
            self._recorder.event(PODS, pod, "Warning", "WaitingForVolumes", decision.reason)
            return
        if group is not None:
            self._waits_for_group(pod, decision.reason)
        elif is_gated(pod):
            # The controller-manager makes claims from templates a moment after the pods.
            self._reasons.waits(pod, "WaitingForClaim", decision.reason, passing=True)

    async def group_waits(self, group: GroupMembers, decision: Wait) -> None:
        """Report to members that wait for the same with other figures: one that comes is looked at alone."""
        for count, member in enumerate(group.waiting, 1):
            if count % _MEMBERS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            pod = self._pods.get(member.key)
            if pod is not None and self._reasons.is_outdated(pod, _OF_GROUP, decision.reason):
                self._waits_for_group(pod, decision.reason)

    def _waits_for_group(self, pod: Pod, message: str) -> None:
        self._reasons.waits(pod, _OF_GROUP, message, counts=True)
        if is_gated(pod):
            self._recorder.event(PODS, pod, "Normal", _OF_GROUP, message)

    async def refused(self, pod: Pod, answer: PodAnswer, refusal: Refuse) -> None:
        """Report why the claims of a pod cannot be allocated now, also to pods that ask for the same."""
        avoided = {node: round(seconds, 1) for node, seconds in answer.avoided}
        self._records.clear(pod, Mark.INDEX_REPORTED)
        # A limit of ours says nothing about the cluster, and the pod's author can do something about it.
        reason = "DecisionLimit" if answer.gave_up else "FailedAllocation"
        if answer.gave_up and not answer.remembered:
            self._metrics.stopped_decisions.inc()
        self._metrics.allocations.labels("refused").inc()
        log.debug("pod cannot be served now", pod=str(pod.key), reason=refusal.message, avoided=avoided)
        self._recorder.event(PODS, pod, "Warning", reason, refusal.message)
        for claim in refusal.claims:
            self._recorder.event(RESOURCE_CLAIMS, claim, "Warning", reason, refusal.message)
            self._records.mark(pod, Mark.REFUSAL_REPORTED)
        grouped = answer.group is not None
        changed = self._waits_for_devices(pod, reason, refusal, grouped=grouped)
        # What names claims of this pod is not true of another one, unless they share them.
        named = any(claim.metadata.name in refusal.message for claim in refusal.claims)
        others = not (named and any(map(is_generated, pod.spec.resource_claims)))
        # The first one is looked at whenever something changes; others that come know nothing more.
        if changed and others and self._pending.is_first(pod.key):
            await self._refused_alike(pod.key, reason, refusal, grouped=grouped)

    def _waits_for_devices(self, pod: Pod, reason: str, refusal: Refuse, *, grouped: bool) -> bool:
        """Note why a pod waits, and whether autoscalers see that; return whether it did not wait for that."""
        visible = not (pod.spec.scheduling_gates or pod.spec.node_name)
        if refusal.new_node and visible and self._is_shown(pod, grouped):
            return self._reasons.waits(pod, "WaitingForScaleUp", f"{_NODE_MAY_COME}: {refusal.message}")
        kept_back = refusal.new_node and is_gated(pod) and refusal.signature in self._kept_back
        return self._reasons.waits(pod, reason, refusal.message + (_NO_NODE if kept_back else ""))

    async def _refused_alike(self, key: ObjectKey, reason: str, refusal: Refuse, *, grouped: bool) -> None:
        """Report to pods that ask for the same why they wait: they are looked at when this one is served."""
        for count, other in enumerate(self._pending.alike(key), 1):
            if count % _ALIKE_AT_A_TIME == 0:
                await asyncio.sleep(0)
            pod = self._pods.get(other)
            if pod is not None and other in self._pending:
                self._waits_for_devices(pod, reason, refusal, grouped=grouped)

    async def refused_group(
        self, pod: Pod, group: GroupMembers, refusal: Refuse, find: Callable[[PodID], Pod | None]
    ) -> None:
        """Report to the other members of a group why they wait; nothing else may lead to a look at them."""
        waiting = set(group.waiting)
        for count, pod_id in enumerate(group.pods, 1):
            if count % _MEMBERS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            member = find(pod_id)
            if member is None or member.metadata.uid == pod.metadata.uid:
                continue
            if pod_id in waiting:
                self._pending.add(member, refusal.signature, new_node=refusal.new_node)
                self._waits_for_devices(member, "FailedAllocation", refusal, grouped=True)
                self._recorder.event(PODS, member, "Warning", "FailedAllocation", refusal.message)

    def given_back(self, claim: ResourceClaim, message: str) -> None:
        """Report to pods that kube-scheduler has seen that they lose a claim: their group is not whole."""
        for pod in self._pods.each(CLAIM_INDEX, claim.key):
            if not (is_gated(pod) or is_finished(pod)):
                self._recorder.event(PODS, pod, "Normal", "Deallocated", message)

    # --- allocations ----------------------------------------------------------------------------------------

    def claim_allocated(
        self, claim: ResourceClaim, allocation: AllocationResult, pod: Pod, decision: Write
    ) -> None:
        """Report that a claim of a pod is allocated: by an Event only where one says that it was refused.

        Otherwise the status of the claim says the same, and a write for each claim would say it again.
        """
        devices = ", ".join(r.device for r in allocation.devices.results)
        if self._records.has(pod, Mark.REFUSAL_REPORTED):
            message = f"allocated {devices} on node {decision.node} for pod {pod.metadata.name}"
            self._recorder.event(RESOURCE_CLAIMS, claim, "Normal", "Allocated", message)
        log.info("allocated", claim=str(claim.key), node=decision.node, devices=devices)

    def claim_failed(self, claim: ResourceClaim, pod: Pod, error: ApiError) -> None:
        """Report that the allocation of a claim could not be written."""
        self.failed(error)
        if error.code not in (404, 409):
            text = f"the allocation of claim {claim.key} was refused: {error}"
            self._recorder.event(PODS, pod, "Warning", "FailedAllocation", text)

    def group_allocated(self, pod: Pod, group: GroupMembers, node: str) -> None:
        """Report that a pod is allocated, and its group with it, or how much of it is."""
        if group.allocated == group.size and not group.running:
            message = f"allocated on node {node}, with all {group.size} pods of {called(group.name)}"
        else:
            message = (
                f"allocated on node {node}; {group.allocated} of {group.size} pods of {called(group.name)} "
                f"have their devices, {group.running} of them run"
            )
        self._recorder.event(PODS, pod, "Normal", "GroupAllocated", message)
        self.allocated(pod)

    def allocated(self, pod: Pod) -> None:
        """Count a pod of which all claims are allocated."""
        self._metrics.allocations.labels("allocated").inc()
        self._records.clear(pod, Mark.REFUSAL_REPORTED)
        record = self._records.of(pod)
        since, record.first_seen = record.first_seen, None
        if since is not None:
            self._metrics.allocation_seconds.observe(self._clock.monotonic() - since)

    def failed(self, error: ApiError) -> None:
        """Count an allocation that could not be written."""
        self._metrics.allocations.labels("conflict" if error.code in (404, 409) else "error").inc()


def _named(devices: Sequence[str]) -> str:
    return ", ".join(devices[:_NAMED_DEVICES]) + (" and more" if len(devices) > _NAMED_DEVICES else "")
