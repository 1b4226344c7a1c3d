"""A claim that goes without being deallocated keeps its devices until its node says that it has none."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import builders
import msgspec
import pytest
import virtual_time
from builders import DRIVER
from controller_harness import NS, Harness, claim, classes, controlling, node, pod
from fake_client import FakeClient, unreachable

from controller.allocate.answers.journal import Journal
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.gone_claims import GoneClaims
from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, MOST_GONE_CLAIMS
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocationResult, ResourceClaim
from dra_driver.errors import Conflict
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID

NAME = f"n1.{DRIVER}"
KEEPS = {"registration": {"registered": True, "epoch": 1, "goneClaimsEpoch": 1}}


def described(cluster: FakeClient, name: str, gpus: int) -> None:
    """Add a node with an inventory, whose agent keeps the list of claims that are gone."""
    node(cluster, name)
    devices = [builders.device(f"gpu-{i}", "40Gi", attributes={"type": "gpu"}) for i in range(gpus)]
    uid = cluster.raw(NODES, name)["metadata"]["uid"]
    cluster.put(DEVICE_INVENTORIES, builders.inventory(name, *devices, node_uid=uid))
    cluster.edit(DEVICE_INVENTORIES, f"{name}.{DRIVER}", {"status": KEEPS})


def one_gpu() -> FakeClient:
    cluster = FakeClient()
    classes(cluster)
    described(cluster, "n1", 1)
    return cluster


def listed(cluster: FakeClient, name: str = NAME) -> list[str]:
    return [c.uid for c in cluster.obj(DEVICE_INVENTORIES, name).status.gone_claims]


async def allocated_and_gone(h: Harness, name: str = "theirs") -> str:
    """Have a claim allocated and its pod bound, and remove the claim without its deallocation."""
    claim(h.cluster, name)
    pod(h.cluster, name, name)
    await h.quiet()
    assert h.devices(name) == [("n1", "gpu-0")]
    h.bind(name, "n1")
    await h.quiet()
    uid = h.claim(name).metadata.uid
    h.cluster.remove(RESOURCE_CLAIMS, name, NS)
    return str(uid)


async def wanted(h: Harness, name: str = "mine") -> None:
    claim(h.cluster, name)
    pod(h.cluster, name, name)
    await h.quiet()


def agent_removes(cluster: FakeClient, *uids: str) -> None:
    left = [c for c in cluster.raw(DEVICE_INVENTORIES, NAME)["status"]["goneClaims"] if c["uid"] not in uids]
    cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"goneClaims": left}})


def run(scenario: Any, cluster: FakeClient) -> None:
    async def main() -> None:
        async with asyncio.timeout(200), controlling(cluster) as harness:
            await scenario(harness)

    virtual_time.run(main())


def count(h: Harness) -> float | None:
    return h.controller.metrics.registry.get_sample_value("dra_driver_controller_gone_claims")


def test_devices_of_a_claim_that_is_gone_stay_taken_until_its_node_has_freed_them() -> None:
    async def scenario(h: Harness) -> None:
        uid = await allocated_and_gone(h)
        await wanted(h)
        assert h.devices("mine") == []
        assert listed(h.cluster) == [uid]
        assert count(h) == 1
        agent_removes(h.cluster, uid)
        await asyncio.sleep(5)
        await h.quiet()
        assert h.devices("mine") == [("n1", "gpu-0")]
        assert count(h) == 0

    run(scenario, one_gpu())


def test_a_claim_that_is_deallocated_before_it_goes_costs_no_write() -> None:
    async def scenario(h: Harness) -> None:
        claim(h.cluster, "theirs")
        pod(h.cluster, "theirs", "theirs")
        await h.quiet()
        h.bind("theirs", "n1")
        await h.quiet()
        before = [w for w in h.cluster.writes if w.kind == "DeviceInventory"]
        h.cluster.remove(PODS, "theirs", NS)
        h.deallocate("theirs")
        h.cluster.remove(RESOURCE_CLAIMS, "theirs", NS)
        await wanted(h)
        assert h.devices("mine") == [("n1", "gpu-0")]
        assert [w for w in h.cluster.writes if w.kind == "DeviceInventory"] == before

    run(scenario, one_gpu())


def test_the_next_controller_counts_what_inventories_list() -> None:
    cluster = one_gpu()

    async def first(h: Harness) -> None:
        await allocated_and_gone(h)
        await h.quiet()
        assert len(listed(cluster)) == 1

    async def second(h: Harness) -> None:
        await wanted(h)
        assert h.devices("mine") == []
        agent_removes(cluster, *listed(cluster))
        await asyncio.sleep(5)
        await h.quiet()
        assert h.devices("mine") == [("n1", "gpu-0")]

    run(first, cluster)
    run(second, cluster)


def test_what_only_the_agent_has_found_is_taken_too() -> None:
    cluster = one_gpu()
    found = [{"uid": "found-by-the-agent", "devices": [{"device": "gpu-0"}]}]
    cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"goneClaims": found}})

    async def scenario(h: Harness) -> None:
        await wanted(h)
        assert h.devices("mine") == []

    run(scenario, cluster)


def test_a_claim_that_is_there_is_not_gone_whatever_an_inventory_lists() -> None:
    cluster = one_gpu()
    described(cluster, "n2", 1)

    async def scenario(h: Harness) -> None:
        claim(h.cluster, "theirs")
        pod(h.cluster, "theirs", "theirs")
        await h.quiet()
        ((on, _),) = h.devices("theirs")
        other = {"n1": "n2", "n2": "n1"}[on]
        uid = h.claim("theirs").metadata.uid
        lie = [{"uid": uid, "devices": [{"device": "gpu-0"}]}]
        h.cluster.edit(DEVICE_INVENTORIES, f"{other}.{DRIVER}", {"status": {"goneClaims": lie}})
        await h.quiet()
        assert count(h) == 0
        await wanted(h)
        assert h.devices("mine") == [(other, "gpu-0")]

    run(scenario, cluster)


def test_a_node_keeps_its_own_devices_alone() -> None:
    cluster = one_gpu()
    described(cluster, "n2", 0)
    lie = [{"uid": f"lie-{i}", "devices": [{"device": "gpu-0"}] * 32} for i in range(MOST_GONE_CLAIMS + 50)]
    cluster.edit(DEVICE_INVENTORIES, f"n2.{DRIVER}", {"status": {"goneClaims": lie}})

    async def scenario(h: Harness) -> None:
        assert count(h) == MOST_GONE_CLAIMS
        await wanted(h)
        assert h.devices("mine") == [("n1", "gpu-0")]

    run(scenario, cluster)


@pytest.mark.parametrize("registration", [{"epoch": 1}, {"epoch": 2, "goneClaimsEpoch": 1}])
def test_with_an_agent_that_does_not_keep_the_list_it_is_as_before(registration: dict[str, int]) -> None:
    cluster = one_gpu()
    before = [{"uid": "of-a-newer-agent", "devices": [{"device": "gpu-0"}]}]
    said: dict[str, int | None] = {"goneClaimsEpoch": None, **registration}
    cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"registration": said, "goneClaims": before}})

    async def scenario(h: Harness) -> None:
        await allocated_and_gone(h)
        await wanted(h)
        assert h.devices("mine") == [("n1", "gpu-0")]
        assert listed(h.cluster) == ["of-a-newer-agent"]

    run(scenario, cluster)


def test_where_the_inventory_goes_with_its_node_nothing_stays_taken() -> None:
    async def scenario(h: Harness) -> None:
        await allocated_and_gone(h)
        await h.quiet()
        assert count(h) == 1
        h.cluster.remove(DEVICE_INVENTORIES, NAME)
        await h.quiet()
        assert count(h) == 0
        # The agent writes it anew, and knows of no such claim.
        described(h.cluster, "n1", 1)
        await h.quiet()
        await wanted(h)
        assert h.devices("mine") == [("n1", "gpu-0")]

    run(scenario, one_gpu())


def test_the_largest_claim_can_be_listed() -> None:
    """With as many devices and capacities as the API lets a claim have: a refused write would ask nobody."""
    cluster = one_gpu()
    consumed = {f"capacity-{i:02}": "1Pi" for i in range(32)}
    share = "11111111-2222-4333-8444-555555555555"
    devices = [{"device": f"{i:063}", "shareID": share, "consumedCapacity": consumed} for i in range(32)]
    patch = {"status": {"goneClaims": [{"uid": share, "devices": devices}]}}
    written = asyncio.run(cluster.merge_patch(DEVICE_INVENTORIES, NAME, patch, subresource="status"))
    (found,) = written.status.gone_claims
    assert len(found.devices) == len(found.devices[0].consumed_capacity) == 32


def test_what_a_claim_keeps_that_is_gone_is_not_being_written() -> None:
    """A pool that changes hands waits for what is being written, not for the pods of such claims."""

    async def main() -> None:
        inventories = Informer(one_gpu(), DEVICE_INVENTORIES)
        gone = GoneClaims((DRIVER,), inventories)
        cache = AssumeCache(Informer(FakeClient(), RESOURCE_CLAIMS), Journal(), Signal(), gone)
        task = asyncio.create_task(inventories.run())
        await inventories.synced.wait()
        held = codec.convert(ResourceClaim, builders.claim("c", uid="u-1"))
        kept = codec.convert(
            AllocationResult, builders.allocation(builders.result("n1", "gpu-0"))["allocation"]
        )
        status = msgspec.structs.replace(held.status, allocation=kept)
        gone.gone(msgspec.structs.replace(held, status=status))
        pool = PoolID(DRIVER, PoolName("n1"))
        assert set(cache.taken(pool).devices) == {"gpu-0"}
        assert not cache.assumed_in(pool)
        assert cache.being_written(pool) == set()
        task.cancel()

    asyncio.run(main())


def test_the_list_is_written_in_spite_of_trouble_and_nothing_is_free_meanwhile() -> None:
    async def scenario(h: Harness) -> None:
        left = 6

        def trouble(verb: str, kind: str, name: str, subresource: str) -> None:
            nonlocal left
            if verb == "patch" and kind == "DeviceInventory" and left:
                left -= 1
                if left % 2:
                    raise Conflict("somebody was faster", code=409)
                unreachable()

        h.cluster.before = trouble
        uid = await allocated_and_gone(h)
        await wanted(h)
        assert h.devices("mine") == []
        await asyncio.sleep(60)
        await h.quiet()
        assert left == 0
        assert listed(h.cluster) == [uid]
        assert h.devices("mine") == []

    run(scenario, one_gpu())


def test_a_deletion_that_only_a_new_list_shows_is_asked_about() -> None:
    """The history did not reach back: the claim may have been deallocated. The agent knows."""

    async def scenario(h: Harness) -> None:
        claim(h.cluster, "theirs")
        pod(h.cluster, "theirs", "theirs")
        await h.quiet()
        uid = h.claim("theirs").metadata.uid
        h.cluster.quiet.add("ResourceClaim")
        h.deallocate("theirs")
        h.cluster.remove(RESOURCE_CLAIMS, "theirs", NS)
        h.cluster.expire()
        h.cluster.quiet.clear()
        h.cluster.wake()
        await h.quiet(3)
        assert listed(h.cluster) == [uid]
        agent_removes(h.cluster, uid)
        await asyncio.sleep(5)
        await wanted(h)
        assert h.devices("mine") == [("n1", "gpu-0")]

    run(scenario, one_gpu())


def test_a_node_that_changes_its_list_all_the_time_is_heard_now_and_then() -> None:
    cluster = one_gpu()

    async def scenario(h: Harness) -> None:
        seen: list[float | None] = []
        for i in range(200):
            lie = [{"uid": f"lie-{i}", "devices": [{"device": "gpu-0"}]}] if i % 2 else []
            h.cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"goneClaims": lie}})
            await asyncio.sleep(0.05)
            seen.append(count(h))
        changes = sum(a != b for a, b in pairwise(seen))
        assert changes <= 6

    run(scenario, cluster)
