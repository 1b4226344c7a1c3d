"""A controller that runs on a fake cluster, beside a scheduler that is played by the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import builders
import virtual_time
from builders import DRIVER as OURS
from builders import NAMESPACE as NS
from builders import PROTECTED, request
from fake_client import FakeClient
from inline_answers import inline

from controller.allocate.decide import report_of
from controller.app import Controller
from controller.assembly import AnswersOf
from controller.config import ControllerConfig
from controller.observe.reasons import Reason, shown_reason
from dra_driver.api.core import EVENTS, NODES, PODS, Pod
from dra_driver.api.meta import DriverName, ObjectKey
from dra_driver.api.names import CANNOT_ALLOCATE, NOT_ON_NODE
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.resourceclaim import pod_claims

__all__ = [
    "NS",
    "OTHER",
    "OURS",
    "Clock",
    "GoingClock",
    "Harness",
    "Scenario",
    "bind_pods",
    "claim",
    "classes",
    "cluster_of",
    "controlling",
    "inline",
    "node",
    "nothing",
    "pod",
    "pool",
    "request",
    "run",
]

OTHER = DriverName("nic.example.com")


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return 1_800_000_000.0 + self.time

    def monotonic(self) -> float:
        return self.time + asyncio.get_running_loop().time()


def node(cluster: FakeClient, name: str, *, cpu: str = "8", labels: Mapping[str, str] | None = None) -> None:
    room = {"cpu": cpu, "memory": "32Gi", "pods": "110"}
    cluster.put(NODES, builders.node(name, labels=labels, allocatable=room))


def pool(
    cluster: FakeClient, node_name: str, *sizes: int, driver: str = OURS, protected: bool = True
) -> None:
    """Publish GPUs with so many GiB of memory each."""
    taints = {"taints": [PROTECTED]} if protected else {}
    devices = [builders.device(f"gpu-{i}", f"{size}Gi", **taints) for i, size in enumerate(sizes)]
    cluster.put(RESOURCE_SLICES, builders.resource_slice(node_name, *devices, driver=driver))


def claim(cluster: FakeClient, name: str, *requests: dict[str, Any]) -> None:
    cluster.put(RESOURCE_CLAIMS, builders.claim(name, *requests))


def pod(
    cluster: FakeClient,
    name: str,
    *claims: str,
    gated: bool = True,
    other_gates: tuple[str, ...] = (),
    **spec: Any,
) -> None:
    cluster.put(PODS, builders.pod(name, *claims, gated=gated, gates=other_gates, cpu="1", **spec))


def classes(cluster: FakeClient) -> None:
    for name, driver in (("gpu", OURS), ("nic", OTHER)):
        cluster.put(DEVICE_CLASSES, builders.device_class(name, f'device.driver == "{driver}"'))
    cluster.put(DEVICE_CLASSES, builders.device_class("anything"))


def cluster_of(**nodes: tuple[int, ...]) -> FakeClient:
    cluster = FakeClient()
    classes(cluster)
    for name, sizes in nodes.items():
        node(cluster, name)
        pool(cluster, name, *sizes)
    return cluster


def bind(cluster: FakeClient, pod: Pod, node_name: str) -> None:
    """Do as kube-scheduler: reserve the claims of a pod, then bind it."""
    reference = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
    for used in pod_claims(pod):
        assert used.key is not None
        claim = cluster.raw(RESOURCE_CLAIMS, used.key.name, NS)
        reserved = [*claim["status"].get("reservedFor", ()), reference]
        cluster.edit(RESOURCE_CLAIMS, used.key.name, {"status": {"reservedFor": reserved}}, NS)
    bound = {"spec": {"nodeName": node_name}, "status": {"nominatedNodeName": None}}
    cluster.edit(PODS, pod.metadata.name, bound, NS)


def bind_pods(cluster: FakeClient) -> None:
    """Do as a kube-scheduler that has room everywhere: bind pods that are not gated and have devices."""
    for pod in cluster.all(PODS):
        if pod.spec.node_name or pod.spec.scheduling_gates:
            continue
        keys = [used.key for used in pod_claims(pod)]
        claims = [cluster.find(RESOURCE_CLAIMS, key.name, NS) if key is not None else None for key in keys]
        nodes = {_pool(claim) for claim in claims}
        if len(nodes) == 1 and (on := nodes.pop()):
            bind(cluster, pod, on)


def _pool(claim: dict[str, Any] | None) -> str:
    """Return the pool of a claim's first device, which is named after its node; empty: it has none."""
    status = (claim or {}).get("status", {})
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return str(results[0]["pool"]) if results else ""


class Harness:
    """What a test asks and does while the controller runs."""

    def __init__(self, cluster: FakeClient, clock: Clock, controller: Controller) -> None:
        self.cluster = cluster
        self.clock = clock
        self.controller = controller

    def decisions(self) -> float:
        """Return how many decisions have been worked out."""
        registry = self.controller.metrics.registry
        return registry.get_sample_value("dra_driver_controller_decision_seconds_count") or 0.0

    async def quiet(self, seconds: float = 0.2) -> None:
        """Wait until nothing has been written for a while."""
        count = -1
        while count != len(self.cluster.writes):
            count = len(self.cluster.writes)
            await asyncio.sleep(seconds)

    def claim(self, name: str) -> ResourceClaim:
        return self.cluster.obj(RESOURCE_CLAIMS, name, NS)

    def devices(self, name: str) -> list[tuple[str, str]]:
        allocation = self.claim(name).status.allocation
        return [] if allocation is None else [(r.pool, r.device) for r in allocation.devices.results]

    def gates(self, name: str) -> list[str]:
        return [g.name for g in self.cluster.obj(PODS, name, NS).spec.scheduling_gates]

    def reason(self, name: str) -> Reason:
        """Return reason and message of the condition that says why a pod waits; empty where it has none."""
        pod = self.cluster.obj(PODS, name, NS)
        return shown_reason(pod) or Reason("", "")

    def events(self, reason: str) -> list[str]:
        return [e.message for e in self.cluster.all(EVENTS) if e.reason == reason]

    def deallocate(self, name: str) -> None:
        """Do as kube-scheduler when the pods that use a claim cannot go to the allocation's node."""
        self.cluster.edit(RESOURCE_CLAIMS, name, {"status": {"allocation": None, "reservedFor": None}}, NS)
        for pod in self.cluster.all(PODS):
            unbound = not (pod.spec.node_name or pod.spec.scheduling_gates)
            if unbound and any(used.key == ObjectKey(NS, name) for used in pod_claims(pod)):
                self.report(pod.metadata.name, "0/1 nodes are available")

    def report(self, name: str, message: str, reason: str = "Unschedulable", *, nominated: str = "") -> None:
        """Do as kube-scheduler when it cannot place a pod: report, and clear the nominated node in one write.

        Args:
            name: of the pod.
            message: of the condition.
            reason: of the condition.
            nominated: the node for which it preempts other pods.
        """
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        others = [dict(c) for c in self.cluster.obj(PODS, name, NS).status.conditions]
        conditions = [c for c in others if c["type"] != "PodScheduled"] + [condition]
        status = {"conditions": conditions, "nominatedNodeName": nominated or None}
        self.cluster.edit(PODS, name, {"status": status}, NS)

    def bind(self, name: str, node_name: str) -> None:
        """Do as kube-scheduler: reserve the claims of a pod, then bind it."""
        bind(self.cluster, self.cluster.obj(PODS, name, NS), node_name)

    def see_deallocations(self) -> None:
        """Do as kube-scheduler from now on: look again at pods whose claims were deallocated, and report."""
        before = self.cluster.after

        def after(verb: str, kind: str, name: str, subresource: str) -> None:
            before(verb, kind, name, subresource)
            if (kind, subresource) != ("ResourceClaim", "status") or self.devices(name):
                return
            for pod in self.cluster.all(PODS):
                report = report_of(pod)
                uses = any(used.key == ObjectKey(NS, name) for used in pod_claims(pod))
                waits = not (
                    pod.spec.node_name or pod.spec.scheduling_gates or pod.status.nominated_node_name
                )
                if not (uses and waits):
                    continue
                if report is None:
                    self.report(pod.metadata.name, f"0/1 nodes are available: 1 {CANNOT_ALLOCATE}.")
                elif NOT_ON_NODE in report.message:
                    self.report(pod.metadata.name, report.message.replace(NOT_ON_NODE, CANNOT_ALLOCATE))

        self.cluster.after = after

    def held(self) -> list[tuple[str, str]]:
        return [d for c in self.cluster.all(RESOURCE_CLAIMS) for d in self.devices(c.metadata.name)]


Scenario = Callable[[Harness], Awaitable[None]]


class GoingClock(Clock):
    """A clock that goes on with the loop."""

    def monotonic(self) -> float:
        return self.time + asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def controlling(
    cluster: FakeClient, answers_of: AnswersOf = inline, clock: Clock | None = None, **config: Any
) -> AsyncIterator[Harness]:
    """Run a controller that has settled; it has ended when the block ends."""
    clock = clock or Clock()
    settings = ControllerConfig(drivers=(OURS,), leader_elect=False, **config)
    controller = Controller(cluster, settings, clock, answers_of=answers_of)
    task = asyncio.create_task(controller.run())
    harness = Harness(cluster, clock, controller)
    try:
        harness.see_deallocations()
        await controller.ready.wait()
        await harness.quiet()
        yield harness
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run(cluster: FakeClient, scenario: Scenario, answers_of: AnswersOf = inline, **config: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), controlling(cluster, answers_of, **config) as harness:
            await scenario(harness)

    virtual_time.run(main())


async def nothing(_: Harness) -> None:
    """Only let the controller settle."""
