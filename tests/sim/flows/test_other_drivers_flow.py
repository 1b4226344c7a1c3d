"""Nodes on which another DRA driver publishes the same GPUs: none is given away twice, pods run on."""

from __future__ import annotations

from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.cli import status
from dra_driver.cli.overview.report import overview_text
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.cluster_config import NodeConfig

pytestmark = pytest.mark.sim

OTHER = "gpu.other.example"
BUS_ID = "resource.kubernetes.io/pciBusID"


async def addresses(cluster: EmbeddedCluster, node: str) -> dict[str, str]:
    """Device → PCI address, as the node's agent has found them."""
    inventory = await support.inventory(cluster, cluster.nodes[node])
    return {d.name: d.attributes[BUS_ID].string_value or "" for d in inventory.spec.devices}


async def publish(cluster: EmbeddedCluster, node: str, *found: str, name: str = "other") -> None:
    """What another driver does, with addresses in capitals and eight digits before the first colon."""
    devices = [
        {"name": f"dev-{i}", "attributes": {"other.example/pciBusID": {"string": f"0000{a.upper()}"}}}
        for i, a in enumerate(found)
    ]
    body: dict[str, Any] = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": name},
        "spec": {
            "driver": OTHER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    await cluster.api.create(RESOURCE_SLICES, body)


def test_running_pods_outlive_the_withdrawal_and_people_are_told_everywhere() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = cluster.nodes
        first = await support.first_user(cluster)
        found = await addresses(cluster, node)
        await publish(cluster, node, *found.values())
        await support.pool_becomes(cluster, node, 0, "OtherDriverPresent")
        # The device is in no slice any more.
        await support.second_user(cluster, first)
        look = await status.look(cluster.api, cluster.config.drivers)
        (note,) = [n for n in look.notes if "OtherDriverPresent" in n]
        assert OTHER in note
        assert note in overview_text(look, "table")
        await support.end_users(cluster, node)
        # An admin knows better.
        await support.add_policy(cluster, "network-only", besideOtherDriver="publish")
        await support.pool_becomes(cluster, node, 4, "Published")

    support.run(scenario, support.config("l4x4"))


@pytest.mark.long
def test_pods_get_other_gpus_than_those_of_the_other_driver() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        beside, plain = sorted(cluster.nodes)
        found = await addresses(cluster, beside)
        theirs = sorted(found)[:2]
        await publish(cluster, beside, *(found[name] for name in theirs))
        await support.pool_becomes(cluster, beside, 2, "OtherDriverPresent")
        await support.apply(cluster, support.TEMPLATE, *(support.gpu_pod(f"p-{i}") for i in range(8)))

        async def six_are_held() -> bool:
            return sum(map(len, (await support.held(cluster)).values())) == 6

        await cluster.wait_for("six GPUs to be in use", six_are_held)
        held = await support.held(cluster)
        assert not held[beside] & set(theirs)
        assert len(held[plain]) == 4

    support.run(scenario, support.config("l4x4", NodeConfig("l4x4")))


def test_a_node_that_publishes_by_itself_withholds_them_too() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = cluster.nodes
        await support.pool_becomes(cluster, node, 4, "")
        found = await addresses(cluster, node)
        await publish(cluster, node, sorted(found.values())[0])
        await support.pool_becomes(cluster, node, 3, "OtherDriverPresent")

    support.run(scenario, support.config(run_controller=False, plugin_flags=("--publish=node",)))
