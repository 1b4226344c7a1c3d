"""Writes of the stand-in for kube-scheduler to claims: reservations, allocations, deallocations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from dra_driver import resourceclaim
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import CLAIM_FINALIZER
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocationResult, ResourceClaim
from dra_driver.errors import ApiUnavailable, Conflict, DraError, Forbidden, Invalid, NotFound
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import KubeClient

__all__ = ["ClaimWriter", "PreBindError"]

log = structlog.get_logger(__name__)

# Writes of one reservation that may meet a conflict: client-go's DefaultRetry.
ATTEMPTS: Final = 5


class PreBindError(DraError):
    """A claim cannot be reserved."""


class ClaimWriter:
    """Writes claims as kube-scheduler does.

    Args:
        api: the API server.
        known: called with each claim as it is after a write.
    """

    def __init__(self, api: KubeClient, known: Callable[[ResourceClaim], None]) -> None:
        self._api = api
        self._known = known
        self._unanswered: set[ObjectKey] = set()  # nobody knows whether they were written

    async def learn_outcomes(self) -> None:
        """Read the claims whose writes were not answered.

        Raises:
            ApiError: one cannot be read.
            ApiUnavailable: likewise.
        """
        for key in list(self._unanswered):
            with contextlib.suppress(NotFound):
                self._known(await self._api.get(RESOURCE_CLAIMS, key.name, key.namespace))
            self._unanswered.discard(key)

    async def reserve(self, pod: Pod, claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim:
        """Reserve a claim for a pod. After a conflict it is read again, and reserved as it is then.

        Raises:
            PreBindError: it was allocated, or deallocated, by another in the meantime.
        """
        allocated = claim.status.allocation is not None
        for _ in range(ATTEMPTS):
            try:
                return await self._reserve_once(pod, claim, allocation)
            except Conflict:
                claim = await self._api.get(RESOURCE_CLAIMS, claim.metadata.name, claim.metadata.namespace)
                if (claim.status.allocation is not None) != allocated:
                    what = "deallocated" if allocated else "allocated"
                    raise PreBindError(f"claim {claim.key} got {what} elsewhere in the meantime") from None
        raise PreBindError(f"claim {claim.key} changes all the time")

    async def _reserve_once(
        self, pod: Pod, claim: ResourceClaim, allocation: AllocationResult
    ) -> ResourceClaim:
        if claim.status.allocation is None and CLAIM_FINALIZER not in (claim.metadata.finalizers or ()):
            claim = await self._patch(
                claim, {"metadata": {"finalizers": [*(claim.metadata.finalizers or ()), CLAIM_FINALIZER]}}
            )
        status: dict[str, Any] = {}
        if claim.status.allocation is None or claim.status.allocation.allocation_timestamp is None:
            # If another writer allocated without a timestamp, the API server refuses this, as with the real
            # scheduler.
            status["allocation"] = codec.plain(allocation) | {"allocationTimestamp": rfc3339(time.time())}
        if not resourceclaim.is_reserved_for(claim, pod.metadata.uid):
            reserved = [*claim.status.reserved_for, resourceclaim.pod_reference(pod)]
            status["reservedFor"] = codec.plain(reserved)
        elif claim.status.allocation is not None:
            return claim
        try:
            return await self._patch(claim, {"status": status}, "status")
        except (Invalid, Forbidden) as e:
            what = "allocation and reservation" if claim.status.allocation is None else "reservation"
            text = f"add {what} to claim {claim.key}: {e}"
            raise type(e)(text, code=e.code, reason=e.reason, causes=e.causes) from e

    async def deallocate(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Deallocate a claim (PostFilter) that no other pod has reserved, whoever allocated it."""
        if any(ref.uid != pod.metadata.uid for ref in claim.status.reserved_for):
            return False
        await self._patch(
            claim, {"status": {"allocation": None, "reservedFor": None, "devices": None}}, "status"
        )
        return True

    async def _patch(
        self, claim: ResourceClaim, patch: Mapping[str, Any], subresource: str = ""
    ) -> ResourceClaim:
        metadata = {**patch.get("metadata", {}), "resourceVersion": claim.metadata.resource_version}
        try:
            changed = await self._api.merge_patch(
                RESOURCE_CLAIMS,
                claim.metadata.name,
                {**patch, "metadata": metadata},
                claim.metadata.namespace,
                subresource=subresource,
            )
        except ApiUnavailable:
            self._unanswered.add(claim.key)
            raise
        self._known(changed)
        return changed

    async def unreserve(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Give back the reservations of a pod that is not bound after all."""
        for claim in claims:
            others = [r for r in claim.status.reserved_for if r.uid != pod.metadata.uid]
            try:
                await self._patch(claim, {"status": {"reservedFor": codec.plain(others) or None}}, "status")
            except DraError as e:
                log.warning("claim stays reserved", claim=str(claim.key), error=str(e))
