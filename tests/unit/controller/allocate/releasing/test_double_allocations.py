"""Two allocators gave one device away: kube-scheduler, for a claim that tolerates our taint, and we."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import builders
import pytest
import virtual_time
from controller_harness import NS, OURS, Harness, claim, cluster_of, inline, pod, pool, request, run
from fake_client import FakeClient

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api import codec
from dra_driver.api.core import EVENTS
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import (
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    AllocationResult,
    DeviceRequestAllocationResult,
    ResourceSlice,
)
from dra_driver.ownership import PoolID
from dra_driver.structured import AllocatedState, DeviceID, contested, fits_beside

EVERYTHING = [{"operator": "Exists"}]


def sly(cluster: FakeClient, name: str = "sly") -> None:
    """A claim that tolerates our taint."""
    asked = request()
    asked["exactly"]["tolerations"] = EVERYTHING
    claim(cluster, name, asked)


def status(
    name: str, device: str, *, reserved: bool = True, time: str = "2026-01-01T00:00:00Z", **more: Any
) -> dict[str, Any]:
    result = {"request": "gpu", "driver": OURS, "pool": "n1", "device": device, **more}
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    return {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            "allocationTimestamp": time,
        },
        **({"reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]} if reserved else {}),
    }


def by_scheduler(cluster: FakeClient, name: str, device: str, **more: Any) -> None:
    """As kube-scheduler allocates: with a reservation, in one write."""
    cluster.edit(RESOURCE_CLAIMS, name, {"status": status(name, device, **more)}, NS)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(8):
        while not condition():
            await asyncio.sleep(0.02)


def reserve(cluster: FakeClient, name: str) -> None:
    reference = {"resource": "pods", "name": name, "uid": f"uid-{name}"}
    cluster.edit(RESOURCE_CLAIMS, name, {"status": {"reservedFor": [reference]}}, NS)


# --- what the controller does -------------------------------------------------------------------------------


def test_what_is_not_reserved_yet_is_taken_back_and_allocated_elsewhere() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    sly(cluster)

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        by_scheduler(cluster, "sly", "gpu-0")
        await until(lambda: h.devices("c") == [("n1", "gpu-1")])
        assert h.devices("sly") == [("n1", "gpu-0")]
        (told,) = set(h.events("DoubleAllocation"))
        assert told == (
            "device gpu-0 of pool gpu.example.com/n1 is also allocated to 1 other claim; "
            "this claim is deallocated"
        )

    run(cluster, scenario)


def test_what_both_have_reserved_is_told_and_left_to_the_node() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    sly(cluster)

    async def main() -> None:
        config = ControllerConfig(drivers=(OURS,), leader_elect=False)
        controller = Controller(cluster, config, answers_of=inline)
        task = asyncio.create_task(controller.run())

        def contested_now() -> float | None:
            return controller.metrics.registry.get_sample_value("dra_driver_controller_double_allocations")

        def held(name: str) -> AllocationResult | None:
            return cluster.obj(RESOURCE_CLAIMS, name, NS).status.allocation

        try:
            await until(lambda: held("c"))
            assert contested_now() == 0
            reserve(cluster, "c")
            by_scheduler(cluster, "sly", "gpu-0")
            await until(lambda: contested_now() == 1)
            await asyncio.sleep(0.3)
            writes = [w for w in cluster.writes if w[1] == "ResourceClaim" and w[3] == "status"]
            assert len(writes) == 1  # the allocation
            told = {(e.involved_object.name, e.message) for e in cluster.all(EVENTS)}
            assert {n for n, m in told if "is also allocated" in m and "the node" in m} == {"c", "sly"}
            cluster.edit(RESOURCE_CLAIMS, "sly", {"status": {"allocation": None, "reservedFor": None}}, NS)
            await until(lambda: contested_now() == 0)
            by_scheduler(cluster, "sly", "gpu-0")
            await until(lambda: contested_now() == 1)
            cluster.remove(RESOURCE_CLAIMS, "sly", NS)
            await until(lambda: contested_now() == 0)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    virtual_time.run(main())


def test_a_reservation_that_comes_in_between_wins() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    sly(cluster)

    def reserved_first(verb: str, kind: str, name: str, subresource: str) -> None:
        current = cluster.raw(RESOURCE_CLAIMS, "c", NS)["status"]
        if (kind, name, subresource) == ("ResourceClaim", "c", "status") and current.get("allocation"):
            cluster.before = lambda *_: None
            reserve(cluster, "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        cluster.before = reserved_first
        by_scheduler(cluster, "sly", "gpu-0")
        await until(lambda: any("the node" in m for m in h.events("DoubleAllocation")))
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_of_two_that_nobody_has_reserved_the_older_one_stays() -> None:
    """A leader that was paused for long, for example."""
    cluster = cluster_of(n1=(40, 40))
    for name, second in (("a", 2), ("b", 1)):
        claim(cluster, name)
        pod(cluster, name, name, gated=False)
        time = f"2026-01-01T00:00:0{second}Z"
        cluster.edit(RESOURCE_CLAIMS, name, {"status": status(name, "gpu-0", reserved=False, time=time)}, NS)

    async def scenario(h: Harness) -> None:
        await until(lambda: h.devices("a") == [("n1", "gpu-1")])
        assert h.devices("b") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_pools_of_the_scheduler_are_none_of_its_business() -> None:
    cluster = cluster_of(n1=(40, 40))
    pool(cluster, "n1", 40, 40, protected=False)
    for name in ("a", "b"):
        claim(cluster, name)
        cluster.edit(RESOURCE_CLAIMS, name, {"status": status(name, "gpu-0", reserved=name == "a")}, NS)
        pod(cluster, name, name, gated=False)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(0.3)
        assert h.devices("a") == h.devices("b") == [("n1", "gpu-0")]
        assert not h.events("DoubleAllocation")

    run(cluster, scenario)


def bound(cluster: FakeClient, name: str, *devices: str, second: int, **more: Any) -> None:
    """A pod that runs on n1, whose claim is allocated and not reserved."""
    claim(cluster, name)
    pod(cluster, name, name, gated=False, node="n1")
    found = status(name, devices[0], reserved=False, time=f"2026-01-01T00:00:0{second}Z")
    results = found["allocation"]["devices"]["results"]
    results += [{**results[0], "device": device, **more} for device in devices[1:]]
    cluster.edit(RESOURCE_CLAIMS, name, {"status": found}, NS)


def deallocated(h: Harness) -> set[str]:
    """Return the claims that were told that they are deallocated."""
    found = h.cluster.all(EVENTS)
    return {e.involved_object.name for e in found if "this claim is deallocated" in e.message}


def test_of_several_holders_of_several_devices_all_give_way_but_one_of_each() -> None:
    cluster = cluster_of(n1=(40,) * 2)
    for second, name in enumerate(("a", "b", "c")):
        bound(cluster, name, "gpu-0", second=second)
    for second, name in enumerate(("d", "e")):
        bound(cluster, name, "gpu-1", second=second)

    async def scenario(h: Harness) -> None:
        await until(lambda: deallocated(h) == {"b", "c", "e"})
        assert h.devices("a") == [("n1", "gpu-0")]
        assert h.devices("d") == [("n1", "gpu-1")]

    run(cluster, scenario)


def test_a_claim_that_gives_way_elsewhere_displaces_no_other() -> None:
    cluster = cluster_of(n1=(40,) * 2)
    bound(cluster, "oldest", "gpu-0", second=0)
    bound(cluster, "both", "gpu-0", "gpu-1", second=1)
    bound(cluster, "youngest", "gpu-1", second=2)

    async def scenario(h: Harness) -> None:
        await until(lambda: deallocated(h))
        await asyncio.sleep(0.3)
        assert deallocated(h) == {"both"}
        assert h.devices("youngest") == [("n1", "gpu-1")]

    run(cluster, scenario)


def test_a_claim_that_is_being_deleted_stays_and_the_other_gives_way() -> None:
    cluster = cluster_of(n1=(40, 40))
    bound(cluster, "old", "gpu-0", second=0)
    bound(cluster, "deleted", "gpu-0", second=1)
    meta = {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
    }
    cluster.edit(RESOURCE_CLAIMS, "deleted", {"metadata": meta}, NS)

    async def scenario(h: Harness) -> None:
        await until(lambda: deallocated(h))
        assert deallocated(h) == {"old"}
        assert h.devices("deleted") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_what_holds_devices_of_another_allocator_too_is_not_deallocated_but_displaces_ours() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    pool(cluster, "n2", 40, protected=False)
    bound(cluster, "ours", "gpu-0", second=0)
    bound(cluster, "mixed", "gpu-0", "gpu-0", second=1, pool="n2")

    async def scenario(h: Harness) -> None:
        await until(lambda: deallocated(h))
        assert deallocated(h) == {"ours"}
        assert h.devices("mixed") == [("n1", "gpu-0"), ("n2", "gpu-0")]

    run(cluster, scenario)


def test_each_pool_of_a_claim_is_looked_at_and_an_allocation_without_a_time_is_the_oldest() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40))
    bound(cluster, "second", "gpu-0", "gpu-1", second=1, pool="n2")
    undated = status("third", "gpu-1", reserved=False)
    del undated["allocation"]["allocationTimestamp"]
    undated["allocation"]["devices"]["results"][0]["pool"] = "n2"
    claim(cluster, "third")
    pod(cluster, "third", "third", gated=False, node="n2")
    cluster.edit(RESOURCE_CLAIMS, "third", {"status": undated}, NS)

    async def scenario(h: Harness) -> None:
        await until(lambda: deallocated(h))
        assert deallocated(h) == {"second"}

    run(cluster, scenario)


def test_a_claim_or_template_that_tolerates_the_taint_is_told() -> None:
    cluster = cluster_of(n1=(40,))
    sly(cluster)
    asked = {"name": "r", "exactly": {"deviceClassName": "gpu", "tolerations": EVERYTHING}}
    template = {
        "metadata": {"name": "t", "namespace": NS},
        "spec": {"spec": {"devices": {"requests": [asked]}}},
    }

    async def scenario(h: Harness) -> None:
        cluster.put(RESOURCE_CLAIM_TEMPLATES, template)
        await until(lambda: len(h.events("ToleratesControllerTaint")) == 2)
        assert all("dra-driver.dev/controller" in m for m in h.events("ToleratesControllerTaint"))

    run(cluster, scenario)


# --- what is contested --------------------------------------------------------------------------------------


POOL = PoolID(OURS, PoolName("n1"))


def gpu_slice(*, generation: int = 1, counters: int = 0) -> ResourceSlice:
    """gpu-0 and gpu-1; with counters also halves of gpu-0."""
    devices: list[dict[str, Any]] = [{"name": "gpu-0"}, {"name": "gpu-1"}]
    spec: dict[str, Any] = {
        "driver": OURS,
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
        "devices": devices,
    }
    if counters:

        def takes(amount: int) -> list[dict[str, Any]]:
            return [{"counterSet": "gpu-0", "counters": {"slices": {"value": str(amount)}}}]

        devices[0]["consumesCounters"] = takes(counters)
        devices += [{"name": f"half-{i}", "consumesCounters": takes(counters // 2)} for i in range(2)]
        spec["sharedCounters"] = [{"name": "gpu-0", "counters": {"slices": {"value": str(counters)}}}]
    return codec.convert(ResourceSlice, {"metadata": {"name": "s"}, "spec": spec})


def held(*devices: str, **more: Any) -> AllocationResult:
    results = [{"request": "r", "driver": OURS, "pool": "n1", "device": d, **more} for d in devices]
    return codec.convert(AllocationResult, {"devices": {"results": results}})


@pytest.mark.parametrize(
    ("counters", "holders", "expected"),
    [
        (0, {}, {}),
        (0, {"a": held("gpu-0"), "b": held("gpu-1")}, {}),
        (0, {"a": held("gpu-0"), "b": held("gpu-0", "gpu-1")}, {"device gpu-0": {"a", "b"}}),
        (0, {"a": held("gpu-0"), "b": held("gpu-0", adminAccess=True)}, {}),
        (0, {"a": held("gpu-0", shareID="1"), "b": held("gpu-0", shareID="2")}, {}),
        (0, {"a": held("gpu-0", shareID="1"), "b": held("gpu-0")}, {"device gpu-0": {"a", "b"}}),
        (0, {"a": held("gpu-0"), "b": held("gpu-0", pool="n2")}, {}),
        (0, {"a": held("gone"), "b": held("gone")}, {"device gone": {"a", "b"}}),
        (8, {"a": held("half-0"), "b": held("half-1"), "c": held("gpu-1")}, {}),
        (8, {"a": held("half-0"), "b": held("gpu-0")}, {"counters gpu-0": {"a", "b"}}),
        (8, {"a": held("half-0", shareID="1"), "b": held("half-0", shareID="2"), "c": held("half-1")}, {}),
        (8, {"a": held("half-0"), "b": held("gpu-0", adminAccess=True)}, {}),
        (
            8,
            {"a": held("half-0"), "b": held("half-0"), "c": held("half-1")},
            {"device half-0": {"a", "b"}},
        ),
    ],
)
def test_what_several_claims_hold_that_one_can_have(
    counters: int, holders: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert contested(POOL, [gpu_slice(counters=counters)], holders) == expected
    assert contested(POOL, [gpu_slice(counters=counters)], dict(reversed(holders.items()))) == expected


def test_counters_are_those_of_the_newest_generation() -> None:
    holders = {"a": held("half-0"), "b": held("gpu-0")}
    slices = [gpu_slice(counters=8), gpu_slice(generation=2)]
    assert contested(POOL, slices, holders) == {}


def _results(*devices: tuple[str, dict[str, Any]]) -> list[DeviceRequestAllocationResult]:
    found = [{"request": "gpu", "driver": OURS, "pool": "n1", "device": d, **more} for d, more in devices]
    return [codec.convert(DeviceRequestAllocationResult, r) for r in found]


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ([("free", {})], True),
        ([("free", {}), ("free", {})], False),
        ([("whole", {})], False),
        ([("whole", {"shareID": "s2"})], False),
        ([("whole", {"adminAccess": True})], True),
        ([("shared", {"shareID": "s2"})], True),
        ([("shared", {})], False),
        ([("free", {"shareID": "s1"}), ("free", {"shareID": "s2"})], True),
        ([("free", {"shareID": "s1"}), ("free", {})], False),
        ([("half-2", {})], True),
        ([("all", {})], False),
        ([("half-2", {}), ("half-3", {})], False),
    ],
)
def test_what_fits_beside_what_is_taken(more: list[tuple[str, dict[str, Any]]], fits: bool) -> None:
    def part(name: str, amount: int) -> dict[str, Any]:
        counters = [{"counterSet": "memory", "counters": {"gib": {"value": str(amount)}}}]
        return builders.device(name, consumesCounters=counters)

    counters = [{"name": "memory", "counters": {"gib": {"value": "2"}}}]
    parts = [part("half-1", 1), part("half-2", 1), part("half-3", 1), part("all", 2)]
    bodies = [
        builders.resource_slice(
            "n1", *map(builders.device, ("free", "whole", "shared")), driver=OURS, count=3
        ),
        builders.resource_slice("n1", *parts, driver=OURS, count=3),
        builders.resource_slice("n1", driver=OURS, count=3, sharedCounters=counters),
    ]
    slices = [codec.convert(ResourceSlice, body) for body in bodies]
    taken = AllocatedState().with_devices(
        [(DeviceID(OURS, PoolName("n1"), name), "c") for name in ("whole", "half-1")],
        [(DeviceID(OURS, PoolName("n1"), "shared"), "c")],
    )
    assert fits_beside(taken.pool(PoolID(OURS, PoolName("n1"))), slices, _results(*more)) is fits


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ([("gpu", "2Gi")], True),
        ([("gpu", "1Gi"), ("gpu", "1Gi")], True),
        ([("gpu", "2Gi"), ("gpu", "1Gi")], False),
        ([("gpu", "3Gi")], False),
        ([("other", "5Gi")], True),
        ([("other", "6Gi")], False),
        ([("gone", "1Gi")], False),
    ],
)
def test_shares_fit_into_what_is_left_of_their_device(more: list[tuple[str, str]], fits: bool) -> None:
    def result(device: str, memory: str, share: int) -> dict[str, Any]:
        facts = {"shareID": f"s{share}", "consumedCapacity": {"memory": memory}}
        return {"request": "gpu", "driver": OURS, "pool": "n1", "device": device, **facts}

    devices = [builders.device(name, "5Gi", allowMultipleAllocations=True) for name in ("gpu", "other")]
    slices = [codec.convert(ResourceSlice, builders.resource_slice("n1", *devices, driver=OURS))]
    before = codec.convert(AllocationResult, {"devices": {"results": [result("gpu", "3Gi", 0)]}})
    taken = AllocatedState().with_allocations([("ns/before", before)])
    results = [
        codec.convert(DeviceRequestAllocationResult, result(device, memory, i))
        for i, (device, memory) in enumerate(more, 1)
    ]
    assert fits_beside(taken.pool(PoolID(OURS, PoolName("n1"))), slices, results) is fits
