"""Kinds of requests, on whichever cluster; restarts of parts where the cluster is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from e2e_support import IMAGE, Embedded

from dra_driver.api.core import NAMESPACES, PODS, Pod
from dra_driver.api.names import ALLOCATOR_LABEL, DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.errors import Conflict, NotFound
from dra_driver.sim import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-requests"
SECONDS = 90.0
GPU = {"deviceClassName": DEFAULT_DRIVER_NAME}
NOWHERE = {"cel": {"expression": "device.driver == 'nobody.example.com'"}}


def claim(name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def pod(name: str, used: str, **containers: dict[str, Any]) -> dict[str, Any]:
    """A pod with one claim; each container names what it wants of it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": used}],
            "containers": [
                {
                    "name": container,
                    "image": IMAGE,
                    "command": ["sh", "-c", "env | grep '^DRA_' | sort; sleep 3600"],
                    "resources": {"claims": [{"name": "gpu", **wanted}]},
                }
                for container, wanted in containers.items()
            ],
        },
    }


async def eventually(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = asyncio.get_running_loop().time() + SECONDS
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.1)


async def running(cluster: Cluster, name: str) -> Pod:
    async def reached() -> bool:
        found: Pod = await cluster.api.get(PODS, name, NAMESPACE)
        return found.status.phase == "Running"

    await eventually(f"pod {name} to run", reached)
    return await cluster.api.get(PODS, name, NAMESPACE)


async def allocated(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    """(request, device) of a claim."""
    found: ResourceClaim = await cluster.api.get(RESOURCE_CLAIMS, name, NAMESPACE)
    assert found.status.allocation is not None
    return [(r.request, r.device) for r in found.status.allocation.devices.results]


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    async def prepare() -> None:
        labels = {ALLOCATOR_LABEL: "controller"}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        try:
            await cluster.api.create(NAMESPACES, body)
        except Conflict:
            pass

    async def clean() -> None:
        for resource in (PODS, RESOURCE_CLAIMS):
            for item in (await cluster.api.list(resource, NAMESPACE)).items:
                try:
                    await cluster.api.delete(resource, item.metadata.name, NAMESPACE)
                except NotFound:
                    continue

        async def empty() -> bool:
            pods = await cluster.api.list(PODS, NAMESPACE)
            return not pods.items and not (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items

        await eventually("an empty namespace", empty)

    background.run(prepare())
    yield
    background.run(clean(), SECONDS + 30)


def test_the_first_alternative_that_fits_is_taken(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        choices = [{"name": "best", **GPU, "selectors": [NOWHERE]}, {"name": "good", **GPU}]
        choice = claim("choice", {"name": "gpu", "firstAvailable": choices})
        await examples.apply(cluster.api, [choice, pod("p", "choice", main={})])
        await running(cluster, "p")
        assert [request for request, _ in await allocated(cluster, "choice")] == ["gpu/good"]

    background.run(scenario(), SECONDS + 30)


def test_each_container_sees_the_request_that_it_names(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        pair = claim("pair", {"name": "one", "exactly": GPU}, {"name": "two", "exactly": GPU})
        body = pod("p", "pair", first={"request": "one"}, second={"request": "two"}, both={})
        await examples.apply(cluster.api, [pair, body])
        found = await running(cluster, "p")
        devices = dict(await allocated(cluster, "pair"))
        assert devices["one"] != devices["two"]
        views = await cluster.containers(found)
        if views is None:
            pytest.skip("this cluster cannot tell what containers see")
        seen = {
            name: {v for k, v in view.env.items() if k.startswith("DRA_") and k.endswith("_DEVICE")}
            for name, view in views.items()
        }
        assert seen == {
            "first": {devices["one"]},
            "second": {devices["two"]},
            "both": {devices["one"], devices["two"]},
        }

    background.run(scenario(), SECONDS + 30)


def test_devices_are_given_to_one_claim_at_a_time(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        everything = claim("all", {"name": "gpu", "exactly": {**GPU, "allocationMode": "All"}})
        await examples.apply(cluster.api, [everything, pod("p", "all", main={})])
        first = await running(cluster, "p")
        again = claim("again", {"name": "gpu", "exactly": {**GPU, "allocationMode": "All"}})
        there = {"nodeSelector": {"kubernetes.io/hostname": first.spec.node_name}}
        waiting = pod("q", "again", main={})
        waiting["spec"].update(there)
        await examples.apply(cluster.api, [again, waiting])
        await asyncio.sleep(2)
        found: Pod = await cluster.api.get(PODS, "q", NAMESPACE)
        assert found.status.phase == "Pending"
        await cluster.api.delete(PODS, "p", NAMESPACE)
        await running(cluster, "q")
        held: ResourceClaim = await cluster.api.get(RESOURCE_CLAIMS, "all", NAMESPACE)
        assert held.status.allocation is None

    background.run(scenario(), SECONDS * 3)


@pytest.mark.parametrize("part", ["plugin", "kubelet", "controller"])
def test_pods_outlive_restarts(background: Background, cluster: Cluster, part: str) -> None:
    if not isinstance(cluster, Embedded):
        pytest.skip("only the embedded cluster lets the suite kill its parts")

    async def scenario() -> None:
        own = cluster.cluster
        body = [claim("kept", {"name": "gpu", "exactly": GPU}), pod("p", "kept", main={})]
        await examples.apply(cluster.api, body)
        before = await running(cluster, "p")
        devices = await allocated(cluster, "kept")
        if part == "kubelet":
            await own.restart_kubelet(before.spec.node_name)
        else:
            process = own.controller if part == "controller" else own.nodes[before.spec.node_name].plugin
            await own.kill(process)
            await own.start_process(process)
        await own.ready()
        after = await running(cluster, "p")
        assert after.metadata.uid == before.metadata.uid
        assert await allocated(cluster, "kept") == devices
        await examples.apply(
            cluster.api, [claim("next", {"name": "gpu", "exactly": GPU}), pod("q", "next", main={})]
        )
        await running(cluster, "q")

    background.run(scenario(), SECONDS * 3)
