"""Pods that kube-scheduler cannot place, among pods that it can: what they hold, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import controller_scenarios as scenarios
import pytest
from controller_watch import following, pod_body
from e2e_support import IMAGE
from placement_judge import judging

from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-tentative"


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    async def clean() -> None:
        await scenarios.clean(cluster.api, NAMESPACE)
        await cluster.api.delete(NAMESPACES, NAMESPACE)

        async def gone() -> bool:
            return NAMESPACE not in {n.metadata.name for n in (await cluster.api.list(NAMESPACES)).items}

        await scenarios.until("the namespace to go", gone)

    background.run(scenarios.make_namespace(cluster.api, NAMESPACE))
    yield
    background.run(clean(), 400)


def unplaceable(name: str, *, known: bool) -> dict[str, Any]:
    """A pod that kube-scheduler can place nowhere.

    Args:
        name: of the pod.
        known: whether the controller knows before: its volume claim does not exist. Else it must be beside a
            pod that does not exist, in namespaces with a label, which the controller does not read.
    """
    body = pod_body(name, NAMESPACE, IMAGE)
    if known:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "misspelt"}}
        body["spec"]["volumes"] = [volume]
    else:
        beside = {
            "labelSelector": {"matchLabels": {"app": "nobody"}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "topologyKey": "kubernetes.io/hostname",
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}
        body["spec"]["affinity"] = {"podAffinity": required}
    return body


async def devices(cluster: Cluster) -> int:
    slices = (await cluster.api.list(RESOURCE_SLICES)).items
    return sum(len(s.spec.devices) for s in slices if s.spec.driver == DEFAULT_DRIVER_NAME)


@pytest.mark.needs("allocation by the controller")
@pytest.mark.parametrize("kill", [False, True], ids=["at peace", "controller killed"])
def test_pods_that_cannot_be_placed_hold_up_nobody(
    background: Background, cluster: Cluster, kill: bool
) -> None:
    async def scenario() -> None:
        number = await devices(cluster)
        if kill and cluster.actions is None:
            pytest.skip("the controller of an existing cluster cannot be killed")
        # Until another one leads, and for as long as a pod without the gate may hold devices where
        # kube-scheduler had no node for it before. The webhook lets pods pass while no controller runs.
        seconds = 60.0 if kill else 3.0
        async with (
            following(cluster.api, NAMESPACE) as f,
            judging(cluster.api, NAMESPACE, seconds) as judge,
        ):
            for i in range(number + 2):
                await cluster.api.create(PODS, unplaceable(f"nowhere-{i:03}", known=i % 4 == 0))
            healthy = [f"healthy-{i:03}" for i in range(8)]
            for name in healthy[:4]:
                await f.create(pod_body(name, NAMESPACE, IMAGE, "sleep 0.5"))
            if kill and cluster.actions is not None:
                node = (await cluster.api.list(RESOURCE_SLICES)).items[0].spec.node_name or ""
                await cluster.actions.kill("controller", node)
            for name in healthy[4:]:
                await f.create(pod_body(name, NAMESPACE, IMAGE, "sleep 0.5"))
            await f.until("ended", healthy, seconds=180)

            async def given_back() -> bool:
                claims = (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
                return not any(c.status.allocation for c in claims)

            # What a controller holds that has just begun to lead is given back that much later.
            await scenarios.until("all devices to be given back", given_back, 60.0 + seconds)
            print({what: round(seconds, 1) for what, seconds in judge.longest.items()})

    background.run(scenario(), 400)


def test_a_pod_of_an_unknown_scheduler_gets_nothing(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        body = pod_body("elsewhere", NAMESPACE, IMAGE)
        body["spec"]["schedulerName"] = "unknown-scheduler"
        await cluster.api.create(PODS, body)

        async def ungated() -> bool:
            pod = await cluster.api.get(PODS, "elsewhere", NAMESPACE)
            return not pod.spec.scheduling_gates

        await scenarios.until("the gate to go", ungated)
        claims = (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
        assert not any(c.status.allocation for c in claims)

    background.run(scenario(), 120)
