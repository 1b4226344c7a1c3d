"""Deallocates claims that are not reserved, and remembers which: kube-scheduler deallocates others."""

from __future__ import annotations

from controller.allocate.signal import Signal
from controller.allocate.writer import Writer
from dra_driver.api.meta import Uid
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import ApiError

__all__ = ["Deallocator"]


class Deallocator:
    """Deallocates claims, and knows which it has deallocated.

    Attributes:
        deallocated: sent with each claim at once; the informer shows it later.
    """

    def __init__(self, writer: Writer) -> None:
        self.deallocated: Signal[[ResourceClaim]] = Signal()
        self._writer = writer
        self._own: set[Uid] = set()

    async def deallocate(self, claim: ResourceClaim) -> None:
        """Deallocate a claim that is not reserved; ``take_note`` recognises the deallocation.

        Raises:
            ApiError: ``Conflict`` where the claim has changed in the meantime.
        """
        self._own.add(claim.metadata.uid)
        try:
            await self._writer.deallocate(claim)
        except ApiError:
            self._own.discard(claim.metadata.uid)
            raise
        self.deallocated.send(claim)

    def take_note(self, claim: Uid) -> bool:
        """Return whether the deallocation that was seen is ours, and forget it."""
        ours = claim in self._own
        self._own.discard(claim)
        return ours

    def forget(self, claim: Uid) -> None:
        """Forget a claim that is gone."""
        self._own.discard(claim)
