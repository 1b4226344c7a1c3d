"""What a replica that stands by shows: it watches what the page is made of, and decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

import structlog

from controller.observe.reasons import shown_reason
from controller.web.feed import CurrentFeed, Feed, Past
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.kube import Informer
from dra_driver.ports import KubeClient
from dra_driver.trimming import NamespaceAllowance

__all__ = ["Standby"]

log = structlog.get_logger(__name__)


class Standby:
    """Fills the page of a replica until it leads.

    Reasons are those that the leader wrote on the pods. There are no plans: only the leader knows what is
    being decided.

    Args:
        client: lists and watches.
        drivers: whose devices.
        current: what the page shows.
        past: what it remembers, also when this replica leads.
    """

    def __init__(
        self, client: KubeClient, drivers: Collection[str], current: CurrentFeed, past: Past
    ) -> None:
        self._client = client
        self._drivers = drivers
        self._current = current
        self._past = past
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Show the page until the block ends, or ``stop``."""
        self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End it: its caches go before those of a leader are filled, so that there is memory for them."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        allowance = NamespaceAllowance()
        slices = Informer(self._client, RESOURCE_SLICES)
        inventories = Informer(self._client, DEVICE_INVENTORIES)
        claims = Informer(self._client, RESOURCE_CLAIMS, keeper=allowance.of_claims())
        pods = Informer(self._client, PODS, keeper=allowance.of_pods())
        nodes = Informer(self._client, NODES)

        def reason_of(_: ResourceClaim, users: Iterable[Pod]) -> str:
            # Users are as they were when they began to use the claim.
            current = (pods.get(pod.key) for pod in users)
            reasons = (shown_reason(pod) for pod in current if pod is not None)
            return next((reason.message for reason in reasons if reason is not None), "")

        feed: Feed | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                watched: tuple[Informer[Any], ...] = (slices, inventories, claims, pods, nodes)
                for informer in watched:
                    tasks.create_task(informer.run())
                for informer in watched:
                    await informer.synced.wait()
                feed = Feed(self._drivers, reason_of, self._past, self._current.standby)
                feed.attach(slices, inventories, claims, pods, nodes)
                self._current.feed = feed
                log.info("the page is served, although this replica stands by")
                await feed.run()
        finally:
            if feed is not None:
                feed.close()
            self._current.feed = None
