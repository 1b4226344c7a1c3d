"""From no node at all: pods in a labelled namespace, and nodes that are added for what is seen of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import cluster_support as support
import pytest
from nonempty import nonempty

from controller.allocate.decide import report_of
from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.names import ALLOCATOR_LABEL, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.cluster_config import NodeConfig

pytestmark = pytest.mark.sim

LABEL = "node-group"


@contextlib.asynccontextmanager
async def autoscaler(cluster: EmbeddedCluster) -> AsyncIterator[None]:
    """Add a node with four GPUs whenever pods are unschedulable, and the last node is full."""

    async def scale() -> None:
        while True:
            pods = (await cluster.api.list(PODS, "default")).items
            waiting = [p for p in pods if not p.spec.node_name and (r := report_of(p)) and r.reason]
            bound = sum(bool(p.spec.node_name) for p in pods)
            if waiting and bound >= 4 * len(cluster.nodes):
                assert not any(p.spec.scheduling_gates for p in waiting)
                name = f"node{len(cluster.nodes) + 1}"
                await cluster.add_node(name, NodeConfig("l4x4", labels={LABEL: "gpus"}))
            await asyncio.sleep(0.1)

    task = asyncio.create_task(scale())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def prepare(cluster: EmbeddedCluster, **spec: Any) -> None:
    """Label the namespace, and say that a group of nodes scales."""
    await cluster.api.merge_patch(
        NAMESPACES, "default", {"metadata": {"labels": {ALLOCATOR_LABEL: "controller"}}}
    )
    terms = [{"matchExpressions": [{"key": LABEL, "operator": "In", "values": ["gpus"]}]}]
    policy = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "autoscaled"},
        "spec": {"nodeSelector": {"nodeSelectorTerms": terms}, **spec},
    }
    await cluster.api.create(DEVICE_POLICIES, policy)
    await support.apply(cluster, support.TEMPLATE)


def grouped(name: str, size: int) -> dict[str, Any]:
    body = support.gpu_pod(name)
    body["metadata"]["labels"] = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: str(size)}
    return body


def config() -> Any:
    made = support.config(controller_flags=("--scale-up-delay=1",))
    return dataclasses.replace(made, profiles=())


@pytest.mark.parametrize(
    ("spec", "protected"),
    [
        pytest.param({"allocator": "scheduler"}, False, marks=pytest.mark.long),
        ({"autoscaled": True}, True),
    ],
    ids=["kube-scheduler's nodes", "the controller's nodes"],
)
def test_pods_run_on_nodes_that_are_added_for_them(spec: dict[str, Any], protected: bool) -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await prepare(cluster, **spec)
        names = [f"p{i}" for i in range(6)]
        elsewhere = {LABEL: "other"}
        await support.apply(cluster, support.gpu_pod("other", nodeSelector=elsewhere))
        await support.apply(cluster, *map(support.gpu_pod, names))
        other = await support.pod(cluster, "other")
        assert other is not None
        async with autoscaler(cluster):
            for name in names:
                await support.phase(cluster, name, "Running")
        if protected:
            await support.opened(cluster)
        inventories = (await cluster.api.list(DEVICE_INVENTORIES)).items
        assert {i.status.publication.allocator for i in inventories} == {"open" if protected else "scheduler"}
        assert len(cluster.nodes) == 2
        left = await cluster.api.get(PODS, "other", "default")
        if protected:
            assert left.spec.scheduling_gates, "no policy speaks of nodes for it"

    support.run(scenario, config(), seconds=150)


def test_a_group_runs_as_a_whole_on_nodes_that_are_added_for_it() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await prepare(cluster, autoscaled=True)
        await support.apply(cluster, *(grouped(f"m{i}", 6) for i in range(6)))

        async def seen() -> bool:
            pods = (await cluster.api.list(PODS, "default")).items
            return len([p for p in pods if report_of(p)]) == 6

        await cluster.wait_for("all members to be reported", seen)
        for number in (1, 2):
            pods = (await cluster.api.list(PODS, "default")).items
            assert not any(p.spec.node_name for p in nonempty(pods))
            await cluster.add_node(f"node{number}", NodeConfig("l4x4", labels={LABEL: "gpus"}))
            if number == 1:
                await cluster.ready()
                await asyncio.sleep(1.0)
        for i in range(6):
            await support.phase(cluster, f"m{i}", "Running")

    support.run(scenario, config(), seconds=150)
