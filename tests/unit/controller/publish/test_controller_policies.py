"""Policies at work in the running controller: status, pending changes, pools that change hands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER, device, request
from builders import NAMESPACE as NS
from fake_client import FakeClient
from running_controller import running

from controller.config import Timings
from controller.publish.policies import MANY_PARTITIONED_NODES
from controller.publish.tolerators import Tolerators
from dra_driver.api.core import EVENTS, NODES, PODS
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.policy import DEVICE_POLICIES, DevicePolicy
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Condition,
    Device,
)
from dra_driver.errors import ServerBusy
from dra_driver.kube import Informer
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice import PENDING_TAINT
from dra_driver.structured import NodePolicy, Strategy

QUICK = Timings(drain=0.3, settle=0.02)
SHARE = {"shareID": "6fb9d2b3-5c2d-4a0e-9f0c-3c1c1e6f7a11", "consumedCapacity": {"memory": "10Gi"}}
# Long enough for something to happen while a pool drains.
SLOW = Timings(drain=2.0, settle=0.02)


def cluster_with(*node_names: str, gpus: int = 2, **gpu: Any) -> FakeClient:
    cluster = FakeClient()
    cluster.put(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    for name in node_names:
        cluster.put(NODES, builders.node(name, uid=f"uid-{name}", labels={"zone": name[-1]}))
        devices = [device(f"gpu-{i}", "40Gi", attributes={"type": "gpu"}, **gpu) for i in range(gpus)]
        cluster.put(DEVICE_INVENTORIES, builders.inventory(name, *devices))
    return cluster


def policy(cluster: FakeClient, name: str, **spec: Any) -> None:
    cluster.put(DEVICE_POLICIES, {"metadata": {"name": name, "generation": 1}, "spec": spec})


def claim(cluster: FakeClient, name: str, tolerations: list[dict[str, str]] | None = None) -> None:
    more: dict[str, Any] = {"tolerations": tolerations} if tolerations else {}
    cluster.put(RESOURCE_CLAIMS, builders.claim(name, request("r", **more)))


def allocate(cluster: FakeClient, name: str, node: str, device: str, **more: Any) -> None:
    """As kube-scheduler does."""
    found = builders.allocation(builders.result(node, device, request="r", **more))
    cluster.edit(RESOURCE_CLAIMS, name, {"status": {**found, **builders.reserved(name)}}, NS)


def pod(cluster: FakeClient, name: str) -> None:
    cluster.put(PODS, builders.pod(name, name, gated=True))


class Harness:
    def __init__(self, cluster: FakeClient) -> None:
        self.cluster = cluster

    async def until(self, condition: Callable[[], object], seconds: float = 8.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.02)

    async def quiet(self, seconds: float = 0.2) -> None:
        count = -1
        while count != len(self.cluster.writes):
            count = len(self.cluster.writes)
            await asyncio.sleep(seconds)

    def devices(self, node: str = "n1") -> dict[str, Device]:
        slices = [s for s in self.cluster.all(RESOURCE_SLICES) if s.spec.node_name == node]
        newest = max((s.spec.pool.generation for s in slices), default=0)
        return {d.name: d for s in slices if s.spec.pool.generation == newest for d in s.spec.devices}

    def taints(self, node: str = "n1") -> set[str]:
        return {t.key for d in self.devices(node).values() for t in d.taints}

    def noted(self, node: str = "n1") -> str:
        inventory = self.cluster.obj(DEVICE_INVENTORIES, f"{node}.{DRIVER}")
        return inventory.status.publication.allocator

    def published(self, node: str = "n1") -> Condition:
        inventory = self.cluster.obj(DEVICE_INVENTORIES, f"{node}.{DRIVER}")
        return next(c for c in inventory.status.conditions if c.type == "Published")

    def policy(self, name: str) -> DevicePolicy:
        return self.cluster.obj(DEVICE_POLICIES, name)

    def condition(self, name: str, type_: str) -> tuple[str, str]:
        found = [c for c in self.policy(name).status.conditions if c.type == type_]
        return (found[0].status, found[0].reason) if found else ("", "")

    def device_of(self, name: str) -> str:
        allocation = self.cluster.obj(RESOURCE_CLAIMS, name, NS).status.allocation
        return allocation.devices.results[0].device if allocation else ""

    def gated(self, name: str) -> bool:
        return bool(self.cluster.obj(PODS, name, NS).spec.scheduling_gates)


Scenario = Callable[[Harness], Awaitable[None]]


def run(cluster: FakeClient, scenario: Scenario, **config: Any) -> None:
    async def main() -> None:
        async with running(cluster, drivers=(DRIVER,), **{"timings": QUICK, **config}):
            harness = Harness(cluster)
            await harness.quiet()
            await scenario(harness)

    virtual_time.run(main())


SCHEDULER = {"allocator": PoolAllocator.SCHEDULER}


# --- what policies do, and what they say about it -----------------------------------------------------------


def test_a_policy_selects_nodes_and_says_how_many_devices_it_matches() -> None:
    cluster = cluster_with("n1", "n2")
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1"]}]}]
    policy(cluster, "p", nodeSelector={"nodeSelectorTerms": terms}, attributes={"rack": {"string": "r"}})

    async def scenario(h: Harness) -> None:
        await h.until(lambda: h.policy("p").status.devices == 2)
        assert h.policy("p").status.nodes == 1
        assert h.policy("p").status.observed_generation == 1
        assert h.condition("p", "Applied") == ("True", "Applied")
        assert h.condition("p", "Conflicting") == ("False", "NoConflict")
        assert "rack" in h.devices("n1")["gpu-0"].attributes
        assert "rack" not in h.devices("n2")["gpu-0"].attributes
        # The label moves, the policy with it.
        cluster.edit(NODES, "n2", {"metadata": {"labels": {"zone": "1"}}})
        await h.until(lambda: "rack" in h.devices("n2")["gpu-0"].attributes)
        await h.until(lambda: h.policy("p").status.nodes == 2)
        await h.quiet()
        before = len(cluster.writes)
        cluster.edit(NODES, "n2", {"metadata": {"labels": {"other": "1"}}})
        await h.quiet()
        assert len(cluster.writes) == before

    run(cluster, scenario, **SCHEDULER)


def test_a_policy_does_not_count_nodes_that_publish_by_themselves() -> None:
    cluster = cluster_with("n1", "n2")
    policy(cluster, "p", attributes={"rack": {"string": "r"}}, strategy="first-fit")

    async def scenario(h: Harness) -> None:
        await h.until(lambda: h.policy("p").status.nodes == 2)
        cluster.edit(DEVICE_INVENTORIES, f"n2.{DRIVER}", {"spec": {"publisher": "node"}})
        await h.until(lambda: h.published("n2").reason == "PublishedByNode")
        await h.until(lambda: h.policy("p").status.nodes == 1)
        assert h.policy("p").status.devices == 2

    run(cluster, scenario, **SCHEDULER)


def test_conflicts_and_broken_selectors_are_reported() -> None:
    cluster = cluster_with("n1")
    policy(cluster, "a", strategy="best-fit")
    policy(cluster, "b", strategy="first-fit")
    policy(cluster, "c", priority=-1, strategy="first-fit")
    policy(cluster, "broken", deviceSelectors=[{"cel": {"expression": "device.nope"}}], hide=True)

    async def scenario(h: Harness) -> None:
        await h.until(lambda: h.condition("b", "Conflicting") == ("True", "SamePriority"))
        await h.until(lambda: h.condition("c", "Conflicting") == ("True", "Overridden"))
        await h.until(lambda: h.condition("broken", "Applied") == ("False", "Invalid"))
        assert h.condition("a", "Conflicting") == ("False", "NoConflict")
        assert len(h.devices()) == 2
        cluster.remove(DEVICE_POLICIES, "a")
        await h.until(lambda: h.condition("b", "Conflicting") == ("False", "NoConflict"))

    run(cluster, scenario, **SCHEDULER)


@pytest.mark.parametrize("of_device", [{}, SHARE], ids=["whole", "a share"])
def test_a_change_waits_for_the_device_in_use_and_is_shown_as_pending(of_device: dict[str, Any]) -> None:
    nodes = ("n1", "n2")
    cluster = cluster_with(*nodes)
    for node in nodes:
        claim(cluster, node)
        allocate(cluster, node, node, "gpu-0", **of_device)
    policy(cluster, "p", hide=True)

    async def scenario(h: Harness) -> None:
        for node in nodes:
            assert set(h.devices(node)) == {"gpu-0"}
            assert h.taints(node) == {PENDING_TAINT}
        await h.until(lambda: h.condition("p", "Pending") == ("True", "DevicesInUse"))
        for node in nodes:
            cluster.remove(RESOURCE_CLAIMS, node, NS)
        await h.until(lambda: not any(map(h.devices, nodes)))
        await h.until(lambda: h.condition("p", "Pending") == ("False", "NothingPending"))

    run(cluster, scenario, **SCHEDULER)


def test_many_partitioned_nodes_are_a_warning_with_the_reason() -> None:
    profiles = [
        {
            "name": "1g.10gb",
            "placements": [{"start": 0, "size": 1}],
            "capacity": {"memory": {"value": "10Gi"}},
        }
    ]
    nodes = [f"n{i}" for i in range(MANY_PARTITIONED_NODES)]
    cluster = cluster_with(*nodes, gpus=1, partitions=profiles)
    policy(cluster, "p", partitions={"profiles": ["*"]})

    async def scenario(h: Harness) -> None:
        await h.until(lambda: h.policy("p").status.nodes == MANY_PARTITIONED_NODES)
        assert h.condition("p", "Applied") == ("True", "Applied")
        one_more = cluster_with("last", gpus=1, partitions=profiles)
        cluster.put(NODES, one_more.raw(NODES, "last"))
        cluster.put(DEVICE_INVENTORIES, one_more.raw(DEVICE_INVENTORIES, f"last.{DRIVER}"))
        await h.until(lambda: h.condition("p", "Applied") == ("True", "ManyPartitionedNodes"))
        await h.until(lambda: [e for e in cluster.all(EVENTS) if e.reason == "ManyPartitionedNodes"])

    run(cluster, scenario, **SCHEDULER)


def test_a_missing_feature_is_named_in_the_condition_and_an_event() -> None:
    profiles = [
        {
            "name": "1g.10gb",
            "placements": [{"start": 0, "size": 1}],
            "capacity": {"memory": {"value": "10Gi"}},
        }
    ]
    cluster = cluster_with("n1", partitions=profiles)

    def drop(raw: dict[str, Any]) -> None:
        if raw["kind"] == "ResourceSlice":
            raw["spec"].pop("sharedCounters", None)
            for device in raw["spec"].get("devices", ()):
                device.pop("consumesCounters", None)

    cluster.strip = drop
    policy(cluster, "p", partitions={"profiles": ["*"]})

    async def scenario(h: Harness) -> None:
        assert set(h.devices()) == {"gpu-0", "gpu-1"}
        assert h.published().reason == "FeatureGateDisabled"
        assert "DRAPartitionableDevices" in h.published().message
        events = [e for e in cluster.all(EVENTS) if e.reason == "FeatureGateDisabled"]
        assert events[0].type == "Warning"
        assert "DRAPartitionableDevices" in events[0].message

    run(cluster, scenario, **SCHEDULER)


# --- pools that change hands --------------------------------------------------------------------------------


def test_a_pool_goes_to_the_controller_tainted_first_and_drained() -> None:
    cluster = cluster_with("n1", gpus=1)
    claim(cluster, "c")

    async def scenario(h: Harness) -> None:
        assert (h.noted(), h.taints()) == ("scheduler", set())
        policy(cluster, "p", allocator="controller")
        await h.until(lambda: h.noted() == "draining" and h.taints() == {CONTROLLER_TAINT})
        # A decision of kube-scheduler that was under way, and a pod of ours that wants the same device.
        claim(cluster, "late")
        allocate(cluster, "late", "n1", "gpu-0")
        pod(cluster, "c")
        await asyncio.sleep(0.15)
        assert h.device_of("c") == ""
        assert h.published().reason == "ChangingHands" or h.noted() == "draining"
        await h.until(lambda: h.noted() == "controller")
        await h.quiet()
        assert h.device_of("c") == ""
        cluster.remove(RESOURCE_CLAIMS, "late", NS)
        await h.until(lambda: h.device_of("c") == "gpu-0")
        await h.until(lambda: not h.gated("c"))

    run(cluster, scenario, **SCHEDULER)


def test_a_pool_whose_inventory_is_deleted_while_it_drains_is_drained_all_the_same() -> None:
    cluster = cluster_with("n1", gpus=1)
    claim(cluster, "c")
    body = cluster.raw(DEVICE_INVENTORIES, f"n1.{DRIVER}")

    async def scenario(h: Harness) -> None:
        policy(cluster, "p", allocator="controller")
        await h.until(lambda: h.noted() == "draining" and h.taints() == {CONTROLLER_TAINT})
        pod(cluster, "c")
        claim(cluster, "late")
        cluster.remove(DEVICE_INVENTORIES, f"n1.{DRIVER}")
        await asyncio.sleep(0.2)
        again = {k: body[k] for k in ("spec", "status")}
        owners = body["metadata"]["ownerReferences"]
        cluster.put(
            DEVICE_INVENTORIES,
            {"metadata": {"name": f"n1.{DRIVER}", "ownerReferences": owners}, **again},
        )
        await asyncio.sleep(0.2)
        assert h.device_of("c") == ""
        allocate(cluster, "late", "n1", "gpu-0")  # decided by kube-scheduler before the taint
        await h.until(lambda: h.noted() == "controller")
        await h.quiet()
        assert h.device_of("c") == ""

    run(cluster, scenario, timings=Timings(drain=1.0, settle=0.02), **SCHEDULER)


async def drained_from_now_on(h: Harness) -> None:
    """Follow the pool of n1 to the controller: for the whole time to drain nothing is allocated from it."""
    pod(h.cluster, "c")
    await asyncio.sleep(SLOW.drain - 0.5)
    assert h.noted() == "draining"
    assert h.device_of("c") == ""
    allocate(h.cluster, "late", "n1", "gpu-0")  # decided by kube-scheduler before the taint
    await h.until(lambda: h.noted() == "controller")
    await h.quiet()
    assert h.device_of("c") == ""
    h.cluster.remove(RESOURCE_CLAIMS, "late", NS)
    await h.until(lambda: h.device_of("c") == "gpu-0")


def test_a_policy_that_changes_twice_while_a_note_is_refused_has_the_pool_drained_all_the_same() -> None:
    cluster = cluster_with("n1", gpus=1)
    claim(cluster, "c")
    claim(cluster, "late")
    refused: list[str] = []

    def busy(verb: str, kind: str, name: str, subresource: str) -> None:
        if (verb, kind) == ("patch", "DeviceInventory"):
            refused.append(name)
            raise ServerBusy("try again", code=429, reason="TooManyRequests")

    async def scenario(h: Harness) -> None:
        policy(cluster, "p", allocator="controller")
        await h.until(lambda: h.noted() == "draining" and h.taints() == {CONTROLLER_TAINT})
        await asyncio.sleep(SLOW.drain - 0.5)
        cluster.before = busy
        policy(cluster, "p", allocator="scheduler")
        await h.until(lambda: refused)
        policy(cluster, "p", allocator="controller")
        await asyncio.sleep(0.1)
        cluster.before = lambda *_: None
        await drained_from_now_on(h)

    run(cluster, scenario, timings=SLOW, **SCHEDULER)


def test_a_restart_while_draining_drains_anew() -> None:
    cluster = cluster_with("n1", gpus=1)
    claim(cluster, "c")
    claim(cluster, "late")
    policy(cluster, "p", allocator="scheduler")

    async def first(h: Harness) -> None:
        policy(cluster, "p", allocator="controller")
        await h.until(lambda: h.noted() == "draining" and h.taints() == {CONTROLLER_TAINT})
        await asyncio.sleep(SLOW.drain - 0.5)
        assert h.noted() == "draining"

    run(cluster, first, timings=SLOW)
    run(cluster, drained_from_now_on, timings=SLOW)


def test_a_pool_goes_back_to_kube_scheduler_when_no_write_is_under_way() -> None:
    cluster = cluster_with("n1", gpus=1)

    async def scenario(h: Harness) -> None:
        assert (h.noted(), h.taints()) == ("controller", {CONTROLLER_TAINT})
        policy(cluster, "p", allocator="scheduler")
        await asyncio.sleep(0.1)
        assert h.taints() == {CONTROLLER_TAINT}  # not yet
        claim(cluster, "c")
        pod(cluster, "c")
        await asyncio.sleep(0.1)
        assert h.device_of("c") == ""  # and no longer ours
        await h.until(lambda: h.noted() == "scheduler" and not h.taints())
        await h.until(lambda: not h.gated("c"))
        assert h.device_of("c") == ""

    run(cluster, scenario)


def test_the_first_publication_needs_no_draining() -> None:
    cluster = cluster_with("n1", gpus=1)
    claim(cluster, "c")
    pod(cluster, "c")

    async def scenario(h: Harness) -> None:
        await h.until(lambda: h.device_of("c") == "gpu-0", 3)

    run(cluster, scenario)


EVERYTHING = [{"operator": "Exists"}]
BY_KEY = [{"key": CONTROLLER_TAINT, "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize("tolerations", [EVERYTHING, BY_KEY])
def test_controller_mode_is_refused_while_claims_tolerate_the_taint(
    tolerations: list[dict[str, str]],
) -> None:
    cluster = cluster_with("n1", gpus=1)
    claim(cluster, "sly", tolerations)

    async def scenario(h: Harness) -> None:
        assert (h.noted(), h.taints()) == ("scheduler", set())
        assert h.published().reason == "ToleratingClaims"
        assert "sly" not in h.published().message
        assert "reason=ToleratesControllerTaint" in h.published().message
        cluster.remove(RESOURCE_CLAIMS, "sly", NS)
        await h.until(lambda: h.noted() == "controller")
        await h.until(lambda: h.published().reason == "Published")

    run(cluster, scenario)


@pytest.mark.parametrize("tolerations", [EVERYTHING, BY_KEY])
def test_controller_mode_is_refused_while_templates_tolerate_the_taint(
    tolerations: list[dict[str, str]],
) -> None:
    cluster = cluster_with("n1", gpus=1)
    exactly = {"deviceClassName": "gpu", "tolerations": tolerations}
    spec = {"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "sly", "namespace": NS}, "spec": spec})

    async def scenario(h: Harness) -> None:
        assert (h.noted(), h.taints()) == ("scheduler", set())
        assert "sly" not in h.published().message
        assert "reason=ToleratesControllerTaint" in h.published().message
        cluster.remove(RESOURCE_CLAIM_TEMPLATES, "sly", NS)
        await h.until(lambda: h.noted() == "controller")

    run(cluster, scenario)


@pytest.mark.parametrize("effect", ["None", "NoSchedule", "NoExecute"])
def test_taints_of_policies_and_of_health_keep_their_time_and_clear(effect: str) -> None:
    cluster = cluster_with("n1", gpus=2)
    policy(
        cluster,
        "p",
        taints=[{"key": "example.com/mine", "value": "v", "effect": effect}],
        health={"info": "", "degraded": effect, "failed": "NoExecute"},
    )

    def ails(*severities: str) -> None:
        body = cluster.raw(DEVICE_INVENTORIES, f"n1.{DRIVER}")
        devices = [dict(d) for d in body["spec"]["devices"]]
        devices[0]["health"] = [{"reason": f"R{i}", "severity": s} for i, s in enumerate(severities)]
        cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", {"spec": {"devices": devices}})

    def taints(name: str) -> dict[tuple[str, str], str | None]:
        found = {(t.key, t.effect): t.time_added for t in h_devices()[name].taints}
        return {k: v for k, v in found.items() if k[0] != CONTROLLER_TAINT}

    def h_devices() -> dict[str, Device]:
        return Harness(cluster).devices()

    async def scenario(h: Harness) -> None:
        own = {("example.com/mine", effect): "2026-01-01T00:00:00Z"}
        assert taints("gpu-0") == taints("gpu-1") == own
        ails("degraded", "degraded", "info")
        sick = {("dra-driver.dev/unhealthy", effect): "2026-01-01T00:00:00Z"}
        await h.until(lambda: taints("gpu-0") == own | sick)
        cluster.now += 32 * 24 * 3600
        ails("degraded", "failed")
        worse = {("dra-driver.dev/unhealthy", "NoExecute"): "2026-02-02T00:00:00Z"}
        await h.until(lambda: set(taints("gpu-0")) == set(own | worse | sick))
        assert taints("gpu-0") == own | worse | sick
        ails()
        await h.until(lambda: taints("gpu-0") == own)
        assert taints("gpu-1") == own

    run(cluster, scenario)


@pytest.mark.parametrize(
    "tolerations",
    [
        [{"key": "other.io/taint", "operator": "Exists"}],
        [{"operator": "Exists", "effect": "NoExecute"}],
        [{"key": CONTROLLER_TAINT, "operator": "Equal", "value": "x"}],
    ],
)
def test_other_tolerations_do_no_harm(tolerations: list[dict[str, Any]]) -> None:
    cluster = cluster_with("n1", gpus=1)
    claim(cluster, "fine", tolerations)

    async def scenario(h: Harness) -> None:
        assert h.noted() == "controller"

    run(cluster, scenario)


def test_who_tolerates_the_taint_is_told_only_where_it_makes_a_difference() -> None:
    cluster = cluster_with()
    nic = {"selectors": [{"cel": {"expression": 'device.driver == "nic.example.com"'}}]}
    cluster.put(DEVICE_CLASSES, {"metadata": {"name": "nic"}, "spec": nic})
    told = []

    def put(name: str, class_name: str) -> None:
        exactly = {"deviceClassName": class_name, "tolerations": EVERYTHING}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": NS}, "spec": spec})

    async def main() -> None:
        claims, classes = Informer(cluster, RESOURCE_CLAIMS), Informer(cluster, DEVICE_CLASSES)
        tolerators = Tolerators((DRIVER,), claims, classes, lambda: told.append(tolerators.found()))
        tasks = [asyncio.create_task(i.run()) for i in (claims, classes)]

        async def settled() -> None:
            async with asyncio.timeout(10):
                while len(claims) != len(cluster.all(RESOURCE_CLAIMS)) or not classes.synced.is_set():
                    await asyncio.sleep(0)
            await asyncio.sleep(0.05)

        for i in range(20):
            put(f"nic-{i}", "nic")
        await settled()
        assert (told, tolerators.found()) == ([], ())
        for i in range(8):
            put(f"gpu-{i}", "gpu")
        await settled()
        assert told == [("claim default/gpu-0",)]
        assert len(tolerators.found()) == 8
        cluster.remove(RESOURCE_CLAIMS, "gpu-7", NS)
        await settled()
        assert len(told) == 1
        cluster.remove(RESOURCE_CLAIMS, "gpu-0", NS)  # a refusal names none of them
        await settled()
        assert len(told) == 1
        cluster.edit(DEVICE_CLASSES, "gpu", {"spec": nic})  # and now they are for the other driver
        await asyncio.sleep(0.1)
        assert told[1:] == [()]
        for task in tasks:
            task.cancel()

    virtual_time.run(main())


# --- how the allocator chooses, pool by pool ----------------------------------------------------------------


def zone(name: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]}]
    return {"nodeSelectorTerms": terms}


def across_numa(cluster: FakeClient, *nodes: str) -> None:
    """Four equal GPUs each, NUMA nodes taking turns: the first two are not the best two."""
    for node in nodes:
        devices = [
            {
                "name": f"gpu-{i}",
                "attributes": {"type": {"string": "gpu"}, "numaNode": {"int": i % 2}},
                "capacity": {"memory": {"value": "40Gi"}},
            }
            for i in range(4)
        ]
        cluster.edit(DEVICE_INVENTORIES, f"{node}.{DRIVER}", {"spec": {"devices": devices}})


async def place(h: Harness, name: str, count: int = 1) -> tuple[str, ...]:
    """Node and devices that a new pod gets."""
    claim(h.cluster, name)
    request = h.cluster.raw(RESOURCE_CLAIMS, name, NS)["spec"]["devices"]["requests"][0]
    h.cluster.edit(
        RESOURCE_CLAIMS,
        name,
        {"spec": {"devices": {"requests": [{**request, "exactly": {**request["exactly"], "count": count}}]}}},
        NS,
    )
    pod(h.cluster, name)
    await h.until(lambda: h.device_of(name))
    allocation = h.cluster.obj(RESOURCE_CLAIMS, name, NS).status.allocation
    assert allocation is not None
    results = allocation.devices.results
    return (results[0].pool, *sorted(r.device for r in results))


def test_first_fit_and_best_fit_pools_live_in_one_fleet() -> None:
    cluster = cluster_with("n1", "n2")
    across_numa(cluster, "n1", "n2")
    policy(cluster, "first", nodeSelector=zone("1"), strategy="first-fit")

    async def scenario(h: Harness) -> None:
        # n1 puts forward its first two, on two NUMA nodes; the best two of n2 are on one.
        assert await place(h, "a", 2) == ("n2", "gpu-0", "gpu-2")
        assert await place(h, "b", 2) == ("n2", "gpu-1", "gpu-3")
        assert await place(h, "c", 2) == ("n1", "gpu-0", "gpu-1")
        cluster.remove(PODS, "c", NS)
        cluster.remove(RESOURCE_CLAIMS, "c", NS)
        # Without the policy n1 is used as every other node.
        cluster.remove(DEVICE_POLICIES, "first")
        await h.quiet()
        assert await place(h, "d", 2) == ("n1", "gpu-0", "gpu-2")

    run(cluster, scenario)


@pytest.mark.parametrize(
    ("spec", "flags", "second"),
    [
        ({"nodePolicy": "spread"}, {}, "n2"),
        ({"nodePolicy": "pack"}, {"node_policy": NodePolicy.SPREAD}, "n1"),
        ({"priority": 1}, {"node_policy": NodePolicy.SPREAD}, "n2"),
        ({"priority": 1}, {}, "n1"),
    ],
)
def test_equal_nodes_are_filled_or_taken_in_turns(
    spec: dict[str, Any], flags: dict[str, Any], second: str
) -> None:
    cluster = cluster_with("n1", "n2")
    policy(cluster, "p", **spec)

    async def scenario(h: Harness) -> None:
        assert (await place(h, "a"))[0] == "n1"
        assert (await place(h, "b"))[0] == second

    run(cluster, scenario, **flags)


def test_the_strategy_of_the_controller_counts_where_no_policy_says() -> None:
    cluster = cluster_with("n1")
    across_numa(cluster, "n1")

    async def scenario(h: Harness) -> None:
        assert await place(h, "a", 2) == ("n1", "gpu-0", "gpu-1")

    run(cluster, scenario, strategy=Strategy.FIRST_FIT)


def test_a_strategy_without_effect_is_told() -> None:
    cluster = cluster_with("n1")
    policy(cluster, "p", nodePolicy="spread")
    policy(cluster, "q", nodePolicy="pack")

    async def scenario(h: Harness) -> None:
        await h.until(lambda: h.condition("q", "Conflicting") == ("True", "SamePriority"))
        conflict = next(c for c in h.policy("q").status.conditions if c.type == "Conflicting")
        assert conflict.message.startswith("nodePolicy: policy p ")
        applied = next(c for c in h.policy("p").status.conditions if c.type == "Applied")
        assert applied.message.endswith(
            "strategy and nodePolicy have no effect on 1 of the nodes, where kube-scheduler allocates"
        )

    run(cluster, scenario, **SCHEDULER)
