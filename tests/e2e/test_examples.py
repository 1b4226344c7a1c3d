"""Every manifest of deploy/examples does what it says, on whichever cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from e2e_support import EXAMPLES, OBJECTS, SECONDS, eventually, gpu_settings, leftovers

from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.sim.demo import checks as example_checks
from dra_driver.sim.demo import examples
from dra_driver.sim.demo.examples import Example, Outcome

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACES = sorted({e.key.namespace for e in EXAMPLES})


async def observe(cluster: Cluster) -> list[Outcome]:
    outcomes = await examples.observe(cluster.api, EXAMPLES)
    for outcome in outcomes:
        if outcome.pod is not None and outcome.phase == "Running":
            outcome.containers = await cluster.containers(outcome.pod)
            if cluster.actions is not None:
                outcome.gpu_settings = gpu_settings(cluster, outcome.node)
    return outcomes


async def settle(cluster: Cluster, keys: set[ObjectKey]) -> list[Outcome]:
    deadline = asyncio.get_running_loop().time() + SECONDS
    while True:
        seen = [o for o in await examples.observe(cluster.api, EXAMPLES) if o.example.key in keys]
        if all(examples.settled(o) for o in seen) or asyncio.get_running_loop().time() > deadline:
            return await observe(cluster)
        await asyncio.sleep(0.2)


class Applied:
    """The cluster with all examples that have a place there."""

    def __init__(self, cluster: Cluster, placeless: dict[ObjectKey, str]) -> None:
        self.cluster = cluster
        self.placeless = placeless
        self.keys = {e.key for e in EXAMPLES} - set(placeless)


@pytest.fixture(scope="module")
def applied(background: Background, cluster: Cluster) -> Iterator[Applied]:
    async def apply() -> Applied:
        made = Applied(cluster, await examples.placeless(cluster.api, EXAMPLES))
        left_out = {(k.namespace, k.name) for k in made.placeless}
        await examples.apply(
            cluster.api,
            [
                o
                for o in OBJECTS
                if o["kind"] != "Pod" or (o["metadata"]["namespace"], o["metadata"]["name"]) not in left_out
            ],
        )
        return made

    made = background.run(apply())
    try:
        yield made
    finally:
        background.run(examples.delete_pods(cluster.api, EXAMPLES))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.source}-{e.key.name}")
def test_a_pod_gets_what_its_manifest_promises(
    background: Background, applied: Applied, example: Example
) -> None:
    if example.key in applied.placeless:
        pytest.skip(applied.placeless[example.key])
    outcomes = background.run(settle(applied.cluster, {example.key}))
    (outcome,) = (o for o in outcomes if o.example.key == example.key)
    assert example_checks.verify(outcome, outcomes) == []


def test_no_device_is_in_two_claims(background: Background, applied: Applied) -> None:
    assert example_checks.twice_allocated(background.run(settle(applied.cluster, applied.keys))) == []


def test_deleting_the_pods_leaves_nothing(background: Background, applied: Applied) -> None:
    cluster = applied.cluster
    found: list[str] = []

    async def nothing() -> bool:
        found.clear()
        for namespace in NAMESPACES:
            found.extend(f"pod {p.key}" for p in (await cluster.api.list(PODS, namespace)).items)
            claims = (await cluster.api.list(RESOURCE_CLAIMS, namespace)).items
            held = [c for c in claims if c.status.allocation is not None or c.metadata.owner_references]
            found.extend(f"claim {c.key}" for c in held)
        if cluster.actions is not None:
            for node in (await cluster.api.list(NODES)).items:
                found.extend(leftovers(cluster, node.metadata.name))
        return not found

    async def clean() -> None:
        await examples.delete_pods(cluster.api, EXAMPLES)
        try:
            await eventually("everything to be gone", nothing)
        except AssertionError:
            pytest.fail(f"left behind: {', '.join(found)}")

    background.run(clean())
