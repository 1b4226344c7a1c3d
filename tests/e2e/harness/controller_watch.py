"""Follows pods and claims of a cluster: how long each step took, and whether a device was doubled."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import ALLOCATION_GATE
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.kube import Handler, Informer, KubeApi

__all__ = ["Follower", "PodTimes", "following", "pod_body", "template_body"]


def pod_body(
    name: str,
    namespace: str,
    image: str,
    command: str = "sleep 0.1",
    *,
    cpu: str = "10m",
    node: str = "",
    labels: dict[str, str] | None = None,
    claims: dict[str, dict[str, str]] | None = None,
) -> dict[str, Any]:
    """A pod that uses one claim from the template ``gpu``, or those in ``claims`` (name → source)."""
    entries = claims if claims is not None else {"gpu": {"resourceClaimTemplateName": "gpu"}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": entry, **source} for entry, source in entries.items()],
        "containers": [
            {
                "name": "main",
                "image": image,
                "command": ["sh", "-c", command],
                "resources": {"requests": {"cpu": cpu}, "claims": [{"name": entry} for entry in entries]},
            }
        ],
    }
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": spec,
    }


def template_body(name: str, namespace: str, device_class: str) -> dict[str, Any]:
    """A template for claims of one device."""
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


@dataclass(slots=True)
class PodTimes:
    """When things were first seen, on the loop's clock; None: not yet."""

    created: float
    ungated: float | None = None
    bound: float | None = None
    started: float | None = None
    ended: float | None = None
    gone: float | None = None


@dataclass(slots=True)
class Follower:
    """What was seen of one namespace's pods, and of all claims.

    Attributes:
        pods: by name.
        doubled: devices that two claims held at the same time, with both claims.
        allocations: how many times a claim went from not allocated to allocated.
        deallocations: the other way, or deleted while allocated.
        allocated_at: when each allocation was seen, on the loop's clock.
    """

    api: KubeApi
    namespace: str
    pods: dict[str, PodTimes] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    allocations: int = 0
    deallocations: int = 0
    allocated_at: list[float] = field(default_factory=list)
    _held: dict[tuple[str, str, str], str] = field(default_factory=dict)
    _of: dict[str, set[tuple[str, str, str]]] = field(default_factory=dict)

    async def create(self, body: dict[str, Any]) -> None:
        """Creates a pod, and takes the time."""
        name = body["metadata"]["name"]
        self.pods[name] = PodTimes(asyncio.get_running_loop().time())
        await self.api.create(PODS, body)

    async def until(self, step: str, names: list[str] | None = None, seconds: float = 180.0) -> None:
        """Waits until the pods have come to a step (``bound``, ``started``, ``ended``, ``gone``)."""
        deadline = asyncio.get_running_loop().time() + seconds
        wanted = list(self.pods) if names is None else names
        while missing := [n for n in wanted if getattr(self.pods[n], step) is None]:
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{len(missing)} of {len(wanted)} pods are not {step}: {missing[:8]}")
            await asyncio.sleep(0.05)

    def seconds(self, step: str, since: str = "created") -> list[float]:
        """From one step to another, of those pods that came to both."""
        pairs = ((getattr(t, since), getattr(t, step)) for t in self.pods.values())
        return sorted(b - a for a, b in pairs if a is not None and b is not None)

    def summary(self, step: str) -> str:
        """Median and largest, for people."""
        found = self.seconds(step)
        return f"{statistics.median(found):.2f} / {found[-1]:.2f} s" if found else "-"

    # --- events ---------------------------------------------------------------------------------------------

    def saw_pod(self, pod: Pod) -> None:
        """A pod as the watch shows it."""
        times = self.pods.get(pod.metadata.name)
        if times is None or pod.metadata.namespace != self.namespace:
            return
        now = asyncio.get_running_loop().time()
        if times.ungated is None and not any(g.name == ALLOCATION_GATE for g in pod.spec.scheduling_gates):
            times.ungated = now
        if times.bound is None and pod.spec.node_name:
            times.bound = now
        if times.started is None and pod.status.phase in ("Running", "Succeeded", "Failed"):
            times.started = now
        if times.ended is None and pod.status.phase in ("Succeeded", "Failed"):
            times.ended = now

    def saw_end(self, pod: Pod) -> None:
        """Take in that a pod is gone, as the watch shows it."""
        times = self.pods.get(pod.metadata.name)
        if times is not None and pod.metadata.namespace == self.namespace:
            times.gone = asyncio.get_running_loop().time()

    def saw_claim(self, claim: ResourceClaim, *, gone: bool = False) -> None:
        """A claim as the watch shows it: the order of events is that of the writes."""
        uid = claim.metadata.uid
        allocation = None if gone else claim.status.allocation
        now: set[tuple[str, str, str]] = set()
        if allocation is not None:
            now = {(r.driver, r.pool, r.device) for r in allocation.devices.results if not r.admin_access}
        before = self._of.get(uid, set())
        if now and not before:
            self.allocations += 1
            self.allocated_at.append(asyncio.get_running_loop().time())
        self.deallocations += bool(before) and not now
        for device in before - now:
            self._held.pop(device, None)
        for device in now - before:
            other = self._held.get(device)
            if other is not None:
                self.doubled.append(f"{'/'.join(device)}: {other} and {claim.key}")
            self._held[device] = str(claim.key)
        self._of[uid] = now


@contextlib.asynccontextmanager
async def following(api: KubeApi, namespace: str) -> AsyncIterator[Follower]:
    """Follows until the block ends; nothing has been doubled then, or it fails."""
    follower = Follower(api, namespace)
    pods, claims = Informer(api, PODS, namespace=namespace), Informer(api, RESOURCE_CLAIMS)
    saw_pod: Callable[[Pod], None] = follower.saw_pod
    pods.add_handler(Handler(saw_pod, lambda _, p: saw_pod(p), follower.saw_end))
    claims.add_handler(
        Handler(
            follower.saw_claim,
            lambda _, c: follower.saw_claim(c),
            lambda c: follower.saw_claim(c, gone=True),
        )
    )
    tasks = [asyncio.create_task(i.run()) for i in (pods, claims)]
    try:
        await pods.synced.wait()
        await claims.synced.wait()
        yield follower
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert not follower.doubled, follower.doubled
