"""A fleet that looks like a real one, and the page that shows it, without a controller."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import builders
from builders import DRIVER
from fake_client import FakeClient

from controller.observe.reasons import shown_reason
from controller.web import CurrentFeed, Feed, Past, Planned, Plans, serve
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.fleet import FleetSample
from dra_driver.kube import Informer, SystemClock

__all__ = ["DRIVER", "EVIL", "Shown", "fleet_of", "holding", "shown", "waiting"]

EVIL = "<img src=x onerror=alert(1)>"
RACK = "example.com/rack"
# Model, memory of each device, devices of a node, and how many of 10 nodes have them.
MODELS = (
    ("NVIDIA H100 80GB HBM3", "80Gi", 8, 4),
    ("NVIDIA A100-SXM4-40GB", "40Gi", 8, 3),
    ("NVIDIA L40S", "48Gi", 4, 2),
    ("AMD Instinct MI300X", "192Gi", 8, 1),
)
TEAMS = ("research", "serving", "vision", "speech", "platform", "notebooks")
_KINDS = tuple(m for m in MODELS for _ in range(m[3]))


def holding(
    cluster: FakeClient,
    namespace: str,
    name: str,
    node: str,
    *devices: str,
    share: str = "",
    age: float = 600.0,
) -> None:
    """A pod that runs with devices of a node, or with a share of each."""
    cluster.now = time.time() - age
    more: dict[str, Any] = {"shareID": f"s-{name}", "consumedCapacity": {"memory": share}} if share else {}
    results = [builders.result(node, device, **more) for device in devices]
    reserved = builders.reserved(name)
    status = {**builders.allocation(*results), **reserved}
    cluster.put(RESOURCE_CLAIMS, builders.claim(name, namespace=namespace, status=status))
    body = builders.pod(name, name, namespace=namespace, nodeName=node)
    body["status"] = {"phase": "Running"}
    cluster.put(PODS, body)


def waiting(
    cluster: FakeClient, namespace: str, name: str, why: str, *, priority: int = 0, age: float = 600.0
) -> None:
    """A pod that waits, for a reason that is written on it."""
    cluster.now = time.time() - age
    cluster.put(RESOURCE_CLAIMS, builders.claim(name, namespace=namespace))
    body = builders.pod(name, name, namespace=namespace, priority=priority)
    condition = {"type": "dra-driver.dev/Allocated", "status": "False", "reason": "FailedAllocation"}
    condition |= {"message": why, "lastTransitionTime": cluster.registry.now()}
    body["status"] = {"phase": "Pending", "conditions": [condition]}
    cluster.put(PODS, body)


def fleet_of(nodes: int, *, racks: int = 4, seed: int = 7) -> FakeClient:
    """A cluster with GPUs of several models in racks, half of them held, and pods that wait."""
    chance = random.Random(seed)
    cluster = FakeClient()
    for i in range(nodes):
        model, memory, count, _ = _KINDS[(i * len(_KINDS)) // nodes % len(_KINDS)]
        _put_node(cluster, i, racks * i // nodes, (model, memory, count), chance)
    waits = (
        (
            5,
            "serving",
            "chat-large-0",
            "0 of 40 nodes: 31 have 210 devices allocated, 9 have none with memory of 141Gi",
        ),
        (
            0,
            "research",
            "pretrain-7b-3",
            "the group needs 4 nodes of one rack with 8 free devices each; there are 3",
        ),
        (0, "notebooks", "notebook-anna", "the namespace's turn has not come: 12 pods of it hold devices"),
    )
    for n, (priority, namespace, name, why) in enumerate(waits):
        waiting(cluster, namespace, name, why, priority=priority * 1000, age=200.0 + 4000.0 * n)
    cluster.now = time.time()
    return cluster


def _put_node(
    cluster: FakeClient, i: int, rack: int, kind: tuple[str, str, int], chance: random.Random
) -> None:
    model, memory, count = kind
    name = f"gpu-{i + 1:03}"
    labels = {RACK: f"r{rack + 1:02}", "topology.kubernetes.io/zone": f"zone-{'abc'[rack % 3]}"}
    cordoned: dict[str, Any] = {"unschedulable": True} if i % 29 == 11 else {}
    cluster.put(NODES, builders.node(name, labels=labels, **cordoned))
    sick = {chance.randrange(count)} if chance.random() < 0.06 else set()
    devices, found = [], []
    busy: list[str] = []
    idle: list[str] = []
    for d in range(count):
        body = builders.device(f"gpu-{d}", memory, attributes={"model": model, "type": "gpu"})
        health = [_xid()] if d in sick else []
        taint = {"key": "dra-driver.dev/unhealthy", "value": "failed", "effect": "NoExecute"}
        devices.append({**body, **({"taints": [taint]} if health else {})})
        found.append({**body, **({"health": health} if health else {})})
    free = [f"gpu-{d}" for d in range(count) if d not in sick]
    while free and chance.random() < 0.72:
        size = min(len(free), chance.choice((1, 1, 2, 4, 8)))
        mine, free = free[:size], free[size:]
        team = chance.choice(TEAMS)
        share = "20Gi" if size == 1 and chance.random() < 0.5 else ""
        holding(cluster, team, f"{team}-{i}-{mine[0]}", name, *mine, share=share, age=chance.random() * 90000)
        (busy if chance.random() < 0.8 else idle).extend(mine)
    idle.extend(free)
    cluster.put(RESOURCE_SLICES, builders.resource_slice(name, *devices))
    inventory = builders.inventory(name, *found)
    inventory["status"]["activity"] = {"busy": busy, "idle": idle}
    cluster.put(DEVICE_INVENTORIES, inventory)


def _xid() -> dict[str, Any]:
    return {
        "reason": "Xid79",
        "severity": "failed",
        "message": "the GPU has fallen off the bus",
        "since": "2026-01-01T00:00:00Z",
    }


class CannedPlans:
    """Implements ``PlanSource``: every pod gets the same plan."""

    def __init__(self, plan: bytes) -> None:
        self.version = 1
        self._plan = plan

    def find(self, pod: ObjectKey) -> Uid | None:
        return Uid(str(pod))

    async def ask(self, pod: ObjectKey, uid: Uid) -> Planned:
        return Planned(self.version, 0.1, "", self._plan)


@dataclass
class Shown:
    """The page of a fleet.

    Attributes:
        url: of the page.
        current: what it shows.
        past: what it remembers.
    """

    url: str
    current: CurrentFeed
    past: Past

    def trend(self, samples: Iterable[tuple[int, ...]]) -> None:
        """Let it remember these samples, a minute each: devices by state, busy ones, waiting claims."""
        found = list(samples)
        for i, (*states, busy, waits) in enumerate(found):
            at = time.time() - 60.0 * (len(found) - i)
            self.past.trend.add(FleetSample(at, tuple(states), busy, waits))


@contextlib.asynccontextmanager
async def shown(cluster: FakeClient, plan: bytes = b"", port: int = 0) -> AsyncIterator[Shown]:
    """Serve the page of a cluster as a leader does that decides nothing."""
    slices, inventories = Informer(cluster, RESOURCE_SLICES), Informer(cluster, DEVICE_INVENTORIES)
    claims, pods, nodes = (
        Informer(cluster, RESOURCE_CLAIMS),
        Informer(cluster, PODS),
        Informer(cluster, NODES),
    )

    def reason_of(_: ResourceClaim, users: Iterable[Pod]) -> str:
        return next((r.message for p in users if (r := shown_reason(p)) is not None), "")

    past = Past((DRIVER,), SystemClock())
    feed = Feed((DRIVER,), reason_of, past)
    current = CurrentFeed(feed)
    if plan:
        current.plans = Plans(CannedPlans(plan))
    watched: tuple[Informer[Any], ...] = (slices, inventories, claims, pods, nodes)
    tasks = [asyncio.create_task(informer.run()) for informer in watched]
    try:
        for informer in watched:
            await informer.synced.wait()
        feed.attach(slices, inventories, claims, pods, nodes)
        tasks.append(asyncio.create_task(feed.run()))
        async with serve("127.0.0.1", port, current) as (host, found):
            yield Shown(f"http://{host}:{found}/", current, past)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
