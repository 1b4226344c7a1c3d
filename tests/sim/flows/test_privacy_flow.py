"""What a tenant can read says how many others hold a device, and never who they are."""

from __future__ import annotations

import asyncio
from typing import Any

import cluster_support as support
import msgspec
import pytest

from dra_driver.api import codec
from dra_driver.api.core import EVENTS, NAMESPACES, NODES, PODS, Pod
from dra_driver.api.meta import Resource
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim

# In the names of the namespace, of its claims, pods and groups: no text elsewhere may have it.
SECRET = "hush"
THEIRS, OURS = f"{SECRET}-team", "tenant"
TOLERATIONS = [{"operator": "Exists"}]


def claim(namespace: str, name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    body = support.claim(name, count)
    body["metadata"]["namespace"] = namespace
    exactly = body["spec"]["devices"]["requests"][0]["exactly"]
    exactly.update(more.pop("exactly", {}))
    body["spec"]["devices"].update(more)
    return body


def pod(namespace: str, name: str, of: str, **metadata: Any) -> dict[str, Any]:
    body = support.gpu_pod(name, of)
    body["metadata"] |= {"namespace": namespace, **metadata}
    return body


async def allocation(cluster: EmbeddedCluster, namespace: str, name: str) -> Any:
    async def allocated() -> Any:
        return (await cluster.api.get(RESOURCE_CLAIMS, name, namespace)).status.allocation

    return await cluster.wait_for(f"{namespace}/{name} to be allocated", allocated)


async def running(cluster: EmbeddedCluster, namespace: str, name: str) -> Pod:
    async def reached() -> Pod | None:
        found = await cluster.api.get(PODS, name, namespace)
        return found if found.status.phase == "Running" else None

    return await cluster.wait_for(f"{namespace}/{name} to run", reached)


async def give(cluster: EmbeddedCluster, namespace: str, name: str, same_as: Any) -> None:
    """As a second allocator would, that knows nothing of the first."""
    patch = {"status": {"allocation": msgspec.json.decode(codec.encode(same_as))}}
    await cluster.api.merge_patch(RESOURCE_CLAIMS, name, patch, namespace, subresource="status")


async def reasons(cluster: EmbeddedCluster) -> set[str]:
    return {e.reason for e in (await cluster.api.list(EVENTS, OURS)).items}


async def readable(cluster: EmbeddedCluster) -> dict[str, str]:
    """Everything that the tenant, or anybody who may look at the cluster's devices, can read of it."""
    found: dict[str, str] = {}
    where: list[tuple[Resource[Any], str]] = [
        (EVENTS, OURS),
        (EVENTS, "default"),
        (PODS, OURS),
        (RESOURCE_CLAIMS, OURS),
        (DEVICE_INVENTORIES, ""),
        (DEVICE_POLICIES, ""),
        (RESOURCE_SLICES, ""),
        (NODES, ""),
    ]
    for resource, namespace in where:
        for item in (await cluster.api.list(resource, namespace)).items:
            found[f"{resource.kind} {item.key}"] = codec.encode(item).decode()
    return found


def test_no_text_of_one_namespace_names_what_is_in_another() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        api = cluster.api
        for name in (THEIRS, OURS):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await api.create(NAMESPACES, body)
        # They hold three of four devices; one of their claims tolerates what it should not, so that
        # kube-scheduler could give it what another is about to get.
        held = []
        for i in range(3):
            sly = {"tolerations": TOLERATIONS} if i == 2 else {}
            await support.apply(cluster, claim(THEIRS, f"{SECRET}-c{i}", exactly=sly))
            await support.apply(cluster, pod(THEIRS, f"{SECRET}-p{i}", f"{SECRET}-c{i}"))
            # As long as it does not run, the scheduler may refuse it, and its device is free once more.
            await running(cluster, THEIRS, f"{SECRET}-p{i}")
            held.append(await allocation(cluster, THEIRS, f"{SECRET}-c{i}"))

        # Too many; too many of one kind; too many for a group.
        same = [{"matchAttribute": f"{DEFAULT_DRIVER_NAME}/model", "requests": ["gpu"]}]
        await support.apply(cluster, claim(OURS, "four", 4), pod(OURS, "four", "four"))
        await support.apply(cluster, claim(OURS, "two", 2, constraints=same), pod(OURS, "two", "two"))
        labels = {"labels": {"dra-driver.dev/group": "g", "dra-driver.dev/group-size": "2"}}
        for i in range(2):
            await support.apply(cluster, claim(OURS, f"g{i}", 2), pod(OURS, f"g{i}", f"g{i}", **labels))

        async def refused() -> bool:
            events = (await api.list(EVENTS, OURS)).items
            about = {e.involved_object.name for e in events if e.reason == "FailedAllocation"}
            return {"four", "two"} <= about

        await cluster.wait_for("the refusals", refused)

        # One device twice. The first holder runs, and a pod uses the second claim: an allocation that no pod
        # uses goes without a word.
        first = await running(cluster, THEIRS, f"{SECRET}-p0")
        await support.apply(cluster, claim(OURS, "twice"))
        beside = pod(OURS, "twice", "twice")
        beside["spec"]["nodeName"] = first.spec.node_name
        await support.apply(cluster, beside)
        await give(cluster, OURS, "twice", held[0])

        async def reported() -> bool:
            return "DoubleAllocation" in await reasons(cluster)

        await cluster.wait_for("the double allocation to be reported", reported)
        await asyncio.sleep(0.5)  # Events are written in the background
        texts = await readable(cluster)
        assert any(" free (" in t for t in texts.values())
        assert {what: text for what, text in texts.items() if SECRET in text} == {}

    # Of open pools the API server would refuse what this writes in place of a kube-scheduler.
    support.run(scenario, support.config("l4x4", open_pools=False))
