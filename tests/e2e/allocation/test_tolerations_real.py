"""The admission policy on tolerations, judged by the real API server. Nothing is stored: all are dry runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tolerations import SHAPES, TAINT, Case, cases, claim, template

from dra_driver.api.core import NAMESPACES
from dra_driver.api.meta import Resource
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.errors import Forbidden, Invalid
from dra_driver.kube import KubeApi

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.needs("device taints"),
    pytest.mark.skipif(
        os.environ.get("CLUSTER", "embedded") == "embedded",
        reason="the embedded API server does not evaluate this admission policy",
    ),
]

CLASSES = (DEFAULT_DRIVER_NAME, "fast-gpus", "nic.example.com")
# Claims with admin access may be made in namespaces with this label only.
LABELS = {"resource.kubernetes.io/admin-access": "true"}
AT_ONCE = 8


def namespace_of(resource: Resource[Any]) -> dict[str, Any]:
    """One for each kind: a namespace that was deleted stays for a while."""
    name = f"dra-e2e-tolerations-{resource.plural}"
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": LABELS}}


async def verdict(api: KubeApi, resource: Resource[Any], body: dict[str, Any]) -> str:
    """``admitted``, ``refused`` by our policy, or ``invalid``: refused by the API server itself."""
    try:
        await api.create(resource, body, body["metadata"]["namespace"], dry_run=True)
    except Invalid:
        return "invalid"
    except Forbidden as e:
        # Another policy may have refused it, or this one without saying why.
        told = "'dra-driver-no-toleration'" in str(e) and f"tolerates the device taint {TAINT.key}" in str(e)
        return "refused" if told else str(e)
    return "admitted"


async def verdicts(
    api: KubeApi, resource: Resource[Any], wrap: Callable[..., dict[str, Any]]
) -> list[tuple[Case, str]]:
    """The whole table."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> tuple[Case, str]:
        async with limit:
            namespace = namespace_of(resource)["metadata"]["name"]
            return case, await verdict(api, resource, wrap("c", case.spec, namespace))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in cases(*CLASSES)]
    return [task.result() for task in tasks]


@pytest.mark.parametrize(
    ("resource", "wrap"), [(RESOURCE_CLAIMS, claim), (RESOURCE_CLAIM_TEMPLATES, template)]
)
def test_the_api_server_gives_the_allocators_verdict(
    background: Background, cluster: Cluster, resource: Resource[Any], wrap: Callable[..., dict[str, Any]]
) -> None:
    async def scenario() -> list[tuple[Case, str]]:
        namespace = namespace_of(resource)
        await cluster.api.create(NAMESPACES, namespace)
        try:
            return await verdicts(cluster.api, resource, wrap)
        finally:
            await cluster.api.delete(NAMESPACES, namespace["metadata"]["name"])

    check(background.run(scenario()))


def check(found: list[tuple[Case, str]]) -> None:
    """Compares the table with the allocator's verdicts."""
    wrong = [(c, v) for c, v in found if v != "invalid" and v != ("refused" if c.covers else "admitted")]
    assert wrong == []
    for shape in SHAPES:
        assert any(v == "admitted" for c, v in found if c.shape == shape)
        assert any(v == "refused" for c, v in found if c.shape == shape) is (shape != "adminAccess")
