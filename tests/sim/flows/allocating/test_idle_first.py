"""Idle devices first, from the load that a node sees to the device that a pod gets."""

from __future__ import annotations

import cluster_support as support
import pytest
import yaml

from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.node import SimNode

pytestmark = pytest.mark.sim

FLAGS = ("--busy-seconds=1", "--rescan-interval=1")


def set_loads(node: SimNode, *loads: int) -> None:
    profile = yaml.safe_load(node.layout.hardware.read_text())
    for gpu, load in zip(profile["gpus"], loads, strict=True):
        gpu["load"] = load
    node.layout.hardware.write_text(yaml.safe_dump(profile))


async def busy(cluster: EmbeddedCluster, node: SimNode, *devices: str) -> None:
    async def reported() -> bool:
        activity = (await support.inventory(cluster, node)).status.activity
        return activity.busy == devices and len(activity.idle) == 2 - len(devices)

    await cluster.wait_for(f"{devices} to be busy", reported)


async def device_of(cluster: EmbeddedCluster, name: str) -> str:
    await support.apply(cluster, support.gpu_pod(name))
    await support.phase(cluster, name, "Running")
    (claim,) = await support.claims(cluster)
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results
    await support.delete(cluster, name)
    await support.gone(cluster, name)
    await support.no_claims(cluster)
    return result.device


async def versions(cluster: EmbeddedCluster) -> list[str]:
    slices = (await cluster.api.list(RESOURCE_SLICES)).items
    assert not any("busy" in name for s in slices for d in s.spec.devices for name in d.attributes)
    return sorted(s.metadata.resource_version for s in slices)


@pytest.mark.long
def test_a_pod_gets_the_idle_device_and_no_slice_is_written_for_it() -> None:
    first, second = "gpu-0000-3b-00-0", "gpu-0000-d8-00-0"

    async def scenario(cluster: EmbeddedCluster) -> None:
        node = next(iter(cluster.nodes.values()))
        await support.apply(cluster, support.TEMPLATE)
        await support.opened(cluster)
        set_loads(node, 90, 0)
        await busy(cluster, node, first)
        before = await versions(cluster)  # not at the start, at which the kubelet may delete slices once more
        assert await device_of(cluster, "beside-the-first") == second
        set_loads(node, 1, 80)
        await busy(cluster, node, second)
        assert await device_of(cluster, "beside-the-second") == first
        # A busy device is still a device: where no other is left, it is given.
        set_loads(node, 70, 80)
        await busy(cluster, node, first, second)
        assert await device_of(cluster, "anywhere") in (first, second)
        assert await versions(cluster) == before

    support.run(scenario, support.config("t4x2", plugin_flags=FLAGS))
