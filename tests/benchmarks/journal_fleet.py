"""What the benchmarks of decisions have in common: a fleet and pods in a journal, and a watch on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import builders
from builders import DRIVER, PROTECTED

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import ClaimSeen, ObjectSeen
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice

__all__ = ["add_pod", "fill", "lateness"]

_TICK_SECONDS = 0.005


def fill(journal: Journal, nodes: int, gpus: int, attributes: Callable[[int, int], dict[str, Any]]) -> None:
    """Have nodes with so many GPUs each; ``attributes`` gives those of a node's GPU by their numbers."""

    def seen(kind: type[Any], body: dict[str, Any]) -> None:
        journal.apply(ObjectSeen(codec.convert(kind, body)))

    seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    for i in range(nodes):
        name = f"n{i:05}"
        seen(Node, builders.node(name, allocatable=room))
        devices = [
            builders.device(f"gpu-{j}", "80Gi", taints=[PROTECTED], attributes=attributes(i, j))
            for j in range(gpus)
        ]
        seen(ResourceSlice, builders.resource_slice(name, *devices, driver=DRIVER))


def add_pod(journal: Journal, name: str, *requests: dict[str, Any], **more: Any) -> Pod:
    """Have a pod with a claim of its own, and ``more`` of that claim."""
    body = builders.claim(name, *requests, uid=f"claim-{name}", **more)
    journal.apply(ClaimSeen(codec.convert(ResourceClaim, body)))
    pod: Pod = codec.convert(Pod, builders.pod(name, name, uid=f"pod-{name}", gated=True, cpu="1"))
    journal.apply(ObjectSeen(pod))
    return pod


@contextlib.contextmanager
def lateness() -> Iterator[list[float]]:
    """Give the seconds by which the loop was late each time, while the block runs."""
    late = [0.0]

    async def watch() -> None:
        while True:
            since = time.monotonic()
            await asyncio.sleep(_TICK_SECONDS)
            late.append(time.monotonic() - since - _TICK_SECONDS)

    task = asyncio.create_task(watch())
    try:
        yield late
    finally:
        task.cancel()
