"""Devices that are lent to the scheduler of the embedded cluster, with the policy that the chart installs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cluster_support as support
import pytest
import yaml

from dra_driver.api.core import EVENTS, NAMESPACES
from dra_driver.api.names import ALLOCATOR_LABEL, DEFAULT_DRIVER_NAME, SYSTEM_NAMESPACE
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES, ResourceSlice
from dra_driver.errors import Conflict
from dra_driver.kube import KubeApi
from dra_driver.ownership import bare_devices
from dra_driver.sim.assets import deploy_directory
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.controlplane.stored_slices import STORED_SLICES

pytestmark = pytest.mark.sim

GPU = "vendor.example/gpu"
CUT = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "DevicePolicy",
    "metadata": {"name": "cut"},
    "spec": {"partitions": {"profiles": ["1g.10gb", "2g.20gb"]}},
}
COLLECTIONS = {
    "ConfigMap": f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps",
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
}


def asking(name: str, amount: int) -> dict[str, Any]:
    """A pod whose container wants so many GPUs as an extended resource."""
    pod = support.gpu_pod(name)
    del pod["spec"]["resourceClaims"]
    (main,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [{**main, "resources": {"limits": {GPU: str(amount)}}}]
    return pod


async def prepare(cluster: EmbeddedCluster) -> None:
    """Install what lending needs, and have the class serve an extended resource."""
    assert isinstance(cluster.api, KubeApi)
    try:
        await cluster.api.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
    except Conflict:
        pass
    folder = deploy_directory("optional") / "lending"
    for path in (folder / "recalled-devices.yaml", folder / "gating.yaml"):
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            collection, name = COLLECTIONS[body["kind"]], body["metadata"]["name"]
            query = "?fieldManager=test&force=true"
            apply = "application/apply-patch+yaml"
            await cluster.api._call("PATCH", f"{collection}/{name}{query}", body=body, content_type=apply)
    labels = {"metadata": {"labels": {ALLOCATOR_LABEL: "controller"}}}
    await cluster.api.merge_patch(NAMESPACES, "default", labels)
    patch = {"spec": {"extendedResourceName": GPU}}
    await cluster.api.merge_patch(DEVICE_CLASSES, DEFAULT_DRIVER_NAME, patch)


async def bare(cluster: EmbeddedCluster) -> set[str]:
    slices = (await cluster.api.list(RESOURCE_SLICES)).items
    return {name for s in slices for name in bare_devices(s)}


def test_extended_resources_are_served_by_the_scheduler_and_claims_by_the_controller() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await prepare(cluster)
        assert not await bare(cluster)
        await support.apply(cluster, support.TEMPLATE, asking("extended", 2))
        found = await support.phase(cluster, "extended", "Running")
        (claim,) = await support.claims(cluster)
        assert claim.metadata.name.startswith("extended-extended-resources-")
        assert claim.status.allocation is not None
        assert len(claim.status.allocation.devices.results) == 2
        assert [ref.uid for ref in claim.status.reserved_for] == [found.metadata.uid]
        events = (await cluster.api.list(EVENTS, "default")).items
        assert "DevicesLent" in {e.reason for e in events}

        async def tainted() -> bool:
            return not await bare(cluster)

        await cluster.wait_for("the devices to be tainted again", tainted)
        await support.apply(cluster, support.gpu_pod("own"))
        await support.phase(cluster, "own", "Running")
        for name in ("extended", "own"):
            await support.delete(cluster, name)
            await support.gone(cluster, name)
        await support.no_claims(cluster)

    support.run(scenario, support.config("l4x4", controller_flags=("--lending=on",)), seconds=220)


@pytest.mark.long
def test_parts_of_a_cut_gpu_are_lent_beside_those_that_the_controller_allocates() -> None:
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

        async def withheld() -> bool:
            read = (await cluster.api.list(RESOURCE_SLICES)).items
            seen = (await cluster.api.list(STORED_SLICES)).items
            return any(s.spec.shared_counters for s in read) and not any(counted(s) for s in seen)

        await cluster.wait_for("slices with counters, which the scheduler does not see", withheld)
        # Best fit takes the parts of as few GPUs as possible, so both allocate from the same ones.
        pods = [f"own-{i}" for i in range(4)] + [f"lent-{i}" for i in range(4)]
        await support.apply(cluster, support.TEMPLATE)
        for own, lent in zip(pods[:4], pods[4:], strict=True):
            await support.apply(cluster, support.gpu_pod(own), asking(lent, 2))
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
        await cluster.wait_for("the counters to be withheld again", withheld)
        for name in pods:
            await support.delete(cluster, name)
            await support.gone(cluster, name)
        await support.no_claims(cluster)

    flags = ("--lending=on",)
    support.run(scenario, support.config("dgx-h100", controller_flags=flags), seconds=400)


def counted(slice_: ResourceSlice) -> bool:
    """Return whether kube-scheduler goes through all slices because of this one."""
    return bool(slice_.spec.shared_counters) or any(d.consumes_counters for d in slice_.spec.devices)
