"""Devices that are granted to the embedded cluster's scheduler, with the policies that the chart installs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.core import CONFIG_MAPS, EVENTS
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GRANTS, SYSTEM_NAMESPACE
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES
from dra_driver.kube import KubeApi
from dra_driver.ownership import Grants, bare_devices
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim

GPU = "vendor.example/gpu"
CUT = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "DevicePolicy",
    "metadata": {"name": "cut"},
    "spec": {"partitions": {"profiles": ["1g.10gb", "2g.20gb"]}},
}


def asking(name: str, amount: int) -> dict[str, Any]:
    """A pod whose container wants so many GPUs as an extended resource."""
    pod = support.gpu_pod(name)
    del pod["spec"]["resourceClaims"]
    (main,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [{**main, "resources": {"limits": {GPU: str(amount)}}}]
    return pod


async def prepare(cluster: EmbeddedCluster) -> None:
    """Have the class serve an extended resource."""
    patch = {"spec": {"extendedResourceName": GPU}}
    await cluster.api.merge_patch(DEVICE_CLASSES, DEFAULT_DRIVER_NAME, patch)


async def opened(cluster: EmbeddedCluster) -> None:
    """Wait until every pool is published without the taint of the driver."""

    async def is_so() -> bool:
        slices = [s for s in (await cluster.api.list(RESOURCE_SLICES)).items if s.spec.devices]
        return bool(slices) and all(len(bare_devices(s)) == len(s.spec.devices) for s in slices)

    await cluster.wait_for("the pools to be open", is_so)


async def granted(cluster: EmbeddedCluster) -> bool:
    found = await cluster.api.get(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)
    return bool(Grants.of_data(found.data or {}).devices)


def test_extended_resources_are_served_by_the_scheduler_and_claims_by_the_controller() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await prepare(cluster)
        await opened(cluster)
        await support.apply(cluster, support.TEMPLATE, asking("extended", 2))
        found = await support.phase(cluster, "extended", "Running")
        (claim,) = await support.claims(cluster)
        assert claim.metadata.name.startswith("extended-extended-resources-")
        assert claim.status.allocation is not None
        assert len(claim.status.allocation.devices.results) == 2
        assert [ref.uid for ref in claim.status.reserved_for] == [found.metadata.uid]
        events = (await cluster.api.list(EVENTS, "default")).items
        assert "DevicesGranted" in {e.reason for e in events}

        async def ended() -> bool:
            return not await granted(cluster)

        await cluster.wait_for("the grants to end", ended)
        await support.apply(cluster, support.gpu_pod("own"))
        await support.phase(cluster, "own", "Running")
        for name in ("extended", "own"):
            await support.delete(cluster, name)
            await support.gone(cluster, name)
        await support.no_claims(cluster)

    support.run(scenario, support.config("l4x4"), seconds=220)


@pytest.mark.long
def test_parts_of_a_cut_gpu_are_granted_beside_those_that_the_controller_allocates() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        assert isinstance(cluster.api, KubeApi)
        await prepare(cluster)
        await cluster.api.create(DEVICE_POLICIES, CUT)
        expression = (
            f'device.driver == "{DEFAULT_DRIVER_NAME}" && '
            f'device.attributes["{DEFAULT_DRIVER_NAME}"].?type.orValue("") == "mig"'
        )
        part = {"spec": {"selectors": [{"cel": {"expression": expression}}]}}
        await cluster.api.merge_patch(DEVICE_CLASSES, DEFAULT_DRIVER_NAME, part)

        async def counted() -> bool:
            slices = (await cluster.api.list(RESOURCE_SLICES)).items
            return any(s.spec.shared_counters for s in slices)

        await cluster.wait_for("slices with counters", counted)
        await opened(cluster)
        # Best fit takes the parts of as few GPUs as possible, so both allocate from the same ones.
        pods = [f"own-{i}" for i in range(4)] + [f"granted-{i}" for i in range(4)]
        await support.apply(cluster, support.TEMPLATE)
        for own, other in zip(pods[:4], pods[4:], strict=True):
            await support.apply(cluster, support.gpu_pod(own), asking(other, 2))
        for name in pods:
            await support.phase(cluster, name, "Running")
        slices = (await cluster.api.list(RESOURCE_SLICES)).items
        devices = {d.name: d for s in slices for d in s.spec.devices}
        taken: Counter[tuple[str, str]] = Counter()
        held = [
            devices[result.device]
            for claim in await support.claims(cluster)
            if claim.status.allocation is not None
            for result in claim.status.allocation.devices.results
        ]
        assert len(held) == len({d.name for d in held}) == 12
        for device in held:
            for used in device.consumes_counters:
                for name, counter in used.counters.items():
                    taken[used.counter_set, name] += counter.value.nano
        for set_ in (c for s in slices for c in s.spec.shared_counters):
            for name, counter in set_.counters.items():
                assert taken[set_.name, name] <= counter.value.nano
        for name in pods:
            await support.delete(cluster, name)
            await support.gone(cluster, name)
        await support.no_claims(cluster)

    support.run(scenario, support.config("dgx-h100"), seconds=400)
