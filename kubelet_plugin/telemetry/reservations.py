"""Which pods use prepared claims now.

The kubelet prepares a claim once for all pods that use it, so that the record knows those of that time only.
A claim that was made from a template has one pod for all its life; of others the kubelet lists the pods, by
name. Where it cannot be asked, they are read from the API server, seldom; and always before pods get Events,
which need their UIDs. Nothing of it is needed to unprepare; what cannot be read stays as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec
import structlog

from dra_driver.api.meta import Uid
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import DraError
from dra_driver.ports import KubeClient
from dra_driver.preparation import ClaimState, PodReference, PreparedClaim, cdi_ids, reserving_pods
from kubelet_plugin.usage.pod_resources import KubeletList

__all__ = ["EVERY_SECONDS", "READ_SECONDS", "Reservations"]

EVERY_SECONDS: Final = 10.0
# Of a node without the kubelet's list, at the API server.
READ_SECONDS: Final = 600.0

log = structlog.get_logger(__name__)


class Reservations:
    """The pods of claims that several pods may share, followed.

    Args:
        claims: what is prepared now.
        leads: whether this instance speaks for the node; another one's claims are its business.
        kubelet: asks the kubelet which pods have which devices.
        joined: called with the pods of a claim when they are read from the API server.
        every: seconds between two questions to the kubelet.
        read_every: seconds between two looks at the API server, where the kubelet cannot be asked.
    """

    def __init__(
        self,
        client: KubeClient,
        claims: Callable[[], Iterable[PreparedClaim]],
        leads: Callable[[], bool],
        kubelet: Callable[[], Awaitable[KubeletList | None]],
        joined: Callable[[Uid, Collection[PodReference]], None] = lambda *_: None,
        every: float = EVERY_SECONDS,
        read_every: float = READ_SECONDS,
    ) -> None:
        self._client = client
        self._claims = claims
        self._leads = leads
        self._kubelet = kubelet
        self._joined = joined
        self._every = every
        self._read_every = read_every
        self._read_at: float | None = None
        self._pods: dict[Uid, tuple[PodReference, ...]] = {}
        # Names of pods for which claims were read.
        self._asked: dict[Uid, set[str]] = {}

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
                await self.follow()
            await asyncio.sleep(self._every)

    async def follow(self) -> None:
        """Ask the kubelet for the pods of claims that several pods may share."""
        self._forget_others()
        shared = self._shared()
        if not shared:
            return
        listed = await self._kubelet()
        if listed is None:
            now = asyncio.get_running_loop().time()
            if self._read_at is None or now - self._read_at >= self._read_every:
                self._read_at = now
                await self.refresh()
            return
        for record in shared:
            names = {
                key.name
                for cdi_id in cdi_ids(record)
                for key in listed.pods.get(cdi_id, ())
                if key.namespace == record.namespace
            }
            known = {p.name: p.uid for p in (*record.pods, *self._pods.get(record.uid, ())) if p.uid}
            if names - known.keys() - self._asked.get(record.uid, set()) and await self._read(record):
                # Once for each pod that joins: whether it has processes is asked for by its UID.
                self._asked[record.uid] = names
                known |= {p.name: p.uid for p in self._pods.get(record.uid, ())}
            if names:
                self._pods[record.uid] = tuple(
                    PodReference(name=name, uid=known.get(name, Uid(""))) for name in sorted(names)
                )

    async def refresh(self, device: str = "") -> None:
        """Read the claims again whose pods may have changed.

        Args:
            device: only claims that hold it or a part of it; if empty, all.
        """
        for record in self._shared():
            held = {d.partition.gpu if d.partition is not None else d.device for d in record.devices}
            if not device or device in held:
                await self._read(record)
        self._forget_others()

    def _shared(self) -> list[PreparedClaim]:
        return [r for r in self._claims() if r.state is ClaimState.COMPLETED and not r.pod_claim]

    def _forget_others(self) -> None:
        present = {record.uid for record in self._claims()}
        self._pods = {uid: pods for uid, pods in self._pods.items() if uid in present}
        self._asked = {uid: names for uid, names in self._asked.items() if uid in present}

    async def _read(self, record: PreparedClaim) -> bool:
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except DraError as e:
            log.debug("a claim's pods could not be read", claim=str(record.key), error=str(e))
            return False
        if claim.metadata.uid == record.uid:
            self._pods[record.uid] = pods = reserving_pods(claim)
            self._joined(record.uid, pods)
        return True
