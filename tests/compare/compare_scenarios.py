"""The scenarios: what is done, and what is measured of it. No figure is asserted here."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from compare_nodes import side_by_side, standing_in
from compare_plane import CONTROLLER, until
from compare_report import Figure
from compare_stage import APART, Measured, Scenario, Stage
from controller_watch import Follower

from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.kube import Handler, Informer

__all__ = ["SCENARIOS"]

FLEET_PODS, BURST_PODS, REPLICAS, ROLLS, FREED = 600, 40, 8, 3, 2
PARTITION_PODS = 20
WAITING, PODS_A_MINUTE, BEFORE_SECONDS, CHURN_SECONDS = 300, 35, 25.0, 45.0
BOUND_SECONDS = 240.0
PREEMPTED_SECONDS, HIGH = 20.0, "compared-high"


async def _all_bound(stage: Stage, f: Follower, number: int) -> None:
    """Wait until all pods are bound; say now and then how many are."""
    loop = asyncio.get_running_loop()
    began = said = loop.time()
    while (bound := len(f.seconds("bound"))) < number:
        await asyncio.sleep(0.1)
        now = loop.time()
        if now > began + BOUND_SECONDS:
            raise TimeoutError(f"{bound} of {number} pods are bound after {BOUND_SECONDS:.0f} s")
        if now > said + 10:
            said = now
            stage.plane.check()
            stage.report(f"{bound} of {number} pods bound")


# --- many pods at once --------------------------------------------------------------------------------------


async def _fleet(stage: Stage) -> Measured:
    names = [f"pod-{i:03}" for i in range(FLEET_PODS)]
    audit = stage.audit()
    await side_by_side(stage.claim, names)
    stage.report(f"{len(names)} claims made")
    async with stage.following() as f:
        await side_by_side(lambda name: f.create(stage.body(name)), names)
        await _all_bound(stage, f, len(names))
        began = min(times.created for times in f.pods.values())
        bound = sorted(t.bound - began for t in f.pods.values() if t.bound is not None)
        await stage.settled()
    values = {
        "created": max(times.created for times in f.pods.values()) - began,
        "allocated": f.allocated_at[-1] - began,
        "bound": bound[-1],
        "half": statistics.median(bound),
    }
    written = audit.written()
    values["writes"] = written.total() / len(names)
    return Measured(values, written, len(names))


async def _burst(stage: Stage) -> Measured:
    source = {"resourceClaimTemplateName": "gpu"}
    async with stage.following() as f:
        audit = stage.audit()
        names = [f"pod-{i:02}" for i in range(BURST_PODS)]
        await side_by_side(lambda name: f.create(stage.body(name, source=source)), names)
        await _all_bound(stage, f, len(names))
        bound = max(f.seconds("bound"))
        await stage.settled()
    written = audit.written()
    return Measured({"writes": written.total() / len(names), "bound": bound}, written, len(names))


async def _partitions(stage: Stage) -> Measured:
    """A pod without claims comes after pods that ask for partitions."""
    request = {"name": "gpu", "exactly": {"deviceClassName": f"mig.{DEFAULT_DRIVER_NAME}"}}
    await stage.template("partition", request)
    source = {"resourceClaimTemplateName": "partition"}
    async with stage.following() as f:
        for i in range(PARTITION_PODS):
            await f.create(stage.body(f"pod-{i:02}", source=source))
        ordinary = stage.body("ordinary")
        ordinary["spec"] = {"containers": [{"name": "main", "image": "none"}]}
        await f.create(ordinary)
        await _all_bound(stage, f, PARTITION_PODS + 1)
        began = min(times.created for times in f.pods.values())
        values = {
            "bound": max(t.bound - began for name, t in f.pods.items() if t.bound and name != "ordinary"),
            "ordinary": _time(f, "ordinary", "bound") - _time(f, "ordinary", "created"),
        }
    return Measured(values)


# --- pods apart from each other -----------------------------------------------------------------------------


async def _rolling(stage: Stage) -> Measured:
    labels = {"app": "apart"}
    body = stage.body("unused", source={"resourceClaimTemplateName": "gpu"}, affinity=APART)
    template = {"metadata": {"labels": labels, "annotations": {"version": "0"}}, "spec": body["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
    }
    async with standing_in(stage.api, stage.namespace), stage.following():
        await stage.api._call("POST", _deployments(stage), body=deployment)
        await until("the first pods", lambda: _rolled(stage, 1), BOUND_SECONDS)
        seconds = []
        for version in range(1, ROLLS + 1):
            await stage.settled()
            audit = stage.audit()
            began = asyncio.get_running_loop().time()
            annotations = {"metadata": {"annotations": {"version": str(version)}}}
            patch = {"spec": {"template": annotations}}
            await stage.api._call(
                "PATCH", _deployments(stage) + "/web", body=patch, content_type="application/merge-patch+json"
            )
            await until("the new pods", partial(_rolled, stage, version + 1), BOUND_SECONDS)
            seconds.append(asyncio.get_running_loop().time() - began)
            stage.report(f"rolled in {seconds[-1]:.1f} s")
    return Measured({"rolled": statistics.median(seconds)}, audit.written(), REPLICAS)


def _deployments(stage: Stage) -> str:
    return f"/apis/apps/v1/namespaces/{stage.namespace}/deployments"


async def _rolled(stage: Stage, generation: int) -> bool:
    answer = await stage.api._call("GET", _deployments(stage) + "/web")
    status = json.loads(answer)["status"]
    wanted = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), REPLICAS)
    return status.get("observedGeneration", 0) >= generation and all(
        status.get(name, 0) == number for name, number in wanted.items()
    )


async def _freed(stage: Stage) -> Measured:
    async with standing_in(stage.api, stage.namespace), stage.following() as f:

        async def add(name: str) -> None:
            await stage.claim(name)
            await f.create(stage.body(name, app="apart", affinity=APART))

        first = [f"first-{i}" for i in range(REPLICAS)]
        for name in first:
            await add(name)
        await f.until("bound", first, BOUND_SECONDS)
        seconds = []
        for i in range(FREED):
            name = f"waits-{i}"
            await add(name)
            # As long as a pod may have tried every node.
            await asyncio.sleep(12)
            await stage.delete(first[i])
            await f.until("gone", [first[i]], BOUND_SECONDS)
            await f.until("bound", [name], BOUND_SECONDS)
            seconds.append(max(0.0, _time(f, name, "bound") - _time(f, first[i], "gone")))
            stage.report(f"used again after {seconds[-1]:.2f} s")
    return Measured({"used": max(seconds)})


def _time(f: Follower, name: str, step: str) -> float:
    return float(getattr(f.pods[name], step))


# --- priority -----------------------------------------------------------------------------------------------


async def _preemption(stage: Stage) -> Measured:
    """Pods hold all GPUs, and one of a higher priority comes; a group holds them, and another one comes."""
    await stage.priority_class(HIGH, 1000)
    served, after = 0, []
    async with standing_in(stage.api, stage.namespace), stage.following() as f:

        async def add(names: list[str], group: str = "", **spec: Any) -> None:
            for name in names:
                await stage.claim(name, count=8)
                body = stage.body(name, **spec)
                if group:
                    body["metadata"]["labels"] |= {GROUP_LABEL: group, GROUP_SIZE_LABEL: str(len(names))}
                await f.create(body)

        for kind, number in (("pod", 1), ("group", REPLICAS)):
            low = [f"low-{kind}-{i}" for i in range(REPLICAS)]
            high = [f"high-{kind}-{i}" for i in range(number)]
            grouped = kind == "group"
            await add(low, "low" if grouped else "")
            await f.until("bound", low, BOUND_SECONDS)
            await add(high, "high" if grouped else "", priorityClassName=HIGH)
            if stage.ours:
                await f.until("bound", high, BOUND_SECONDS)
                gone = [t.gone for name in low if (t := f.pods[name]).gone is not None]
                after.append(max(_time(f, name, "bound") for name in high) - max(gone))
                stage.report(f"{number} bound {after[-1]:.2f} s after the last of {len(gone)} that made room")
            else:
                await asyncio.sleep(PREEMPTED_SECONDS)
            served += sum(1 for name in high if f.pods[name].bound is not None)
            await stage.clear()
    return Measured({"served": float(served), **({"after": max(after)} if after else {})})


# --- pods that cannot be placed -----------------------------------------------------------------------------

NOWHERE: Mapping[str, Mapping[str, Any]] = {
    "affinity": {
        "affinity": {
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {"app": "missing"}},
                        # The controller does not read the labels of namespaces, so that it cannot know.
                        "namespaceSelector": {
                            "matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]
                        },
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            }
        }
    },
    "volume": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "no-such-claim"}}]},
    "storage": {
        "containers": [
            {
                "name": "main",
                "image": "none",
                "resources": {
                    "claims": [{"name": "gpu"}],
                    "requests": {"ephemeral-storage": "9000Gi"},
                    "limits": {"ephemeral-storage": "9000Gi"},
                },
            }
        ]
    },
}
NOWHERE_SECONDS = 20.0
_REPORTS = ("Unschedulable", "SchedulerError")


class Holding:
    """How long devices are held by pods that kube-scheduler has reported as unschedulable.

    Once a pod is reported, every allocation counts until it is bound, whoever nominates a node for it.

    Attributes:
        longest: seconds at a time.
        total: seconds in all.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.total = 0.0
        self._reported: dict[str, bool] = {}
        self._since: dict[str, float] = {}
        self._allocated: set[str] = set()

    def saw_pod(self, pod: Pod) -> None:
        """Take in a version of a pod."""
        conditions = (c for c in pod.status.conditions if c.get("type") == "PodScheduled")
        reported = any(c.get("status") == "False" and c.get("reason") in _REPORTS for c in conditions)
        with_scheduler = not (pod.spec.scheduling_gates or pod.spec.node_name)
        name = pod.metadata.name
        self._reported[name] = reported and with_scheduler
        self._look(name)

    def saw_claim(self, claim: ResourceClaim) -> None:
        """Take in a version of a claim, which has the name of its pod."""
        name = claim.metadata.name
        if claim.status.allocation is None:
            self._allocated.discard(name)
        else:
            self._allocated.add(name)
        self._look(name)

    def _look(self, name: str) -> None:
        now = asyncio.get_running_loop().time()
        holds = name in self._allocated and self._reported.get(name, False)
        if holds:
            self._since.setdefault(name, now)
        if name in self._since:
            self.longest = max(self.longest, now - self._since[name])
            if not holds:
                self.total += now - self._since.pop(name)

    def end(self) -> None:
        """Count what is held until now, and no more."""
        self._allocated.clear()
        for name in list(self._since):
            self._look(name)


async def _unschedulable(stage: Stage) -> Measured:
    holding = Holding()
    pods = Informer(stage.api, PODS, namespace=stage.namespace)
    claims = Informer(stage.api, RESOURCE_CLAIMS, namespace=stage.namespace)
    pods.add_handler(Handler(holding.saw_pod, lambda _, pod: holding.saw_pod(pod)))
    claims.add_handler(Handler(holding.saw_claim, lambda _, claim: holding.saw_claim(claim)))
    tasks = [asyncio.create_task(informer.run()) for informer in (pods, claims)]
    try:
        for informer in (pods, claims):
            await informer.synced.wait()
        audit = stage.audit()
        async with standing_in(stage.api, stage.namespace):
            for name, spec in NOWHERE.items():
                await stage.pod(name, **spec)
            left: list[str] = []
            tasks.append(asyncio.create_task(_leave(stage, left)))
            await asyncio.sleep(NOWHERE_SECONDS)
        holding.end()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    stage.plane.check()
    return Measured(
        {"held": holding.longest, "total": holding.total}, audit.written(), len(NOWHERE) + len(left)
    )


async def _leave(stage: Stage, left: list[str]) -> None:
    """Have pods leave nodes, one after the other: those that wait may be tried there."""
    for number in itertools.count(1):
        left.append(f"leaves-{number}")
        await stage.pod(left[-1])
        await asyncio.sleep(2)
        await stage.delete(left[-1])


# --- pods that wait while others come and go ----------------------------------------------------------------


async def _come_and_go(stage: Stage) -> None:
    """Make a pod now and then; the oldest goes."""
    running: list[str] = []
    loop = asyncio.get_running_loop()
    next_at = loop.time()
    for number in itertools.count(1):
        name = f"runs-{number}"
        await stage.pod(name)
        running.append(name)
        if len(running) > 5 + number % 4:
            await stage.delete(running.pop(0))
        next_at += 60 / PODS_A_MINUTE
        await asyncio.sleep(max(0.0, next_at - loop.time()))


async def _churn(stage: Stage) -> Measured:
    names = [f"waits-{i:03}" for i in range(WAITING)]

    async def one(i: int) -> None:
        # More than a node has, in as many shapes.
        amount = {"capacity": {"requests": {"memory": f"{i % 40 + 1}Gi"}}}
        await stage.claim(names[i], count=9 + i // 40, **amount)
        await stage.api.create(PODS, stage.body(names[i]))

    async with standing_in(stage.api, stage.namespace):
        await side_by_side(one, range(WAITING))
        stage.report(f"{WAITING} pods wait")
        churning = asyncio.create_task(_come_and_go(stage))
        try:
            await asyncio.sleep(BEFORE_SECONDS)
            stage.report(f"measuring for {CHURN_SECONDS:.0f} s")
            audit, lines = stage.audit(), _lines(stage)
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(CHURN_SECONDS)
            seconds = asyncio.get_running_loop().time() - began
            written, logged = audit.written(), _lines(stage) - lines
        finally:
            churning.cancel()
            await asyncio.wait({churning})
        if not churning.cancelled():
            await churning
    stage.plane.check()
    events: Counter[str] = Counter()
    for (who, what), number in written.items():
        events[who] += number if what.endswith(" events") else 0
    values = {"events": events.total() / seconds, "lines": logged / seconds}
    if stage.ours:
        values["own"] = events[CONTROLLER] / seconds
    return Measured(values, written, round(seconds), per="second")


def _lines(stage: Stage) -> int:
    file = stage.plane.log(CONTROLLER if stage.ours else "kube-scheduler")
    with file.open("rb") as log:
        return sum(1 for _ in log)


SCENARIOS = (
    Scenario(
        "fleet",
        f"{FLEET_PODS} pods with claims made before, 100 nodes of 8 GPUs",
        100,
        {
            "created": Figure(f"{FLEET_PODS} pods: created in", "s"),
            "allocated": Figure(f"{FLEET_PODS} pods: claims allocated after", "s"),
            "half": Figure(f"{FLEET_PODS} pods: half of them bound after", "s"),
            "bound": Figure(f"{FLEET_PODS} pods: all bound after", "s", ratio=1.5, speed=True),
            "writes": Figure(f"{FLEET_PODS} pods: writes a pod", "", ratio=1.3),
        },
        _fleet,
        110,
    ),
    Scenario(
        "rolling",
        "a Deployment of 8 with required anti-affinity is rolled, 8 nodes",
        8,
        {"rolled": Figure("Deployment of 8 apart from each other: rolled in", "s", ratio=1.5)},
        _rolling,
        50,
    ),
    Scenario(
        "freed",
        "a ninth pod with required anti-affinity waits for one of 8 nodes",
        8,
        {"used": Figure("freed node: used again after", "s", most=2)},
        _freed,
        65,
    ),
    Scenario(
        "unschedulable",
        "pods that fit nowhere for the sake of affinity, a volume, storage, 8 nodes",
        8,
        {
            "held": Figure("pods reported as unschedulable: devices held for", "s", most=3),
            "total": Figure("pods reported as unschedulable: devices held in all", "s", most=5),
        },
        _unschedulable,
        50,
    ),
    Scenario(
        "burst",
        f"{BURST_PODS} pods from a template at once, 8 nodes of 8 GPUs",
        8,
        {
            "bound": Figure(f"{BURST_PODS} pods from a template: all bound after", "s"),
            "writes": Figure(f"{BURST_PODS} pods from a template: writes a pod", "", ratio=1.3),
        },
        _burst,
        30,
    ),
    Scenario(
        "churn",
        f"{WAITING} pods of different shapes wait, {PODS_A_MINUTE} others a minute come and go, 8 nodes",
        8,
        {
            "own": Figure(f"{WAITING} pods wait: Events a second that the controller writes", "", most=1),
            "events": Figure(f"{WAITING} pods wait: Events a second that all write", ""),
            "lines": Figure(f"{WAITING} pods wait: log lines a second", ""),
        },
        _churn,
        190,
    ),
    Scenario(
        "preemption",
        "pods hold all GPUs of 8 nodes, and one of a higher priority comes; the same with groups of 8",
        8,
        {
            "served": Figure("a pod, then a group of 8, of higher priority for full nodes: bound", ""),
            "after": Figure("the same: bound after the pods that made room had gone", "s", most=5),
        },
        _preemption,
        110,
    ),
    Scenario(
        "partitions",
        f"{PARTITION_PODS} pods for a partition and one without claims behind them, 50 nodes of 2 GPUs cut",
        50,
        {
            "bound": Figure(f"{PARTITION_PODS} pods for partitions: all bound after", "s"),
            "ordinary": Figure("a pod without claims behind them: bound after", "s"),
        },
        _partitions,
        60,
        gpus=2,
        partitions=True,
    ),
)
"""In the order in which they are played; those with the same nodes share a control plane."""
