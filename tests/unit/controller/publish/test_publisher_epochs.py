"""When slices are published, and when they must not be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER, device
from fake_client import FakeClient, unreachable

from controller.config import ControllerConfig, Timings
from controller.publish.gates import PoolGates
from controller.publish.publisher import POOL_INDEX, Publisher, pool_of
from dra_driver.api.core import EVENTS, NODES
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, Publication
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.errors import ServerBusy
from dra_driver.kube import EventRecorder, Informer
from dra_driver.ownership import slice_name

NAME = f"n1.{DRIVER}"
SLICE = slice_name("n1", DRIVER, 0)


class Clock:
    def now(self) -> float:
        return 1_800_000_000.0

    def monotonic(self) -> float:
        return 0.0


def devices(count: int) -> list[dict[str, Any]]:
    return [device(f"gpu-{i:03}", "40Gi", attributes={"type": "gpu"}) for i in range(count)]


def cluster_with_node(count: int = 2, *, registered: bool = True, epoch: int = 1) -> FakeClient:
    cluster = FakeClient()
    cluster.put(NODES, builders.node("n1", uid="uid-n1"))
    found = builders.inventory("n1", *devices(count), registered=registered, epoch=epoch)
    cluster.put(DEVICE_INVENTORIES, found)
    return cluster


class Harness:
    def __init__(self, cluster: FakeClient) -> None:
        self.cluster = cluster
        self.inventories = Informer(cluster, DEVICE_INVENTORIES)
        self.slices = Informer(cluster, RESOURCE_SLICES, indices={POOL_INDEX: pool_of})
        self.nodes = Informer(cluster, NODES)
        self.recorder = EventRecorder(cluster, "test", Clock())
        self.publisher = Publisher(
            cluster,
            ControllerConfig(drivers=(DRIVER,), timings=Timings(drain=0)),
            Clock(),
            self.recorder,
            inventories=self.inventories,
            slices=self.slices,
            nodes=self.nodes,
            gates=PoolGates(Clock(), inventories=self.inventories, slices=self.slices),
        )

    async def quiet(self, seconds: float = 0.15) -> None:
        """Waits until nothing has been written for a while."""
        count = -1
        while count != len(self.cluster.writes) or not self.publisher.queue.idle:
            count = len(self.cluster.writes)
            await asyncio.sleep(seconds)

    def publication(self) -> Publication:
        return self.cluster.obj(DEVICE_INVENTORIES, NAME).status.publication

    def slice_names(self) -> list[str]:
        return [s.metadata.name for s in self.cluster.all(RESOURCE_SLICES)]

    def epoch(self, epoch: int, *, registered: bool = True) -> None:
        patch = {"status": {"registration": {"registered": registered, "epoch": epoch}}}
        self.cluster.edit(DEVICE_INVENTORIES, NAME, patch)

    def discover(self, count: int) -> None:
        self.cluster.edit(DEVICE_INVENTORIES, NAME, {"spec": {"devices": devices(count)}})


@contextlib.asynccontextmanager
async def publishing(cluster: FakeClient) -> AsyncIterator[Harness]:
    harness = Harness(cluster)
    async with asyncio.TaskGroup() as group:
        informers = (harness.inventories, harness.slices, harness.nodes)
        tasks = [group.create_task(i.run()) for i in informers]
        tasks.append(group.create_task(harness.recorder.run()))
        for informer in informers:
            await informer.synced.wait()
        tasks.append(group.create_task(harness.publisher.run()))
        try:
            await harness.quiet()
            yield harness
        finally:
            harness.publisher.queue.close()
            for task in tasks:
                task.cancel()


Scenario = Callable[[Harness], Awaitable[None]]


def run(scenario: Scenario, cluster: FakeClient) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), publishing(cluster) as harness:
            await scenario(harness)

    virtual_time.run(main())


def test_a_registered_node_is_published_once_and_noted() -> None:
    async def scenario(h: Harness) -> None:
        (published,) = h.cluster.all(RESOURCE_SLICES)
        assert published.metadata.name == SLICE
        assert published.spec.node_name == "n1"
        assert published.spec.pool.name == "n1"
        (owner,) = published.metadata.owner_references or ()
        assert (owner.kind, owner.uid, owner.controller) == ("Node", "uid-n1", True)
        assert {t.key for d in published.spec.devices for t in d.taints} == {CONTROLLER_TAINT}
        publication = h.publication()
        assert (publication.epoch, publication.devices, publication.slices) == (1, 2, (SLICE,))
        assert publication.generation == published.spec.pool.generation
        condition = h.cluster.obj(DEVICE_INVENTORIES, NAME).status.conditions[0]
        assert (condition.type, condition.status) == ("Published", "True")

    run(scenario, cluster_with_node())


def test_a_restart_with_everything_in_place_writes_nothing() -> None:
    cluster = cluster_with_node()

    async def nothing(h: Harness) -> None:
        pass

    run(nothing, cluster)
    cluster.writes.clear()
    run(nothing, cluster)
    assert cluster.writes == []


def test_nothing_is_published_before_the_kubelet_has_confirmed_the_plugin() -> None:
    async def scenario(h: Harness) -> None:
        assert h.slice_names() == []
        h.epoch(1)
        await h.quiet()
        assert h.slice_names() == [SLICE]

    run(scenario, cluster_with_node(registered=False, epoch=0))


def test_slices_that_the_kubelet_deleted_stay_away_until_the_plugin_asks() -> None:
    async def scenario(h: Harness) -> None:
        generation = h.publication().generation
        h.cluster.remove(RESOURCE_SLICES, SLICE)
        await h.quiet()
        assert h.slice_names() == []
        h.discover(5)  # an inventory that changes does not bring them back either
        await h.quiet()
        assert h.slice_names() == []
        h.epoch(2)
        await h.quiet()
        assert h.slice_names() == [SLICE]
        assert h.publication().epoch == 2
        assert h.publication().devices == 5
        assert h.publication().generation > generation

    run(scenario, cluster_with_node())


def test_a_dead_plugin_is_not_advertised_by_a_restarted_controller() -> None:
    cluster = cluster_with_node()

    async def wipe(h: Harness) -> None:
        cluster.remove(RESOURCE_SLICES, SLICE)
        await h.quiet()

    async def nothing(h: Harness) -> None:
        assert h.slice_names() == []

    run(wipe, cluster)
    run(nothing, cluster)


def test_a_raised_epoch_with_slices_still_there_only_notes_the_epoch() -> None:
    async def scenario(h: Harness) -> None:
        before = h.cluster.raw(RESOURCE_SLICES, SLICE)["metadata"]["resourceVersion"]
        h.epoch(2)
        await h.quiet()
        assert h.publication().epoch == 2
        assert h.cluster.raw(RESOURCE_SLICES, SLICE)["metadata"]["resourceVersion"] == before

    run(scenario, cluster_with_node())


def test_a_controller_killed_between_create_and_note_never_advertises_a_plugin_that_died_since() -> None:
    cluster = cluster_with_node()

    def no_note(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "DeviceInventory" and verb == "patch" and cluster.all(RESOURCE_SLICES):
            unreachable()

    async def killed(h: Harness) -> None:
        assert h.slice_names() == [SLICE]
        assert h.publication().epoch == 0
        assert h.publication().attempted == 1

    cluster.before = no_note
    run(killed, cluster)
    cluster.before = lambda *_: None
    cluster.remove(RESOURCE_SLICES, SLICE)  # the kubelet, 30 s after the plugin died

    async def restarted(h: Harness) -> None:
        assert h.slice_names() == []
        # A plugin that lives sees its slices missing for its epoch, and asks again.
        assert h.publication().epoch == 1
        h.epoch(2)
        await h.quiet()
        assert h.slice_names() == [SLICE]

    run(restarted, cluster)


def test_a_controller_killed_between_create_and_note_finds_its_slices_again() -> None:
    cluster = cluster_with_node(100)

    def no_note(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "DeviceInventory" and verb == "patch" and cluster.all(RESOURCE_SLICES):
            unreachable()

    async def killed(h: Harness) -> None:
        assert len(h.slice_names()) == 2

    cluster.before = no_note
    run(killed, cluster)
    cluster.before = lambda *_: None

    async def restarted(h: Harness) -> None:
        assert len(h.slice_names()) == 2
        assert h.publication().epoch == 1
        assert list(h.publication().slices) == h.slice_names()

    run(restarted, cluster)


def test_a_slice_whose_creation_was_not_answered_is_not_created_twice() -> None:
    cluster = cluster_with_node()
    failed: list[str] = []

    def once(verb: str, kind: str, name: str, subresource: str) -> None:
        if verb == "create" and kind == "ResourceSlice" and not failed:
            failed.append(name)
            unreachable()

    cluster.after = once

    async def scenario(h: Harness) -> None:
        assert h.slice_names() == [SLICE]
        assert h.publication().epoch == 1

    run(scenario, cluster)


def test_inventory_changes_within_the_epoch_update_the_slices() -> None:
    async def scenario(h: Harness) -> None:
        h.discover(3)
        await h.quiet()
        (published,) = h.cluster.all(RESOURCE_SLICES)
        assert len(published.spec.devices) == 3
        assert h.publication().devices == 3
        assert h.publication().epoch == 1
        assert published.spec.pool.generation == h.publication().generation

    run(scenario, cluster_with_node())


def test_growing_and_shrinking_pools_keep_record_and_slices_together() -> None:
    async def scenario(h: Harness) -> None:
        h.discover(100)
        await h.quiet()
        assert list(h.publication().slices) == h.slice_names() == [SLICE, slice_name("n1", DRIVER, 1)]
        h.cluster.writes.clear()
        h.discover(3)
        await h.quiet()
        assert list(h.publication().slices) == h.slice_names() == [SLICE]
        verbs = [(verb, kind) for verb, kind, _, _ in h.cluster.writes if kind != "Event"]
        # Out of the record first, or the deletion would read as a wipe by the kubelet.
        assert verbs.index(("patch", "DeviceInventory")) < verbs.index(("delete", "ResourceSlice"))

    run(scenario, cluster_with_node())


def test_an_outage_deletes_nothing_and_is_recovered_from() -> None:
    cluster = cluster_with_node()

    async def scenario(h: Harness) -> None:
        def busy(verb: str, kind: str, name: str, subresource: str) -> None:
            if verb not in ("watch", "list"):
                raise ServerBusy("later", code=503)

        cluster.before = busy
        h.discover(3)
        await asyncio.sleep(0.3)
        cluster.before = lambda *_: None
        cluster.expire()
        await asyncio.sleep(0.5)
        await h.quiet()
        (published,) = cluster.all(RESOURCE_SLICES)
        assert len(published.spec.devices) == 3

    run(scenario, cluster)


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"nodeName": "n2"}},
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "other"}]
            }
        },
        {"metadata": {"ownerReferences": None}},
    ],
)
def test_an_inventory_that_is_not_its_own_node_s_is_refused(patch: dict[str, Any]) -> None:
    cluster = cluster_with_node()
    cluster.put(NODES, {"metadata": {"name": "n2", "uid": "node-2"}})
    cluster.edit(DEVICE_INVENTORIES, NAME, patch)

    async def scenario(h: Harness) -> None:
        assert h.slice_names() == []
        condition = h.cluster.obj(DEVICE_INVENTORIES, NAME).status.conditions[0]
        assert (condition.status, condition.reason) == ("False", "Refused")

    run(scenario, cluster)


def test_other_drivers_are_left_alone() -> None:
    cluster = cluster_with_node()
    body = cluster.raw(DEVICE_INVENTORIES, NAME)
    cluster.put(
        DEVICE_INVENTORIES,
        {
            "metadata": {"name": "n1.other", "ownerReferences": body["metadata"]["ownerReferences"]},
            "spec": {**body["spec"], "driver": "other"},
            "status": {"registration": {"registered": True, "epoch": 1}},
        },
    )
    cluster.put(
        RESOURCE_SLICES,
        {
            "metadata": {"name": "foreign"},
            "spec": {
                "driver": "other",
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            },
        },
    )

    async def scenario(h: Harness) -> None:
        assert h.slice_names() == ["foreign", SLICE]

    run(scenario, cluster)


def drop_taints(raw: dict[str, Any]) -> None:
    if raw["kind"] == "ResourceSlice":
        for device in raw["spec"].get("devices", ()):
            device.pop("taints", None)


def test_without_taints_the_pool_is_left_to_the_scheduler_and_the_gate_is_named() -> None:
    cluster = cluster_with_node()
    cluster.strip = drop_taints

    async def scenario(h: Harness) -> None:
        (published,) = cluster.all(RESOURCE_SLICES)
        assert all(not d.taints for d in published.spec.devices)
        condition = cluster.obj(DEVICE_INVENTORIES, NAME).status.conditions[0]
        assert condition.reason == "FeatureGateDisabled"
        assert "DRADeviceTaints" in condition.message
        await h.recorder.drain()
        assert any("DRADeviceTaints" in e.message for e in cluster.all(EVENTS))

    run(scenario, cluster)


def test_a_slice_that_the_server_altered_is_deleted_and_published_anew_with_what_survives() -> None:
    cluster = cluster_with_node()

    async def scenario(h: Harness) -> None:
        # The gate goes off after the probe: an upgrade that was rolled back.
        cluster.strip = drop_taints
        h.discover(3)
        await h.quiet()
        await asyncio.sleep(0.3)
        await h.quiet()
        for published in cluster.all(RESOURCE_SLICES):
            assert all(not d.taints for d in published.spec.devices)
        h.epoch(2)
        await h.quiet()
        (published,) = cluster.all(RESOURCE_SLICES)
        assert len(published.spec.devices) == 3
        assert cluster.obj(DEVICE_INVENTORIES, NAME).status.conditions[0].reason == "FeatureGateDisabled"

    run(scenario, cluster)


def test_a_strange_slice_in_the_pool_goes() -> None:
    cluster = cluster_with_node()
    cluster.put(
        RESOURCE_SLICES,
        {
            "metadata": {"name": "stray"},
            "spec": {
                "driver": DRIVER,
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 7, "resourceSliceCount": 1},
                "devices": [{"name": "ghost"}],
            },
        },
    )

    async def scenario(h: Harness) -> None:
        assert h.slice_names() == [SLICE]
        assert h.publication().generation == 8

    run(scenario, cluster)


def test_an_inventory_whose_driver_is_gone_no_longer_says_that_something_is_published() -> None:
    """The name of the driver was changed: the agents of the old one are gone, and then their slices."""
    cluster = cluster_with_node()
    old, name = "old.example.com", "n1.old.example.com"
    inventory = builders.inventory("n1", *devices(2), driver=old, registered=True, epoch=3)
    inventory["status"]["publication"] = {"epoch": 3, "attempted": 3, "generation": 1, "devices": 2}
    cluster.put(DEVICE_INVENTORIES, inventory)
    cluster.put(RESOURCE_SLICES, builders.resource_slice("n1", *devices(2), driver=old))

    async def scenario(h: Harness) -> None:
        unregistered = {"status": {"registration": {"registered": False, "epoch": 3}}}
        cluster.edit(DEVICE_INVENTORIES, name, unregistered)
        await h.quiet()
        assert cluster.obj(DEVICE_INVENTORIES, name).status.publication.devices == 2
        for found in cluster.all(RESOURCE_SLICES):
            if found.spec.driver == old:
                cluster.remove(RESOURCE_SLICES, found.metadata.name)
        await h.quiet()
        status = cluster.obj(DEVICE_INVENTORIES, name).status
        assert (status.publication.devices, status.publication.epoch) == (0, 3)
        assert [(c.status, c.reason) for c in status.conditions] == [("False", "DriverGone")]
        assert f"this controller publishes for {DRIVER}" in status.conditions[0].message
        writes = len(cluster.writes)
        cluster.edit(DEVICE_INVENTORIES, name, {"metadata": {"labels": {"a": "b"}}})
        await h.quiet()
        assert len(cluster.writes) == writes

    run(scenario, cluster)


@pytest.mark.parametrize("registered", [True, False])
def test_an_inventory_of_another_controllers_driver_is_left_alone(registered: bool) -> None:
    """As long as its plugin or its slices are there."""
    cluster = cluster_with_node()
    other, name = "other.example.com", "n1.other.example.com"
    inventory = builders.inventory("n1", *devices(2), driver=other, registered=registered, epoch=3)
    inventory["status"]["publication"] = {"epoch": 3, "attempted": 3, "generation": 1, "devices": 2}
    cluster.put(DEVICE_INVENTORIES, inventory)
    if not registered:
        cluster.put(RESOURCE_SLICES, builders.resource_slice("n1", *devices(2), driver=other))

    async def scenario(h: Harness) -> None:
        await h.quiet()
        status = cluster.obj(DEVICE_INVENTORIES, name).status
        assert (status.publication.devices, status.conditions) == (2, ())

    run(scenario, cluster)


def test_each_look_has_a_round_of_the_event_loop_of_its_own() -> None:
    """A look takes milliseconds, and all nodes are looked at when a policy changes."""
    rounds, looks = 0, list[int]()

    class Gates(PoolGates):
        def hand_over(self, *arguments: Any, **named: Any) -> None:
            looks.append(rounds)
            super().hand_over(*arguments, **named)

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def main() -> None:
        cluster = FakeClient()
        names = [f"n{i}" for i in range(30)]
        for name in names:
            cluster.put(NODES, builders.node(name, uid=f"uid-{name}"))
            cluster.put(DEVICE_INVENTORIES, builders.inventory(name, *devices(1), registered=True, epoch=1))
        async with asyncio.timeout(20), publishing(cluster) as h:
            gates = Gates(Clock(), inventories=h.inventories, slices=h.slices)
            h.publisher._gates = gates
            looks.clear()  # of what it is told first
            counting = asyncio.create_task(count())
            async with asyncio.TaskGroup() as looking:
                for name in names:
                    looking.create_task(h.publisher.reconcile(f"{name}.{DRIVER}"))
            counting.cancel()
        assert len(looks) >= len(names)
        assert len(set(looks)) == len(looks)

    virtual_time.run(main())
