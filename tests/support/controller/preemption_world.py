"""What tests about preemption share: pods of priorities that hold devices, a kubelet that ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import virtual_time
from controller_harness import NS, Clock, Harness, claim, controlling, pod, request
from fake_client import FakeClient

from controller.config import PreemptionMode, PreemptionSettings
from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import PREEMPTING_CONDITION
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import NotFound
from dra_driver.fleet import OPEN, PreemptionRecord, PreemptionShown, shown_preemption
from dra_driver.kube.clock import rfc3339
from dra_driver.resourceclaim import pod_claims

__all__ = [
    "ON",
    "Ends",
    "Time",
    "allow_removal",
    "begins",
    "budget",
    "create",
    "evictions",
    "forge",
    "holder",
    "lives",
    "play",
    "refuse_removal",
    "runs",
    "served",
    "shown",
    "until",
]

ON = PreemptionSettings(mode=PreemptionMode.ON, per_minute=100.0)


class Time(Clock):
    """A clock whose times of day go on with the loop as well; the API server has the same."""

    def __init__(self, cluster: FakeClient) -> None:
        super().__init__()
        cluster.time = self.now

    def now(self) -> float:
        return 1_800_000_000.0 + self.monotonic()


class Ends:
    """Does as kubelets and controllers: pods that are being deleted end, and their claims with them.

    Attributes:
        seconds: that pods take to end.
    """

    def __init__(self, cluster: FakeClient, seconds: float = 1.0) -> None:
        self._cluster = cluster
        self.seconds = seconds

    async def run(self) -> None:
        since: dict[str, float] = {}
        version, ending = -1, False
        while True:
            if ending or self._cluster.registry.store.version != version:
                version = self._cluster.registry.store.version
                ending = self._look(since)
            await asyncio.sleep(0.2)

    def _look(self, since: dict[str, float]) -> bool:
        """End what has to; return whether pods are being deleted that have still time."""
        now = asyncio.get_running_loop().time()
        ending = False
        for found in self._cluster.all(PODS):
            if found.metadata.deletion_timestamp is None:
                continue
            if now - since.setdefault(found.metadata.uid, now) >= self.seconds:
                self._cluster.remove(PODS, found.metadata.name, found.metadata.namespace)
            else:
                ending = True
        used = {name for p in self._cluster.all(PODS) for name in _claims(p)}
        for c in self._cluster.all(RESOURCE_CLAIMS):
            if c.metadata.namespace == NS and c.metadata.name not in used:
                self._cluster.remove(RESOURCE_CLAIMS, c.metadata.name, c.metadata.namespace)
        return ending


def _claims(found: Pod) -> set[str]:
    return {used.key.name for used in pod_claims(found) if used.key is not None}


def play(
    cluster: FakeClient,
    scenario: Callable[[Harness], Awaitable[None]],
    preemption: PreemptionSettings = ON,
    since: float = 0.0,
    ends: float | None = 1.0,
    **config: Any,
) -> None:
    """Run a scenario; ``since`` is when the clock begins, ``ends`` how long pods take to end."""
    lives(cluster, [scenario], preemption, since, ends, **config)


def lives(
    cluster: FakeClient,
    scenarios: Iterable[Callable[[Harness], Awaitable[None]]],
    preemption: PreemptionSettings = ON,
    since: float = 0.0,
    ends: float | None = 1.0,
    **config: Any,
) -> None:
    """Run scenarios one after the other, each with a controller that starts anew; as ``play``.

    Each of them begins with an API server that answers and that nobody listens to.
    """
    clock = Time(cluster)
    clock.time = since

    async def main() -> None:
        config.setdefault("binding_seconds", 86_400.0)
        config.setdefault("starvation_seconds", 0.0)
        task = asyncio.create_task(Ends(cluster, ends).run()) if ends is not None else None
        try:
            async with asyncio.timeout(100_000):
                for scenario in scenarios:
                    cluster.before = cluster.after = lambda *_: None
                    cluster.down = False
                    async with controlling(cluster, clock=clock, preemption=preemption, **config) as h:
                        await scenario(h)
        finally:
            if task is not None:
                task.cancel()

    virtual_time.run(main())


def forge(cluster: FakeClient, name: str, victims: list[str]) -> None:
    """Write a round down on a pod, as a controller before this one has done it, or a stranger."""
    uids = tuple(cluster.obj(PODS, victim, NS).metadata.uid for victim in victims)
    condition = {
        "type": PREEMPTING_CONDITION,
        "status": "True",
        "reason": OPEN,
        "message": PreemptionRecord(uids).message,
        "lastTransitionTime": rfc3339(cluster.clock()),
    }
    cluster.edit(PODS, name, {"status": {"conditions": [condition]}}, NS)


def create(h: Harness, name: str, count: int = 1, *, priority: int = 0, **spec: Any) -> None:
    """Create a pod that asks for GPUs of one node."""
    claim(h.cluster, name, request(count=count))
    metadata = {"creationTimestamp": rfc3339(h.clock.now()), **spec.pop("metadata", {})}
    pod(h.cluster, name, name, metadata=metadata, priority=priority, **spec)


async def holder(h: Harness, name: str, count: int = 1, *, priority: int = 0, **spec: Any) -> None:
    """Create a pod, and have it run."""
    create(h, name, count, priority=priority, **spec)
    await runs(h, name)


async def runs(h: Harness, name: str) -> None:
    """Have a pod run that gets devices."""
    await until(lambda: served(h, name))
    h.bind(name, h.devices(name)[0][0])
    h.cluster.edit(PODS, name, {"status": {"phase": "Running"}}, NS)


def budget(cluster: FakeClient, name: str, labels: dict[str, str], allowed: int) -> None:
    """Create a PodDisruptionBudget."""
    cluster.put(
        POD_DISRUPTION_BUDGETS,
        {
            "metadata": {"name": name, "namespace": NS},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {
                "disruptionsAllowed": allowed,
                "currentHealthy": 1,
                "desiredHealthy": 1,
                "expectedPods": 1,
            },
        },
    )


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, in virtual time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.1)


def served(h: Harness, name: str) -> bool:
    """Return whether a pod has its devices."""
    try:
        return bool(h.devices(name))
    except (KeyError, NotFound):
        return False


def evictions(h: Harness) -> list[str]:
    """Return the pods that were removed, in this order."""
    return [w.name for w in h.cluster.writes if (w.verb, w.kind) in (("evict", "Pod"), ("delete", "Pod"))]


def shown(h: Harness, name: str) -> PreemptionShown | None:
    """Return what is written down on a pod."""
    return shown_preemption(h.cluster.obj(PODS, name, NS))


async def refuse_removal(h: Harness, name: str) -> None:
    """Have a budget refuse to evict a pod, although it seems to allow that: its controller is behind."""
    h.cluster.edit(PODS, name, {"metadata": {"labels": {"app": name}}}, NS)
    allow_removal(h, name)
    await asyncio.sleep(1)
    h.cluster.quiet.add("PodDisruptionBudget")
    budget(h.cluster, name, {"app": name}, allowed=0)


def allow_removal(h: Harness, name: str) -> None:
    """Have the budget of a pod allow to evict it."""
    budget(h.cluster, name, {"app": name}, allowed=1)


async def begins(h: Harness, name: str) -> None:
    """Wait until a round has begun for a pod."""
    await until(lambda: (found := shown(h, name)) is not None and found.reason == OPEN)
