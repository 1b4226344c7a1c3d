"""Who is served first, who is left alone, and what admin access attaches to: on whichever cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import controller_scenarios as scenarios
import e2e_support
import pytest
from e2e_support import allocated, clear, make_namespace, running

from dra_driver.api.core import NAMESPACES, PODS, Pod
from dra_driver.api.meta import Resource
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.sim.demo import examples
from dra_driver.sim.objects import MetaObject

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE, PRIORITY_CLASS = "dra-e2e-order", "dra-e2e-order-high"
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", MetaObject, namespaced=False
)
# The embedded API server does not look up the class; a real one accepts the same number beside it.
HIGH: dict[str, Any] = {"priorityClassName": PRIORITY_CLASS, "priority": 1000}
MODEL = f'device.attributes["{DEFAULT_DRIVER_NAME}"].?model.orValue("")'
A100 = {"cel": {"expression": f'{MODEL}.startsWith("A100-SXM4-40")'}}
ALL = {"deviceClassName": DEFAULT_DRIVER_NAME, "allocationMode": "All", "selectors": [A100]}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    async def prepare() -> None:
        await make_namespace(cluster, NAMESPACE)
        labels = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        await cluster.api.merge_patch(NAMESPACES, NAMESPACE, labels)
        body: dict[str, Any] = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": PRIORITY_CLASS},
            "value": HIGH["priority"],
            "preemptionPolicy": "Never",
        }
        await scenarios.create(cluster.api, PRIORITY_CLASSES, body)

    async def clean() -> None:
        await clear(cluster, NAMESPACE)
        await cluster.api.delete(PRIORITY_CLASSES, PRIORITY_CLASS)

    background.run(prepare())
    yield
    background.run(clean())


async def gates(cluster: Cluster, name: str) -> list[str]:
    found: Pod = await cluster.api.get(PODS, name, NAMESPACE)
    return [g.name for g in found.spec.scheduling_gates]


@pytest.mark.needs("allocation by the controller")
def test_the_highest_priority_is_served_before_the_oldest(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        await examples.apply(cluster.api, [claim("first", ALL), pod("first", "first")])
        (first,) = await running(cluster, NAMESPACE, "first")
        there: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": first.spec.node_name}}
        await examples.apply(cluster.api, [claim("oldest", ALL), pod("oldest", "oldest", **there)])
        await asyncio.sleep(1)
        await examples.apply(cluster.api, [claim("high", ALL), pod("high", "high", **there, **HIGH)])
        await asyncio.sleep(1)
        await cluster.api.delete(PODS, "first", NAMESPACE)
        await running(cluster, NAMESPACE, "high")
        assert await gates(cluster, "oldest")
        await cluster.api.delete(PODS, "high", NAMESPACE)
        await running(cluster, NAMESPACE, "oldest")

    background.run(scenario())


@pytest.mark.needs("admin access")
def test_admin_access_attaches_to_devices_in_use(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        await examples.apply(cluster.api, [claim("in-use", ALL), pod("user", "in-use")])
        (user,) = await running(cluster, NAMESPACE, "user")
        there: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": user.spec.node_name}}
        attached = claim("attached", {**ALL, "adminAccess": True})
        await examples.apply(cluster.api, [attached, pod("admin", "attached", **there)])
        await running(cluster, NAMESPACE, "admin")
        assert sorted(await allocated(cluster, NAMESPACE, "attached")) == sorted(
            await allocated(cluster, NAMESPACE, "in-use")
        )
        # It has taken nothing away, and what ends with it is its own alone.
        await cluster.api.delete(PODS, "admin", NAMESPACE)
        (again,) = await running(cluster, NAMESPACE, "user")
        assert again.metadata.uid == user.metadata.uid

    background.run(scenario())


def test_a_pod_that_another_gate_holds_back_holds_no_devices(
    background: Background, cluster: Cluster
) -> None:
    async def scenario() -> None:
        held = pod("held", "held", schedulingGates=[{"name": "example.com/queue"}])
        await examples.apply(cluster.api, [claim("held", ALL), held])
        await examples.apply(cluster.api, [claim("other", ALL), pod("other", "other")])
        await running(cluster, NAMESPACE, "other")
        found = await cluster.api.get(RESOURCE_CLAIMS, "held", NAMESPACE)
        assert found.status.allocation is None
        ours = [{"name": g} for g in await gates(cluster, "held") if g != "example.com/queue"]
        await cluster.api.merge_patch(PODS, "held", {"spec": {"schedulingGates": ours or None}}, NAMESPACE)
        await cluster.api.delete(PODS, "other", NAMESPACE)
        await running(cluster, NAMESPACE, "held")

    background.run(scenario())
