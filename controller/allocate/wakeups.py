"""What makes the allocator look at a pod, or at an unused claim: events, and changes for the better."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog

from controller.allocate.answers.journal import Journal
from controller.allocate.attempts import Attempts, TakenBack
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import (
    CLAIM_INDEX,
    GROUP_INDEX,
    NODE_INDEX,
    GroupsOf,
    NodeTurnedDown,
    PodExpected,
    PodID,
    Rank,
    attracts,
    changed_node,
    claims_of,
    group_of_claim,
    is_finished,
    kept_others_back,
    node_of,
    rank_of,
    repels_less,
    same_but_reason,
    same_for_decisions,
    same_for_pods,
)
from controller.allocate.pending import PendingPods
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.records import Mark, PodRecords
from controller.allocate.walks import Walks
from controller.config import Timings
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim
from dra_driver.kube import Handler, Informer, WorkQueue
from dra_driver.ownership import PoolAllocator
from dra_driver.ports import Clock
from dra_driver.resourceclaim import claims_named, foreign_gates, is_gated, uses_claims
from dra_driver.structured import LARGEST_GROUP

__all__ = ["Wakeups"]

log = structlog.get_logger(__name__)


class Wakeups:
    """Queues of what is to be looked at, filled by events.

    Attributes:
        queue: pods to be looked at, those of higher priority first; of one priority namespaces take turns.
        slow: pods whose questions belong into the slow lane; namespaces take turns, whatever the priority:
            what takes much work must not keep others waiting who have no such class.
        unused: claims that perhaps no pod uses.
        tentative: pods not bound yet that kube-scheduler has said something about, or nothing for long.
        pending: pods that could not be served; the first of each signature is tried when something changes.
        unused_later: claims that no pod uses, in pools that are not ours to decide on for the moment.
    """

    def __init__(
        self,
        timings: Timings,
        clock: Clock,
        mode: Callable[[], PoolAllocator],
        journal: Journal,
        owners: CurrentOwners,
        assume_cache: AssumeCache,
        attempts: Attempts,
        deallocator: Deallocator,
        taken_back: Signal[[Pod, TakenBack]],
        *,
        records: PodRecords,
        known: KnownPods,
        pods: Informer[Pod],
        claims: Informer[ResourceClaim],
        nodes: Informer[Node],
        others: tuple[Informer[Any], ...],
        groups_of: GroupsOf,
        wants_grant: Callable[[Pod], bool] = lambda _: False,
    ) -> None:
        """Follow the informers.

        Args:
            timings: how long to wait for what.
            clock: for the times from which nodes are avoided.
            mode: who allocates at present.
            journal: learns which nodes kube-scheduler turned down.
            owners: know whether pools have changed hands.
            assume_cache: the newest version of each claim.
            attempts: the pods that are with kube-scheduler.
            deallocator: knows which deallocations are ours.
            taken_back: sent with each pod that loses its allocations.
            records: of the pods.
            known: the pods with their claims.
            pods: with indices, of which each key is a namespace and a name, and ``NODE_INDEX``.
            claims: all namespaces.
            nodes: all.
            others: objects of which every change may help.
            groups_of: the group of a pod.
            wants_grant: whether a pod needs devices without naming claims.
        """
        self._wants_grant = wants_grant
        self._records = records
        self._timings = timings
        self._clock = clock
        self._mode = mode
        self._journal = journal
        self._owners = owners
        self._changes = 0
        self._assume_cache = assume_cache
        self._attempts = attempts
        self._deallocator = deallocator
        self._taken_back = taken_back
        self._informer = pods
        self._known = known
        self.groups_of = groups_of
        self._left_at = (PoolAllocator.CONTROLLER, -1)
        self._timer: asyncio.TimerHandle | None = None
        # Groups of which members have ended, to be looked at soon.
        self._groups: set[tuple[str, str]] = set()
        self._groups_timer: asyncio.TimerHandle | None = None
        self.queue: WorkQueue[ObjectKey] = WorkQueue(
            "allocator", max_delay=30.0, tenant=_namespace, order=self._order
        )
        self.slow: WorkQueue[ObjectKey] = WorkQueue(
            "slow decisions", max_delay=30.0, tenant=_namespace, order=self._order_in_turn
        )
        self.unused: WorkQueue[ObjectKey] = WorkQueue("unused claims", max_delay=30.0)
        self.tentative: WorkQueue[ObjectKey] = WorkQueue("tentative allocations", max_delay=5.0)
        self.pending = PendingPods()
        self.unused_later: set[ObjectKey] = set()
        # By namespace, index and name.
        self._users: Walks[tuple[str, str, str]] = Walks(self._users_in, self.queue.add)
        self._failed: Walks[ObjectKey] = Walks(attempts.failed_users, self.tentative.add)
        self._without: Walks[ObjectKey] = Walks(self._users_of, self._look_first)
        deallocator.deallocated.listen(self._deallocated)
        pods.add_handler(Handler(self._pod_added, self._pod_updated, self._pod_deleted))
        claims.add_handler(Handler(self._claim_seen, self._claim_updated, self._claim_deleted))
        for informer in others:
            informer.add_handler(
                Handler(lambda _: self.wake(), lambda _old, _new: self.wake(), lambda _: self.wake())
            )
        nodes.add_handler(
            Handler(lambda _: self.wake(), self._node_updated, lambda _: self.wake()),
        )

    def close(self) -> None:
        """Cancel timers."""
        self.queue.close()
        self.slow.close()
        self.unused.close()
        self.tentative.close()
        self._users.close()
        self._failed.close()
        self._without.close()
        for timer in (self._timer, self._groups_timer):
            if timer is not None:
                timer.cancel()

    # --- order ----------------------------------------------------------------------------------------------

    def rank(self, key: ObjectKey) -> Rank:
        """Return the rank of a pod: that of its group where it waits with one."""
        pending = self.pending.rank(key)
        if pending is not None:
            return pending
        pod = self._informer.get(key)
        return rank_of(pod) if pod is not None else Rank(0, "", key)

    def _order(self, key: ObjectKey) -> tuple[int, Rank]:
        rank = self.rank(key)
        return rank.level, rank

    def _order_in_turn(self, key: ObjectKey) -> tuple[int, Rank]:
        return 0, self.rank(key)

    def must_wait(self, pod: Pod) -> bool:
        """Return whether pods before this one are looked at first; it is looked at after them.

        Something has changed for the better that they do not know of. A pod waits once for each time that it
        is looked at, so that changes that come one after the other do not keep it waiting.
        """
        if self._records.clear(pod, Mark.HAS_WAITED):
            return False
        first = self.pending.first() if self._timer is not None else None
        if first is None or self.rank(pod.key) <= first:
            return False
        self._records.mark(pod, Mark.BEHIND)
        return True

    def look_behind(self, pod: Pod, group: Iterable[ObjectKey]) -> None:
        """Look at a group that gave back what it held after the pods that wait now: it had its turn."""
        for member in group:
            self.served(member)
        if self._timer is None:
            self.queue.add(pod.key)
        else:
            self._records.mark(pod, Mark.BEHIND)

    # --- changes for the better -----------------------------------------------------------------------------

    @property
    def progress(self) -> tuple[int, int]:
        """Another value whenever something has changed that may help a pod that waits, or one left to others.

        An answer that was asked for before does not know of it, and its pod was not waiting yet.
        """
        return self._changes, self._owners.version

    def wake(self) -> None:
        """Look at waiting pods again soon: something has changed for the better, perhaps."""
        self._changes += 1
        self.look_again()

    def look_again(self) -> None:
        """Look at waiting pods again soon: one of them did not know of the last change."""
        left = self._records.number(Mark.LEFT_TO_SCHEDULER)
        if self._timer is None and (len(self.pending) or left or self.unused_later):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timings.wake, self._wake_now)

    def _wake_now(self) -> None:
        self._timer = None
        for key in self.pending.heads():
            self.queue.add(key)
        for key in sorted(self._records.turn(Mark.BEHIND, Mark.HAS_WAITED), key=self.rank):
            self.queue.add(key)
        later, self.unused_later = self.unused_later, set()
        for key in later:
            self.unused.add(key)
        now = (self._mode(), self._owners.version)
        if now != self._left_at:
            for key in self._records.marked(Mark.LEFT_TO_SCHEDULER):
                self.queue.add(key)
        self._left_at = now

    def served(self, key: ObjectKey) -> None:
        """Note that a pod waits no longer; the next one that asks for the same may be served now as well."""
        following = self.pending.remove(key)
        if following is not None:
            self.queue.add(following)

    def next_turns(self) -> None:
        """Look at pods that waited until kube-scheduler has less to do."""
        for key in self._attempts.next(self._clock.monotonic()):
            self.queue.add(key)

    # --- pods -----------------------------------------------------------------------------------------------

    def _pod_added(self, pod: Pod) -> None:
        if uses_claims(pod) or is_gated(pod) or self._wants_grant(pod):
            self.queue.add(pod.key)
        else:
            self.look_at_group(pod)

    def look_at_group(self, pod: Pod) -> None:
        """Look at the group of a member that needs nothing of ours: the others may have waited for it alone.

        All are decided about together, so one of them is enough.
        """
        if pod.spec.node_name or foreign_gates(pod):
            return
        for group in self.groups_of(pod):
            if self._informer.number_by_index(GROUP_INDEX, group) > LARGEST_GROUP:
                continue  # it is none, for whatever its members ask
            members = (m for m in self._informer.each(GROUP_INDEX, group) if m.key != pod.key)
            first = next((m.key for m in members if self._waits_for_devices(m)), None)
            if first is not None:
                self.queue.add(first)

    def _waits_for_devices(self, pod: Pod) -> bool:
        left = self._records.has(pod, Mark.LEFT_TO_SCHEDULER)
        waits = not (pod.spec.node_name or foreign_gates(pod) or left)
        return waits and uses_claims(pod) and (is_gated(pod) or self._known.lacks_devices(pod))

    def _look_first(self, key: ObjectKey) -> None:
        """Look first at a pod that kube-scheduler bound, if it has no devices: its kubelet waits for them."""
        pod = self._informer.get(key)
        if pod is None or not self._records.has(pod, Mark.SEEN_BOUND):
            return
        if self._known.lacks_devices(pod):
            self._records.mark(pod, Mark.WITHOUT_DEVICES)
            self.queue.add_first(pod.key)

    def _pod_updated(self, old: Pod, pod: Pod) -> None:
        if same_but_reason(old, pod):
            return
        if old.status.resource_claim_statuses != pod.status.resource_claim_statuses:
            for key in set(claims_of(old)).difference(claims_of(pod)):
                self.check_use(key)  # another one was generated for it
        self._pod_added(pod)
        if pod.spec.node_name and not old.spec.node_name and uses_claims(pod):
            self._records.mark(pod, Mark.SEEN_BOUND)
            self._look_first(pod.key)
        if old.status.nominated_node_name and not pod.status.nominated_node_name:
            self.look_again()  # pods that share its claims may go elsewhere now
        repels_or_attracts = repels_less(old, pod) or (self.pending.for_others and attracts(old, pod))
        if kept_others_back(old, pod) or repels_or_attracts:
            self.wake()
        if is_finished(pod) and not is_finished(old):
            self.wake()
            self._check_claims(pod)
            self._check_group(pod)
        elif pod.metadata.deletion_timestamp and not old.metadata.deletion_timestamp:
            self._check_claims(pod)
            self._check_group(pod)
        elif changed_node(old, pod):
            self.wake()

    def _pod_deleted(self, pod: Pod) -> None:
        self.served(pod.key)
        self._check_claims(pod)
        self._check_group(pod)
        # It had room there, or kept others from claims that it shared with them.
        if pod.spec.node_name or pod.status.nominated_node_name or not pod.spec.scheduling_gates:
            self.wake()

    def _check_group(self, pod: Pod) -> None:
        """Look at the other members of a group again: their number has changed."""
        claims = (self._assume_cache.get(key) for key in claims_of(pod))
        self._groups.update(self.groups_of(pod), *(group_of_claim(c) for c in claims if c is not None))
        if self._groups and self._groups_timer is None:
            # Where a thousand members are deleted, each of them is looked at once, not a thousand times.
            loop = asyncio.get_running_loop()
            self._groups_timer = loop.call_later(self._timings.wake, self._look_at_groups)

    def _look_at_groups(self) -> None:
        self._groups_timer = None
        groups, self._groups = self._groups, set()
        for group in groups:
            self.look_at_users(GROUP_INDEX, group)

    def _check_claims(self, pod: Pod) -> None:
        for key in claims_named(pod):
            if self._assume_cache.get(key) is not None:
                self.check_use(key)

    def check_use(self, claim: ObjectKey) -> None:
        """Look in a while whether any pod uses a claim."""
        self.unused.add_after(claim, self._timings.unused)

    def look_beside(self, claims: Iterable[ObjectKey]) -> None:
        """Look at pods that could not be placed: another is not being placed with these claims any more."""
        for key in claims:
            self._failed.begin(key)

    # --- claims and nodes -----------------------------------------------------------------------------------

    def _claim_seen(self, claim: ResourceClaim) -> None:
        if claim.status.allocation is not None and not claim.status.reserved_for:
            self.check_use(claim.key)
        self.look_at_users(CLAIM_INDEX, claim.key)

    def look_at_users(self, index: str, key: tuple[str, str]) -> None:
        """Look at the pods with a namespace and name in an index, some at a time: there may be thousands."""
        self._users.begin((key[0], index, key[1]))

    def _users_in(self, used: tuple[str, str, str], last: ObjectKey | None, most: int) -> Sequence[ObjectKey]:
        namespace, index, name = used
        return self._informer.keys_after(index, (namespace, name), last, most)

    def _users_of(self, claim: ObjectKey, last: ObjectKey | None, most: int) -> Sequence[ObjectKey]:
        return self._informer.keys_after(CLAIM_INDEX, claim, last, most)

    def _claim_updated(self, old: ResourceClaim, claim: ResourceClaim) -> None:
        if same_for_decisions(old, claim):
            return
        gone = old.status.allocation is not None and claim.status.allocation is None
        if gone and not self._deallocator.take_note(old.metadata.uid):
            self._turned_down(old, self._end_attempts(claim, ours=False))
        self._claim_seen(claim)
        if gone:
            self._without.begin(claim.key)

    def _deallocated(self, claim: ResourceClaim) -> None:
        self._end_attempts(claim, ours=True)

    def _end_attempts(self, claim: ResourceClaim, *, ours: bool) -> list[Pod]:
        """Note that a claim was deallocated; return its pods whose nodes are not noted as unsuitable yet."""
        now = self._clock.monotonic()
        users = self._informer.by_index(CLAIM_INDEX, claim.key)
        self._expect_nowhere(users)
        by_scheduler = not ours and len(users) == 1
        attempts = [self._attempts.end(pod, now, by_scheduler=by_scheduler) for pod in users]
        ended = (a for a in attempts if a is not None)
        self.look_beside(sorted({key for attempt in ended for key in attempt.claims} - {claim.key}))
        self.next_turns()
        return [p for p, a in zip(users, attempts, strict=True) if a is None or not a.failed]

    def _claim_deleted(self, claim: ResourceClaim) -> None:
        self._deallocator.forget(claim.metadata.uid)
        self._expect_nowhere(self._informer.by_index(CLAIM_INDEX, claim.key))
        self._claim_seen(claim)

    def _expect_nowhere(self, users: Iterable[Pod]) -> None:
        """Count pods that lost an allocation on no node: they would keep others, and each other, from it."""
        for pod in users:
            if self._journal.expected(pod.metadata.uid) is not None:
                self._journal.apply(PodExpected(PodID(pod.key, pod.metadata.uid), None))

    def _turned_down(self, claim: ResourceClaim, users: list[Pod]) -> None:
        """Avoid the node of an allocation that kube-scheduler has deallocated: it does not suit the pods."""
        assert claim.status.allocation is not None
        node = node_of(claim.status.allocation)
        holders = {r.uid for r in claim.status.reserved_for}
        for pod in users:
            uid = pod.metadata.uid
            waits = not (pod.spec.node_name or pod.spec.scheduling_gates or is_finished(pod))
            # Where the claim was reserved for others only, the controller-manager took it from those.
            if node is None or not waits or (holders and uid not in holders):
                continue
            if self._may_be_cleared(pod, node):
                # It deallocates before it evicts others. What it reports next says whether it does.
                self.queue.add_first(pod.key)
                continue
            self._journal.apply(NodeTurnedDown(uid, node, self._clock.monotonic()))
            self._taken_back.send(pod, TakenBack.UNSCHEDULABLE)
            self._records.mark(pod, Mark.LOST_TO_SCHEDULER)
            self.tentative.add(pod.key)
            log.info(
                "kube-scheduler could not place the pod and deallocated; trying elsewhere",
                pod=str(pod.key),
                claim=str(claim.key),
                node=node,
            )

    def _may_be_cleared(self, pod: Pod, node: str) -> bool:
        """Return whether kube-scheduler may be about to evict pods of lower priority from a pod's node."""
        if pod.status.nominated_node_name != node or pod.spec.preemption_policy == "Never":
            return False
        others = self._informer.each(NODE_INDEX, node)
        return any(other.spec.priority < pod.spec.priority for other in others)

    def _node_updated(self, old: Node, node: Node) -> None:
        if not same_for_pods(old, node):
            self.wake()


def _namespace(key: ObjectKey) -> str:
    return key.namespace
