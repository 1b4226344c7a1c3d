"""The allocator loop: pods whose claims are not allocated yet → allocations, then the gate comes off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable

import structlog

from controller.allocate.assume_cache import AssumeCache, node_of
from controller.allocate.decisions import Decider, Proceed, Refuse, Wait, Write
from controller.allocate.gangs import GROUP_INDEX, Gang, GroupProblem, Groups, groups_of
from controller.allocate.heavy import HeavyQuestions
from controller.allocate.node_backoff import NodeBackoff
from controller.allocate.pending import PendingPods, requests_of, signature_of
from controller.allocate.placement import NodeUsage, is_finished
from controller.allocate.writer import Writer
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics
from controller.observe.tracing import span, traced
from dra_driver.api.core import PODS, Node, Pod
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.errors import ApiError
from dra_driver.kube import EventRecorder, Handler, Informer, WorkQueue
from dra_driver.ownership import PoolAllocator, PoolID
from dra_driver.ports import Clock, KubeClient
from dra_driver.resourceclaim import foreign_gates, is_gated, is_generated, pod_claims, uses_claims
from dra_driver.structured import (
    DEFAULT_POLICY,
    Budget,
    PoolPolicy,
)

__all__ = ["CLAIM_INDEX", "Allocator", "claims_of"]

log = structlog.get_logger(__name__)

CLAIM_INDEX = "claim"


def claims_of(pod: Pod) -> Iterable[ObjectKey]:
    """Index function of the pod informer: the claims that the pod uses."""
    return [used.key for used in pod_claims(pod) if used.key is not None]


class Allocator:
    """Works on pods. Decisions are made one at a time, writes of several pods go on side by side."""

    def __init__(
        self,
        client: KubeClient,
        config: ControllerConfig,
        clock: Clock,
        recorder: EventRecorder,
        mode: Callable[[], PoolAllocator],
        *,
        pods: Informer[Pod],
        claims: Informer[ResourceClaim],
        slices: Informer[ResourceSlice],
        classes: Informer[DeviceClass],
        nodes: Informer[Node],
        inventories: Informer[DeviceInventory] | None = None,
        taint_rules: Informer[DeviceTaintRule] | None = None,
        blocked: Callable[[PoolID], bool] = lambda _: False,
        rule: Callable[[PoolID], PoolPolicy] = lambda _: DEFAULT_POLICY,
        metrics: Metrics | None = None,
        released: Callable[[], None] = lambda: None,
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        """Connects the parts.

        Args:
            client: for writes.
            config: drivers, number of workers, and how long to wait for what.
            clock: for timestamps, and for how long nodes are avoided.
            recorder: for Events.
            mode: who allocates at present; SCHEDULER: gates are removed, nothing is allocated.
            pods: with the index ``CLAIM_INDEX``.
            claims: all namespaces.
            slices: all drivers: claims of others decide where a pod can go.
            classes: all.
            nodes: all.
            inventories: source of device utilisation; if None, utilisation is ignored.
            taint_rules: taints of admins; None: the API has none.
            blocked: pools that carry our taint and are not ours to decide on (any more, or yet).
            rule: how to choose the devices of a pool; ``pool_changed`` must tell of other answers.
            metrics: registry to report to; defaults to an unexported one.
            released: called when devices have become free.
            work: CPU time of the calling thread in seconds, by which decisions are limited.
        """
        self._metrics = metrics or Metrics()
        self._first_seen: dict[Uid, float] = {}
        self._config = config
        self._clock = clock
        self._recorder = recorder
        self._mode = mode
        self._pods = pods
        self._usage = NodeUsage()
        self._released = released
        self._assume_cache = AssumeCache(claims, self._freed)
        self._writer = Writer(client, self._assume_cache, clock)
        self._decider = Decider(
            config.drivers,
            self._assume_cache,
            self._usage,
            slices=slices,
            classes=classes,
            nodes=nodes,
            inventories=inventories,
            blocked=blocked,
            rule=rule,
            taint_rules=taint_rules,
        )
        self._groups = Groups(
            self._decider,
            self._assume_cache,
            self._usage,
            self._writer,
            recorder,
            clock,
            pods=pods,
            claims=claims,
            users=lambda claim: pods.by_index(CLAIM_INDEX, claim.key),
            avoided=lambda pod: self._avoided.nodes(pod.metadata.uid),
            timeout=config.group_seconds,
        )
        self._avoided = NodeBackoff(clock, config.timings)
        self._heavy = HeavyQuestions(clock, work)
        # Counts what may have changed for the better.
        self._changes = 0
        self._waiting = PendingPods()
        # Pods left to kube-scheduler with claims that are not allocated: what is not ours now may become it.
        self._passed: set[ObjectKey] = set()
        # Claims that nobody uses, in pools that are not ours to decide on for the moment.
        self._unused_later: set[ObjectKey] = set()
        self._passed_at = (PoolAllocator.CONTROLLER, -1)
        self._undone: set[Uid] = set()
        self._ungated: set[Uid] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.queue: WorkQueue[ObjectKey] = WorkQueue("allocator", max_delay=30.0)
        self.unused: WorkQueue[ObjectKey] = WorkQueue("unused claims", max_delay=30.0)
        pods.add_handler(Handler(self._pod_added, self._pod_updated, self._pod_deleted))
        claims.add_handler(Handler(self._claim_seen, self._claim_updated, self._claim_deleted))
        for informer in (slices, classes, *((taint_rules,) if taint_rules is not None else ())):
            informer.add_handler(
                Handler(
                    added=lambda _: self._wake(),
                    updated=lambda _old, _new: self._wake(),
                    deleted=lambda _: self._wake(),
                )
            )
        nodes.add_handler(
            Handler(
                added=lambda _: self._wake(),
                updated=self._node_updated,
                deleted=lambda _: self._wake(),
            )
        )

    @property
    def assume_cache(self) -> AssumeCache:
        """What is taken."""
        return self._assume_cache

    def is_ours(self, allocation: AllocationResult) -> bool:
        """Return whether this controller decides on all devices of an allocation."""
        return self._decider.is_ours(allocation)

    def pool_changed(self, pool: PoolID) -> None:
        """A pool has become ours, is ours no longer, or is to be used in another way."""
        self._decider.forget_pool(pool)
        self._wake()

    async def run(self) -> None:
        """Allocates until cancelled. The informers must be synced: what is taken must be known."""
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self.queue.process(traced("allocate", self.reconcile), workers=self._config.workers)
            )
            group.create_task(self.unused.process(self.free_unused))

    def close(self) -> None:
        """Cancels timers."""
        self.queue.close()
        self.unused.close()
        if self._timer is not None:
            self._timer.cancel()

    # --- events ---------------------------------------------------------------------------------------------

    def _pod_added(self, pod: Pod) -> None:
        self._usage.seen(pod)
        if uses_claims(pod) or is_gated(pod):
            self.queue.add(pod.key)

    def _pod_updated(self, old: Pod, pod: Pod) -> None:
        self._pod_added(pod)
        if is_finished(pod) and not is_finished(old):
            self._wake()
            self._check_claims(pod)
            self._check_group(pod)
        elif pod.metadata.deletion_timestamp and not old.metadata.deletion_timestamp:
            self._check_group(pod)

    def _pod_deleted(self, pod: Pod) -> None:
        self._usage.gone(pod)
        self._forget(pod)
        self._check_claims(pod)
        self._check_group(pod)
        if pod.spec.node_name:
            self._wake()

    def _check_group(self, pod: Pod) -> None:
        """The number of members has changed."""
        claims = (self._assume_cache.get(key) for key in claims_of(pod))
        keys = {*groups_of(pod), *(key for c in claims if c is not None for key in groups_of(c))}
        for key in keys:
            for member in self._pods.by_index(GROUP_INDEX, key):
                self.queue.add(member.key)
            self._groups.forget(key)

    def _check_claims(self, pod: Pod) -> None:
        for key in claims_of(pod):
            self.unused.add_after(key, self._config.timings.unused)

    def _claim_seen(self, claim: ResourceClaim) -> None:
        if claim.status.allocation is not None and not claim.status.reserved_for:
            self.unused.add_after(claim.key, self._config.timings.unused)
        for pod in self._pods.by_index(CLAIM_INDEX, claim.key):
            self.queue.add(pod.key)

    def _claim_updated(self, old: ResourceClaim, claim: ResourceClaim) -> None:
        if old.status.allocation is not None and claim.status.allocation is None:
            self._deallocated(old)
        self._claim_seen(claim)

    def _claim_deleted(self, claim: ResourceClaim) -> None:
        self._undone.discard(claim.metadata.uid)
        self._claim_seen(claim)

    def _deallocated(self, old: ResourceClaim) -> None:
        """An allocation is gone. If it was kube-scheduler's doing, its node does not suit the pod."""
        if old.metadata.uid in self._undone:
            self._undone.discard(old.metadata.uid)
            return
        assert old.status.allocation is not None
        node = node_of(old.status.allocation)
        holders = {r.uid for r in old.status.reserved_for}
        for pod in self._pods.by_index(CLAIM_INDEX, old.key):
            uid = pod.metadata.uid
            waits = not (pod.spec.node_name or pod.spec.scheduling_gates or is_finished(pod))
            # Where the claim was reserved for others only, the controller-manager took it from those.
            if node is None or not waits or (holders and uid not in holders):
                continue
            seconds = self._avoided.add(uid, node)
            self._usage.gone(pod)
            self._again_when_not_avoided(pod)
            log.info(
                "kube-scheduler could not place the pod and deallocated; trying elsewhere",
                pod=str(pod.key),
                claim=str(old.key),
                node=node,
                avoided_for=seconds,
            )

    def _node_updated(self, old: Node, node: Node) -> None:
        # Kubelets write their status all the time; only this matters for allocations.
        if (old.metadata.labels, old.metadata.uid) != (node.metadata.labels, node.metadata.uid) or (
            old.spec,
            old.status.allocatable,
        ) != (node.spec, node.status.allocatable):
            self._wake()

    def _freed(self) -> None:
        self._released()
        self._wake()

    def _wake(self) -> None:
        """Something changed for the better, perhaps: waiting pods are looked at again soon."""
        self._changes += 1
        if self._timer is None and (len(self._waiting) or self._passed or self._unused_later):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._config.timings.wake, self._wake_now)

    def _wake_now(self) -> None:
        self._timer = None
        for key in self._waiting.heads():
            self.queue.add(key)
        later, self._unused_later = self._unused_later, set()
        for key in later:
            self.unused.add(key)
        now = (self._mode(), self._decider.ownership_version)
        if self._passed and now != self._passed_at:
            for key in self._passed:
                self.queue.add(key)
        self._passed_at = now

    def _served(self, key: ObjectKey) -> None:
        """The pod waits no longer; the next one that asks for the same may be served now as well."""
        following = self._waiting.remove(key)
        if following is not None:
            self.queue.add(following)

    def _forget(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._served(pod.key)
        self._passed.discard(pod.key)
        self._avoided.forget(uid)
        self._ungated.discard(uid)
        self._first_seen.pop(uid, None)

    # --- one pod --------------------------------------------------------------------------------------------

    async def reconcile(self, key: ObjectKey) -> None:
        """Does what is to be done about one pod."""
        pod = self._pods.get(key)
        if pod is None:
            return
        self._passed.discard(key)
        if is_finished(pod) or pod.metadata.deletion_timestamp:
            self._served(key)
            return
        if uses_claims(pod) and foreign_gates(pod):
            # Somebody else holds it back. Our gate stays, so that we decide before kube-scheduler looks.
            self._served(key)
            return
        if not uses_claims(pod) or self._mode() is PoolAllocator.SCHEDULER:
            if uses_claims(pod) and not pod.spec.node_name:
                self._passed.add(key)
            await self._proceed(pod)
            return
        self._first_seen.setdefault(pod.metadata.uid, self._clock.monotonic())
        group = self._groups.of(pod)
        if group is not None:
            await self._reconcile_group(pod, group)
            return
        question = self._question(pod)
        if self._heavy and await self._must_wait(pod, question):
            return
        budget = self._heavy.budget(pod.metadata.namespace)
        with self._metrics.decision_seconds.time(), span("decide"):
            decision = self._decider.decide(pod, self._avoided.nodes(pod.metadata.uid), budget=budget)
        match decision:
            case Wait(reason, poll):
                log.debug("pod waits", pod=str(key), reason=reason)
                self._served(key)
                if poll:
                    self.queue.add_after(key, poll)
            case Proceed(node, theirs):
                if theirs:
                    self._passed.add(key)
                if node is not None and not pod.spec.node_name:
                    self._usage.place(pod, node)  # known from its claims after a restart, too
                await self._proceed(pod)
            case Refuse():
                self._note_refusal(pod, question, budget, decision)
                await self._refuse(pod, decision)
            case Write():
                self._heavy.served(pod.metadata.namespace, question, budget)
                await self._write(pod, decision)

    def _question(self, pod: Pod) -> Hashable:
        """Return what makes the decision about a pod heavy: the content of its unallocated claims."""
        claims = (self._assume_cache.get(key) for key in claims_of(pod))
        pending = (c for c in claims if c is not None and c.status.allocation is None)
        return pod.metadata.namespace, requests_of(pending)

    async def _must_wait(self, pod: Pod, question: Hashable, signature: bytes = b"") -> bool:
        """Return whether the question took so much work the last time that it is not asked again yet."""
        left = self._heavy.left(question)
        if left <= 0:
            return False
        if pod.key not in self._waiting:
            await self._refuse(pod, Refuse(self._heavy.message(question)), signature)
        self.queue.add_after(pod.key, left)
        return True

    def _note_refusal(self, pod: Pod, question: Hashable, budget: Budget, decision: Refuse) -> None:
        seconds = self._heavy.refused(pod.metadata.namespace, question, budget, decision.message)
        if seconds:
            self.queue.add_after(pod.key, seconds)
            log.warning(
                "a pod was refused after much work; it is looked at again later",
                pod=str(pod.key),
                steps=budget.spent,
                seconds=seconds,
            )

    async def _reconcile_group(self, pod: Pod, group: Gang | GroupProblem) -> None:
        """Does what is to be done about all members of a pod's group."""
        signature = "/".join(("group", *group.key)).encode()
        if isinstance(group, GroupProblem):
            await self._refuse(pod, Refuse(group.message), signature)
            return
        refusal = self._groups.known_refusal(group, self._changes)
        if refusal is not None:
            await self._refuse(pod, refusal, signature)
            return
        if self._heavy and await self._must_wait(pod, signature, signature):
            return
        budget = self._heavy.budget(pod.metadata.namespace)
        with self._metrics.decision_seconds.time(), span("decide"):
            decision = self._groups.decide(group, budget, self._changes)
        match decision:
            case Wait(reason, poll):
                self._served(pod.key)
                if is_gated(pod):
                    self._recorder.event(PODS, pod, "Normal", "WaitingForGroup", reason)
                if poll:
                    self.queue.add_after(pod.key, poll)
            case Refuse():
                self._note_refusal(pod, signature, budget, decision)
                await self._refuse(pod, decision, signature)
                if not decision.undo:
                    self._report_to_others(pod, group, decision, signature)
            case Proceed():
                await self._proceed_all(group)
            case _:
                self._heavy.served(pod.metadata.namespace, signature, budget)
                for member, _ in decision:
                    self._served(member.key)
                try:
                    await self._groups.write(group, decision)
                except ApiError as e:
                    self._failed(e)
                    raise
                for member, _ in decision:
                    self._allocated(member)
                await self._proceed_all(group)

    def _report_to_others(self, pod: Pod, group: Gang, decision: Refuse, signature: bytes) -> None:
        """Tell the other members of a group why they wait; nothing else may lead to a look at them."""
        for member in group.members:
            waits = not (member.spec.node_name or is_finished(member))
            if waits and member.metadata.uid != pod.metadata.uid:
                self._waiting.add(member, signature, decision.message)
                self._recorder.event(PODS, member, "Warning", "FailedAllocation", decision.message)

    async def _proceed_all(self, group: Gang) -> None:
        for member in group.members:
            if not is_finished(member):
                await self._proceed(member)

    def _serves_another(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Whether a pod that has everything it needs is about to run with the claim."""
        for other in self._pods.by_index(CLAIM_INDEX, claim.key):
            gone = is_finished(other) or bool(other.metadata.deletion_timestamp)
            if gone or foreign_gates(other) or other.metadata.uid == pod.metadata.uid:
                continue
            needed = [self._assume_cache.get(key) for key in claims_of(other)]
            if all(c is not None and c.status.allocation is not None for c in needed):
                return True
        return False

    def _again_when_not_avoided(self, pod: Pod) -> None:
        """Nobody tells when a node may be tried again, and whoever added the key has undone the delay."""
        seconds = self._avoided.next_change(pod.metadata.uid)
        if seconds is not None:
            self.queue.add_after(pod.key, seconds)

    async def _proceed(self, pod: Pod) -> None:
        self._served(pod.key)
        await self._ungate(pod)

    async def _ungate(self, pod: Pod) -> None:
        if is_gated(pod) and pod.metadata.uid not in self._ungated:
            await self._writer.ungate(pod)
            if self._pods.get(pod.key) is not None:  # nobody would forget the uid of one that is gone
                self._ungated.add(pod.metadata.uid)

    async def free_unused(self, key: ObjectKey) -> None:
        """Takes back an allocation of ours whose pods went away before kube-scheduler reserved the claim.

        A pod that somebody else holds back by a scheduling gate does not use its claims yet.

        The controller-manager deallocates when a reservation ends, so it never looks at such a claim. It is
        ours also when its pool has gone to kube-scheduler since, which allocates and reserves in one write.
        """
        claim = self._assume_cache.get(key)
        if (
            claim is None
            or claim.status.allocation is None
            or claim.status.reserved_for
            or claim.metadata.deletion_timestamp
            or self._assume_cache.in_flight(claim)
        ):
            return
        users = self._pods.by_index(CLAIM_INDEX, key)
        if any(not (is_finished(pod) or foreign_gates(pod)) for pod in users):
            return
        allocation = claim.status.allocation
        if not (self._decider.is_ours(allocation) or self._decider.is_left_to_scheduler(allocation)):
            # The pool may be changing hands, or its node is away: then it is looked at again.
            if any(r.driver in self._config.drivers for r in allocation.devices.results):
                self._unused_later.add(key)
            return
        log.info("taking back an allocation that no pod uses", claim=str(key))
        await self.take_back(claim)

    async def take_back(self, claim: ResourceClaim) -> None:
        """Deallocate what nobody has reserved. It is not taken for kube-scheduler's doing, unless refused.

        Raises:
            ApiError: ``Conflict`` where somebody has changed the claim in the meantime.
        """
        self._undone.add(claim.metadata.uid)
        try:
            await self._writer.deallocate(claim)
        except ApiError:
            self._undone.discard(claim.metadata.uid)
            raise

    def reason(self, pod: ObjectKey) -> str:
        """Why the pod waits; empty where it does not."""
        return self._waiting.reason(pod)

    async def _refuse(self, pod: Pod, decision: Refuse, signature: bytes = b"") -> None:
        """Tells why, and notes that the pod waits; first of all, what holds it back is undone.

        Args:
            pod: that is not served.
            decision: why.
            signature: pods of one signature are served or not together; empty: by what the pod asks for.
        """
        # Members of a group hold all or nothing; who merely shares a claim lets another pod go first.
        undo = [c for c in decision.undo if signature or not self._serves_another(c, pod)]
        if undo:
            for claim in undo:
                log.info(
                    "taking back an allocation that pins the pod", pod=str(pod.key), claim=str(claim.key)
                )
                await self.take_back(claim)
            self.queue.add(pod.key)
            return
        entries = pod.spec.resource_claims
        alone = len(decision.claims) == len(entries) and all(is_generated(e) for e in entries)
        avoided = self._avoided.nodes(pod.metadata.uid)
        signature = signature or signature_of(pod, decision.claims if alone else (), avoided)
        self._waiting.add(pod, signature, decision.message)
        self._again_when_not_avoided(pod)
        if not (decision.claims or is_gated(pod)):
            return  # not ours; kube-scheduler says what is wrong with it
        self._metrics.allocations.labels("refused").inc()
        log.info("pod cannot be served now", pod=str(pod.key), reason=decision.message)
        self._recorder.event(PODS, pod, "Warning", "FailedAllocation", decision.message)
        for claim in decision.claims:
            self._recorder.event(RESOURCE_CLAIMS, claim, "Warning", "FailedAllocation", decision.message)
        if decision.elsewhere:
            # It waits here and there from now on. Whoever allocates first has it: the pools are disjoint, and
            # the claim is written under its resourceVersion.
            await self._ungate(pod)

    async def _write(self, pod: Pod, decision: Write) -> None:
        # No await between the decision and here: no other decision can have taken the same devices.
        for claim, allocation in decision.allocations:
            self._assume_cache.assume(claim, allocation)
        self._usage.place(pod, decision.node)
        self._served(pod.key)
        bound = pod if pod.spec.node_name else None
        left = list(decision.allocations)
        try:
            while left:
                await self._writer.allocate(*left[0], bound)
                claim, allocation = left.pop(0)
                devices = ", ".join(r.device for r in allocation.devices.results)
                message = f"allocated {devices} on node {decision.node} for pod {pod.metadata.name}"
                self._recorder.event(RESOURCE_CLAIMS, claim, "Normal", "Allocated", message)
                log.info("allocated", claim=str(claim.key), node=decision.node, devices=devices)
        except ApiError as e:
            self._failed(e)
            self._usage.not_placed(pod, self._pods.get(pod.key))
            if e.code not in (404, 409):
                text = f"the allocation of claim {left[0][0].key} was refused: {e}"
                self._recorder.event(PODS, pod, "Warning", "FailedAllocation", text)
            raise
        finally:
            for claim, _ in left[1:]:
                self._assume_cache.release(claim)
        self._allocated(pod)
        await self._proceed(pod)

    def _allocated(self, pod: Pod) -> None:
        self._metrics.allocations.labels("allocated").inc()
        since = self._first_seen.pop(pod.metadata.uid, None)
        if since is not None:
            self._metrics.allocation_seconds.observe(self._clock.monotonic() - since)

    def _failed(self, error: ApiError) -> None:
        self._metrics.allocations.labels("conflict" if error.code in (404, 409) else "error").inc()
