"""Pods of the device-plugin world, on nodes whose devices kube-scheduler allocates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from e2e_support import EXAMPLES, OBJECTS, eventually

from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.errors import NotFound
from dra_driver.sim.demo import checks as example_checks
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.needs("extended resources")]

(EXAMPLE,) = (e for e in EXAMPLES if e.source == "14-extended-resource")
KEY, _, VALUE = EXAMPLE.expect.needs_node_label.partition("=")
BODIES = [o for o in OBJECTS if o["metadata"]["name"] in (EXAMPLE.key.name, "examples-extended-resource")]


async def allocator(cluster: Cluster, node: str) -> str:
    inventory = await cluster.api.get(DEVICE_INVENTORIES, f"{node}.{DEFAULT_DRIVER_NAME}")
    return inventory.status.publication.allocator


@pytest.fixture
def pool(background: Background, cluster: Cluster) -> Iterator[str]:
    """A node whose pool changes hands for this test, where there is none that is kube-scheduler's anyway."""

    async def label(node: str, value: str, owner: str) -> None:
        await cluster.api.merge_patch(NODES, node, {"metadata": {"labels": {KEY: value}}})

        async def changed() -> bool:
            return await allocator(cluster, node) == owner

        await eventually(f"the pool of {node} to be the {owner}'s", changed)

    nodes = background.run(cluster.api.list(NODES)).items
    there = [n.metadata.name for n in nodes if (n.metadata.labels or {}).get(KEY) == VALUE]
    if there:
        yield there[0]
        return
    node = nodes[0].metadata.name
    owner = background.run(allocator(cluster, node))
    before = (nodes[0].metadata.labels or {}).get(KEY, "")
    background.run(label(node, VALUE, "scheduler"))
    yield node
    background.run(label(node, before, owner))


def test_an_integer_of_gpus_is_served_by_kube_scheduler(
    background: Background, cluster: Cluster, pool: str
) -> None:
    async def scenario() -> None:
        await examples.apply(cluster.api, BODIES)

        async def runs() -> bool:
            (seen,) = await examples.observe(cluster.api, [EXAMPLE])
            return seen.phase == "Running"

        await eventually("the pod to run", runs)
        (outcome,) = await examples.observe(cluster.api, [EXAMPLE])
        assert outcome.pod is not None
        outcome.containers = await cluster.containers(outcome.pod)
        assert example_checks.verify(outcome, [outcome]) == []
        assert outcome.node == pool
        assert outcome.pod.status.extended_resource_claim_status is not None
        await examples.delete_pods(cluster.api, [EXAMPLE])

        async def gone() -> bool:
            try:
                await cluster.api.get(PODS, EXAMPLE.key.name, EXAMPLE.key.namespace)
            except NotFound:
                return True
            return False

        await eventually("the pod to be gone", gone)

    background.run(scenario())
