"""Claims that the API server has no more, and whose devices stay with them: ``status.goneClaims``.

A claim that is deleted without having been deallocated says nothing any more about its devices, while its pod
may still run. So the controller adds it to the inventory, and its devices stay taken until this agent has
removed it. Claims whose deletion no controller has seen are added here, once the comparison with the API
server has found them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import structlog

from dra_driver.api import codec
from dra_driver.api.meta import Uid
from dra_driver.api.own.inventory import (
    DEVICE_INVENTORIES,
    MOST_GONE_CLAIMS,
    DeviceInventory,
    GoneClaim,
    GoneClaimDevice,
    Registration,
)
from dra_driver.ports import KubeClient
from dra_driver.preparation import PreparedClaim
from kubelet_plugin.usage.claim_use import ClaimUse

__all__ = ["GoneClaims"]

log = structlog.get_logger(__name__)


class GoneClaims:
    """Keeps the list of the inventory.

    Args:
        client: writes the inventory.
        use: knows claims that were found to be gone, and learns which are in the list.
        holds: whether a claim holds devices of this node, or may come to hold some by a call under way.
    """

    def __init__(self, client: KubeClient, use: ClaimUse, holds: Callable[[Uid], Awaitable[bool]]) -> None:
        self._client = client
        self._use = use
        self._holds = holds
        # What the API server has not stored as it was written: its CRD is older than this agent.
        self._altered: tuple[GoneClaim, ...] | None = None
        self._is_dropped = False

    def promised(self, registration: Registration) -> Registration:
        """Return the registration with the promise to keep the list in its epoch."""
        if self._is_dropped:
            return registration
        return Registration(
            registered=registration.registered,
            epoch=registration.epoch,
            gone_claims_epoch=registration.epoch,
        )

    def stored(self, registration: Registration) -> None:
        """Take note of what the API server has stored of the promise."""
        self._is_dropped = registration.gone_claims_epoch != registration.epoch

    async def sync(self, current: DeviceInventory) -> DeviceInventory:
        """Remove what this node does not hold from the list, and add what it holds of gone claims.

        Raises:
            DraError: of the API server; a conflict if the list has changed since ``current`` was read.
        """
        noted = current.status.gone_claims
        wanted = tuple([c for c in noted if await self._holds(c.uid)])
        known = {c.uid for c in wanted}
        found = (c for c in self._found() if c.uid not in known)
        wanted += tuple(c for c, _ in zip(found, range(MOST_GONE_CLAIMS - len(wanted)), strict=False))
        self._use.asked = frozenset(c.uid for c in wanted)
        if wanted in (noted, self._altered):
            return current
        patch = {
            "metadata": {"resourceVersion": current.metadata.resource_version},
            "status": {"goneClaims": [codec.plain(c) for c in wanted]},
        }
        name = current.metadata.name
        written = await self._client.merge_patch(DEVICE_INVENTORIES, name, patch, subresource="status")
        self._altered = None if written.status.gone_claims == wanted else wanted
        log.info("claims that are gone and hold devices", claims=len(wanted), before=len(noted))
        return written

    def _found(self) -> Iterator[GoneClaim]:
        for record in self._use.gone():
            if devices := tuple(_devices(record)):
                yield GoneClaim(uid=record.uid, devices=devices)


def _devices(record: PreparedClaim) -> Iterator[GoneClaimDevice]:
    for device in record.devices:
        if not device.admin_access:
            share = None if device.share_id is None else Uid(device.share_id)
            yield GoneClaimDevice(device=device.device, share_id=share)
