"""The client of a slow kube-scheduler, on a fake API server that others use too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fake_client import FakeClient, error_of

from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.kube import Call, DelegatingClient
from dra_driver.sim.apiserver.objects.status import StatusError
from dra_driver.sim.apiserver.writing import pods as pod_writes
from dra_driver.sim.apiserver.writing.options import Options

__all__ = ["SlowScheduler"]

T = TypeVar("T", bound=WireObject)
R = TypeVar("R")


class SlowScheduler(DelegatingClient):
    """The client of a kube-scheduler whose requests wait for their turn, one after the other."""

    def __init__(self, server: FakeClient, rng: random.Random) -> None:
        super().__init__(server)
        self.longest = 0.0
        self._registry = server.registry
        self._rng = rng
        self._turn = asyncio.Lock()

    async def _wait(self) -> None:
        async with self._turn:
            await asyncio.sleep(self._rng.uniform(0, self.longest))

    async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
        if call.verb == "patch":
            await self._wait()
        return await send()

    async def create(
        self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "", **options: Any
    ) -> T:
        if resource.kind != "Binding":
            return await super().create(resource, body, namespace, **options)
        await self._wait()
        kind = self._registry.kinds.get(PODS.group, PODS.version, PODS.plural)
        assert kind is not None
        try:
            pod_writes.bind(self._registry, kind, namespace, body["metadata"]["name"], dict(body), Options())
        except StatusError as e:
            raise error_of(e) from None
        return None  # type: ignore[return-value]
