"""A GPU that fails: taint, eviction, nothing new on it; and its recovery."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import e2e_support
import pytest
from e2e_support import allocated, clear, eventually, make_namespace, running, set_health

from dra_driver.api.core import PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_SLICES, DeviceTaint
from dra_driver.errors import NotFound
from dra_driver.resourceslice.devices import HEALTH_TAINT
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-health"
FAILED = {"reason": "XidError", "severity": "failed", "message": "fell off the bus"}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    if cluster.actions is None:
        pytest.skip("only on a cluster of its own does the suite make GPUs fail")
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


async def taints(cluster: Cluster, node: str, device: str) -> list[DeviceTaint]:
    slices = await cluster.api.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")
    return [
        t
        for s in slices.items
        for d in s.spec.devices
        if d.name == device
        for t in d.taints
        if t.key == HEALTH_TAINT
    ]


@pytest.mark.needs("device taints")
def test_pods_leave_a_failed_gpu_unless_they_tolerate_it(background: Background, cluster: Cluster) -> None:
    brave = {"key": HEALTH_TAINT, "operator": "Exists", "effect": "NoExecute"}

    async def scenario() -> None:
        gpu = {"deviceClassName": DEFAULT_DRIVER_NAME}
        await examples.apply(
            cluster.api,
            [
                claim("a", gpu),
                pod("evicted", "a"),
                claim("b", {**gpu, "tolerations": [brave]}),
                pod("stays", "b"),
                claim("c", gpu),
                pod("elsewhere", "c"),
            ],
        )
        pods = await running(cluster, NAMESPACE, "evicted", "stays", "elsewhere")
        ill = [
            (pods[i].spec.node_name, (await allocated(cluster, NAMESPACE, c))[0][1])
            for i, c in ((0, "a"), (1, "b"))
        ]
        for node, device in ill:
            set_health(cluster, node, device, FAILED)

        async def tainted() -> bool:
            found = [await taints(cluster, *place) for place in ill]
            return all([t.effect for t in ts] == ["NoExecute"] for ts in found)

        async def evicted() -> bool:
            try:
                found = await cluster.api.get(PODS, "evicted", NAMESPACE)
            except NotFound:
                return True
            return found.metadata.uid != pods[0].metadata.uid

        try:
            await eventually("the taints", tainted)
            await eventually("the eviction", evicted)
            await running(cluster, NAMESPACE, "stays", "elsewhere")
        finally:
            for node, device in ill:
                set_health(cluster, node, device)

        async def well() -> bool:
            return not any([await taints(cluster, *place) for place in ill])

        await eventually("the taints to go", well)

    background.run(scenario())
