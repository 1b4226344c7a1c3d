"""Whether every allocation that the API server has is known to this process."""

from __future__ import annotations

from typing import Final

import structlog

from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.ownership import PoolID
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import allocated_pools
from dra_driver.trimming import allocation_only

__all__ = ["KnownClaims"]

log = structlog.get_logger(__name__)

_ALLOCATIONS: Final = RESOURCE_CLAIMS.keeping(allocation_only)


class KnownClaims:
    """Compares the claims that the API server has with those that are known.

    Args:
        client: lists them, consistently.
        assume_cache: what is known; if None, every claim is.
    """

    def __init__(self, client: KubeClient, assume_cache: AssumeCache | None) -> None:
        self._client = client
        self._assume_cache = assume_cache

    async def are_known(self, pool: PoolID | None = None) -> bool:
        """Return whether all allocations from a pool are known; from any pool, if None.

        Raises:
            DraError: the claims could not be read.
        """
        if self._assume_cache is None:
            return True
        found = await self._client.list(_ALLOCATIONS)
        for unreadable in found.unreadable:
            if unreadable.holds_unknown:
                log.info("waiting for a claim to be readable", claim=str(unreadable.key))
                return False
        if self._assume_cache.knows_all(found.resource_version):
            return True  # where there are many claims, some of them have gone by now
        for claim in found.items:
            pools = allocated_pools(claim)
            if (pool in pools if pool is not None else pools) and not self._assume_cache.knows(claim):
                log.info("waiting for a claim to be seen", pool=str(pool or ""), claim=str(claim.key))
                return False
        return True
