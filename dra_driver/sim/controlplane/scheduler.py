"""A stand-in for kube-scheduler: it allocates claims and binds pods as the recorded scheduler does.

It allocates first-fit with our own allocator, respects taints, those of DeviceTaintRules included (so it
leaves a pool that our controller has tainted), follows allocations made by others, reserves, binds, and
deallocates in the same cases as the real one: when no node fits and one was ruled out by the allocation of a
claim that no other pod uses. Extended resources of device classes get a claim. Of a pod whose claims others
have allocated the binding cycle goes on beside other pods: it nominates the node, reserves the claims as it
finds them, and binds; a failure clears the nominated node in the write that reports it. Pods of higher
priority come first. A pod that was refused for other reasons than its claims is looked at again when
something changes that may help it. Volumes are looked at by the rules that the controller goes by, too; none
are bound or made. There is no preemption, and no score beyond "fewest pods".

In one thing it is more careful: where a write of a claim is not answered, it reads the claim before it
decides anything else. kube-scheduler takes the devices for free until its watch shows otherwise, and gives
them to another claim; what then happens on the node is tested without a scheduler.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from dra_driver import resourceclaim, structured
from dra_driver.api.core import NODES, PODS, Node, Pod
from dra_driver.api.meta import ObjectKey, Resource
from dra_driver.api.names import CANNOT_ALLOCATE, NOT_ON_NODE
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    device_taint_rules,
)
from dra_driver.errors import Conflict, DraError, Forbidden, Invalid, NotFound
from dra_driver.kube import EventRecorder, Handler, Informer, SystemClock
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import KubeClient
from dra_driver.sim.controlplane import node_filters
from dra_driver.sim.controlplane.claim_writer import ClaimWriter, PreBindError
from dra_driver.sim.controlplane.extended_resources import ExtendedResources, owner_uids, served_by_classes
from dra_driver.sim.controlplane.followed import FollowedCluster
from dra_driver.sim.controlplane.neighbour_filters import NeighbourFilters
from dra_driver.sim.controlplane.queueing import LONGEST_SECONDS, QueueingHints
from dra_driver.sim.controlplane.volumes import FollowedVolumes
from dra_driver.sim.objects import MetaObject
from dra_driver.structured.model.nodeselection import selector_matches

__all__ = ["Scheduler"]

log = structlog.get_logger(__name__)

LEFT_OVER = "cannot schedule extended resource claim"
STILL = "still not schedulable"
# Changes come in bursts (the slices of a pool, the pods that waited for them): one round handles them all.
DEBOUNCE = 0.01
RETRY = 1.0


@dataclass(frozen=True, slots=True)
class _Unschedulable:
    """Why a pod cannot be placed.

    Attributes:
        message: for people.
        reason: of the condition.
        early: it was found before claims were looked at.
        of_claims: claims are among the reasons, or these are unknown: changes of claims may help.
    """

    message: str
    reason: str = "Unschedulable"
    early: bool = False
    of_claims: bool = True


@dataclass(frozen=True, slots=True)
class _Placement:
    """The node of a pod, and the allocation of each of its claims; an extended claim is the last one."""

    node: str
    allocations: tuple[AllocationResult, ...]
    share: resourceclaim.Share | None = None


@dataclass(slots=True)
class _Round:
    """The state of one round, with bindings and claims that the watches have not shown yet."""

    nodes: Sequence[Node]
    by_node: dict[str, list[Pod]] = field(default_factory=lambda: defaultdict(list))


class Scheduler:
    """Schedules the pods that name it.

    Args:
        api: the API server.
        name: ``schedulerName`` of its pods; the default one also schedules pods without a name.
        backoff: seconds before a pod that did not fit is tried again, whatever changes; they double up to ten
            times that. The real scheduler begins with one second.

    Attributes:
        slow_binding: seconds between the decision about a pod whose claims are allocated and PreBind.
        slow_allocation: seconds between the decision about any other pod with claims and PreBind. Other pods
            are scheduled meanwhile, beside what was decided; with 0 they wait until that is written.
    """

    def __init__(self, api: KubeClient, *, name: str = "default-scheduler", backoff: float = 0.05) -> None:
        self.slow_binding = 0.0
        self.slow_allocation = 0.0
        self._api = api
        self._name = name
        self._backoff = backoff
        self._not_before: dict[str, tuple[float, float]] = {}  # pod UID → monotonic time, last delay
        self._pods = Informer(api, PODS)
        self._claims = Informer(api, RESOURCE_CLAIMS, indices={"owner": owner_uids})
        self._slices = Informer(api, RESOURCE_SLICES)
        self._rules = Informer(api, device_taint_rules("v1beta2"))
        self._classes = Informer(api, DEVICE_CLASSES)
        self._nodes = Informer(api, NODES)
        self._volumes = FollowedVolumes(api, self._nodes)
        self._extended = ExtendedResources(api, self._classes, self._claims)
        self._hints = QueueingHints(self._pods, self._nodes, self._classes, self._volumes.informers)
        self._recorder = EventRecorder(api, name, SystemClock())
        self._dirty = asyncio.Event()
        self._cluster = FollowedCluster(
            slices=self._slices,
            rules=self._rules,
            classes=self._classes,
            nodes=self._nodes,
            claims=self._claims,
        )
        self._claim_writer = ClaimWriter(api, self._cluster.assume)
        self._bound: dict[str, str] = {}  # pod UID → node, until the watch shows it
        self._reported: dict[str, str] = {}  # pod UID → last condition written

    async def run(self) -> None:
        """Run until cancelled."""
        informers: tuple[Informer[Any], ...] = (
            self._pods,
            self._claims,
            self._slices,
            self._rules,
            self._classes,
            self._nodes,
            *self._volumes.informers,
        )
        for informer in informers:
            informer.add_handler(_on_any(self._dirty.set))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            for informer in informers:
                group.create_task(informer.run())
            for informer in informers:
                await informer.synced.wait()
            while True:
                await self._dirty.wait()
                await asyncio.sleep(DEBOUNCE)
                self._dirty.clear()
                await self._round(group)

    # --- one round ------------------------------------------------------------------------------------------

    async def _round(self, binding: asyncio.TaskGroup) -> None:
        self._forget_what_is_seen()
        this = _Round(sorted(self._nodes.items(), key=lambda n: n.metadata.name))
        for pod in self._pods.items():
            node = pod.spec.node_name or self._bound.get(pod.metadata.uid)
            if node and pod.status.phase not in ("Succeeded", "Failed"):
                this.by_node[node].append(pod)
        waiting = sorted(
            (p for p in self._pods.items() if self._is_waiting(p)),
            key=lambda p: (-p.spec.priority, p.metadata.creation_timestamp or "", p.key),
        )
        now = asyncio.get_running_loop().time()
        for pod in waiting:
            if now < self._not_before.get(pod.metadata.uid, (0.0, 0.0))[0] or self._hints.waits(pod, now):
                continue  # a timer wakes the next round, or a change
            try:
                await self._claim_writer.learn_outcomes()
                await self._schedule(this, pod, binding)
            except (Conflict, NotFound) as e:
                log.debug("somebody was faster", pod=str(pod.key), error=str(e))
                self._again()
            except DraError as e:
                log.warning("pod not scheduled, will be tried again", pod=str(pod.key), error=str(e))
                self._again()

    def _again(self) -> None:
        asyncio.get_running_loop().call_later(RETRY, self._dirty.set)

    def _is_waiting(self, pod: Pod) -> bool:
        return (
            not pod.spec.node_name
            and pod.metadata.uid not in self._bound
            and not pod.spec.scheduling_gates
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase in ("", "Pending")
            and pod.spec.scheduler_name in ("", self._name)
        )

    def _forget_what_is_seen(self) -> None:
        self._cluster.forget_what_is_seen()
        pods: dict[str, Pod] = {p.metadata.uid: p for p in self._pods.items()}
        for uid in list(self._bound):
            if uid not in pods or pods[uid].spec.node_name:
                del self._bound[uid]
        for gone in [u for u in self._reported if u not in pods]:
            del self._reported[gone]
            self._not_before.pop(gone, None)
        self._extended.forget(pods)
        self._hints.forget(pods)

    # --- one pod --------------------------------------------------------------------------------------------

    async def _schedule(self, this: _Round, pod: Pod, binding: asyncio.TaskGroup) -> None:
        claims: list[ResourceClaim] = []
        for used in resourceclaim.pod_claims(pod):
            if not used.entry:
                continue  # the extended claim of an earlier attempt
            claim = self._cluster.claim(used.key) if used.key is not None else None
            if claim is None:
                return  # without condition or event, until the claim is there
            claims.append(claim)
        events = self._hints.events
        decision = await self._decide(this, pod, claims)
        if isinstance(decision, _Unschedulable):
            await self._refuse(pod, decision)
            if not decision.of_claims:
                loop = asyncio.get_running_loop()
                self._hints.park(pod, events, loop.time())
                loop.call_later(LONGEST_SECONDS, self._dirty.set)
            return
        if claims and decision.share is None and all(c.status.allocation is not None for c in claims):
            self._bound[pod.metadata.uid] = decision.node
            this.by_node[decision.node].append(pod)
            binding.create_task(self._binding_cycle(pod, claims, decision))
            # Its first request is on its way before the next pod is looked at, and perhaps written for.
            await asyncio.sleep(0)
            return
        if self.slow_allocation and decision.allocations:
            self._bound[pod.metadata.uid] = decision.node
            this.by_node[decision.node].append(pod)
            uids = [*(c.metadata.uid for c in claims), pod.metadata.uid]
            self._cluster.decide(dict(zip(uids, decision.allocations, strict=False)))
            binding.create_task(self._allocate_late(pod, claims, decision))
            return
        if await self._allocate_and_bind(pod, claims, decision):
            this.by_node[decision.node].append(pod)

    async def _allocate_and_bind(self, pod: Pod, claims: list[ResourceClaim], decision: _Placement) -> bool:
        """Write what was decided; return whether the pod is bound."""
        made: ResourceClaim | None = None
        try:
            if decision.share is not None:
                made = await self._extended.create(pod, decision.share.requests)
                claims.append(made)
            for claim, allocation in zip(claims, decision.allocations, strict=True):
                await self._claim_writer.reserve(pod, claim, allocation)
        except (Forbidden, Invalid, PreBindError) as e:
            if made is not None:
                await self._extended.delete(pod, made)
            await self._refuse(pod, _failed_to_reserve(e))
            return False
        if decision.share is not None:
            await self._extended.record(pod, claims[-1], decision.share)
        await self._bind(pod, decision.node)
        return True

    async def _allocate_late(self, pod: Pod, claims: list[ResourceClaim], decision: _Placement) -> None:
        """Write what was decided after a while, beside other pods, also for a pod that is gone by then."""
        uids = [*(c.metadata.uid for c in claims), pod.metadata.uid]
        bound = False
        try:
            await asyncio.sleep(self.slow_allocation)
            bound = await self._allocate_and_bind(pod, claims, decision)
        except DraError as e:
            log.debug("pod not bound", pod=str(pod.key), error=str(e))
            self._again()
        finally:
            self._cluster.give_up(uids)
            if not bound:
                self._bound.pop(pod.metadata.uid, None)
                self._dirty.set()

    async def _binding_cycle(self, pod: Pod, claims: Sequence[ResourceClaim], decision: _Placement) -> None:
        """Bind a pod whose claims are allocated, beside other pods."""
        reserved: list[ResourceClaim] = []
        bound = False
        try:
            await self._nominate(pod, decision.node)
            await asyncio.sleep(self.slow_binding)
            for claim, allocation in zip(claims, decision.allocations, strict=True):
                reserved.append(await self._claim_writer.reserve(pod, claim, allocation))
            await self._bind(pod, decision.node)
            bound = True
        except DraError as e:
            log.debug("pod not bound", pod=str(pod.key), error=str(e))
            await self._not_bound(pod, reserved, e)
        finally:
            if not bound:
                self._bound.pop(pod.metadata.uid, None)
                self._dirty.set()

    async def _not_bound(self, pod: Pod, reserved: Sequence[ResourceClaim], error: DraError) -> None:
        """Give reservations back, and report what is not for the next round to find out."""
        await self._claim_writer.unreserve(pod, reserved)
        try:
            if isinstance(error, Forbidden | Invalid | PreBindError):
                await self._refuse(pod, _failed_to_reserve(error))
        except DraError as e:
            log.debug("pod is gone, or the server is", pod=str(pod.key), error=str(e))
        self._again()

    async def _nominate(self, pod: Pod, node: str) -> None:
        """Write the node for which the binding cycle begins (KEP-5278)."""
        known = self._pods.get(pod.key) or pod
        if known.status.nominated_node_name != node:
            patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node}}
            await self._api.merge_patch(
                PODS, pod.metadata.name, patch, pod.metadata.namespace, subresource="status"
            )

    async def _decide(
        self, this: _Round, pod: Pod, claims: Sequence[ResourceClaim]
    ) -> _Placement | _Unschedulable:
        wanted = self._extended.wanted(pod)
        left_over = self._extended.left_over(pod) if wanted else None
        volumes = self._volumes.fit_of(pod, this.by_node)
        if volumes.needs.problem:
            # PostFilter of DynamicResources finds no state of its PreFilter then, and clears nothing.
            missing = f"{volumes.needs.problem}. not found"
            text = f"0/{len(this.nodes)} nodes are available: {missing}"
            return _Unschedulable(text, early=True, of_claims=False)
        problem = self._prefilter(claims)
        if problem:
            total = len(this.nodes)
            return _Unschedulable(
                f"0/{total} nodes are available: {problem}. no new claims to deallocate, preemption: "
                f"0/{total} nodes are available: {total} Preemption is not helpful for scheduling."
            )
        reasons: dict[str, str] = {}
        candidates: list[Node] = []
        beside = NeighbourFilters(pod, this.nodes, this.by_node)
        ruled_out_by: dict[ObjectKey, ResourceClaim] = {}
        for node in this.nodes:
            reason = node_filters.node_rejection(pod, node, this.by_node[node.metadata.name], wanted)
            if not reason and (found := volumes.problem(node)):
                reason = f"node(s) {found.removeprefix('that ')}"
            reason = reason or beside.rejection(node)
            if left_over is not None and not reason:
                reason = LEFT_OVER
            elsewhere = () if reason else [c for c in claims if not _allows(c, node)]
            ruled_out_by.update({c.key: c for c in elsewhere})
            reason = reason or (NOT_ON_NODE if elsewhere else "")
            if reason:
                reasons[node.metadata.name] = reason
            else:
                candidates.append(node)
        nominated = pod.status.nominated_node_name
        candidates.sort(
            key=lambda n: (n.metadata.name != nominated, len(this.by_node[n.metadata.name]), n.metadata.name)
        )
        chosen = self._allocate(pod, claims, wanted, candidates, reasons)
        if chosen is not None:
            return chosen
        after = STILL
        if left_over is not None:
            await self._extended.delete(pod, left_over)
            after = "deletion of ResourceClaim completed"
        for claim in ruled_out_by.values():
            if await self._claim_writer.deallocate(pod, claim):
                after = "deallocation of ResourceClaim completed"
                break
        ordered = [reasons[n.metadata.name] for n in this.nodes]
        # Candidates suit the pod but for its claims.
        of_claims = bool(candidates or ruled_out_by or left_over is not None)
        return _Unschedulable(node_filters.summary(ordered, after), of_claims=of_claims)

    def _prefilter(self, claims: Sequence[ResourceClaim]) -> str:
        for claim in claims:
            if claim.metadata.deletion_timestamp is not None:
                return f'resourceclaim "{claim.metadata.name}" is being deleted'
            if claim.status.allocation is None and self._cluster.is_decided(claim):
                return f'resourceclaim "{claim.metadata.name}" is in the process of being allocated'
            for request in claim.spec.devices.requests or () if claim.status.allocation is None else ():
                names = [s.device_class_name for s in request.first_available]
                names += [request.exactly.device_class_name] if request.exactly is not None else []
                for name in names:
                    if self._classes.get_by_name(name) is None:
                        return f"request {request.name}: device class {name} does not exist"
        return ""

    def _allocate(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        wanted: Mapping[str, DeviceClass],
        candidates: Sequence[Node],
        reasons: dict[str, str],
    ) -> _Placement | None:
        """Return the first candidate where everything fits, and fill in why the others do not."""
        done = tuple(c.status.allocation for c in claims if c.status.allocation is not None)
        snapshot = self._cluster.snapshot()
        for node in candidates:
            name = node.metadata.name
            served = served_by_classes(wanted, node)
            share = resourceclaim.shares(pod, served) if served else None
            if share is None and len(done) == len(claims):
                return _Placement(name, done)
            special = [resourceclaim.extended_claim(pod, share.requests)] if share is not None else []
            outcome = structured.allocate(
                snapshot, (*claims, *special), strategy=structured.Strategy.FIRST_FIT, nodes=(name,)
            )
            if isinstance(outcome, structured.Allocated):
                return _Placement(name, outcome.results, share)
            reasons[name] = outcome.message if isinstance(outcome, structured.Failed) else CANNOT_ALLOCATE
        return None

    # --- writing --------------------------------------------------------------------------------------------

    async def _bind(self, pod: Pod, node: str) -> None:
        binding: Resource[MetaObject] = Resource(
            "", "v1", f"pods/{pod.metadata.name}/binding", "Binding", MetaObject, namespaced=True
        )
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.metadata.name,
                "namespace": pod.metadata.namespace,
                "uid": pod.metadata.uid,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._api.create(binding, body, pod.metadata.namespace)
        self._bound[pod.metadata.uid] = node
        self._reported.pop(pod.metadata.uid, None)
        message = f"Successfully assigned {pod.key} to {node}"
        self._recorder.event(PODS, pod, "Normal", "Scheduled", message)

    async def _refuse(self, pod: Pod, why: _Unschedulable) -> None:
        uid = pod.metadata.uid
        loop = asyncio.get_running_loop()
        delay = min(self._not_before.get(uid, (0.0, self._backoff / 2))[1] * 2, self._backoff * 10)
        self._not_before[uid] = (loop.time() + delay, delay)
        loop.call_later(delay, self._dirty.set)
        said = self._reported.get(uid)
        known = self._pods.get(pod.key) or pod
        if said == why.message and (why.early or not known.status.nominated_node_name):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": why.reason,
            "message": why.message,
            "lastTransitionTime": rfc3339(time.time()),
        }
        others = [dict(c) for c in known.status.conditions if c.get("type") != "PodScheduled"]
        status: dict[str, Any] = {"conditions": [*others, condition]}
        if not why.early:
            status["nominatedNodeName"] = None
        await self._api.merge_patch(
            PODS,
            pod.metadata.name,
            {"metadata": {"uid": uid}, "status": status},
            pod.metadata.namespace,
            subresource="status",
        )
        self._reported[uid] = why.message
        if said is None:
            # Later events are counted in the first one, whose text stays.
            self._recorder.event(PODS, pod, "Warning", "FailedScheduling", why.message)


def _failed_to_reserve(error: DraError) -> _Unschedulable:
    return _Unschedulable(f'running PreBind plugin "DynamicResources": {error}', "SchedulerError")


def _allows(claim: ResourceClaim, node: Node) -> bool:
    allocation = claim.status.allocation
    if allocation is None or allocation.node_selector is None:
        return True
    return selector_matches(allocation.node_selector, node)


def _on_any(call: Any) -> Handler[Any]:
    return Handler(added=lambda _: call(), updated=lambda _old, _new: call(), deleted=lambda _: call())
