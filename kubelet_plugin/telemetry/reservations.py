"""For which pods prepared claims are reserved now.

The kubelet prepares a claim once for all pods that use it, so that the record knows those of that time only.
A claim that was made from a template has one pod for all its life; others are read again now and then, and
before pods get Events. Nothing of it is needed to unprepare; what cannot be read stays as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog

from dra_driver.api.meta import Uid
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import DraError
from dra_driver.ports import KubeClient
from dra_driver.preparation import ClaimState, PodReference, PreparedClaim, reserving_pods

__all__ = ["EVERY_SECONDS", "Reservations"]

EVERY_SECONDS: Final = 30.0

log = structlog.get_logger(__name__)


class Reservations:
    """The pods of claims that several pods may share, followed.

    Args:
        claims: what is prepared now.
        leads: whether this instance speaks for the node; another one's claims are its business.
    """

    def __init__(
        self,
        client: KubeClient,
        claims: Callable[[], Iterable[PreparedClaim]],
        leads: Callable[[], bool],
        every: float = EVERY_SECONDS,
    ) -> None:
        self._client = client
        self._claims = claims
        self._leads = leads
        self._every = every
        self._pods: dict[Uid, tuple[PodReference, ...]] = {}

    def claims(self) -> tuple[PreparedClaim, ...]:
        """Return what is prepared, with the pods of now as far as they are known."""
        return tuple(
            msgspec.structs.replace(c, pods=self._pods[c.uid]) if c.uid in self._pods else c
            for c in self._claims()
        )

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if self._leads():
                await self.refresh()
            await asyncio.sleep(self._every)

    async def refresh(self, device: str = "") -> None:
        """Read the claims again whose pods may have changed.

        Args:
            device: only claims that hold it or a part of it; if empty, all.
        """
        records = tuple(self._claims())
        for record in records:
            shared = record.state is ClaimState.COMPLETED and not record.pod_claim
            held = {d.partition.gpu if d.partition is not None else d.device for d in record.devices}
            if shared and (not device or device in held):
                await self._read(record)
        present = {record.uid for record in records}
        self._pods = {uid: pods for uid, pods in self._pods.items() if uid in present}

    async def _read(self, record: PreparedClaim) -> None:
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except DraError as e:
            log.debug("a claim's pods could not be read", claim=str(record.key), error=str(e))
            return
        if claim.metadata.uid == record.uid:
            self._pods[record.uid] = reserving_pods(claim)
