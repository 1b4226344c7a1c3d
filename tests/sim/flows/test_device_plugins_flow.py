"""Nodes with a device plugin beside our agent: nothing is given away twice, other nodes are as they were."""

from __future__ import annotations

from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.core import NODES
from dra_driver.api.meta import ObjectKey
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli import status
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


async def pools(cluster: EmbeddedCluster) -> dict[str, tuple[int, str]]:
    """Node → number of devices in slices, and the reason of the condition."""
    found: dict[str, tuple[int, str]] = {}
    slices = (await cluster.api.list(RESOURCE_SLICES)).items
    for name, node in cluster.nodes.items():
        devices = sum(len(s.spec.devices) for s in slices if s.spec.node_name == name)
        inventory = await support.inventory(cluster, node)
        found[name] = (devices, next((c.reason for c in inventory.status.conditions), ""))
    return found


async def become(cluster: EmbeddedCluster, node: str, *expected: object) -> None:
    async def reached() -> bool:
        return (await pools(cluster))[node] == expected

    await cluster.wait_for(f"the pool of {node} to be {expected}", reached)


def names(cluster: EmbeddedCluster) -> list[str]:
    return sorted(cluster.nodes)


def plugin_pod(name: str, amount: int) -> dict[str, Any]:
    pod = support.gpu_pod(name)
    del pod["spec"]["resourceClaims"]
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: str(amount)}}
    return pod


async def holders(cluster: EmbeddedCluster) -> dict[str, set[str]]:
    """Pool → devices that claims hold."""
    held: dict[str, set[str]] = {}
    for claim in (await cluster.api.list(RESOURCE_CLAIMS)).items:
        results = claim.status.allocation.devices.results if claim.status.allocation is not None else ()
        for r in results:
            held.setdefault(r.pool, set()).add(r.device)
    return held


@pytest.mark.long
def test_all_examples_beside_a_device_plugin_give_no_gpu_away_twice() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        beside, plain, extended = names(cluster)
        await count(cluster, beside, "4")
        await become(cluster, beside, 0, "DevicePluginPresent")
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
            return len((await holders(cluster)).get(plain, ())) == 4

        await cluster.wait_for("the GPUs of the other node to be in use", all_taken)
        assert beside not in await holders(cluster)
        assert await pools(cluster) == {
            beside: (0, "DevicePluginPresent"),
            plain: (4, "Published"),
            extended: (4, "Published"),
        }
        look = await status.look(cluster.api, cluster.config.drivers)
        (note,) = [n for n in look.notes if "DevicePluginPresent" in n]
        assert note.startswith(f"{beside} ")
        assert f"4 {GPU}" in note
        assert note in status._text(look, "table")

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
            await become(cluster, node, 4, "Published")

    support.run(scenario, support.config("l4x4", EXTENDED))


def test_running_pods_outlive_the_withdrawal_and_odd_nodes_do_no_harm() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = names(cluster)
        await support.apply(
            cluster, support.TEMPLATE, support.claim("shared"), support.gpu_pod("one", "shared")
        )
        first = await support.phase(cluster, "one", "Running")
        (held,) = (await holders(cluster))[node]
        with pytest.raises(ApiError):
            await count(cluster, node, "plenty")
        await count(cluster, node, "4")
        await become(cluster, node, 0, "DevicePluginPresent")
        # A second pod of the claim is prepared although the device is in no slice any more.
        await support.apply(cluster, support.gpu_pod("two", "shared"))
        second = await support.phase(cluster, "two", "Running")
        assert support.environment(cluster, first) == support.environment(cluster, second)
        # A kubelet that starts anew counts nothing until the device plugin is back, and wipes the slices.
        await count(cluster, node, "0")
        epoch = (await support.inventory(cluster, cluster.nodes[node])).status.publication.epoch
        await cluster.restart_kubelet(node)

        async def once_more() -> bool:
            return (await support.inventory(cluster, cluster.nodes[node])).status.publication.epoch > epoch

        await cluster.wait_for("the pool to be published anew", once_more)
        assert (await pools(cluster))[node] == (0, "DevicePluginPresent")
        assert (await holders(cluster))[node] == {held}
        for name in ("one", "two"):
            await support.delete(cluster, name)
            await support.gone(cluster, name)
        await cluster.api.delete(RESOURCE_CLAIMS, "shared", "default")
        await support.no_claims(cluster)
        assert cluster.nodes[node].leftovers() == []
        # An admin knows better.
        body = {
            "apiVersion": DEVICE_POLICIES.api_version,
            "kind": DEVICE_POLICIES.kind,
            "metadata": {"name": "migrating"},
            "spec": {"besideDevicePlugin": "publish"},
        }
        await cluster.api.create(DEVICE_POLICIES, body)
        await become(cluster, node, 4, "Published")
        body = {**body, "metadata": {"name": "odd"}, "spec": {"besideDevicePlugin": "perhaps"}}
        with pytest.raises(ApiError):
            await cluster.api.create(DEVICE_POLICIES, body)

    support.run(scenario, support.config("l4x4"))


def test_a_node_that_publishes_by_itself_withholds_them_too() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = names(cluster)
        await become(cluster, node, 4, "")
        await count(cluster, node, "4")
        # The agent looks at its Node whenever it publishes; here because the kubelet has started anew.
        await cluster.restart_kubelet(node)
        await count(cluster, node, "4")
        await become(cluster, node, 0, "DevicePluginPresent")

    support.run(scenario, support.config(run_controller=False, plugin_flags=("--publish=node",)))
