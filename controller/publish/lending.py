"""The first read of the claims: before it nothing is lent.

What a process before this one has allocated may be stored after this one has listed the claims. By then the
Lease is this one's, and every request of the other has been answered, given up or refused.
"""

from __future__ import annotations

import asyncio

import structlog

from controller.publish.known_claims import KnownClaims
from controller.publish.loans import PoolLoans
from dra_driver.errors import DraError
from dra_driver.kube import Backoff

__all__ = ["FirstRead"]

log = structlog.get_logger(__name__)


class FirstRead:
    """Reads the claims once, some time after this process has begun to lead.

    Args:
        claims: compares them with what is known.
        loans: told when that is done.
        seconds: to wait before.
    """

    def __init__(self, claims: KnownClaims, loans: PoolLoans, seconds: float) -> None:
        self._claims = claims
        self._loans = loans
        self._seconds = seconds

    async def run(self) -> None:
        """Read until every claim is known."""
        await asyncio.sleep(self._seconds)
        backoff = Backoff(base=0.5, cap=10.0)
        while True:
            try:
                known = await self._claims.are_known()
            except DraError as e:
                log.warning("the claims cannot be read, nothing is lent", error=str(e))
                known = False
            if known:
                self._loans.begin()
                return
            await asyncio.sleep(backoff.next())
