"""Pods of low priority make room for pods of high priority, on whichever cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import controller_scenarios as scenarios
import e2e_support
import pytest
from e2e_support import clear, make_namespace, running

from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.meta import Resource
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import NotFound
from dra_driver.sim.demo import examples
from dra_driver.sim.objects import MetaObject

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.needs("allocation by the controller")]

NAMESPACE = "dra-e2e-preemption"
CLASSES = {"dra-e2e-preempted": 10, "dra-e2e-preemptor": 1000}
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", MetaObject, namespaced=False
)
LOW, HIGH = ({"priorityClassName": name, "priority": value} for name, value in CLASSES.items())
PRODUCT = "A100-SXM4-40"
MODEL = f'device.attributes["{DEFAULT_DRIVER_NAME}"].?model.orValue("")'
A100 = {"cel": {"expression": f'{MODEL}.startsWith("{PRODUCT}")'}}
ONE = {"deviceClassName": DEFAULT_DRIVER_NAME, "selectors": [A100]}
claim = partial(e2e_support.claim, NAMESPACE)
# Longer than pods and the controller-manager take; what is measured is printed.
LONGEST_SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def preempting(background: Background, cluster: Cluster) -> Iterator[None]:
    actions = cluster.actions
    if actions is None:
        pytest.skip("only a cluster of its own does the suite set up anew")

    async def prepare() -> None:
        await actions.preempt(on=True)
        for name, value in CLASSES.items():
            body = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            await scenarios.create(cluster.api, PRIORITY_CLASSES, body)

    async def clean() -> None:
        for name in CLASSES:
            await cluster.api.delete(PRIORITY_CLASSES, name)
        await actions.preempt(on=False)

    background.run(prepare())
    yield
    background.run(clean())


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster, preempting: None) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


def pod(name: str, priority: dict[str, Any], **more: Any) -> dict[str, Any]:
    return e2e_support.pod(NAMESPACE, name, name, command="sleep 3600", **priority, **more)


async def gpus(cluster: Cluster) -> int:
    """Return how many of the GPUs there are that the pods here ask for."""
    slices = (await cluster.api.list(RESOURCE_SLICES)).items
    found = {
        (s.spec.pool.name, d.name)
        for s in slices
        if s.spec.driver == DEFAULT_DRIVER_NAME
        for d in s.spec.devices
        if (model := d.attributes.get("model")) is not None and str(model.string_value).startswith(PRODUCT)
    }
    return len(found)


async def held(cluster: Cluster, number: int, **labels: str) -> list[str]:
    """Have pods of low priority hold all GPUs."""
    names = [f"low-{i}" for i in range(number)]
    for name in names:
        await examples.apply(cluster.api, [claim(name, ONE), pod(name, LOW, labels=labels)])
    await running(cluster, NAMESPACE, *names)
    return names


async def is_there(cluster: Cluster, name: str) -> bool:
    try:
        found = await cluster.api.get(PODS, name, NAMESPACE)
    except NotFound:
        return False
    return found.metadata.deletion_timestamp is None


async def left(cluster: Cluster, names: list[str]) -> list[str]:
    return [name for name in names if await is_there(cluster, name)]


async def seconds_from_deallocation(cluster: Cluster, victims: list[str], name: str) -> float:
    """Return how long after the last claim of the victims is free a pod has its devices."""
    loop, free = asyncio.get_running_loop(), 0.0
    async with asyncio.timeout(LONGEST_SECONDS):
        while True:
            claims = {c.metadata.name: c for c in (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items}
            holding = [v for v in victims if v in claims and claims[v].status.allocation is not None]
            free = loop.time() if holding or not free else free
            if claims[name].status.allocation is not None:
                return loop.time() - free
            await asyncio.sleep(0.1)


def test_a_pod_of_high_priority_gets_the_device_of_one_of_low_priority(
    background: Background, cluster: Cluster
) -> None:
    async def scenario() -> None:
        names = await held(cluster, await gpus(cluster))
        await examples.apply(cluster.api, [claim("high", ONE), pod("high", HIGH)])

        async def removed() -> bool:
            return len(await left(cluster, names)) == len(names) - 1

        await e2e_support.eventually("one pod to be removed", removed, LONGEST_SECONDS)
        victims = [name for name in names if name not in await left(cluster, names)]
        seconds = await seconds_from_deallocation(cluster, victims, "high")
        print(f"has its devices {seconds:.1f} s after the deallocation")
        await running(cluster, NAMESPACE, "high")
        assert len(await left(cluster, names)) == len(names) - 1
        events = (await cluster.api.list(EVENTS, NAMESPACE)).items
        assert [e.involved_object.name for e in events if e.reason == "Preempted"] == victims

    background.run(scenario())


def test_a_budget_is_kept(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        number = await gpus(cluster)
        names = await held(cluster, number, app="kept")
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "kept", "namespace": NAMESPACE},
            "spec": {"minAvailable": number, "selector": {"matchLabels": {"app": "kept"}}},
        }
        await cluster.api.create(POD_DISRUPTION_BUDGETS, budget, NAMESPACE)
        await examples.apply(cluster.api, [claim("high", ONE), pod("high", HIGH)])
        await asyncio.sleep(15)
        assert await left(cluster, names) == names
        await cluster.api.delete(POD_DISRUPTION_BUDGETS, "kept", NAMESPACE)
        await running(cluster, NAMESPACE, "high")

    background.run(scenario())


def test_a_group_displaces_a_group(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        number = await gpus(cluster)

        async def group(name: str, priority: dict[str, Any]) -> list[str]:
            labels = {GROUP_LABEL: name, GROUP_SIZE_LABEL: str(number)}
            names = [f"{name}-{i}" for i in range(number)]
            for member in names:
                await examples.apply(cluster.api, [claim(member, ONE), pod(member, priority, labels=labels)])
            return names

        low = await group("low", LOW)
        await running(cluster, NAMESPACE, *low)
        high = await group("high", HIGH)
        await running(cluster, NAMESPACE, *high)
        assert await left(cluster, low) == []

    background.run(scenario())
