"""Whether a claim is still allocated to what the node has prepared for it.

A claim keeps its UID when it is deallocated and allocated anew, and the kubelet names it by its UID alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.api.meta import PoolName
from dra_driver.api.resource import ResourceClaim
from dra_driver.preparation.claim import PreparedClaim

__all__ = ["GivenDevice", "devices_of_claim", "devices_of_record"]


@dataclass(frozen=True, slots=True, order=True)
class GivenDevice:
    """One device of an allocation.

    Attributes:
        request: name of the request, without the subrequest.
        share_id: which share of a device that is allocated several times; empty if it is not.
        admin_access: the claim only looks on.
    """

    request: str
    pool: PoolName
    device: str
    share_id: str = ""
    admin_access: bool = False

    def __str__(self) -> str:
        share = f" (share {self.share_id})" if self.share_id else ""
        return f"{self.device}{share}{' with admin access' if self.admin_access else ''}"


def devices_of_claim(claim: ResourceClaim, driver: str) -> frozenset[GivenDevice]:
    """Return what the claim is allocated to of a driver's devices; nothing for one that is not allocated."""
    if claim.status.allocation is None:
        return frozenset()
    return frozenset(
        GivenDevice(
            request=result.request.partition("/")[0],
            pool=result.pool,
            device=result.device,
            share_id=result.share_id or "",
            admin_access=bool(result.admin_access),
        )
        for result in claim.status.allocation.devices.results
        if result.driver == driver
    )


def devices_of_record(record: PreparedClaim) -> frozenset[GivenDevice]:
    """Return what the claim was allocated to when it was prepared."""
    return frozenset(
        GivenDevice(
            request=request,
            pool=device.pool,
            device=device.device,
            share_id=device.share_id or "",
            admin_access=device.admin_access,
        )
        for device in record.devices
        for request in device.requests
    )
