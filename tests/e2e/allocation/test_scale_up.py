"""A pod that only another node could serve becomes what autoscalers look for, on whichever cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import e2e_support
import pytest
from e2e_support import allocated, clear, eventually, make_namespace, running

from controller.allocate.decide import report_of
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.cli import status
from dra_driver.errors import NotFound
from dra_driver.fleet import waiting_condition
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.needs("allocation by the controller")]

NAMESPACE, POLICY, LABEL = "dra-e2e-scale-up", "dra-e2e-scale-up", "dra-e2e-node-group"
GPU = {"deviceClassName": DEFAULT_DRIVER_NAME}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


def policy(**spec: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": LABEL, "operator": "In", "values": ["scaled"]}]}]
    return {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": POLICY},
        "spec": {"nodeSelector": {"nodeSelectorTerms": terms}, **spec},
    }


async def a_node(cluster: Cluster) -> str:
    found = (await cluster.api.list(RESOURCE_SLICES)).items
    return min(s.spec.node_name for s in found if s.spec.driver == DEFAULT_DRIVER_NAME and s.spec.node_name)


async def label(cluster: Cluster, node: str, value: str | None) -> None:
    await cluster.api.merge_patch(NODES, node, {"metadata": {"labels": {LABEL: value}}})


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield

    async def clean() -> None:
        await clear(cluster, NAMESPACE)
        await label(cluster, await a_node(cluster), None)
        try:
            await cluster.api.delete(DEVICE_POLICIES, POLICY)
        except NotFound:
            pass

    background.run(clean())


async def get(cluster: Cluster, name: str) -> Pod:
    return await cluster.api.get(PODS, name, NAMESPACE)


@pytest.mark.parametrize(
    "spec", [{"allocator": "scheduler"}, {"autoscaled": True}], ids=lambda s: next(iter(s))
)
def test_a_pod_for_nodes_that_are_not_there_is_reported_as_unschedulable(
    background: Background, cluster: Cluster, spec: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await examples.apply(cluster.api, [policy(**spec), claim("a", GPU)])
        await examples.apply(cluster.api, [pod("a", "a", nodeSelector={LABEL: "scaled"})])

        async def reported() -> bool:
            report = report_of(await get(cluster, "a"))
            return report is not None and report.reason == "Unschedulable"

        await eventually("kube-scheduler to report the pod", reported)
        assert not (await get(cluster, "a")).spec.scheduling_gates

        async def explained() -> bool:
            condition = waiting_condition(await get(cluster, "a"))
            return condition is not None and condition.get("reason") == "WaitingForScaleUp"

        await eventually("the condition to say so", explained)
        overview = await status.look(cluster.api, [DEFAULT_DRIVER_NAME])
        (row,) = [row for row in overview.waiting if row.claim == f"{NAMESPACE}/a"]
        assert "autoscalers see the pod" in row.reason

    background.run(scenario())


def test_it_runs_when_the_node_is_there(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        await examples.apply(cluster.api, [policy(autoscaled=True), claim("a", GPU)])
        await examples.apply(cluster.api, [pod("a", "a", nodeSelector={LABEL: "scaled"})])

        async def shown() -> bool:
            return report_of(await get(cluster, "a")) is not None

        await eventually("the pod to be shown", shown)
        node = await a_node(cluster)
        await label(cluster, node, "scaled")
        (found,) = await running(cluster, NAMESPACE, "a")
        assert found.spec.node_name == node
        assert len(await allocated(cluster, NAMESPACE, "a")) == 1

    background.run(scenario())
