"""Writes allocations in such a way that kube-scheduler and the controller-manager take them for their own.

The recipe was recorded beside a real kube-scheduler: the finalizer first (the controller-manager deallocates
only claims that have it), then the allocation with ``allocationTimestamp`` (the scheduler would try to add a
missing one, and an allocation is immutable). ``reservedFor`` is the scheduler's, except for pods that it will
never see because they are bound already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog

from controller.allocate.decide import same_devices
from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api import codec, names
from dra_driver.api.core import PODS, Pod
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from dra_driver.errors import ApiError, ApiUnavailable, Conflict, NotFound, ServerBusy
from dra_driver.kube import Backoff
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["Writer"]

log = structlog.get_logger(__name__)

# Both writes of an allocation together. Those that hang are looked up and written again.
WRITE_SECONDS = 4.0


class Writer:
    """The controller's writes to claims and pods.

    Args:
        client: of the API server; refuses to write when the lease is lost.
        assume_cache: takes in the answers.
        clock: for timestamps.
    """

    def __init__(self, client: KubeClient, assume_cache: AssumeCache, clock: Clock) -> None:
        self._client = client
        self._assume_cache = assume_cache
        self._clock = clock

    async def allocate(
        self,
        claim: ResourceClaim,
        allocation: AllocationResult,
        consumer: ResourceClaimConsumerReference | None,
    ) -> None:
        """Write an assumed allocation, and confirm or release the assumption.

        A write without an answer may have been done, or may yet be done, so the devices stay taken and the
        same allocation is written again until the server gives a definite answer.

        Args:
            claim: as the decision saw it; not allocated.
            allocation: assumed in the cache.
            consumer: a pod that is bound already, or its PodGroup, for which the claim is reserved at once.

        Raises:
            Conflict: the claim was changed by another writer; look again.
            ApiError: the server refuses.
        """
        dated = msgspec.structs.replace(allocation, allocation_timestamp=rfc3339(self._clock.now()))
        backoff = Backoff(base=0.1, cap=5.0)
        current = claim
        uncertain = False
        while True:
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    self._assume_cache.confirm(await self._once(current, dated, consumer))
                    return
            except (ApiUnavailable, ServerBusy, TimeoutError) as e:
                log.warning("no answer to an allocation", claim=str(claim.key), error=str(e) or "timeout")
                uncertain = True
            except ApiError:
                if not uncertain:
                    self._assume_cache.release(claim)
                    raise
            await asyncio.sleep(backoff.next())
            found = await self._look(claim, backoff)
            if found is None or (found.metadata.deletion_timestamp and found.status.allocation is None):
                self._assume_cache.release(claim)
                raise Conflict(f"claim {claim.key} is gone", code=409, reason="Conflict")
            if found.status.allocation is not None:
                if same_devices(found.status.allocation, allocation):
                    self._assume_cache.confirm(found)
                    return
                self._assume_cache.release(claim)
                self._assume_cache.note(found)
                raise Conflict(f"claim {claim.key} was allocated by another", code=409, reason="Conflict")
            current = found

    async def allocate_all(
        self,
        writes: Iterable[tuple[ResourceClaim, AllocationResult, ResourceClaimConsumerReference | None]],
    ) -> list[ApiError]:
        """Write allocations side by side, each as ``allocate`` does; return what was refused."""
        problems: list[ApiError] = []

        async def one(
            claim: ResourceClaim,
            allocation: AllocationResult,
            consumer: ResourceClaimConsumerReference | None,
        ) -> None:
            try:
                await self.allocate(claim, allocation, consumer)
            except ApiError as e:
                problems.append(e)

        async with asyncio.TaskGroup() as tasks:
            for write in writes:
                tasks.create_task(one(*write))
        return problems

    async def _once(
        self,
        claim: ResourceClaim,
        allocation: AllocationResult,
        consumer: ResourceClaimConsumerReference | None,
    ) -> ResourceClaim:
        finalizers = claim.metadata.finalizers or ()
        if names.CLAIM_FINALIZER not in finalizers:
            claim = await self._patch(claim, {"finalizers": [*finalizers, names.CLAIM_FINALIZER]}, None)
            self._assume_cache.note(claim)
        # As it is: what a claim's author has nested deeply could not be made into lists and back.
        status: dict[str, Any] = {"allocation": msgspec.Raw(codec.encode(allocation))}
        if consumer is not None:
            status["reservedFor"] = [msgspec.Raw(codec.encode(consumer))]
        return await self._patch(claim, {}, status)

    async def _patch(
        self, claim: ResourceClaim, meta: dict[str, Any], status: dict[str, Any] | None
    ) -> ResourceClaim:
        patch: dict[str, Any] = {
            "metadata": {
                "uid": claim.metadata.uid,
                "resourceVersion": claim.metadata.resource_version,
                **meta,
            }
        }
        if status is not None:
            patch["status"] = status
        return await self._client.merge_patch(
            RESOURCE_CLAIMS,
            claim.metadata.name,
            patch,
            claim.metadata.namespace,
            subresource="status" if status is not None else "",
        )

    async def _look(self, claim: ResourceClaim, backoff: Backoff) -> ResourceClaim | None:
        """Return the claim as the server has it now, however long that takes; None where it is gone."""
        while True:
            try:
                found = await self._client.get(RESOURCE_CLAIMS, claim.metadata.name, claim.metadata.namespace)
            except NotFound:
                return None
            except (ApiUnavailable, ApiError) as e:
                log.warning("cannot read a claim back", claim=str(claim.key), error=str(e))
                await asyncio.sleep(backoff.next())
            else:
                return found if found.metadata.uid == claim.metadata.uid else None

    async def deallocate(self, claim: ResourceClaim) -> None:
        """Deallocate a claim that is not reserved.

        Raises:
            ApiError: ``Conflict`` where it was reserved in the meantime.
        """
        self._assume_cache.note(await self._patch(claim, {}, {"allocation": None}))

    async def ungate(self, pod: Pod) -> None:
        """Remove our scheduling gate, and only ours. A pod that is gone needs nothing.

        The uid is the precondition, not the resourceVersion: gates can only be removed, so the list cannot
        have grown since, and kube-scheduler writes the status of gated pods at the same time.

        Raises:
            ApiError: ``Conflict`` where others write the pod at the same time, again and again.
        """
        rest = [{"name": g.name} for g in pod.spec.scheduling_gates if g.name != names.ALLOCATION_GATE]
        patch = {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": rest or None}}
        try:
            try:
                await self._client.merge_patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)
            except Conflict:
                # Another pod has its name, or the API server has given up its attempts.
                found = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
                if found.metadata.uid == pod.metadata.uid:
                    raise
                log.debug("pod is gone", pod=str(pod.key))
        except NotFound:
            log.debug("pod is gone", pod=str(pod.key))

    async def nominate(self, pod: Pod, node: str) -> str:
        """Write the node that a pod is meant for: kube-scheduler tries it first, and does not write it.

        A pod that kube-scheduler sees is written under its resourceVersion: it may have said something about
        the pod in the meantime. Without the nomination it finds the node all the same.

        Args:
            pod: as it was last seen.
            node: empty: the nomination is cleared.

        Returns:
            The resourceVersion of the pod with the nomination; empty where it was not written.
        """
        meta: dict[str, str] = {"uid": pod.metadata.uid}
        if not pod.spec.scheduling_gates:
            meta["resourceVersion"] = pod.metadata.resource_version
        patch = {"metadata": meta, "status": {"nominatedNodeName": node or None}}
        key = pod.key
        try:
            written = await self._client.merge_patch(
                PODS, key.name, patch, key.namespace, subresource="status"
            )
        except (NotFound, Conflict):
            return ""
        except (ApiError, ApiUnavailable) as e:
            log.warning("the node of a pod cannot be nominated", pod=str(key), node=node, error=str(e))
            return ""
        return written.metadata.resource_version
