"""Watches a cluster, and says what must never be seen of allocations, whoever places the pods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from controller.allocate.decide import has_no_node
from dra_driver.api.core import PODS, Pod
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    AllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_driver.kube import Handler, Informer
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import pod_claims

__all__ = ["PlacementJudge", "judging"]

WITHOUT_DEVICES_SECONDS = 5.0
HELD_SECONDS = 3.0
TRIED_SECONDS = 2.0


class PlacementJudge:
    """What was found so far.

    Attributes:
        violations: a device, or one share of it, in two claims; a pod bound for more than five seconds
            without its devices on its node; devices that a pod holds for more than three seconds after
            kube-scheduler has reported that it cannot place the pod, preemption under way excepted; devices
            that a pod got after a report that no node suits it, for more than five seconds.
        longest: seconds for which a pod was bound without its devices, held devices after such a report, or
            was tried in spite of one.
    """

    def __init__(self, pods: Informer[Pod], claims: Informer[ResourceClaim], held_seconds: float) -> None:
        tried = held_seconds + TRIED_SECONDS
        self._limits = {"without devices": WITHOUT_DEVICES_SECONDS, "held": held_seconds, "tried": tried}
        self.violations: list[str] = []
        self.longest = dict.fromkeys(self._limits, 0.0)
        self._pods = pods
        self._claims = claims
        self._since: dict[tuple[str, str], float] = {}
        self._holders: dict[tuple[str, str, str], str] = {}
        self._held: dict[str, set[tuple[str, str, str]]] = {}
        # When kube-scheduler said something else about a pod, or ended its nomination, and when a claim got
        # other devices.
        self._reported: dict[str, tuple[tuple[str, bool], float]] = {}
        self._allocated: dict[str, float] = {}
        claims.add_handler(Handler(self._saw, lambda _, c: self._saw(c), self._gone))
        pods.add_handler(Handler(self._saw_pod, lambda _, p: self._saw_pod(p), lambda _: None))

    def _gone(self, claim: ResourceClaim) -> None:
        self._hold(claim, None)

    def _saw(self, claim: ResourceClaim) -> None:
        self._hold(claim, claim.status.allocation)

    def _hold(self, claim: ResourceClaim, allocation: AllocationResult | None) -> None:
        """Follow the order of writes: one claim has given a device back before another one has it."""
        results = allocation.devices.results if allocation is not None else ()
        now = {(str(r.driver), str(r.pool), _device_or_share(r)) for r in results}
        before = self._held.get(claim.metadata.uid, set())
        for device in before - now:
            self._holders.pop(device, None)
        for device in now - before:
            other = self._holders.get(device)
            if other is not None:
                self.violations.append(f"{'/'.join(device)} is held by {other} and {claim.key}")
            self._holders[device] = str(claim.key)
        if now != before:
            self._allocated[claim.metadata.uid] = asyncio.get_running_loop().time()
        self._held[claim.metadata.uid] = now

    def _saw_pod(self, pod: Pod) -> None:
        """Take the time at once: a report may be followed by another allocation in a moment."""
        said = (_report(pod), bool(pod.status.nominated_node_name))
        before, since = self._reported.get(pod.metadata.uid, (("", False), 0.0))
        begins = said == (before[0], True)  # it binds
        if said != before:
            now = asyncio.get_running_loop().time()
            self._reported[pod.metadata.uid] = (said, since if begins else now)

    def look(self, now: float) -> None:
        """Look at how things are, and for how long they have been so."""
        found = dict(self._findings())
        self._since = {key: self._since.get(key, now) for key in found}
        for (kind, name), since in self._since.items():
            lasted = now - since
            self.longest[kind] = max(self.longest[kind], lasted)
            if lasted > self._limits[kind]:
                self.violations.append(f"{name}: {kind} for {lasted:.1f} s: {found[kind, name]}")
                self._since[kind, name] = now

    def _findings(self) -> Iterator[tuple[tuple[str, str], str]]:
        for pod in self._pods.items():
            if pod.status.phase in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp:
                continue
            claims = [self._claims.get(used.key) for used in pod_claims(pod) if used.key is not None]
            name = str(pod.key)
            if pod.spec.node_name:
                missing = [c for c in claims if c is None or not _is_on(c, pod)]
                if missing:
                    yield ("without devices", name), f"on node {pod.spec.node_name}"
            elif any(c is not None and self._is_held(c, self._is_hopeless) for c in claims):
                yield ("held", name), _report(pod)
            elif any(c is not None and self._is_held(c, self._is_tried) for c in claims):
                yield ("tried", name), _report(pod)

    def _is_held(self, claim: ResourceClaim, hopeless_with: Callable[[Pod, ResourceClaim], bool]) -> bool:
        """Return whether a claim stays allocated although none of its pods can be placed with it."""
        users = [p for p in self._pods.items() if any(u.key == claim.key for u in pod_claims(p))]
        hopeless = all(hopeless_with(p, claim) for p in users)
        return claim.status.allocation is not None and not claim.status.reserved_for and hopeless

    def _is_hopeless(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Return whether kube-scheduler has failed since the claim was allocated; nothing is preempted here.

        It clears the nominated node, but not where it fails before it looks at claims.
        """
        (report, _), since = self._reported.get(pod.metadata.uid, (("", False), 0.0))
        newer = since >= self._allocated.get(claim.metadata.uid, 0.0)
        return bool(report) and not pod.spec.node_name and newer

    def _is_tried(self, pod: Pod, _: ResourceClaim) -> bool:
        """Return whether kube-scheduler had no node for the pod, and does nothing about it since."""
        return has_no_node(pod)


def _report(pod: Pod) -> str:
    """Return why the pod cannot be placed, where that is about what it has been allocated."""
    for condition in pod.status.conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message"))
            failed = condition.get("reason") in ("Unschedulable", "SchedulerError")
            if failed and "cannot allocate all claims" not in message:
                return message
    return ""


def _device_or_share(result: DeviceRequestAllocationResult) -> str:
    """Return what of its pool a claim has alone."""
    return result.device if result.share_id is None else f"{result.device}/{result.share_id}"


def _is_on(claim: ResourceClaim, pod: Pod) -> bool:
    allocation = claim.status.allocation
    here = allocation is not None and all(r.pool == pod.spec.node_name for r in allocation.devices.results)
    of_group = ("podgroups", pod.spec.pod_group)
    return here and any(
        r.uid == pod.metadata.uid or (r.resource, r.name) == of_group for r in claim.status.reserved_for
    )


@contextlib.asynccontextmanager
async def judging(
    api: KubeClient, namespace: str, held_seconds: float = HELD_SECONDS
) -> AsyncIterator[PlacementJudge]:
    """Watch until the block ends; fail where something was found that must never be.

    Args:
        api: for the watches.
        namespace: of the pods.
        held_seconds: more where no controller leads for a while.
    """
    pods, claims = Informer(api, PODS, namespace=namespace), Informer(api, RESOURCE_CLAIMS)
    judge = PlacementJudge(pods, claims, held_seconds)
    tasks = [asyncio.create_task(i.run()) for i in (pods, claims)]

    async def look() -> None:
        while True:
            judge.look(asyncio.get_running_loop().time())
            await asyncio.sleep(0.1)

    try:
        await pods.synced.wait()
        await claims.synced.wait()
        tasks.append(asyncio.create_task(look()))
        yield judge
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert not judge.violations, judge.violations
