"""Pods that only kube-scheduler can place get devices of the controller, granted to it.

They ask for extended resources, or for devices of another driver as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import controller_scenarios as scenarios
import e2e_support
import pytest
from e2e_support import clear, eventually, make_namespace, running
from local_actions import KUBELET

from dra_driver.api.core import CONFIG_MAPS, EVENTS, NODES, PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GRANTS, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceSlice
from dra_driver.ownership import AllocatorRecord, Grants, recorded_allocator
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        (os.environ.get("CLUSTER") or "embedded") == "embedded",
        reason="tests/sim has these on the embedded cluster",
    ),
    pytest.mark.needs("allocation by the controller", "extended resources"),
]

NAMESPACE = CLASS = "dra-e2e-granting"
RESOURCE = "e2e.dra-driver.dev/gpu"
ATTRIBUTES = f'device.attributes["{DEFAULT_DRIVER_NAME}"]'
# Whole devices that are healthy and not shared.
MODEL = "A100-SXM4-40"
SELECTOR = (
    f'device.driver == "{DEFAULT_DRIVER_NAME}" && {ATTRIBUTES}.type == "gpu"'
    f' && {ATTRIBUTES}.?model.orValue("").startsWith("{MODEL}")'
)
CDI = Path("/var/run/cdi")
OTHER_DRIVER = "test-driver.cdi.k8s.io"
OTHER_CLASS = f"{CLASS}-other"
claim = partial(e2e_support.claim, NAMESPACE)


@pytest.fixture(scope="module", autouse=True)
def open_pools(background: Background, cluster: Cluster) -> Iterator[None]:
    actions = cluster.actions
    if actions is None:
        pytest.skip("only a cluster of its own does the suite set up anew")

    async def prepare() -> None:
        await eventually("pools to be open", lambda: is_open(cluster))
        await make_class(cluster, CLASS, SELECTOR, extendedResourceName=RESOURCE)
        await make_namespace(cluster, NAMESPACE)

    async def clean() -> None:
        await clear(cluster, NAMESPACE)
        await eventually("nothing to be granted", lambda: is_back(cluster))
        await cluster.api.delete(DEVICE_CLASSES, CLASS)

    background.run(prepare())
    yield
    background.run(clean())


@pytest.fixture
def test_driver(background: Background, cluster: Cluster) -> Iterator[None]:
    """Kubernetes' own test driver, beside ours on the only node; its devices have no attributes."""
    (node,) = background.run(cluster.api.list(NODES)).items
    command = [
        os.environ["E2E_TEST_DRIVER"],
        "kubelet-plugin",
        f"--drivername={OTHER_DRIVER}",
        f"--node-name={node.metadata.name}",
        f"--cdi-dir={CDI}",
    ]
    # For its socket; a manifest would have the kubelet make it.
    folder = KUBELET / "plugins" / OTHER_DRIVER
    folder.mkdir(exist_ok=True)
    # Where the harness keeps those of the components.
    log = Path(os.environ["E2E_CONTROL"]).parent / "log" / "dra-test-driver.log"
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            background.run(make_class(cluster, OTHER_CLASS, f'device.driver == "{OTHER_DRIVER}"'))

            async def is_published() -> bool:
                assert process.poll() is None, f"the driver has ended, see {log}"
                return bool(await slices_of_other(cluster))

            background.run(eventually("the other driver's devices", is_published))
            yield
        finally:
            try:
                # It must release what it has prepared.
                background.run(clear(cluster, NAMESPACE))
            finally:
                process.terminate()
                process.wait()
                shutil.rmtree(folder)
            background.run(remove_other(cluster))


async def make_class(cluster: Cluster, name: str, selector: str, **spec: Any) -> None:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": selector}}], **spec},
    }
    await scenarios.create(cluster.api, DEVICE_CLASSES, body)


async def slices_of_other(cluster: Cluster) -> list[ResourceSlice]:
    return [s for s in (await cluster.api.list(RESOURCE_SLICES)).items if s.spec.driver == OTHER_DRIVER]


async def remove_other(cluster: Cluster) -> None:
    """Do what the kubelet does half a minute after a driver is gone."""
    for one in await slices_of_other(cluster):
        await cluster.api.delete(RESOURCE_SLICES, one.metadata.name)
    await cluster.api.delete(DEVICE_CLASSES, OTHER_CLASS)


async def is_open(cluster: Cluster) -> bool:
    inventories = (await cluster.api.list(DEVICE_INVENTORIES)).items
    records = [recorded_allocator(i.status.publication) for i in inventories]
    return bool(records) and all(record is AllocatorRecord.OPEN for record in records)


async def granted(cluster: Cluster) -> set[tuple[str, str]]:
    """Node and name of what is granted."""
    found = (await cluster.api.get(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)).data
    grants = Grants.of_data(found or {})
    return {(str(pool.pool), name) for devices in grants.devices.values() for pool, name in devices}


async def is_back(cluster: Cluster) -> bool:
    return not await granted(cluster)


def pod(name: str, amount: int) -> dict[str, Any]:
    """A pod without claims, whose container prints the devices that it got."""
    body = e2e_support.pod(NAMESPACE, name, "unused")
    del body["spec"]["resourceClaims"]
    (container,) = body["spec"]["containers"]
    container["resources"] = {"limits": {RESOURCE: str(amount)}}
    return body


async def claimed(cluster: Cluster, name: str) -> set[str]:
    """The devices of the claim that kube-scheduler has made for a pod."""
    made = (await cluster.api.get(PODS, name, NAMESPACE)).status.extended_resource_claim_status
    assert made is not None
    found = await cluster.api.get(RESOURCE_CLAIMS, made.resource_claim_name, NAMESPACE)
    assert found.status.allocation is not None
    return {r.device for r in found.status.allocation.devices.results}


def test_extended_resources_are_served_beside_claims(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        own = {"deviceClassName": CLASS}
        await examples.apply(cluster.api, [pod("two", 2), claim("own", own)])
        await examples.apply(cluster.api, [e2e_support.pod(NAMESPACE, "own", "own")])
        two, _ = await running(cluster, NAMESPACE, "two", "own")
        devices = await claimed(cluster, "two")
        assert len(devices) == 2
        assert not devices & {d for _, d in await e2e_support.allocated(cluster, NAMESPACE, "own")}
        containers = await cluster.containers(two)
        if containers is not None:
            print(f"the container got {dict(containers['main'].env)}")
            assert any(key.startswith("DRA") for key in containers["main"].env)
        said = {e.reason for e in (await cluster.api.list(EVENTS, NAMESPACE)).items}
        assert "DevicesGranted" in said
        await eventually("the grants to end", lambda: is_back(cluster))

    background.run(scenario())
    background.run(clear(cluster, NAMESPACE))


@pytest.mark.parametrize("part", ["kubelet", "controller"])
def test_what_is_granted_comes_back_after(background: Background, cluster: Cluster, part: str) -> None:
    async def scenario() -> None:
        actions = cluster.actions
        assert actions is not None
        await examples.apply(cluster.api, [pod("one", 1)])

        (node,) = (await cluster.api.list(NODES)).items
        await actions.kill(part, node.metadata.name)
        await running(cluster, NAMESPACE, "one")
        assert len(await claimed(cluster, "one")) == 1
        await eventually("the grants to end", lambda: is_back(cluster))
        await examples.apply(cluster.api, [claim("own", {"deviceClassName": CLASS})])
        await examples.apply(cluster.api, [e2e_support.pod(NAMESPACE, "own", "own")])
        await running(cluster, NAMESPACE, "own")

    background.run(scenario())
    background.run(clear(cluster, NAMESPACE))


def test_a_claim_may_mix_devices_of_ours_with_those_of_another_driver(
    background: Background, cluster: Cluster, test_driver: None
) -> None:
    async def scenario() -> None:
        gpus = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": 2}}
        other = {"name": "other", "exactly": {"deviceClassName": OTHER_CLASS}}
        command = "env | grep -E '^(DRA|claim)_' | sort; sleep 3600"
        both = e2e_support.pod(NAMESPACE, "both", "both", command=command)
        await examples.apply(cluster.api, [claim("both", gpus, other), both])
        (found,) = await running(cluster, NAMESPACE, "both")
        made = await cluster.api.get(RESOURCE_CLAIMS, "both", NAMESPACE)
        assert made.status.allocation is not None
        results = made.status.allocation.devices.results
        ours = {r.device for r in results if (r.request, r.driver) == ("gpu", DEFAULT_DRIVER_NAME)}
        others = {r.device for r in results if (r.request, r.driver) == ("other", OTHER_DRIVER)}
        assert (len(ours), len(others)) == (2, 1)
        events = (await cluster.api.list(EVENTS, NAMESPACE)).items
        about = [e for e in events if e.involved_object.name == "both"]
        (said,) = {e.message for e in about if e.reason == "DevicesGranted"}
        print(said)
        assert all(device in said for device in ours)
        containers = await cluster.containers(found)
        assert containers is not None
        variables = containers["main"].env
        print(f"the container got {dict(variables)}")
        assert variables["claim_both_other"] == "true", "what the other driver gives a container"
        assert any(key.startswith("DRA") for key in variables)
        assert prepared()
        await clear(cluster, NAMESPACE)
        assert not prepared()
        await eventually("the grants to end", lambda: is_back(cluster))

    background.run(scenario())


def prepared() -> list[Path]:
    """What the other driver has on the node for containers."""
    return list(CDI.glob(f"{OTHER_DRIVER}-*"))
