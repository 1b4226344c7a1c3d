"""The allocator loop: pods whose claims are not allocated yet → allocations, then the gate comes off."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import structlog

from controller.allocate.answers.decider import Answered, Decider, same_for_the_answer
from controller.allocate.answers.journal import Journal
from controller.allocate.attempts import Attempts
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import (
    GrantDevices,
    GroupFinder,
    GroupMembers,
    GroupWrite,
    Lane,
    NeedsSlowLane,
    NotYet,
    PodAnswer,
    Proceed,
    Rank,
    Refuse,
    SetAside,
    Wait,
    Write,
    called,
    claims_of,
    has_no_node,
    is_ending,
    rank_of_group,
)
from controller.allocate.granting import Granter
from controller.allocate.handover import HandOver
from controller.allocate.rebind_guard import RebindGuard
from controller.allocate.reporting import AllocationReports
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.records import Mark, PodRecords
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from controller.observe.tracing import span
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_driver.api.scheduling import PodGroup
from dra_driver.errors import ApiError
from dra_driver.ownership import PoolAllocator
from dra_driver.ports import Clock
from dra_driver.resourceclaim import consumer_of, foreign_gates, is_gated, is_served, uses_claims

__all__ = ["Allocator"]

log = structlog.get_logger(__name__)

# Until the users of a claim that was deallocated are looked at again: what is reported about them ends that.
_SETTLING_SECONDS: Final = 1.0
# Until a pod is looked at again at the soonest.
_SOONEST_SECONDS: Final = 0.05
# Until a question is asked again that has no answer while an index is prepared.
_INDEX_SECONDS: Final = 0.5
_ASKED_PER_SECOND: Final = 50
_GRANTED_TO_ANOTHER: Final = "devices are granted to another pod that uses the same claim"


class Allocator:
    """Works on pods. Questions and writes of several pods go on side by side."""

    def __init__(
        self,
        decider: Decider,
        journal: Journal,
        assume_cache: AssumeCache,
        attempts: Attempts,
        wakeups: Wakeups,
        writer: Writer,
        deallocator: Deallocator,
        reports: AllocationReports,
        clock: Clock,
        mode: Callable[[], PoolAllocator],
        schedulers: Collection[str],
        groups: GroupFinder,
        records: PodRecords,
        pods: KnownPods,
        granter: Granter | None = None,
    ) -> None:
        """Connect the parts.

        Args:
            decider: asked what is to be done about a pod.
            journal: learns where pods will run.
            assume_cache: what is decided is assumed at once.
            attempts: the pods that are with kube-scheduler.
            wakeups: pods to be looked at, and those that wait.
            writer: of allocations and gates.
            deallocator: for allocations that pin a pod.
            reports: what becomes of pods, and why they wait.
            clock: for the times at which pods are with kube-scheduler.
            mode: who allocates at present; SCHEDULER: gates are removed, nothing is allocated.
            schedulers: whose pods are served.
            groups: finds the other members of a pod's group.
            records: of the pods.
            pods: all namespaces.
            granter: grants devices to kube-scheduler; if None, nothing is granted.
        """
        self._decider = decider
        self._assume_cache = assume_cache
        self._attempts = attempts
        self._schedulers = schedulers
        self._wakeups = wakeups
        self._writer = writer
        self._deallocator = deallocator
        self._reports = reports
        self._clock = clock
        self._mode = mode
        self._groups = groups
        self._records = records
        self._pods = pods
        self._granter = granter
        self._hand_over = HandOver(
            journal, attempts, wakeups, writer, reports, clock, schedulers, records, pods
        )
        self._rebind_guard = RebindGuard(attempts, groups, pods)

    def reason(self, pod: ObjectKey) -> str:
        """Return why a pod waits; empty where it does not."""
        return self._reports.reason(pod)

    # --- one pod --------------------------------------------------------------------------------------------

    async def reconcile(self, key: ObjectKey) -> None:
        """Do what is to be done about one pod, or about all pods of its group.

        Raises:
            ApiError: a write was refused.
        """
        try:
            await self._look(key, Lane.FAST)
        finally:
            self._wakeups.next_turns()

    async def reconcile_slowly(self, key: ObjectKey) -> None:
        """Do what ``reconcile`` does where the question takes much work.

        Raises:
            ApiError: a write was refused.
        """
        try:
            await self._look(key, Lane.SLOW)
        finally:
            self._wakeups.next_turns()

    async def _look(self, key: ObjectKey, lane: Lane) -> None:
        pod = self._pods.get(key)
        if pod is None:
            return
        self._records.clear(pod, Mark.LEFT_TO_SCHEDULER)
        self._records.clear(pod, Mark.LACKS_VOLUMES)
        if is_ending(pod):
            self._hand_over.served(pod)
            return
        needs_devices = uses_claims(pod) or self._wants_grant(pod)
        if needs_devices and foreign_gates(pod):
            # Somebody else holds it back. Our gate stays, so that we decide before kube-scheduler looks.
            self._hand_over.served(pod)
            return
        if not needs_devices or self._mode() is PoolAllocator.SCHEDULER:
            if uses_claims(pod) and not pod.spec.node_name:
                self._records.mark(pod, Mark.LEFT_TO_SCHEDULER)
            await self._hand_over.proceed(pod)
            return
        if not (pod.spec.node_name or is_served(pod, self._schedulers)):
            if is_gated(pod):  # else this has been said before
                self._reports.other_scheduler(pod, ", ".join(self._schedulers))
            await self._hand_over.proceed(pod)
            return
        self._reports.seen(pod)
        if self._granter is not None and self._granter.has(pod):
            await self._granter.go_on(pod)
            return
        if not self._may_be_allocated(pod, lane):
            if self._granter is not None:
                self._granter.skip(pod)
            return
        progress = self._wakeups.progress
        with span("decide"):
            found = await self._ask(pod, lane)
        self._reports.answered(found[0] if found is not None else None)
        if found is None:
            # Not at once: one outdated answer after the other would be asked for without a pause.
            self._wakeups.queue.add_rate_limited(key)
            return
        answer, answered = found
        now = self._pods.get(key)
        if now is not pod and (now is None or not same_for_the_answer(now, pod)):
            self._decider.release(answered)
            self._wakeups.queue.add(key)
            return
        await self._carry_out(pod, answer, answered)
        if isinstance(answer.decision, Proceed) and answer.group is None:
            self._wakeups.look_at_group(pod)
        if self._wakeups.progress != progress:
            self._look_again(pod, answer)

    async def _ask(self, pod: Pod, lane: Lane) -> tuple[PodAnswer, Answered] | None:
        """Ask what is to be done; pods of lower priority are asked about after those that follow from it."""
        grants = self._granter is not None and self._granter.serves_instead(pod)
        awaited = self._records.has(pod, Mark.SEEN_BOUND)
        if lane is Lane.SLOW:
            return await self._decider.decide(pod, lane, grants=grants, awaited=awaited)
        with self._wakeups.queue.holding(self._wakeups.rank(pod.key).level):
            return await self._decider.decide(pod, lane, grants=grants, awaited=awaited)

    def _wants_grant(self, pod: Pod) -> bool:
        """Return whether a pod needs devices without naming claims."""
        return self._granter is not None and self._granter.wants(pod)

    def _may_be_allocated(self, pod: Pod, lane: Lane) -> bool:
        """Return whether claims of a pod may be allocated now; see to it that it is looked at again."""
        lacks = self._pods.lacks_devices(pod)
        if self._records.has(pod, Mark.SEEN_BOUND) or not (lacks or self._wants_grant(pod)):
            return True
        if lane is Lane.FAST and self._wakeups.must_wait(pod):
            return False
        if pod.spec.node_name or not lacks:
            return True
        now = self._clock.monotonic()
        if pod.status.nominated_node_name:
            self._wakeups.tentative.add(pod.key)
        left = self._rebind_guard.seconds(pod, now)
        if left > 0:
            self._wakeups.queue.add_after(pod.key, min(max(left, _SOONEST_SECONDS), _SETTLING_SECONDS))
            return False
        if has_no_node(pod) and self._attempts.is_probed(pod.metadata.namespace):
            self._wakeups.queue.add_after(pod.key, _SETTLING_SECONDS)
            return False
        if self._attempts.room(pod.metadata.namespace, now) <= 0:
            self._attempts.wait(pod.key, self._wakeups.rank(pod.key))
            self._reports.waits_for_turn(pod)
            return False
        return True

    def _look_again(self, pod: Pod, answer: PodAnswer) -> None:
        """Look again at a pod that waits although something that the answer did not know may help it."""
        if isinstance(answer.decision, Refuse):
            self._wakeups.look_again()
        elif isinstance(answer.decision, Proceed) and answer.decision.theirs:
            self._wakeups.queue.add(pod.key)

    async def _carry_out(self, pod: Pod, answer: PodAnswer, answered: Answered) -> None:
        # No await between the answer and what is done about it: what it rests on is as it was.
        if self._granter is not None and not isinstance(answer.decision, GrantDevices):
            self._granter.skip(pod)
            if self._granter.holds(answer.decision):
                self._decider.release(answered)
                self._wait(pod, answer.group, Wait(_GRANTED_TO_ANOTHER, poll=_SETTLING_SECONDS))
                return
        match answer.decision:
            case NeedsSlowLane():
                self._delay(pod)
            case Wait():
                self._wait(pod, answer.group, answer.decision)
                if answer.group is not None and not answer.decision.volumes:
                    await self._reports.group_waits(answer.group, answer.decision)
            case Proceed(node, theirs):
                await self._go_on(pod, answer.group, node, theirs=theirs)
            case Refuse():
                await self._refuse(pod, answer, answer.decision)
            case Write():
                await self._write(pod, answered, answer.decision)
            case GroupWrite():
                assert answer.group is not None
                await self._write_group(answer.group, answered, answer.decision)
            case GrantDevices():
                assert self._granter is not None
                self._granter.begin(pod, answer.decision)
            case NotYet():
                self._not_yet(pod, answer.group, answer.decision)
            case SetAside():
                raise AssertionError("it answers another question")

    def _delay(self, pod: Pod) -> None:
        """Have a pod wait for its turn in the slow lane."""
        if pod.key not in self._wakeups.pending:
            self._reports.delayed(pod)
        self._wakeups.slow.add(pod.key)

    def _wait(self, pod: Pod, group: GroupMembers | None, decision: Wait) -> None:
        log.debug("pod waits", pod=str(pod.key), reason=decision.reason)
        self._wakeups.served(pod.key)
        if decision.volumes:
            self._records.mark(pod, Mark.LACKS_VOLUMES)
        self._reports.waits(pod, group, decision)
        if decision.poll:
            self._wakeups.queue.add_after(pod.key, max(decision.poll, _SOONEST_SECONDS))

    def _not_yet(self, pod: Pod, group: GroupMembers | None, decision: NotYet) -> None:
        """Have a pod wait with those that ask for the same; the first of them is soon asked about again."""
        log.debug("pod waits", pod=str(pod.key), reason=decision.message)
        queue, pending = self._wakeups.queue, self._wakeups.pending
        following = pending.add(pod, decision.signature, self._rank_of(group))
        if following is not None:
            queue.add(following)
        self._reports.prepares(pod, decision)
        if pending.is_first(pod.key):
            # However many different pods wait for an index, they are asked about so often together.
            queue.add_after(pod.key, max(_INDEX_SECONDS, self._reports.preparing / _ASKED_PER_SECOND))

    # --- nothing is left to be allocated --------------------------------------------------------------------

    async def _go_on(self, pod: Pod, group: GroupMembers | None, node: str | None, *, theirs: bool) -> None:
        if theirs:
            self._records.mark(pod, Mark.LEFT_TO_SCHEDULER)
        if group is not None:
            await self._hand_over.proceed_all(group)
            return
        if node is not None and not pod.spec.node_name:
            self._hand_over.expect(pod, node)  # known from its claims after a restart, too
        await self._hand_over.proceed(pod)

    # --- the claims cannot be allocated now -----------------------------------------------------------------

    async def _refuse(self, pod: Pod, answer: PodAnswer, refusal: Refuse) -> None:
        """Report why a pod waits, and note that it does; first of all, what holds it back is deallocated."""
        queue = self._wakeups.queue
        if answer.pause:
            queue.add_after(pod.key, max(answer.pause, _SOONEST_SECONDS))
            if answer.remembered and pod.key in self._wakeups.pending:
                return
        if answer.pause and not answer.remembered:
            log.warning(
                "a pod was refused after much work; it is looked at again later",
                pod=str(pod.key),
                steps=answer.steps,
                seconds=answer.pause,
            )
        if refusal.undo:
            for claim in refusal.undo:
                log.info("deallocating a claim that pins the pod", pod=str(pod.key), claim=str(claim.key))
                if answer.group is not None:
                    self._reports.given_back(claim, refusal.message)
                await self._deallocator.deallocate(claim)
            if answer.group is None:
                queue.add(pod.key)
            else:
                self._wakeups.look_behind(pod, [p.key for p in answer.group.pods])
            return
        following = self._wakeups.pending.add(
            pod, refusal.signature, self._rank_of(answer.group), new_node=refusal.new_node
        )
        if following is not None:
            queue.add(following)
        if answer.next_node is not None:
            # No event says when a node may be tried again, and the event that led here has undone the delay.
            queue.add_after(pod.key, answer.next_node)
        if refusal.claims or is_gated(pod):  # else it is not ours; kube-scheduler says what is wrong with it
            await self._reports.refused(pod, answer, refusal)
            if self._records.has(pod, Mark.WITHOUT_DEVICES):
                self._wakeups.tentative.add(pod.key)
            if refusal.elsewhere:
                # It waits here and there from now on. The allocator that is first has it: the pools are
                # disjoint, and the claim is written under its resourceVersion.
                await self._hand_over.ungate(pod)
        if answer.group is not None and not answer.remembered:
            await self._reports.refused_group(pod, answer.group, refusal, self._pods.find)

    def _rank_of(self, group: GroupMembers | None) -> Rank | None:
        """Return the rank of a group; None where there is none, or the answer does not name its pods."""
        ids = group.pods if group is not None else ()
        members = [p for p in map(self._pods.find, ids) if p is not None]
        return rank_of_group(members, group.priority) if group is not None and members else None

    # --- allocations ----------------------------------------------------------------------------------------

    async def _write(self, pod: Pod, answered: Answered, decision: Write) -> None:
        with self._decider.accepting(answered):
            self._take(pod, decision)
        left = list(decision.allocations)
        try:
            while left:
                await self._writer.allocate(*left[0], self._consumer(pod, left[0][0]))
                claim, allocation = left.pop(0)
                self._reports.claim_allocated(claim, allocation, pod, decision)
        except ApiError as e:
            self._give_up(pod)
            self._reports.claim_failed(left[0][0], pod, e)
            raise
        finally:
            for claim, _ in left[1:]:
                self._assume_cache.release(claim)
        self._reports.allocated(pod)
        await self._hand_over.proceed(pod)

    async def _write_group(self, group: GroupMembers, answered: Answered, decision: GroupWrite) -> None:
        """Write all allocations of members of a group.

        Where one is refused, the next decision completes the group or deallocates the rest.

        Raises:
            ApiError: of the first one that was refused.
        """
        found = [(self._pods.find(pod_id), write) for pod_id, write in decision.writes]
        writes = [(pod, write) for pod, write in found if pod is not None]
        if len(writes) < len(found):
            self._decider.release(answered)
            return  # the end of a member leads to another decision
        with self._decider.accepting(answered):
            for pod, write in writes:
                self._take(pod, write)
        problems = await self._writer.allocate_all(
            (claim, allocation, self._consumer(pod, claim))
            for pod, write in writes
            for claim, allocation in write.allocations
        )
        log.info(
            "group could not be allocated" if problems else "group allocated",
            group=called(group.name, group.namespace),
            pods=len(writes),
            claims=sum(len(w.allocations) for _, w in writes) - len(problems),
        )
        if problems:
            for pod, _ in writes:
                self._give_up(pod)
            self._reports.failed(problems[0])
            raise problems[0]
        for pod, write in writes:
            self._reports.group_allocated(pod, group, write.node)
        await self._hand_over.proceed_all(group, {pod_id for pod_id, _ in decision.writes})
        for pod_id in group.waiting:
            self._wakeups.queue.add(pod_id.key)  # they are told why they wait

    def _consumer(self, pod: Pod, claim: ResourceClaim) -> ResourceClaimConsumerReference | None:
        """Return for what a claim of a pod is reserved at once; None where kube-scheduler does that."""
        if not pod.spec.node_name:
            return None
        group = self._groups.pod_group(pod)
        return consumer_of(pod, group if isinstance(group, PodGroup) else None, claim)

    def _take(self, pod: Pod, write: Write) -> None:
        """Assume what was decided: from now on the devices, CPU and memory are taken."""
        for claim, allocation in write.allocations:
            self._assume_cache.assume(claim, allocation)
        self._hand_over.expect(pod, write.node)
        if not pod.spec.node_name:
            self._attempts.begin(self._pods.get(pod.key) or pod, write.node, self._clock.monotonic())
        self._wakeups.served(pod.key)  # what it waited for is told until the claims are written

    def _give_up(self, pod: Pod) -> None:
        """Expect a pod nowhere, because a claim of it could not be written."""
        self._hand_over.expect(pod, None)
        self._attempts.cancel(pod.metadata.uid)
        self._wakeups.look_beside(claims_of(pod))
