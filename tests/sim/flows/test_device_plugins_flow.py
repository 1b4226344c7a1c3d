"""Nodes with a device plugin beside our agent: nothing is given away twice, other nodes are as they were."""

from __future__ import annotations

from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.core import NODES
from dra_driver.api.meta import ObjectKey
from dra_driver.cli import status
from dra_driver.cli.overview.report import overview_text
from dra_driver.errors import ApiError
from dra_driver.sim.assets import deploy_directory
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.cluster_config import NodeConfig
from dra_driver.sim.demo import examples

pytestmark = pytest.mark.sim

GPU = "nvidia.com/gpu"
EXAMPLES, PODS = examples.load_manifests(deploy_directory("examples"))
EXTENDED = NodeConfig("l4x4", labels={"dra-driver.dev/examples": "extended-resources"})
KEY = ObjectKey("dra-examples", "extended-resource")


async def count(cluster: EmbeddedCluster, node: str, amount: str) -> None:
    """What the kubelet writes for a device plugin."""
    counted = {"capacity": {GPU: amount}, "allocatable": {GPU: amount}}
    await cluster.api.merge_patch(NODES, node, {"status": counted}, subresource="status")


def names(cluster: EmbeddedCluster) -> list[str]:
    return sorted(cluster.nodes)


def plugin_pod(name: str, amount: int) -> dict[str, Any]:
    pod = support.gpu_pod(name)
    del pod["spec"]["resourceClaims"]
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: str(amount)}}
    return pod


@pytest.mark.long
def test_all_examples_beside_a_device_plugin_give_no_gpu_away_twice() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        beside, plain, extended = names(cluster)
        await count(cluster, beside, "4")
        await support.pool_becomes(cluster, beside, 0, "DevicePluginPresent")
        # The pod first whose node changes hands: the other examples could take its devices.
        first = [o for o in EXAMPLES if o["kind"] != "Pod" or o["metadata"]["name"] == KEY.name]
        await examples.apply(cluster.api, first)

        async def extended_runs() -> bool:
            (seen,) = await examples.observe(cluster.api, [e for e in PODS if e.key == KEY])
            return seen.phase == "Running" and seen.node == extended

        await cluster.wait_for("the example to run", extended_runs)
        await examples.apply(cluster.api, EXAMPLES)
        await support.apply(cluster, support.TEMPLATE, plugin_pod("old", 4))
        await support.apply(cluster, *(support.gpu_pod(f"new-{i}") for i in range(5)))
        assert (await support.phase(cluster, "old", "Running")).spec.node_name == beside

        async def all_taken() -> bool:
            return len((await support.held(cluster)).get(plain, ())) == 4

        await cluster.wait_for("the GPUs of the other node to be in use", all_taken)
        assert beside not in await support.held(cluster)
        assert await support.pool(cluster, beside) == (0, "DevicePluginPresent")
        for node in (plain, extended):
            assert await support.pool(cluster, node) == (4, "Published")
        look = await status.look(cluster.api, cluster.config.drivers)
        (note,) = [n for n in look.notes if "DevicePluginPresent" in n]
        assert note.startswith(f"{beside} ")
        assert f"4 {GPU}" in note
        assert note in overview_text(look, "table")

    support.run(scenario, support.config("l4x4", "l4x4", EXTENDED))


def test_examples_withdraw_no_pool_where_there_is_no_device_plugin() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await examples.apply(cluster.api, EXAMPLES)
        plain, extended = names(cluster)

        async def handed_over() -> bool:
            node = cluster.nodes[extended]
            return (await support.inventory(cluster, node)).status.publication.allocator == "scheduler"

        await cluster.wait_for("the examples' policies to act", handed_over)
        # Neither withheld, nor told of a conflict with the class of the example.
        for node in (plain, extended):
            await support.pool_becomes(cluster, node, 4, "Published")

    support.run(scenario, support.config("l4x4", EXTENDED))


def test_running_pods_outlive_the_withdrawal_and_odd_nodes_do_no_harm() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = names(cluster)
        first = await support.first_user(cluster)
        (held,) = (await support.held(cluster))[node]
        with pytest.raises(ApiError):
            await count(cluster, node, "plenty")
        await count(cluster, node, "4")
        await support.pool_becomes(cluster, node, 0, "DevicePluginPresent")
        # The device is in no slice any more.
        await support.second_user(cluster, first)
        # A kubelet that starts anew counts nothing until the device plugin is back, and wipes the slices.
        await count(cluster, node, "0")
        epoch = (await support.inventory(cluster, cluster.nodes[node])).status.publication.epoch
        await cluster.restart_kubelet(node)

        async def once_more() -> bool:
            return (await support.inventory(cluster, cluster.nodes[node])).status.publication.epoch > epoch

        await cluster.wait_for("the pool to be published anew", once_more)
        assert await support.pool(cluster, node) == (0, "DevicePluginPresent")
        assert (await support.held(cluster))[node] == {held}
        await support.end_users(cluster, node)
        # An admin knows better.
        await support.add_policy(cluster, "migrating", besideDevicePlugin="publish")
        await support.pool_becomes(cluster, node, 4, "Published")
        with pytest.raises(ApiError):
            await support.add_policy(cluster, "odd", besideDevicePlugin="perhaps")

    support.run(scenario, support.config("l4x4"))


def test_a_node_that_publishes_by_itself_withholds_them_too() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = names(cluster)
        await support.pool_becomes(cluster, node, 4, "")
        await count(cluster, node, "4")
        # The agent looks at its Node whenever it publishes; here because the kubelet has started anew.
        await cluster.restart_kubelet(node)
        await count(cluster, node, "4")
        await support.pool_becomes(cluster, node, 0, "DevicePluginPresent")

    support.run(scenario, support.config(run_controller=False, plugin_flags=("--publish=node",)))
