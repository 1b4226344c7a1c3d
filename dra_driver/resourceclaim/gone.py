"""Devices that stay with claims that are gone, as inventories list them (``status.goneClaims``)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from dra_driver.api.meta import Uid
from dra_driver.api.own.inventory import MOST_GONE_CLAIMS, DeviceInventory, GoneClaim, GoneClaimDevice
from dra_driver.api.resource import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_driver.ownership import PoolID, pool_of_inventory, refusal_of

__all__ = ["allocation_of_gone", "devices_by_pool", "gone_allocations", "listed_claims"]

# As the CRD has it; an older CRD, or none, lets more through.
_MOST_DEVICES: Final = 32
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,63}")


def listed_claims(inventory: DeviceInventory) -> Mapping[Uid, GoneClaim]:
    """Return the claims that an inventory lists, as far as it is believed, within the bounds of the CRD."""
    if not inventory.status.registration.keeps_gone_claims or refusal_of(inventory, None):
        return {}
    return {
        c.uid: GoneClaim(uid=c.uid, devices=c.devices[:_MOST_DEVICES])
        for c in inventory.status.gone_claims[:MOST_GONE_CLAIMS]
        if _UID.fullmatch(c.uid) and c.devices
    }


def devices_by_pool(claim: ResourceClaim) -> Mapping[PoolID, GoneClaim]:
    """Return what a claim holds, by pool, for the list; nobody holds what it only looks at (admin access)."""
    found: dict[PoolID, list[GoneClaimDevice]] = defaultdict(list)
    allocation = claim.status.allocation
    for r in allocation.devices.results if allocation is not None else ():
        if not r.admin_access:
            device = GoneClaimDevice(
                device=r.device, share_id=r.share_id, consumed_capacity=r.consumed_capacity
            )
            found[PoolID(r.driver, r.pool)].append(device)
    return {p: GoneClaim(uid=claim.metadata.uid, devices=tuple(found[p])) for p in found}


def allocation_of_gone(claims: Mapping[PoolID, GoneClaim]) -> AllocationResult | None:
    """Return what a claim keeps, as an allocation; None if that is nothing."""
    results = tuple(
        DeviceRequestAllocationResult(
            request="gone",
            driver=pool.driver,
            pool=pool.pool,
            device=device.device,
            share_id=device.share_id,
            consumed_capacity=device.consumed_capacity,
        )
        for pool in sorted(claims)
        for device in claims[pool].devices
    )
    return AllocationResult(devices=DeviceAllocationResult(results=results)) if results else None


def gone_allocations(
    inventories: Iterable[DeviceInventory], present: Collection[Uid]
) -> Iterator[tuple[str, AllocationResult]]:
    """Yield what claims keep that are gone, each with a name for people.

    Args:
        inventories: of all nodes.
        present: UIDs of the claims that the API server has.
    """
    for inventory in inventories:
        pool = pool_of_inventory(inventory)
        for uid, claim in listed_claims(inventory).items():
            kept = allocation_of_gone({pool: claim})
            if kept is not None and uid not in present:
                yield f"a claim that is gone (UID {uid})", kept
