"""Writes rounds and dry runs down on preemptors, and ends what is out of date there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Final

import structlog

from controller.allocate.decide import PodID, PodPlacement
from controller.allocate.plans import ChosenVictim, PreemptionAnswer
from controller.allocate.preempting.rounds import Event
from controller.observe.pod_conditions import PodCondition, Written
from dra_driver.api import names
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import DriverName, ObjectKey, PoolName, Uid
from dra_driver.api.resource import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult
from dra_driver.errors import ApiUnavailable, DraError, ServerBusy
from dra_driver.fleet import (
    CLOSED,
    NOT_PREEMPTING,
    OPEN,
    WOULD_PREEMPT,
    PreemptionRecord,
    shown_preemption,
)
from dra_driver.kube import Handler, Informer
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["PreemptionCondition", "named_for", "places_of", "record_of"]

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 1.0
# Of conditions in each pause: what is late is written soon after.
_MOST_WRITES: Final = 2
_MOST_NAMED: Final = 8


def record_of(answer: PreemptionAnswer) -> PreemptionRecord:
    """Return what is to be written down of a decision."""
    devices = tuple(
        (place.node, str(r.driver), str(r.pool), r.device)
        for place in answer.places
        for allocation in place.allocations
        for r in allocation.devices.results
        if not r.admin_access
    )
    return PreemptionRecord.of(tuple(str(v.pod.uid) for v in answer.victims), devices)


def places_of(record: PreemptionRecord, pods: Sequence[PodID]) -> list[PodPlacement]:
    """Return the devices of a record as places of pods; which of them gets which is not written down."""
    nodes: dict[str, list[DeviceRequestAllocationResult]] = {}
    for node, driver, pool, device in record.devices:
        result = DeviceRequestAllocationResult(
            request="preempted", driver=DriverName(driver), pool=PoolName(pool), device=device
        )
        nodes.setdefault(node, []).append(result)
    if not nodes or not pods:
        return []
    found = [
        PodPlacement(
            pods[0], node, (AllocationResult(devices=DeviceAllocationResult(results=tuple(results))),)
        )
        for node, results in nodes.items()
    ]
    return [*found, *(PodPlacement(pod, found[0].node, ()) for pod in pods[1:])]


def named_for(pod: Pod, victims: Sequence[ChosenVictim]) -> str:
    """Return victims for those who may read a pod: of other namespaces their number alone."""
    own = [v.pod.key.name for v in victims if v.pod.key.namespace == pod.metadata.namespace]
    others = len(victims) - len(own)
    parts = own[:_MOST_NAMED]
    if len(own) > _MOST_NAMED:
        parts.append(f"{len(own) - _MOST_NAMED} more")
    if others:
        parts.append(f"{others} pods of other namespaces")
    return ", ".join(parts)


class PreemptionCondition:
    """Keeps the condition ``dra-driver.dev/Preempting`` of preemptors.

    The record of a round is written at once, or not at all. All else is compared with what pods have, so a
    controller that starts anew ends what another one has left.

    Args:
        client: of the API server; refuses to write when the lease is lost.
        clock: for timestamps.
        pods: all of them; followed from now on.
    """

    def __init__(self, client: KubeClient, clock: Clock, pods: Informer[Pod]) -> None:
        self._client = client
        self._written = PodCondition(client, names.PREEMPTING_CONDITION, names.PREEMPTION_FIELD_MANAGER)
        self._clock = clock
        self._pods = pods
        self._dry_runs: dict[Uid, tuple[ObjectKey, PreemptionRecord, str]] = {}
        self._is_open: Callable[[Uid], bool] = lambda _: False
        # Pods that perhaps do not show what they are to show; those that were tried last come last.
        self._unsettled: dict[ObjectKey, None] = {}
        pods.add_handler(Handler(self._seen, lambda _, pod: self._seen(pod), self._gone))

    def _seen(self, pod: Pod) -> None:
        shown = shown_preemption(pod)
        if pod.metadata.uid in self._dry_runs or (
            shown is not None and shown.reason in (OPEN, WOULD_PREEMPT)
        ):
            self._unsettled[pod.key] = None

    def _gone(self, pod: Pod) -> None:
        self._dry_runs.pop(pod.metadata.uid, None)

    # --- rounds ---------------------------------------------------------------------------------------------

    async def write(self, pod: Pod, record: PreemptionRecord, since: str) -> Event:
        """Write the record of a round down, on the version of the pod that the decision saw.

        Returns:
            ``RECORDED``, ``NOT_RECORDED`` or ``UNANSWERED``.
        """
        try:
            await self._written.apply(
                pod.key,
                pod.metadata.uid,
                _said(OPEN, record.message),
                since,
                version=pod.metadata.resource_version,
            )
        except (ApiUnavailable, ServerBusy) as e:
            log.warning("no answer to the record of a preemption", pod=str(pod.key), error=str(e))
            return Event.UNANSWERED
        except DraError as e:
            log.info("a preemption cannot be recorded", pod=str(pod.key), error=str(e))
            return Event.NOT_RECORDED
        return Event.RECORDED

    async def stands(self, pod: PodID, since: str) -> bool:
        """Return whether the record of a round is there, and its pod, as the API server has them now."""
        try:
            found = await self._client.get(PODS, pod.key.name, pod.key.namespace)
        except DraError as e:
            log.info("the record of a preemption cannot be read", pod=str(pod.key), error=str(e))
            return False
        shown = shown_preemption(found)
        return (
            found.metadata.uid == pod.uid
            and found.metadata.deletion_timestamp is None
            and shown is not None
            and (shown.reason, shown.since) == (OPEN, since)
        )

    async def close(self, pod: PodID) -> None:
        """Write down that a round is closed; where that fails, it is tried again now and then."""
        found = self._pods.get(pod.key)
        if found is not None and found.metadata.uid == pod.uid:
            await self._try(found)

    # --- dry runs -------------------------------------------------------------------------------------------

    def dry_runs(self) -> Set[Uid]:
        """Return the pods for which others would be preempted."""
        return self._dry_runs.keys()

    def adopt_dry_runs(self) -> None:
        """Stand by what a process before this one has shown, until it is asked again."""
        for pod in self._pods.items():
            shown = shown_preemption(pod)
            if shown is not None and shown.reason == WOULD_PREEMPT:
                self._dry_runs[pod.metadata.uid] = (pod.key, shown.record, shown.since)

    def show_dry_run(self, pod: Pod, record: PreemptionRecord) -> bool:
        """Show who would be preempted for a pod; return whether that is news."""
        known = self._dry_runs.get(pod.metadata.uid)
        if known is not None and set(known[1].victims) == set(record.victims):
            return False
        self._dry_runs[pod.metadata.uid] = (pod.key, record, rfc3339(self._clock.now()))
        self._unsettled[pod.key] = None
        return True

    def end(self, pod: Uid) -> None:
        """Show that no pod would be preempted for this one."""
        if (known := self._dry_runs.pop(pod, None)) is not None:
            self._unsettled[known[0]] = None

    # --- writing --------------------------------------------------------------------------------------------

    async def run(self, is_open: Callable[[Uid], bool]) -> None:
        """Write until cancelled.

        Args:
            is_open: returns whether a round that is written down on a pod goes on.
        """
        self._is_open = is_open
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            for pod in list(itertools.islice(self._to_write(), _MOST_WRITES)):
                self._unsettled[pod.key] = self._unsettled.pop(pod.key, None)
                if not await self._try(pod):
                    break

    def _to_write(self) -> Iterator[Pod]:
        """Yield the pods that do not show what they are to show; what is settled is not looked at again."""
        for key in list(self._unsettled):
            pod = self._pods.get(key)
            if pod is not None and self._wanted(pod) is not None:
                yield pod
            elif pod is None or not self._is_open(pod.metadata.uid):
                del self._unsettled[key]

    async def _try(self, pod: Pod) -> bool:
        """Make the condition of a pod what it is to be; return whether that went well."""
        wanted = self._wanted(pod)
        if wanted is None:
            return True
        reason, message, since = wanted
        said = _said(reason, message)
        written = await self._written.try_to_apply(pod.key, pod.metadata.uid, said, since)
        return written is not Written.FAILED

    def _wanted(self, pod: Pod) -> tuple[str, str, str] | None:
        """Return reason, message and time to be written; None where a pod shows what it is to show."""
        shown, uid = shown_preemption(pod), pod.metadata.uid
        if self._is_open(uid):
            return None
        if uid in self._dry_runs:
            _, record, since = self._dry_runs[uid]
            same = shown is not None and shown.reason == WOULD_PREEMPT and shown.record == record
            return None if same else (WOULD_PREEMPT, record.message, since)
        if shown is not None and shown.reason == OPEN:
            return CLOSED, shown.record.message, shown.since
        if shown is not None and shown.reason == WOULD_PREEMPT:
            return NOT_PREEMPTING, "", rfc3339(self._clock.now())
        return None


def _said(reason: str, message: str) -> dict[str, str]:
    """Return status, reason and message of the condition."""
    return {"status": "True" if reason == OPEN else "False", "reason": reason, "message": message}
