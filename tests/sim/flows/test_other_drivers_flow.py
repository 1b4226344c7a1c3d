"""Nodes on which another DRA driver publishes the same GPUs: none is given away twice, pods run on."""

from __future__ import annotations

from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli import status
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


async def become(cluster: EmbeddedCluster, node: str, *expected: object) -> None:
    async def reached() -> bool:
        slices = (await cluster.api.list(RESOURCE_SLICES)).items
        ours = [s for s in slices if s.spec.node_name == node and s.spec.driver != OTHER]
        inventory = await support.inventory(cluster, cluster.nodes[node])
        reason = next((c.reason for c in inventory.status.conditions), "")
        return (sum(len(s.spec.devices) for s in ours), reason) == expected

    await cluster.wait_for(f"the pool of {node} to be {expected}", reached)


def test_running_pods_outlive_the_withdrawal_and_people_are_told_everywhere() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = cluster.nodes
        await support.apply(
            cluster, support.TEMPLATE, support.claim("shared"), support.gpu_pod("one", "shared")
        )
        first = await support.phase(cluster, "one", "Running")
        found = await addresses(cluster, node)
        await publish(cluster, node, *found.values())
        await become(cluster, node, 0, "OtherDriverPresent")
        # A second pod of the claim is prepared although the device is in no slice any more.
        await support.apply(cluster, support.gpu_pod("two", "shared"))
        second = await support.phase(cluster, "two", "Running")
        assert support.environment(cluster, first) == support.environment(cluster, second)
        look = await status.look(cluster.api, cluster.config.drivers)
        (note,) = [n for n in look.notes if "OtherDriverPresent" in n]
        assert OTHER in note
        assert note in status._text(look, "table")
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
            "metadata": {"name": "network-only"},
            "spec": {"besideOtherDriver": "publish"},
        }
        await cluster.api.create(DEVICE_POLICIES, body)
        await become(cluster, node, 4, "Published")

    support.run(scenario, support.config("l4x4"))


@pytest.mark.long
def test_pods_get_other_gpus_than_those_of_the_other_driver() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        beside, plain = sorted(cluster.nodes)
        found = await addresses(cluster, beside)
        theirs = sorted(found)[:2]
        await publish(cluster, beside, *(found[name] for name in theirs))
        await become(cluster, beside, 2, "OtherDriverPresent")
        await support.apply(cluster, support.TEMPLATE, *(support.gpu_pod(f"p-{i}") for i in range(8)))

        async def six_are_held() -> bool:
            return sum(map(len, (await holders(cluster)).values())) == 6

        await cluster.wait_for("six GPUs to be in use", six_are_held)
        held = await holders(cluster)
        assert not held[beside] & set(theirs)
        assert len(held[plain]) == 4

    support.run(scenario, support.config("l4x4", NodeConfig("l4x4")))


async def holders(cluster: EmbeddedCluster) -> dict[str, set[str]]:
    """Pool → devices that claims hold."""
    held: dict[str, set[str]] = {}
    for claim in (await cluster.api.list(RESOURCE_CLAIMS)).items:
        results = claim.status.allocation.devices.results if claim.status.allocation is not None else ()
        for r in results:
            held.setdefault(r.pool, set()).add(r.device)
    return held


def test_a_node_that_publishes_by_itself_withholds_them_too() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        (node,) = cluster.nodes
        await become(cluster, node, 4, "")
        found = await addresses(cluster, node)
        await publish(cluster, node, sorted(found.values())[0])
        await become(cluster, node, 3, "OtherDriverPresent")

    support.run(scenario, support.config(run_controller=False, plugin_flags=("--publish=node",)))
