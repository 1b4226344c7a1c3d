"""Deallocates claims of pods that kube-scheduler cannot place, before it has reserved them.

With such a pod its group is not allocated as a whole any more: the other members that are not bound give back
what they hold as well, and are allocated again together. What this misses (the controller ends in between, a
claim is being written) the next decision about the group finds: it refuses the group with the allocations
that are to go.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import structlog

from controller.allocate.answers.journal import Journal
from controller.allocate.attempts import (
    Attempt,
    Attempts,
    Bound,
    Deallocate,
    Hold,
    TakenBack,
    failed_before_claims,
)
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import (
    EVERYWHERE,
    Gang,
    GroupFinder,
    NodeTurnedDown,
    PodExpected,
    PodID,
    Standing,
    claims_of,
    is_ending,
)
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.records import Mark, PodRecords
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from controller.observe.metrics import Metrics
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import ApiError
from dra_driver.kube import EventRecorder, Handler
from dra_driver.ports import Clock
from dra_driver.resourceclaim import is_reserved_for

__all__ = ["TentativeAllocations"]

log = structlog.get_logger(__name__)

# An allocation that is being written cannot be deallocated yet.
_WRITING_SECONDS: Final = 0.2
# Until a pod is looked at again at the soonest.
_SOONEST_SECONDS: Final = 0.05
# kube-scheduler has reserved claims, and binds the pod next or gives them back; or a pool is changing hands.
_BINDING_SECONDS: Final = 5.0
# Until kube-scheduler's watch has shown it an allocation.
_WATCH_SECONDS: Final = 0.5
_LONGEST_MESSAGE: Final = 300
# Pods that lose their devices for one that is bound without any, which perhaps needs more than its node has.
_MOST_DISPLACED: Final = 16
# Members of a group that give back at a time.
_MEMBERS_AT_A_TIME: Final = 32


class TentativeAllocations:
    """Follows pods from the allocation of their claims to their being bound.

    A claim is deallocated only while nobody has reserved it, under its resourceVersion. Where kube-scheduler
    is about to reserve it all the same, its write fails and it tries the pod again.
    """

    def __init__(
        self,
        seconds: float,
        attempts: Attempts,
        writer: Writer,
        journal: Journal,
        assume_cache: AssumeCache,
        owners: CurrentOwners,
        deallocator: Deallocator,
        wakeups: Wakeups,
        taken_back: Signal[[Pod, TakenBack]],
        recorder: EventRecorder,
        metrics: Metrics,
        clock: Clock,
        groups: GroupFinder,
        records: PodRecords,
        pods: KnownPods,
    ) -> None:
        """Connect the parts, and follow the pods from now on.

        Args:
            seconds: in which a cycle of kube-scheduler has ended, whatever it does.
            attempts: the pods that are with kube-scheduler.
            writer: of nominations.
            journal: learns which nodes do not suit a pod.
            assume_cache: the newest version of each claim.
            owners: know whose a pool is.
            deallocator: does it.
            wakeups: pods to be served anew, or whose turn has come.
            taken_back: sent with each pod that loses its allocations.
            recorder: for Events.
            metrics: to report to.
            clock: for time-outs.
            groups: finds the other members of a pod's group.
            records: of the pods.
            pods: all namespaces.
        """
        self._seconds = seconds
        self._attempts = attempts
        self._writer = writer
        self._journal = journal
        self._assume_cache = assume_cache
        self._owners = owners
        self._deallocator = deallocator
        self._wakeups = wakeups
        self._taken_back = taken_back
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._groups = groups
        self._records = records
        self._pods = pods
        pods.follow(Handler(updated=self._updated, deleted=self._gone))

    def _updated(self, _: Pod, pod: Pod) -> None:
        now = self._clock.monotonic()
        if pod.spec.node_name:
            self._attempts.bound(pod.metadata.uid, now)
            self._wakeups.next_turns()
        elif is_ending(pod):
            self._gone(pod)
        elif self._attempts.seen(pod, now) or self._records.of(pod).nomination_left is not None:
            self._wakeups.tentative.add(pod.key)

    def _gone(self, pod: Pod) -> None:
        self._records.of(pod).nomination_left = None
        self._attempts.forget(pod.metadata.uid)
        self._wakeups.look_beside(claims_of(pod))
        self._wakeups.next_turns()

    async def reconcile(self, key: ObjectKey) -> None:
        """Look at what kube-scheduler says about a pod, and deallocate its claims on evidence.

        For a pod that is bound without its devices, claims of one that is not bound are deallocated.

        Raises:
            ApiError: a claim cannot be deallocated now: it was reserved, perhaps.
        """
        pod = self._pods.get(key)
        if pod is None:
            return
        lost = self._records.clear(pod, Mark.LOST_TO_SCHEDULER)
        if pod.spec.node_name:
            await self._make_room(pod)
            return
        if lost:
            await self._release_group(pod)
        preempting = self._pods.is_cleared_by_scheduler(pod.status.nominated_node_name)
        verdict = self._attempts.judge(pod, self._clock.monotonic(), preempting=preempting)
        if verdict is not None:
            self._records.of(pod).nomination_left = None  # it has devices, and may lose them to a later cycle
        match verdict:
            case None:
                await self._end_nomination(pod)
            case Bound():
                pass
            case Hold(seconds):
                if not preempting:
                    seconds = min(seconds, await self._requeue(pod))
                self._wakeups.tentative.add_after(key, max(seconds, _SOONEST_SECONDS))
            case Deallocate():
                await self._deallocate(pod, verdict)

    async def _requeue(self, pod: Pod) -> float:
        """Have kube-scheduler look at a pod that it would not look at although its claims are allocated.

        Where a nomination goes, it has all pods of the same or a lower priority looked at that wait for room,
        as if a pod of that node had ended; the one that was nominated is among them. It nominates the node
        itself while it evicts others there.

        Returns:
            The seconds after which to try again.
        """
        attempt = self._attempts.to_requeue(pod)
        if attempt is None:
            return math.inf
        # Its watches of claims and of pods are not in step: it has to see the allocation by then.
        left = attempt.since + _WATCH_SECONDS - self._clock.monotonic()
        if left > 0:
            return left
        version = pod.metadata.resource_version
        if not pod.status.nominated_node_name:
            version = await self._writer.nominate(pod, attempt.node)
        meta = msgspec.structs.replace(pod.metadata, resource_version=version)
        if version and await self._writer.nominate(msgspec.structs.replace(pod, metadata=meta), ""):
            self._attempts.requeued(pod.metadata.uid)
            log.debug("kube-scheduler is made to look at a pod", pod=str(pod.key), node=attempt.node)
            return math.inf
        return _BINDING_SECONDS

    async def _end_nomination(self, pod: Pod) -> None:
        """Clear the nomination of a pod without devices that kube-scheduler leaves as it is.

        It would keep claims that the pod shares with others from every other node. A cycle that began before
        they were deallocated has ended by then.
        """
        record, now = self._records.of(pod), self._clock.monotonic()
        if not (failed_before_claims(pod) and self._pods.lacks_devices(pod)):
            record.nomination_left = None
            return
        if record.nomination_left is None:
            record.nomination_left = now
        left = record.nomination_left + self._seconds - now
        if left > 0:
            self._wakeups.tentative.add_after(pod.key, max(left, _SOONEST_SECONDS))
        else:
            await self._writer.nominate(pod, "")

    async def _deallocate(self, pod: Pod, verdict: Deallocate) -> None:
        claims = self._pods.claims(pod)
        if any(map(self._assume_cache.is_assumed, claims)):
            self._wakeups.tentative.add_after(pod.key, _WRITING_SECONDS)
            return
        if not any(map(self._is_ours, claims)):
            held = [c.status.allocation for c in claims if c.status.allocation is not None]
            if any(map(self._owners.may_become_ours, held)):
                self._wakeups.tentative.add_after(pod.key, _BINDING_SECONDS)
            else:
                self._attempts.cancel(pod.metadata.uid)
            return
        if any(is_reserved_for(claim, pod.metadata.uid) for claim in claims):
            # The reservation is its word that it binds the pod; if it cannot, it takes it back.
            self._wakeups.tentative.add_after(pod.key, _BINDING_SECONDS)
            return
        tentative = [c for c in claims if self._is_tentative(c, (pod.metadata.uid,))]
        await self._give_back(pod, tentative, verdict)
        self._wakeups.queue.add(pod.key)
        self._wakeups.next_turns()

    async def _give_back(self, pod: Pod, claims: Sequence[ResourceClaim], verdict: Deallocate) -> None:
        attempt = self._attempts.fail(pod.metadata.uid, timeout=verdict.reason is TakenBack.TIMEOUT)
        if attempt is not None:
            self._turn_down(pod, attempt, verdict)
            self._taken_back.send(pod, verdict.reason)
        if attempt is not None and claims:
            self._report(pod, attempt, verdict)
        for claim in claims:
            await self._deallocator.deallocate(claim)
        await self._release_group(pod)

    # --- groups ---------------------------------------------------------------------------------------------

    async def _release_group(self, lost: Pod) -> None:
        """Deallocate what members of a group hold that are not bound, if the others cannot do without a pod.

        Args:
            lost: the pod, which could not be placed.
        """
        gang = self._groups.of(lost)
        if not isinstance(gang, Gang):
            return
        standing = Standing.of(gang, self._assume_cache.get)
        if lost.metadata.uid in standing.served:
            return
        if standing.keeps:
            self._report_rest(lost, standing)
            return
        members = [p for p in gang.members if p.metadata.uid not in standing.running]
        mine = {p.metadata.uid for p in members}
        others = [p for p in members if p.metadata.uid != lost.metadata.uid]
        for i in range(0, len(others), _MEMBERS_AT_A_TIME):
            async with asyncio.TaskGroup() as tasks:
                for other in others[i : i + _MEMBERS_AT_A_TIME]:
                    tasks.create_task(self._release_member(other, lost, standing, mine))

    async def _release_member(
        self, pod: Pod, lost: Pod, standing: Standing, members: Collection[Uid]
    ) -> None:
        claims = [c for c in self._pods.claims(pod) if self._is_tentative(c, members)]
        if not claims or self._pods.is_being_allocated(pod):
            return
        self._attempts.fail(pod.metadata.uid, timeout=False)
        self._metrics.deallocations.labels("group").inc()
        gang, running = standing.gang, len(standing.running)
        text = f"pod {lost.metadata.name} of {gang.called} was not placed, so devices are given back: "
        text += (
            f"{running} of {gang.terms.number} pods run and keep theirs, the others get theirs together again"
            if running
            else f"none of {gang.terms.number} pods runs, and all get theirs together again"
        )
        log.info("deallocating with its group", pod=str(pod.key), group=gang.called, lost=str(lost.key))
        self._recorder.event(PODS, pod, "Normal", "Deallocated", text[:_LONGEST_MESSAGE])
        for claim in claims:
            try:
                await self._deallocator.deallocate(claim)
            except ApiError as e:  # it is reserved by now, perhaps: then the pod is about to run
                log.info("claim cannot be deallocated", claim=str(claim.key), error=str(e))

    def _report_rest(self, lost: Pod, standing: Standing) -> None:
        """Report what becomes of the group of a pod that was not placed, where others keep their devices."""
        gang, running = standing.gang, len(standing.running)
        text = f"{gang.called}: {running} of {gang.terms.number} pods run"
        if more := len(standing.served) - running:
            text += f", {more} more keep their devices until they are bound"
        self._recorder.event(PODS, lost, "Normal", "GroupInPart", f"{text}; this pod waits for devices")

    # --- pods that are bound without devices ----------------------------------------------------------------

    async def _make_room(self, pod: Pod) -> None:
        """Deallocate claims of a pod that is not bound, for one that is bound to its node without devices.

        That one is looked at next. What is reserved is never deallocated.
        """
        record = self._records.of(pod)
        if record.displaced >= _MOST_DISPLACED or not self._pods.lacks_devices(pod):
            return
        for other in self._pods:
            attempt = self._attempts.get(other.metadata.uid)
            if attempt is None or attempt.failed or attempt.node != pod.spec.node_name:
                continue
            claims = self._pods.claims(other)
            held = [c for c in claims if self._is_tentative(c, (other.metadata.uid,))]
            committed = any(self._assume_cache.is_assumed(c) or c.status.reserved_for for c in claims)
            if committed or not held:
                continue
            record.displaced += 1
            verdict = Deallocate(TakenBack.DISPLACED, "a pod that is bound there needs them")
            await self._give_back(other, held, verdict)
            self._wakeups.queue.add_first(pod.key)
            self._wakeups.queue.add(other.key)
            return

    def _turn_down(self, pod: Pod, attempt: Attempt, verdict: Deallocate) -> None:
        # Before the devices are free: else the same pod is the first to get them.
        node = EVERYWHERE if verdict.everywhere else attempt.node
        self._journal.apply(NodeTurnedDown(pod.metadata.uid, node, self._clock.monotonic()))
        self._journal.apply(PodExpected(PodID(pod.key, pod.metadata.uid), None))

    def _report(self, pod: Pod, attempt: Attempt, verdict: Deallocate) -> None:
        self._metrics.deallocations.labels(verdict.reason.value).inc()
        log.info("deallocating", pod=str(pod.key), node=attempt.node, reason=verdict.message)
        text = f"not placed on node {attempt.node}, so its devices there are given back: {verdict.message}"
        self._recorder.event(PODS, pod, "Normal", "Deallocated", text[:_LONGEST_MESSAGE])

    def _is_ours(self, claim: ResourceClaim) -> bool:
        return claim.status.allocation is not None and self._owners.are_ours(claim.status.allocation)

    def _is_tentative(self, claim: ResourceClaim, pods: Collection[Uid]) -> bool:
        """Return whether nothing but these pods, which are not to be placed, keeps a claim allocated."""
        return (
            self._is_ours(claim)
            and not claim.status.reserved_for
            and not claim.metadata.deletion_timestamp
            and all(other.uid in pods for other in self._attempts.live_users(claim.key))
        )
