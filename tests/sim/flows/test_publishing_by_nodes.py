"""Node agents that publish by themselves: without a controller, over restarts, from one mode to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import cluster_support as support
import pytest

from dra_driver.api.meta import DriverName
from dra_driver.api.names import CONTROLLER_TAINT, DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.kube import Call, DelegatingClient
from dra_driver.kube.features import probe_features
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.node import SimNode

BY_NODES = support.config(run_controller=False, plugin_flags=("--publish=node",))
FLAG = "--publish=node"

R = TypeVar("R")


def only(cluster: EmbeddedCluster) -> SimNode:
    (node,) = cluster.nodes.values()
    return node


async def pool(cluster: EmbeddedCluster) -> list[ResourceSlice]:
    return list((await cluster.api.list(RESOURCE_SLICES)).items)


def tainted(slices: list[ResourceSlice]) -> bool:
    return any(t.key == CONTROLLER_TAINT for s in slices for d in s.spec.devices for t in d.taints)


async def back(cluster: EmbeddedCluster, before: list[ResourceSlice]) -> list[ResourceSlice]:
    """Other slices than these, when all are there."""
    gone = {s.metadata.uid for s in before}

    async def there() -> list[ResourceSlice]:
        inventory = await support.inventory(cluster, only(cluster))
        published = inventory.status.publication
        slices = await pool(cluster)
        complete = {s.metadata.name for s in slices} == set(published.slices)
        fresh = gone.isdisjoint(s.metadata.uid for s in slices)
        return slices if slices and fresh and complete else []

    return await cluster.wait_for("the slices to be back", there)


async def epoch_of(cluster: EmbeddedCluster) -> int:
    return (await support.inventory(cluster, only(cluster))).status.publication.epoch


async def restarted(cluster: EmbeddedCluster, *, by_node: bool) -> None:
    """The plugin ends in order and starts anew, with the flag or without."""
    plugin = only(cluster).plugin
    await plugin.stop()
    others = tuple(word for word in plugin.command if word != FLAG)
    plugin.command = (*others, FLAG) if by_node else others
    await cluster.start_process(plugin)


@pytest.mark.long
def test_without_a_controller_pods_get_devices_and_slices_come_back() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        inventory = await support.inventory(cluster, only(cluster))
        assert inventory.spec.publisher == "node"
        assert inventory.status.publication.allocator == "scheduler"
        while not (slices := await pool(cluster)):
            await asyncio.sleep(0.05)  # the kubelet may have deleted them at its start
        assert not tainted(slices)
        assert all(s.spec.node_name == only(cluster).name for s in slices)
        owners = [o for s in slices for o in s.metadata.owner_references or ()]
        assert {(o.kind, o.name) for o in owners} == {("Node", only(cluster).name)}
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("one"))
        await support.phase(cluster, "one", "Running")
        # The kubelet deletes them at its start; the agent publishes them once more.
        await cluster.restart_kubelet(only(cluster).name)
        slices = await back(cluster, slices)
        # Likewise after the death of the agent, and while it is dead nobody does.
        await cluster.kill_plugin(only(cluster).name)
        await support.slices_gone(cluster)
        await cluster.start_process(only(cluster).plugin)
        await back(cluster, slices)
        await support.apply(cluster, support.gpu_pod("two"))
        await support.phase(cluster, "two", "Running")

    support.run(scenario, BY_NODES)


def test_slices_that_somebody_deletes_come_back_and_those_of_others_stay() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (first, *_) = await pool(cluster)
        foreign = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "foreign"},
            "spec": {
                "driver": "other.example.com",
                "nodeName": only(cluster).name,
                "pool": {"name": only(cluster).name, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "x"}],
            },
        }
        await cluster.api.create(RESOURCE_SLICES, foreign)
        epoch = await epoch_of(cluster)
        await cluster.api.delete(RESOURCE_SLICES, first.metadata.name)

        async def whole() -> bool:
            ours = [s for s in await pool(cluster) if s.spec.driver == DEFAULT_DRIVER_NAME]
            return bool(ours) and await epoch_of(cluster) > epoch

        await cluster.wait_for("the slice to be back", whole)
        assert "foreign" in {s.metadata.name for s in await pool(cluster)}

    # The kubelet deletes all slices of its node when it starts, those of others too, and perhaps late.
    settings = replace(support.SETTINGS, startup_wipe=None)
    by_nodes = support.config(run_controller=False, plugin_flags=(FLAG,), settings=settings)
    support.run(scenario, by_nodes)


@pytest.mark.parametrize("opens", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_node_changes_hands_in_both_directions(opens: bool) -> None:
    ours = "open" if opens else "controller"

    async def scenario(cluster: EmbeddedCluster) -> None:
        async def handed(mode: str, allocator: str) -> bool:
            inventory = await support.inventory(cluster, only(cluster))
            slices = await pool(cluster)
            return (
                inventory.spec.publisher == mode
                and inventory.status.publication.allocator == allocator
                and bool(slices)
                and tainted(slices) == (allocator == "controller")
            )

        await cluster.wait_for("the pool to be the controller's", lambda: handed("", ours))
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("one"))
        await support.phase(cluster, "one", "Running")
        await restarted(cluster, by_node=True)
        await cluster.wait_for("the node to publish", lambda: handed("node", "scheduler"))

        async def left_alone() -> bool:
            conditions = (await support.inventory(cluster, only(cluster))).status.conditions
            return any(c.reason == "PublishedByNode" for c in conditions)

        await cluster.wait_for("the controller to leave it alone", left_alone)
        await support.apply(cluster, support.gpu_pod("two"))
        await support.phase(cluster, "two", "Running")
        await restarted(cluster, by_node=False)
        await cluster.wait_for("the controller to publish", lambda: handed("", ours))
        await support.apply(cluster, support.gpu_pod("three"))
        await support.phase(cluster, "three", "Running")

    support.run(scenario, support.config(open_pools=opens))


def test_what_is_asked_of_the_server_is_of_the_own_node_and_pool() -> None:
    """The admission policy lets a node agent send nothing else, not even in a dry run."""

    async def scenario(cluster: EmbeddedCluster) -> None:
        sent: list[ResourceSlice] = []

        class Noting(DelegatingClient):
            async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
                assert (call.verb, call.dry_run) == ("create", True)
                answer = await send()
                assert isinstance(answer, ResourceSlice)
                sent.append(answer)
                return answer

        await probe_features(Noting(cluster.api), DriverName(DEFAULT_DRIVER_NAME), "node-a")
        assert len(sent) == 4
        assert {(s.spec.node_name, s.spec.pool.name) for s in sent} == {("node-a", "node-a")}

    support.run(scenario, BY_NODES)
