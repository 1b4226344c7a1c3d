"""Partitions where counters are taken in the slice of their devices only, as by Kubernetes 1.34."""

from __future__ import annotations

from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.sim.apiserver.objects.releases import COUNTERS_TOGETHER
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim

CUT = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "DevicePolicy",
    "metadata": {"name": "cut"},
    "spec": {"partitions": {"profiles": ["1g.10gb", "3g.40gb"]}},
}
ATTRIBUTES = f'device.attributes["{DEFAULT_DRIVER_NAME}"]'


def claim(name: str, expression: str, kind: str = "") -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}]
    exactly = {"deviceClassName": f"{kind}{DEFAULT_DRIVER_NAME}", "selectors": selectors}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


async def slices(cluster: EmbeddedCluster) -> list[ResourceSlice]:
    return list((await cluster.api.list(RESOURCE_SLICES)).items)


@pytest.mark.parametrize("mode", ["controller", "scheduler"])
def test_partitions_are_published_and_served(mode: str) -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await cluster.wait_for("partitions to be published", lambda: _cut(cluster))
        for slice_ in await slices(cluster):
            here = {c.name for c in slice_.spec.shared_counters}
            assert {c.counter_set for d in slice_.spec.devices for c in d.consumes_counters} == here
        (inventory,) = (await cluster.api.list(DEVICE_INVENTORIES)).items
        (published,) = (c for c in inventory.status.conditions if c.type == "Published")
        assert (published.status, published.reason) == ("True", "Published")
        # Of one GPU two halves fit, a third does not, and the whole only when both are gone.
        uuid = await a_gpu(cluster)
        half = f'{ATTRIBUTES}.?profile.orValue("") == "3g.40gb" && {ATTRIBUTES}.parentUUID == "{uuid}"'
        for name in ("one", "two"):
            await support.apply(cluster, claim(name, half, "mig."), support.gpu_pod(name, name))
            await support.phase(cluster, name, "Running")
        whole = f'{ATTRIBUTES}.uuid == "{uuid}" && {ATTRIBUTES}.type == "gpu"'
        for name, wanted, kind in (("third", half, "mig."), ("whole", whole, "")):
            await support.apply(cluster, claim(name, wanted, kind), support.gpu_pod(name, name))
        await support.delete(cluster, "one")
        await support.phase(cluster, "third", "Running")
        found = await support.pod(cluster, "whole")
        assert found is not None
        assert found.status.phase == "Pending"
        for name in ("two", "third"):
            await support.delete(cluster, name)
        await support.phase(cluster, "whole", "Running")

    flags = (f"--allocator={mode}",)
    config = support.config(
        "dgx-a100-80", manifests=(CUT,), gates=(COUNTERS_TOGETHER,), controller_flags=flags
    )
    support.run(scenario, config)


async def a_gpu(cluster: EmbeddedCluster) -> str:
    """Return the UUID of a GPU that can be cut."""
    devices = [d for s in await slices(cluster) for d in s.spec.devices if d.consumes_counters]
    whole = [d for d in devices if "profile" not in d.attributes]
    return min(str(d.attributes["uuid"].string_value) for d in whole)


async def _cut(cluster: EmbeddedCluster) -> bool:
    return any(s.spec.shared_counters for s in await slices(cluster))
