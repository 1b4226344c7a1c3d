"""What tests about devices that are set aside share: pods that come and go, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import virtual_time
from controller_harness import NS, Clock, Harness, claim, controlling, pod, request
from fake_client import FakeClient

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube.clock import rfc3339

__all__ = ["PATIENCE", "Stream", "create", "end", "is_served", "occupied", "play", "served_after"]

PATIENCE = 60.0


class Time(Clock):
    """A clock whose times of day go on with the loop as well."""

    def now(self) -> float:
        return 1_800_000_000.0 + self.monotonic()


def play(
    cluster: FakeClient,
    scenario: Callable[[Harness], Awaitable[None]],
    since: float = 0.0,
    **config: Any,
) -> None:
    clock = Time()
    clock.time = since

    async def main() -> None:
        config.setdefault("starvation_seconds", PATIENCE)
        # Pods need not be bound.
        config.setdefault("binding_seconds", 86_400.0)
        async with asyncio.timeout(100_000), controlling(cluster, clock=clock, **config) as h:
            await scenario(h)

    virtual_time.run(main())


def create(h: Harness, name: str, count: int = 1, **spec: Any) -> None:
    claim(h.cluster, name, request(count=count))
    metadata = {"creationTimestamp": rfc3339(h.clock.now()), **spec.pop("metadata", {})}
    pod(h.cluster, name, name, metadata=metadata, **spec)


def end(h: Harness, name: str) -> None:
    h.cluster.remove(PODS, name, NS)
    h.cluster.remove(RESOURCE_CLAIMS, name, NS)


def is_served(h: Harness, name: str) -> bool:
    return h.claim(name).status.allocation is not None


async def served_after(h: Harness, name: str, longest: float) -> float | None:
    """Return the seconds after which a pod has its devices; None where it has none by then."""
    start = h.clock.monotonic()
    while h.clock.monotonic() - start < longest:
        if is_served(h, name):
            return h.clock.monotonic() - start
        await asyncio.sleep(0.5)
    return None


async def occupied(h: Harness, **spec: Any) -> None:
    """Have "a" and "b" hold both devices, and "big" wait for both until they are set aside for it."""
    for name in ("a", "b"):
        create(h, name)
    create(h, "big", 2, **spec)
    await asyncio.sleep(PATIENCE + 5.0)


class Stream:
    """Small pods that keep all devices busy: one comes for each that ends, and some wait."""

    def __init__(
        self, h: Harness, seed: int, *, running: int, seconds: tuple[float, float], **spec: Any
    ) -> None:
        self._h = h
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._spec = spec
        self._number = 0
        self.done: list[float] = []
        self._tasks = [asyncio.create_task(self._one()) for _ in range(running)]

    async def _one(self) -> None:
        while True:
            self._number += 1
            name = f"small-{self._number}"
            create(self._h, name, **self._spec)
            while not is_served(self._h, name):
                await asyncio.sleep(0.2)
            self._h.bind(name, self._h.devices(name)[0][0])
            await asyncio.sleep(self._chance.uniform(*self._seconds))
            end(self._h, name)
            self.done.append(self._h.clock.monotonic())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            assert task.cancelled(), task.exception()
