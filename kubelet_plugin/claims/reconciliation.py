"""Compares the node's records with the CDI directory, the kubelet and the API server, every few minutes.

Nothing is removed because the API server is away, slow or refuses. A claim counts as gone only when the
server says so twice with a good while in between, while the kubelet, which unprepares what it knows, has the
plugin registered. And the node has the last word: devices of a claim that is gone are kept, and reported,
until it is proved that no container uses them (``kubelet_plugin.usage.claim_use``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.errors import DraError, NotFound
from dra_driver.ports import KubeClient
from dra_driver.preparation import PreparedClaim, Use, cdi_ids
from kubelet_plugin.claims.planning import ClaimReference
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.core.notices import CLAIM_GONE
from kubelet_plugin.usage.claim_use import ClaimUse

__all__ = ["Intervals", "Reconciler", "why_gone"]

log = structlog.get_logger(__name__)

# Claims of running pods are compared in one round of so many: half an hour.
_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True)
class Intervals:
    """Times, in seconds.

    Attributes:
        first: after the start.
        every: between two rounds.
        confirm: between the two answers that a claim is gone. The kubelet unprepares a force-deleted pod's
            claim after 4 s, and what happened while it was down within 60 s of its start.
    """

    first: float = 5.0
    every: float = 300.0
    confirm: float = 120.0


def why_gone(record: PreparedClaim, claim: ResourceClaim | None, driver: str, pool: PoolName) -> str:
    """Return why no pod can be using what the record holds; empty if one may.

    Args:
        record: a prepared claim.
        claim: what the API server has under its name; None if it says that there is nothing.
        driver: ours.
        pool: this node's.
    """
    if claim is None:
        return "the API server has no such claim"
    if claim.metadata.uid != record.uid:
        return f"a claim with UID {claim.metadata.uid} now has its name"
    if claim.status.allocation is None:
        return "the claim is no longer allocated"
    mine = {d.device for d in record.devices}
    given = {
        r.device for r in claim.status.allocation.devices.results if r.driver == driver and r.pool == pool
    }
    if mine and not mine & given:
        return "the claim is allocated to other devices now"
    return ""


class Reconciler:
    """The comparison, beside the kubelet's calls and under the same locks.

    Args:
        unprepare: as the kubelet calls it; answers with an error, or None, by UID.
        live: whether the kubelet has this plugin registered right now.
        use: what knows which claims containers use.
        report: called with the kind (see ``notices``) and the text of what was put in order.

    Attributes:
        unprepared: how many claims were unprepared because they are gone.
        rounds: how many rounds have ended.
    """

    def __init__(
        self,
        *,
        preparer: Preparer,
        unprepare: Callable[[Sequence[ClaimReference]], Awaitable[Mapping[str, str | None]]],
        client: KubeClient,
        driver: str,
        pool: PoolName,
        live: Callable[[], bool],
        use: ClaimUse,
        intervals: Intervals | None = None,
        report: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._preparer = preparer
        self._report = report
        self._unprepare = unprepare
        self._client = client
        self._driver = driver
        self._pool = pool
        self._live = live
        self._use = use
        self._intervals = intervals or Intervals()
        self._suspects: dict[Uid, float] = {}
        self.unprepared = 0
        self.rounds = 0

    async def run(self) -> None:
        """Compare until cancelled."""
        await asyncio.sleep(self._intervals.first)
        while True:
            try:
                await self._preparer.tidy()
                await self._compare()
            except (OSError, DraError) as e:
                log.error("the node's records could not be compared with what there is", error=str(e))
            self.rounds += 1
            times = self._intervals
            await asyncio.sleep(min(times.every, times.confirm) if self._suspects else times.every)

    async def _compare(self) -> None:
        """Compare the records with the API server, and unprepare what is gone twice and not in use."""
        if not self._live():
            self._suspects.clear()
            return
        now = asyncio.get_running_loop().time()
        records = await self._preparer.prepared()
        kubelet = await self._use.list()
        # What the kubelet has pods for is its business, whatever the API server would say.
        listed = {r.uid for r in records if kubelet is not None and not cdi_ids(r).isdisjoint(kubelet.pods)}
        unlisted = [r for r in records if r.uid not in listed]
        gone, answered = await self._gone(unlisted)
        suspects = {uid: self._suspects.get(uid, now) for uid in gone}
        if not answered:
            suspects = {uid: t for uid, t in self._suspects.items() if uid not in listed} | suspects
        due = [r for r in unlisted if r.uid in gone and now - suspects[r.uid] >= self._intervals.confirm]
        # A kubelet that lists none of the claims that are there does not list claims at all.
        lists_claims = kubelet is not None and (bool(listed) or (answered and len(gone) == len(unlisted)))
        kept: dict[Uid, tuple[PreparedClaim, str]] = {}
        use = await self._use.of_gone(due, records, listed=False if lists_claims else None)
        for record, verdict in use:
            if verdict.use is Use.FREE:
                del suspects[record.uid]
                await self._free(record, gone[record.uid])
            else:
                kept[record.uid] = (record, f"{gone[record.uid]}, and {verdict.why}")
        asked, running = await self._running(records, listed)
        still = listed - asked | (set() if answered else suspects.keys())
        self._use.keep_gone(kept | running, still=still)
        self._suspects = suspects

    async def _running(
        self, records: Sequence[PreparedClaim], listed: Collection[Uid]
    ) -> tuple[set[Uid], dict[Uid, tuple[PreparedClaim, str]]]:
        """Look for claims of running pods that are gone: the API says no more that their devices are taken.

        Nothing is unprepared because of that. Those of which it is asked are looked for in every round, all
        of them now and then, since there is nothing wrong with almost all of them.

        Returns:
            The claims that the API server has answered about, and those of them that are gone.
        """
        often = self.rounds % _ROUNDS == 0
        due = [r for r in records if r.uid in listed and (often or r.uid in self._use.asked)]
        gone, answered = await self._gone(due)
        why = "and the kubelet still lists a pod that has it"
        kept = {r.uid: (r, f"{gone[r.uid]}, {why}") for r in due if r.uid in gone}
        return ({r.uid for r in due} if answered else set(kept)), kept

    async def _gone(self, records: Sequence[PreparedClaim]) -> tuple[dict[Uid, str], bool]:
        """Return why claims are gone, by UID, and whether the API server has answered about all of them."""
        gone: dict[Uid, str] = {}
        for record in records:
            try:
                why = await self._ask(record)
            except DraError as e:
                log.warning("claims could not be compared with the API server", error=str(e))
                return gone, False
            if why:
                gone[record.uid] = why
        return gone, True

    async def _free(self, record: PreparedClaim, why: str) -> None:
        log.warning(
            "unpreparing a claim that is gone and that the kubelet did not unprepare",
            claim=str(record.key),
            uid=record.uid,
            why=why,
        )
        reference = ClaimReference(record.namespace, record.name, record.uid)
        if (await self._unprepare([reference]))[record.uid] is None:
            self.unprepared += 1
            self._report(
                CLAIM_GONE,
                f"{self._driver}: a claim (UID {record.uid}) was unprepared without a request of the "
                f"kubelet: {why}",
            )

    async def _ask(self, record: PreparedClaim) -> str:
        claim: ResourceClaim | None
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except NotFound as e:
            if not e.is_of_object:
                raise
            claim = None
        return why_gone(record, claim, self._driver, self._pool)
