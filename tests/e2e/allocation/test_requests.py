"""Kinds of requests, on whichever cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import e2e_support
import pytest
from e2e_support import allocated, clear, make_namespace, running

from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-requests"
GPU = {"deviceClassName": DEFAULT_DRIVER_NAME}
NOWHERE = {"cel": {"expression": "device.driver == 'nobody.example.com'"}}
# Some of the devices, few enough for one claim.
MODEL = f'device.attributes["{DEFAULT_DRIVER_NAME}"].?model.orValue("")'
A100 = {"cel": {"expression": f'{MODEL}.startsWith("A100-SXM4-40")'}}
SEVERAL = {"first": {"request": "one"}, "second": {"request": "two"}, "both": {}}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


@pytest.mark.needs("prioritized list")
def test_the_first_alternative_that_fits_is_taken(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        choices = [{"name": "best", **GPU, "selectors": [NOWHERE]}, {"name": "good", **GPU}]
        choice = claim("choice", {"name": "gpu", "firstAvailable": choices})
        await examples.apply(cluster.api, [choice, pod("p", "choice")])
        await running(cluster, NAMESPACE, "p")
        assert [request for request, _ in await allocated(cluster, NAMESPACE, "choice")] == ["gpu/good"]

    background.run(scenario())


def test_each_container_sees_the_request_that_it_names(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        pair = claim("pair", {"name": "one", "exactly": GPU}, {"name": "two", "exactly": GPU})
        body = pod("p", "pair", containers=SEVERAL)
        await examples.apply(cluster.api, [pair, body])
        (found,) = await running(cluster, NAMESPACE, "p")
        devices = dict(await allocated(cluster, NAMESPACE, "pair"))
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

    background.run(scenario())


def test_devices_are_given_to_one_claim_at_a_time(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        everything = claim(
            "all", {"name": "gpu", "exactly": {**GPU, "allocationMode": "All", "selectors": [A100]}}
        )
        await examples.apply(cluster.api, [everything, pod("p", "all")])
        (first,) = await running(cluster, NAMESPACE, "p")
        again = claim(
            "again", {"name": "gpu", "exactly": {**GPU, "allocationMode": "All", "selectors": [A100]}}
        )
        there = {"nodeSelector": {"kubernetes.io/hostname": first.spec.node_name}}
        waiting = pod("q", "again")
        waiting["spec"].update(there)
        await examples.apply(cluster.api, [again, waiting])
        await asyncio.sleep(2)
        found: Pod = await cluster.api.get(PODS, "q", NAMESPACE)
        assert found.status.phase == "Pending"
        await cluster.api.delete(PODS, "p", NAMESPACE)
        await running(cluster, NAMESPACE, "q")
        held: ResourceClaim = await cluster.api.get(RESOURCE_CLAIMS, "all", NAMESPACE)
        assert held.status.allocation is None

    background.run(scenario())
