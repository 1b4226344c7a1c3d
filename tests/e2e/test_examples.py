"""Every manifest of deploy/examples does what it says, on whichever cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from e2e_support import IMAGE

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import NotFound
from dra_driver.sim import assets, examples
from dra_driver.sim.examples import Example, Outcome

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

OBJECTS, EXAMPLES = examples.load_manifests(assets.deploy_directory("examples"))
for _body in OBJECTS:
    for _container in _body.get("spec", {}).get("containers", ()):
        _container["image"] = IMAGE
SETTLE_SECONDS = 90.0
CLEAN_SECONDS = 90.0


async def observe(cluster: Cluster, example: Example) -> Outcome:
    outcome = await examples.observe(cluster.api, example)
    if outcome.pod is not None and outcome.phase == "Running":
        outcome.containers = await cluster.containers(outcome.pod)
    return outcome


async def settle(cluster: Cluster, example: Example) -> Outcome:
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while True:
        outcome = await observe(cluster, example)
        if examples.settled(outcome) or asyncio.get_running_loop().time() > deadline:
            return outcome
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def applied(background: Background, cluster: Cluster) -> Iterator[Cluster]:
    background.run(examples.apply(cluster.api, OBJECTS))
    try:
        yield cluster
    finally:
        background.run(examples.delete_pods(cluster.api, EXAMPLES))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.source}-{e.key.name}")
def test_a_pod_gets_what_its_manifest_promises(
    background: Background, applied: Cluster, example: Example
) -> None:
    async def everything() -> tuple[Outcome, list[Outcome]]:
        outcome = await settle(applied, example)
        return outcome, [await observe(applied, e) for e in EXAMPLES]

    outcome, others = background.run(everything(), SETTLE_SECONDS + 30)
    assert examples.verify(outcome, others) == []


def test_no_device_is_in_two_claims(background: Background, applied: Cluster) -> None:
    async def everything() -> list[Outcome]:
        return [await settle(applied, e) for e in EXAMPLES]

    assert examples.twice_allocated(background.run(everything(), SETTLE_SECONDS * 2)) == []


def test_deleting_the_pods_leaves_nothing(background: Background, applied: Cluster) -> None:
    async def leftovers() -> list[str]:
        found: list[str] = []
        for example in EXAMPLES:
            try:
                await applied.api.get(PODS, example.key.name, example.key.namespace)
                found.append(f"pod {example.key}")
            except NotFound:
                pass
        for namespace in {e.key.namespace for e in EXAMPLES}:
            claims = await applied.api.list(RESOURCE_CLAIMS, namespace)
            found += [f"allocation of {c.key}" for c in claims.items if c.status.allocation is not None]
            found += [f"generated {c.key}" for c in claims.items if c.metadata.owner_references]
        return found + await applied.node_leftovers()

    async def clean() -> list[str]:
        await examples.delete_pods(applied.api, EXAMPLES)
        deadline = asyncio.get_running_loop().time() + CLEAN_SECONDS
        while (found := await leftovers()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.1)
        return found

    assert background.run(clean(), CLEAN_SECONDS + 30) == []
