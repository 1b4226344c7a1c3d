"""What a node says that cannot be true costs its own pool, and says so in its inventory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import msgspec
import pytest
import virtual_time
from builders import DRIVER, device
from fake_client import FakeClient
from test_publisher_epochs import Harness, Scenario, cluster_with_node, publishing

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Change, PoolBusy
from controller.allocate.state.following import ACTIVITY_SECONDS, follow
from controller.publish.pace import BURST, SECONDS, Pace
from controller.publish.same_uuids import SameUuids
from dra_driver.api import codec
from dra_driver.api.core import EVENTS, NODES, PODS, Node
from dra_driver.api.meta import DriverName, PoolName, Uid
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES, Condition
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID, owner_of
from dra_driver.resourceslice import build_slices, plan_slices
from dra_driver.resourceslice.plan import MAX_GENERATION

LIAR = f"n2.{DRIVER}"


def run(scenario: Scenario, cluster: FakeClient) -> None:
    async def main() -> None:
        async with asyncio.timeout(200), publishing(cluster) as harness:
            await scenario(harness)

    virtual_time.run(main())


def gpu(name: str, memory: str = "40Gi", uuid: str = "", **more: Any) -> dict[str, Any]:
    return device(name, memory, attributes={"type": "gpu", "uuid": uuid or f"GPU-{name}"}, **more)


def condition(h: Harness, name: str) -> Condition:
    (found,) = h.cluster.obj(DEVICE_INVENTORIES, name).status.conditions
    return found


def published(cluster: FakeClient, node: str) -> dict[str, Any]:
    return {
        d.name: d for s in cluster.all(RESOURCE_SLICES) if s.spec.node_name == node for d in s.spec.devices
    }


def slice_writes(cluster: FakeClient) -> int:
    return sum(w.kind == "ResourceSlice" for w in cluster.writes)


def with_liar(*devices: dict[str, Any]) -> FakeClient:
    """n1 is honest and has gpu-000 and gpu-001."""
    cluster = cluster_with_node()
    cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", {"spec": {"devices": [gpu("gpu-000"), gpu("gpu-001")]}})
    cluster.put(NODES, builders.node("n2", uid="uid-n2"))
    cluster.put(DEVICE_INVENTORIES, builders.inventory("n2", *devices))
    return cluster


# --- what it says -------------------------------------------------------------------------------------------


def test_a_device_that_cannot_be_is_left_out_and_named() -> None:
    cluster = with_liar(gpu("gpu-a"), gpu("gpu-b", "2Pi"))

    async def scenario(h: Harness) -> None:
        assert published(cluster, "n2").keys() == {"gpu-a"}
        told = condition(h, LIAR)
        assert told.reason == "PublishedInPart"
        assert "device gpu-b: capacity memory is 2Pi, more than 1Pi" in told.message
        assert condition(h, f"n1.{DRIVER}").reason == "Published"

    run(scenario, cluster)


def test_partitions_without_number_are_left_out() -> None:
    places = [{"start": i, "size": 1} for i in range(60)]
    many = [{"name": f"{i}g.1gb", "placements": places, "capacity": {}} for i in range(3)]
    few = many[:1]
    cluster = with_liar(
        gpu("gpu-a", partitions=many), *(gpu(f"gpu-{i:03}", partitions=few) for i in range(80))
    )

    async def scenario(h: Harness) -> None:
        assert "gpu-a" not in published(cluster, "n2")
        assert len(published(cluster, "n2")) == 4096 // 60
        assert "device gpu-a: 180 partitions, more than 128" in condition(h, LIAR).message

    run(scenario, cluster)


@pytest.mark.parametrize("noted", [2**63 - 1, 2**63, 2**70])
def test_a_generation_stays_within_what_the_api_server_takes(noted: int) -> None:
    desired = build_slices(codec.convert(DeviceInventory, builders.inventory("n1", gpu("gpu-000"))))
    node = codec.convert(Node, builders.node("n1"))
    assert plan_slices([], desired, owner_of(node), least_generation=noted + 1).generation == MAX_GENERATION


@pytest.mark.parametrize("publisher", ["", "node"])
def test_what_a_node_notes_of_a_publication_concerns_its_own_pool_alone(publisher: str) -> None:
    """As an agent's token can, which first says that its node publishes, and later that it does not."""
    cluster = with_liar(gpu("gpu-a"), gpu("gpu-b"))

    async def scenario(h: Harness) -> None:
        names = [s.metadata.name for s in cluster.all(RESOURCE_SLICES) if s.spec.node_name == "n1"]
        honest = [cluster.raw(RESOURCE_SLICES, name) for name in names]
        assert honest
        lie = {
            "epoch": 2**63 - 2,
            "attempted": 2**63 - 1,
            "generation": 2**63 - 1,
            "slices": [*names, "no-such-slice"],
            "devices": 2**31,
            "allocator": "controller",
            "withheldFor": ["example.com/gpu"] * 16,
            "otherDrivers": [{"driver": DRIVER, "pools": ["n1"], "devices": ["gpu-000"]}],
            "lent": [{"unit": "gpu-000", "devices": ["gpu-000", "gpu-001"]}],
        }
        for spec in ({"publisher": "node"}, {"publisher": publisher}):
            registration = {"registered": True, "epoch": 2**63 - 1}
            status = {"publication": lie, "registration": registration}
            cluster.edit(DEVICE_INVENTORIES, LIAR, {"spec": spec, "status": status})
            await asyncio.sleep(30)
        cluster.edit(DEVICE_INVENTORIES, LIAR, {"spec": {"devices": [gpu("gpu-a"), gpu("gpu-c")]}})
        await asyncio.sleep(60)
        assert [cluster.raw(RESOURCE_SLICES, name) for name in names] == honest
        assert condition(h, f"n1.{DRIVER}").reason == "Published"
        generations = {s.spec.pool.generation for s in cluster.all(RESOURCE_SLICES)}
        assert max(generations) <= MAX_GENERATION
        assert {e.reason for e in cluster.all(EVENTS)}.isdisjoint({"SliceRefused", "SliceAltered"})

    run(scenario, cluster)


def test_two_nodes_with_one_uuid_are_both_told_and_left_as_they_are() -> None:
    cluster = with_liar(gpu("gpu-a", uuid="GPU-gpu-000"), gpu("gpu-b"))

    async def scenario(h: Harness) -> None:
        before = published(cluster, "n1")
        written = slice_writes(cluster)
        await asyncio.sleep(12)
        assert "gpu-a (also in n1." in condition(h, LIAR).message
        assert condition(h, LIAR).reason == "DuplicateDevices"
        assert f"gpu-000 (also in {LIAR})" in condition(h, f"n1.{DRIVER}").message
        assert (published(cluster, "n1"), slice_writes(cluster)) == (before, written)
        cluster.edit(DEVICE_INVENTORIES, LIAR, {"spec": {"devices": [gpu("gpu-b")]}})
        await asyncio.sleep(12)
        assert {condition(h, n).reason for n in (LIAR, f"n1.{DRIVER}")} == {"Published"}

    run(scenario, cluster)


def test_a_node_with_the_uuid_of_another_is_told_so_no_more_when_that_one_is_gone() -> None:
    cluster = with_liar(gpu("gpu-a", uuid="GPU-gpu-000"), gpu("gpu-b"))

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(12)
        assert condition(h, f"n1.{DRIVER}").reason == "DuplicateDevices"
        cluster.remove(DEVICE_INVENTORIES, LIAR)
        await asyncio.sleep(12)
        assert condition(h, f"n1.{DRIVER}").reason == "Published"

    run(scenario, cluster)


def test_what_is_not_believed_of_an_inventory_casts_no_doubt_on_others() -> None:
    cluster = with_liar(gpu("gpu-b"))
    stolen = builders.inventory("n1", gpu("gpu-a", uuid="GPU-gpu-000"))
    stolen["metadata"]["name"] = LIAR
    cluster.put(DEVICE_INVENTORIES, stolen)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(12)
        assert condition(h, LIAR).status == "False"
        assert condition(h, f"n1.{DRIVER}").reason == "Published"

    run(scenario, cluster)


def test_the_index_of_uuids_forgets_what_is_gone() -> None:
    def inventory(name: str, *uuids: str) -> DeviceInventory:
        raw = builders.inventory(name, *(gpu(f"gpu-{i}", uuid=u) for i, u in enumerate(uuids)))
        return codec.convert(DeviceInventory, raw)

    index = SameUuids()
    assert index.put(inventory("n1", "a", "b")) == frozenset()
    assert index.put(inventory("n2", "b", "c")) == {f"n1.{DRIVER}"}
    assert index.put(inventory("n2", "b", "c")) == frozenset()
    assert len(index.doubts(f"n1.{DRIVER}")) == 1
    assert index.put(inventory("n2", "c")) == {f"n1.{DRIVER}"}
    assert index.doubts(f"n1.{DRIVER}") == ()
    for name in ("n1", "n2", "n3"):
        index.remove(f"{name}.{DRIVER}")
    assert vars(index) == vars(SameUuids())


# --- how often it says it -----------------------------------------------------------------------------------


def flood(
    change: Callable[[FakeClient, int], None], seconds: int = 6
) -> Callable[[Harness], Awaitable[None]]:
    """A hundred changes a second; the last one must be published, few of the others may be."""

    async def scenario(h: Harness) -> None:
        before = slice_writes(h.cluster)
        for i in range(100 * seconds):
            change(h.cluster, i)
            await asyncio.sleep(0.01)
        assert slice_writes(h.cluster) - before <= BURST + seconds / SECONDS + 1
        change(h.cluster, 10_000)
        await asyncio.sleep(2 * SECONDS)
        await h.quiet()
        assert (
            h.publication().epoch
            == h.cluster.obj(DEVICE_INVENTORIES, f"n1.{DRIVER}").status.registration.epoch
        )
        assert published(h.cluster, "n1")["gpu-000"].capacity["memory"].value.value() % (1 << 30) in (
            0,
            10_000,
        )

    return scenario


def test_a_flood_of_devices_is_published_slowly() -> None:
    def change(cluster: FakeClient, i: int) -> None:
        memory = str((40 << 30) + i)
        patch = {"spec": {"devices": [gpu("gpu-000", memory), gpu("gpu-001")]}}
        cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", patch)

    run(flood(change), cluster_with_node())


def test_a_flood_of_epochs_is_published_slowly() -> None:
    def change(cluster: FakeClient, i: int) -> None:
        # It jumps, up to what an int64 holds.
        epoch = 2**63 - 1 if i == 10_000 else 10 + i * 1_000_003
        patch = {"status": {"registration": {"registered": True, "epoch": epoch}}}
        cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", patch)

    run(flood(change), cluster_with_node())


def test_what_is_busy_has_no_pool_looked_at() -> None:
    async def scenario(h: Harness) -> None:
        calls = len(h.cluster.calls)
        for i in range(200):
            activity = {"busy": ["gpu-000", "not-mine"] if i % 2 else [], "idle": ["x"] * (i % 2)}
            h.cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", {"status": {"activity": activity}})
            await asyncio.sleep(0.01)
        assert h.publisher.queue.idle
        assert len(h.cluster.calls) == calls

    run(scenario, cluster_with_node())


def test_an_honest_node_is_published_at_once_beside_a_flood() -> None:
    cluster = with_liar(gpu("gpu-a"))

    async def scenario(h: Harness) -> None:
        for i in range(300):
            patch = {"spec": {"devices": [gpu("gpu-a", str(i + 1))]}}
            cluster.edit(DEVICE_INVENTORIES, LIAR, patch)
            await asyncio.sleep(0.01)
        h.discover(4)
        await asyncio.sleep(0.1)
        assert len(published(cluster, "n1")) == 4

    run(scenario, cluster)


def test_the_first_changes_are_not_held_up() -> None:
    pace = Pace()

    def inventory(epoch: int, uid: str = "") -> DeviceInventory:
        found = codec.convert(DeviceInventory, builders.inventory("n1", gpu("g"), epoch=epoch))
        meta = msgspec.structs.replace(found.metadata, uid=Uid(uid or found.metadata.uid))
        return msgspec.structs.replace(found, metadata=meta)

    assert [pace.wait(inventory(i), 100.0) for i in range(int(BURST))] == [0.0] * int(BURST)
    assert pace.wait(inventory(99), 100.0) == SECONDS
    assert pace.wait(inventory(int(BURST) - 1), 100.0) == 0.0  # what was looked at already
    # Coming and going brings nothing.
    assert pace.wait(inventory(int(BURST) - 1, "anew"), 100.0) == SECONDS
    assert pace.wait(inventory(99), 100.0 + SECONDS / 4) == SECONDS * 3 / 4
    assert pace.wait(inventory(99), 100.0 + SECONDS) == 0.0


def test_decisions_hear_of_busy_devices_now_and_then() -> None:
    cluster = cluster_with_node()
    heard: list[Change] = []

    async def main() -> None:
        inventories = Informer(cluster, DEVICE_INVENTORIES)
        follow(
            heard.append,
            pods=Informer(cluster, PODS),
            nodes=Informer(cluster, NODES),
            slices=Informer(cluster, RESOURCE_SLICES),
            classes=Informer(cluster, DEVICE_CLASSES),
            inventories=inventories,
        )
        task = asyncio.create_task(inventories.run())
        await inventories.synced.wait()
        for i in range(1000):
            busy = [f"gpu-{i:03}"]
            cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", {"status": {"activity": {"busy": busy}}})
            await asyncio.sleep(0.01)
        assert len(heard) <= 2 + 10 / ACTIVITY_SECONDS
        await asyncio.sleep(ACTIVITY_SECONDS)
        pool = PoolID(DriverName(DRIVER), PoolName("n1"))
        assert heard[-1] == PoolBusy(pool, ("gpu-999",))
        cluster.remove(DEVICE_INVENTORIES, f"n1.{DRIVER}")
        await asyncio.sleep(ACTIVITY_SECONDS)
        assert heard[-1] == PoolBusy(pool, ())
        task.cancel()

    virtual_time.run(main())


def test_of_inventories_only_busy_devices_are_passed_on() -> None:
    """All else is in the slices. A new worker was sent 35 kB for each node that it did not read."""
    cluster = with_liar(gpu("gpu-a"))
    journal = Journal()

    async def main() -> None:
        inventories = Informer(cluster, DEVICE_INVENTORIES)
        follow(
            journal.apply,
            pods=Informer(cluster, PODS),
            nodes=Informer(cluster, NODES),
            slices=Informer(cluster, RESOURCE_SLICES),
            classes=Informer(cluster, DEVICE_CLASSES),
            inventories=inventories,
        )
        task = asyncio.create_task(inventories.run())
        await inventories.synced.wait()
        assert list(journal.replay()) == []
        busy = {"status": {"activity": {"busy": ["gpu-000"], "idle": ["gpu-001"]}}}
        cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", busy)
        # A node describes only itself, whatever its inventory is called.
        cluster.put(
            DEVICE_INVENTORIES, {**builders.inventory("n1", gpu("gpu-a")), "metadata": {"name": "n9"}}
        )
        cluster.edit(DEVICE_INVENTORIES, "n9", {"status": {"activity": {"busy": ["gpu-001"]}}})
        await asyncio.sleep(ACTIVITY_SECONDS)
        pool = PoolID(DriverName(DRIVER), PoolName("n1"))
        assert list(journal.replay()) == [PoolBusy(pool, ("gpu-000",))]
        cluster.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", {"status": {"activity": {"busy": []}}})
        await asyncio.sleep(ACTIVITY_SECONDS)
        assert list(journal.replay()) == []
        task.cancel()

    virtual_time.run(main())
