"""A stand-in for the device taint eviction controller: pods on devices with a NoExecute taint are deleted.

As recorded, only tolerations in the allocation count, and only those with the effect NoExecute: one with an
empty effect satisfies the scheduler, yet the pod is evicted.
"""

from __future__ import annotations

import asyncio
import calendar
import contextlib
import time
from typing import Any

from dra_driver.api.core import PODS, Pod
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceToleration,
    ResourceClaim,
)
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube import EventRecorder, Handler, Informer, SystemClock
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import KubeClient

__all__ = ["TaintEviction"]

DEBOUNCE = 0.01
RETRY = 1.0


class TaintEviction:
    """Watches slices, claims and pods; deletes pods whose time on a tainted device is over.

    Args:
        api: the API server.
        delay: seconds from the first sight of a pod on a tainted device to its deletion.
    """

    def __init__(self, api: KubeClient, *, delay: float = 0.0) -> None:
        self._api = api
        self._delay = delay
        self._seen: dict[str, float] = {}  # pod UID → when its eviction was due first
        self._pods = Informer(api, PODS)
        self._claims = Informer(api, RESOURCE_CLAIMS)
        self._slices = Informer(api, RESOURCE_SLICES)
        self._recorder = EventRecorder(api, "device-taint-eviction-controller", SystemClock())
        self._dirty = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        informers: tuple[Informer[Any], ...] = (self._pods, self._claims, self._slices)
        for informer in informers:
            informer.add_handler(
                Handler(
                    added=lambda _: self._dirty.set(),
                    updated=lambda _old, _new: self._dirty.set(),
                    deleted=lambda _: self._dirty.set(),
                )
            )
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
                await self._round()

    async def _round(self) -> None:
        taints = self._taints()
        self._seen = {p.metadata.uid: t for p in self._pods.items() if (t := self._seen.get(p.metadata.uid))}
        for claim in self._claims.items():
            end = _end(claim, taints)
            if end is None:
                continue
            for reference in claim.status.reserved_for:
                pod = self._pods.get_by_name(reference.name, claim.metadata.namespace)
                if pod is None or pod.metadata.uid != reference.uid or not _runs(pod):
                    continue
                end = max(end, self._seen.setdefault(pod.metadata.uid, time.time()) + self._delay)
                if end > time.time():
                    asyncio.get_running_loop().call_later(end - time.time(), self._dirty.set)
                else:
                    await self._evict(pod)

    def _taints(self) -> dict[tuple[str, str, str], tuple[DeviceTaint, ...]]:
        found: dict[tuple[str, str, str], tuple[DeviceTaint, ...]] = {}
        for item in self._slices.items():
            for device in item.spec.devices:
                taints = tuple(t for t in device.taints if t.effect == "NoExecute")
                if taints:
                    found[item.spec.driver, item.spec.pool.name, device.name] = taints
        return found

    async def _evict(self, pod: Pod) -> None:
        self._recorder.event(PODS, pod, "Normal", "DeviceTaintManagerEviction", "Marking for deletion")
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": rfc3339(time.time()),
        }
        others = [dict(c) for c in pod.status.conditions if c.get("type") != "DisruptionTarget"]
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            with contextlib.suppress(NotFound, Conflict):
                await self._api.merge_patch(
                    PODS,
                    name,
                    {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [*others, condition]}},
                    namespace,
                    subresource="status",
                )
                await self._api.delete(PODS, name, namespace, uid=pod.metadata.uid)
        except DraError:
            asyncio.get_running_loop().call_later(RETRY, self._dirty.set)


def _runs(pod: Pod) -> bool:
    return (
        bool(pod.spec.node_name)
        and pod.metadata.deletion_timestamp is None
        and pod.status.phase not in ("Succeeded", "Failed")
    )


def _end(claim: ResourceClaim, taints: dict[tuple[str, str, str], tuple[DeviceTaint, ...]]) -> float | None:
    """Return when pods with this claim are to be evicted, in seconds since the epoch; None if never."""
    if claim.status.allocation is None:
        return None
    ends = [
        end
        for result in claim.status.allocation.devices.results
        for taint in taints.get((result.driver, result.pool, result.device), ())
        if (end := _tolerated_until(result, taint)) is not None
    ]
    return min(ends, default=None)


def _tolerated_until(result: DeviceRequestAllocationResult, taint: DeviceTaint) -> float | None:
    added = _seconds(taint.time_added) if taint.time_added else 0.0
    matching = [t for t in result.tolerations if _matches(t, taint)]
    if not matching:
        return 0.0
    limits = [t.toleration_seconds for t in matching if t.toleration_seconds is not None]
    return None if not limits else added + max(0, min(limits))


def _matches(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    return (
        toleration.effect == "NoExecute"
        and (not toleration.key or toleration.key == taint.key)
        and (toleration.operator == "Exists" or toleration.value == taint.value)
    )


def _seconds(text: str) -> float:
    return float(calendar.timegm(time.strptime(text.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")))
