"""Every manifest of deploy/examples does what it says, on whichever cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from capabilities import needed_by, reason
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


def needs_of(example: Example) -> tuple[str, ...]:
    """What the API server must be able to do for an example pod."""
    (pod,) = (o for o in OBJECTS if o["kind"] == "Pod" and key_of(o) == example.key)
    used = {c.get("resourceClaimTemplateName") or c.get("resourceClaimName") for c in claims_of(pod)}
    claims = [o for o in OBJECTS if o["kind"].startswith("ResourceClaim") and o["metadata"]["name"] in used]
    limits = [r for c in pod["spec"]["containers"] for r in c.get("resources", {}).get("limits", {})]
    classes = [o for o in OBJECTS if o.get("spec", {}).get("extendedResourceName") in limits]
    # Which of two equal devices is taken is the controller's alone to say.
    chosen = ("allocation by the controller",) * (example.source == "17-idle-first")
    return (*needed_by(pod, *claims, *classes), *chosen)


def key_of(body: Mapping[str, Any]) -> ObjectKey:
    return ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"])


def claims_of(pod: Mapping[str, Any]) -> list[dict[str, str]]:
    return pod["spec"].get("resourceClaims") or []


class Applied:
    """The cluster with all examples that have a place there."""

    def __init__(self, cluster: Cluster, placeless: dict[ObjectKey, str]) -> None:
        self.cluster = cluster
        self.placeless = placeless
        self.keys = {e.key for e in EXAMPLES} - set(placeless)


def is_applied(body: Mapping[str, Any], applied: Applied) -> bool:
    """Whether an object is not of an example that is left out: the API server may refuse it."""
    if body["kind"] == "Pod":
        return key_of(body) not in applied.placeless
    return all(applied.cluster.served[name] for name in needed_by(body))


@pytest.fixture(scope="module")
def applied(background: Background, cluster: Cluster) -> Iterator[Applied]:
    async def apply() -> Applied:
        placeless = await examples.placeless(cluster.api, EXAMPLES)
        for example in EXAMPLES:
            if missing := [name for name in needs_of(example) if not cluster.served[name]]:
                placeless[example.key] = reason(missing)
        made = Applied(cluster, placeless)
        await examples.apply(cluster.api, [o for o in OBJECTS if is_applied(o, made)])
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
