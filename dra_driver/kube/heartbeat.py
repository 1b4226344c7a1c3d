"""A Lease that one process renews without competing for it, so that others see that it works."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import structlog

from dra_driver.errors import DraError, NotFound
from dra_driver.kube.clock import micro_time
from dra_driver.kube.leader import LEASES, LeaderConfig
from dra_driver.ports import Clock, KubeClient

__all__ = ["Heartbeat"]

log = structlog.get_logger(__name__)


class Heartbeat:
    """Renews the Lease as often as a leader does, whoever holds it: there is one process for sure.

    Args:
        client: of the API server.
        config: of the Lease.
        clock: for its times.
    """

    def __init__(self, client: KubeClient, config: LeaderConfig, clock: Clock) -> None:
        self._client = client
        self._config = config
        self._clock = clock
        self._is_failing = False

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Renew the Lease until the block ends, and release it then."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            with contextlib.suppress(DraError, TimeoutError):
                async with asyncio.timeout(self._config.retry_seconds):
                    await self._write("")

    async def _run(self) -> None:
        while True:
            try:
                await self._write(self._config.identity)
                self._is_failing = False
            except DraError as e:
                if not self._is_failing:
                    log.warning("the Lease is not renewed", lease=self._config.name, error=str(e))
                self._is_failing = True
            await asyncio.sleep(self._config.retry_seconds)

    async def _write(self, holder: str) -> None:
        config = self._config
        spec: dict[str, Any] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": config.lease_seconds if holder else 1,
            "renewTime": micro_time(self._clock.now()),
        }
        try:
            await self._client.merge_patch(LEASES, config.name, {"spec": spec}, config.namespace)
        except NotFound:
            metadata = {"name": config.name, "namespace": config.namespace}
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
            await self._client.create(LEASES, body, config.namespace)
