"""PodGroups of scheduling.k8s.io: too few GPUs for two, sidecars, a killed controller, a claim of the group.

They are alpha in Kubernetes 1.36 and beta in 1.37 (gate GenericWorkload).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import capabilities
import controller_scenarios as scenarios
import e2e_support
import pytest
from controller_watch import pod_body
from e2e_support import IMAGE, make_namespace, running

from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.meta import Resource
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.api.scheduling import PodGroup, pod_groups

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.needs("allocation by the controller", "pod groups")]

NAMESPACE = "dra-e2e-native"
EXISTING = (os.environ.get("CLUSTER") or "embedded") != "embedded"
MODEL = f'device.attributes["{DEFAULT_DRIVER_NAME}"].?model.orValue("")'
A100 = {"cel": {"expression": f'{MODEL}.startsWith("A100-SXM4-40")'}}
REQUEST = {"deviceClassName": DEFAULT_DRIVER_NAME, "selectors": [A100]}
# Of the eight in the examples four are left.
OCCUPIED = 4


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    async def prepare() -> None:
        await make_namespace(cluster, NAMESPACE)
        for name, request in (("gpu", REQUEST), ("pair", {**REQUEST, "count": 2})):
            body = e2e_support.claim(NAMESPACE, name, request)
            template = {**body, "kind": "ResourceClaimTemplate", "spec": {"spec": body["spec"]}}
            await cluster.api.create(RESOURCE_CLAIM_TEMPLATES, template)

    async def clean() -> None:
        resources: tuple[Resource[Any], ...] = (PODS, await kind(cluster))
        for resource in resources:
            for item in (await cluster.api.list(resource, NAMESPACE)).items:
                await cluster.api.delete(resource, item.metadata.name, NAMESPACE)
        await scenarios.clean(cluster.api, NAMESPACE)
        await cluster.api.delete(NAMESPACES, NAMESPACE)

        async def gone() -> bool:
            return NAMESPACE not in {n.metadata.name for n in (await cluster.api.list(NAMESPACES)).items}

        await scenarios.until("the namespace to go", gone)

    background.run(prepare())
    yield
    background.run(clean(), 400)


async def kind(cluster: Cluster) -> Resource[PodGroup]:
    """Return PodGroup in the newest version that is served."""
    version = await capabilities.pod_group_version(cluster.api)
    assert version is not None
    return pod_groups(version)


async def pod_group(cluster: Cluster, name: str, least: int, **spec: Any) -> None:
    resource = await kind(cluster)
    body = {
        "apiVersion": resource.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **spec},
    }
    await cluster.api.create(resource, body, NAMESPACE)


async def members(
    cluster: Cluster,
    group: str,
    number: int,
    claims: dict[str, dict[str, str]] | None = None,
    **spec: Any,
) -> list[str]:
    """Make pods of a group that run until they are deleted; return their names."""
    names = [f"{group}-{i}" for i in range(number)]
    for name in names:
        body = pod_body(name, NAMESPACE, IMAGE, "sleep 3600", claims=claims)
        body["spec"] |= {"schedulingGroup": {"podGroupName": group}, **spec}
        await cluster.api.create(PODS, body)
    return names


async def occupy(cluster: Cluster) -> None:
    """Leave as many of the GPUs as suffice for one group."""
    request = {**REQUEST, "count": OCCUPIED}
    await cluster.api.create(RESOURCE_CLAIMS, e2e_support.claim(NAMESPACE, "occupied", request))
    claims = {"gpu": {"resourceClaimName": "occupied"}}
    await cluster.api.create(PODS, pod_body("occupant", NAMESPACE, IMAGE, "sleep 3600", claims=claims))
    await running(cluster, NAMESPACE, "occupant")


async def bound(cluster: Cluster) -> set[str]:
    return {p.metadata.name for p in (await cluster.api.list(PODS, NAMESPACE)).items if p.spec.node_name}


async def held(cluster: Cluster, names: Sequence[str]) -> int:
    """Return how many of the pods have an allocated claim."""
    claims = (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
    owners = {
        owner.name
        for claim in claims
        for owner in claim.metadata.owner_references or ()
        if claim.status.allocation is not None
    }
    return len(owners & set(names))


async def one_then_the_other(cluster: Cluster, groups: dict[str, list[str]]) -> None:
    """Wait until one group runs, see that the other holds nothing, delete the first, and wait again."""

    async def some() -> bool:
        return bool(await bound(cluster) - {"occupant"})

    await scenarios.until("a pod to be bound", some, 180)
    now = await bound(cluster)
    first = next(group for group, names in groups.items() if now & set(names))
    (second,) = groups.keys() - {first}
    await running(cluster, NAMESPACE, *groups[first])
    assert not await bound(cluster) & set(groups[second])
    assert await held(cluster, groups[second]) == 0
    for name in groups[first]:
        await cluster.api.delete(PODS, name, NAMESPACE)
    await running(cluster, NAMESPACE, *groups[second])


@pytest.mark.parametrize("kill", [False, True], ids=["at peace", "controller killed"])
def test_of_two_pod_groups_of_three_on_four_gpus_one_runs_then_the_other(
    background: Background, cluster: Cluster, kill: bool
) -> None:
    async def scenario() -> None:
        await occupy(cluster)
        for group in "xy":
            await pod_group(cluster, group, 3)
        groups = {"x": await members(cluster, "x", 3), "y": await members(cluster, "y", 2)}
        if kill and cluster.actions is not None:
            node = (await cluster.api.get(PODS, "occupant", NAMESPACE)).spec.node_name
            await cluster.actions.kill("controller", node)
        claims = {"gpu": {"resourceClaimTemplateName": "gpu"}}
        body = pod_body("y-2", NAMESPACE, IMAGE, "sleep 3600", claims=claims)
        body["spec"]["schedulingGroup"] = {"podGroupName": "y"}
        await cluster.api.create(PODS, body)
        groups["y"].append("y-2")
        await one_then_the_other(cluster, groups)

    if kill and cluster.actions is None:
        pytest.skip("the controller of an existing cluster cannot be killed")
    background.run(scenario(), 400)


def test_pods_of_a_pod_group_run_with_sidecars(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        await pod_group(cluster, "g", 3)
        sidecar = {
            "name": "sidecar",
            "image": IMAGE,
            "command": ["sh", "-c", "sleep 3600"],
            "restartPolicy": "Always",
            "resources": {"requests": {"cpu": "10m"}},
        }
        names = await members(cluster, "g", 3, initContainers=[sidecar])
        await running(cluster, NAMESPACE, *names)

    background.run(scenario(), 300)


@pytest.mark.skipif(not EXISTING, reason="the stand-in controller-manager makes no claims for PodGroups")
def test_a_claim_of_the_group_is_made_allocated_reserved_and_prepared_once(
    background: Background, cluster: Cluster
) -> None:
    async def scenario() -> None:
        shared = {"resourceClaimTemplateName": "pair"}
        await pod_group(cluster, "g", 2, resourceClaims=[{"name": "shared", **shared}])
        names = await members(cluster, "g", 2, {"shared": shared})
        await running(cluster, NAMESPACE, *names)
        [claim] = (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
        assert claim.status.allocation is not None
        assert len(claim.status.allocation.devices.results) == 2
        assert [(r.resource, r.name) for r in claim.status.reserved_for] == [("podgroups", "g")]

    background.run(scenario(), 300)
