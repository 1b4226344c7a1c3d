"""A controller that stays while its real API server is upgraded and taken back; etcd is kept.

``DRA_K8S_UPGRADE`` names folders of Kubernetes' release binaries, the oldest first, with a colon in between.
Without it the versions are those of ``DRA_K8S_BIN`` with the feature gates of this driver off, and on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import DRIVER, device, request
from inline_answers import inline
from manifest_files import documents
from real_apiserver import RealApiServer, binaries, real_etcd

from controller.app import Controller
from controller.config import ControllerConfig, Timings
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import DriverName
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Device, ResourceClaim
from dra_driver.errors import DraError
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.kube.features import probe_features
from dra_driver.resourceslice import GATES, ServerFeatures
from dra_driver.sim.assets import deploy_directory

# An upgrade of kube-apiserver on two cores that others use too.
SECONDS = 300.0
PARTS = [
    {"name": "1g.10gb", "placements": [{"start": 0, "size": 1}, {"start": 1, "size": 1}]}
    | {"capacity": {"memory": {"value": "10Gi"}}}
]
DRIVER_NAME = DriverName(DRIVER)
PART = f'"profile" in device.attributes["{DRIVER}"]'
Version = tuple[Path, str]


def versions() -> list[Version]:
    """Return a folder and a flag for each version, the oldest first."""
    named = [Path(name) for name in os.environ.get("DRA_K8S_UPGRADE", "").split(":") if name]
    if named:
        missing = [str(f) for f in named if not os.access(f / "kube-apiserver", os.X_OK)]
        assert not missing, f"DRA_K8S_UPGRADE: there is no kube-apiserver in {', '.join(missing)}"
        return [(folder, "--v=0") for folder in named]
    gates = ["--feature-gates=" + ",".join(f"{g}={on}" for g in GATES.values()) for on in ("false", "true")]
    return [(binaries(), gate) for gate in gates]


class World:
    """What runs while the API server changes."""

    def __init__(self, client: KubeApi, controller: asyncio.Task[None]) -> None:
        self.client = client
        self.controller = controller

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for it; an API server that is not there yet does not count."""
        deadline = asyncio.get_running_loop().time() + SECONDS
        while True:
            assert not self.controller.done(), "the controller has ended"
            with contextlib.suppress(DraError):
                if await condition():
                    return
            assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
            await asyncio.sleep(0.2)

    async def devices(self) -> dict[str, Device]:
        """Return what the slices of the newest generation have."""
        slices = (await self.client.list(RESOURCE_SLICES)).items
        newest = max((s.spec.pool.generation for s in slices), default=0)
        return {d.name: d for s in slices if s.spec.pool.generation == newest for d in s.spec.devices}

    async def inventory(self) -> DeviceInventory:
        return await self.client.get(DEVICE_INVENTORIES, f"n1.{DRIVER}")

    async def claim(self, name: str) -> ResourceClaim:
        return await self.client.get(RESOURCE_CLAIMS, name, "default")

    async def waiting(self, name: str, selector: str) -> str:
        """Make a claim and its pod; return the pod's UID."""
        claim = builders.claim(name, request("r", selectors=[{"cel": {"expression": selector}}]))
        await self.client.create(RESOURCE_CLAIMS, claim, "default")
        pod = await self.client.create(PODS, builders.pod(name, name), "default")
        return pod.metadata.uid

    async def allocated(self, name: str, selector: str) -> str:
        """Have the controller allocate a claim, and reserve it as kube-scheduler does; return the device."""
        uid = await self.waiting(name, selector)

        async def has_devices() -> bool:
            return (await self.claim(name)).status.allocation is not None

        await self.until(f"devices of {name}", has_devices)
        await self.status(name, {"reservedFor": [{"resource": "pods", "name": name, "uid": uid}]})
        return device_of(await self.claim(name))

    async def status(self, name: str, status: dict[str, Any]) -> None:
        await self.client.merge_patch(
            RESOURCE_CLAIMS, name, {"status": status}, "default", subresource="status"
        )


def device_of(claim: ResourceClaim) -> str:
    assert claim.status.allocation is not None, f"{claim.metadata.name} has lost its devices"
    return claim.status.allocation.devices.results[0].device


async def installed(client: KubeApi) -> None:
    """Install the kinds, a class, a node with three GPUs that can be cut, and the policy that cuts them."""
    for body in documents(*sorted((deploy_directory("manifests") / "crds").glob("*.yaml"))):
        await client._call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=body)
    for ours in (DEVICE_INVENTORIES, DEVICE_POLICIES):
        while ours.plural not in await client.served(ours.group, ours.version):
            await asyncio.sleep(0.2)
    await client.create(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    node = await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    # The API server gives it the taint of a node that is not ready.
    await client.merge_patch(NODES, "n1", {"spec": {"taints": None}})
    room = {"pods": "9"}
    await client.merge_patch(
        NODES, "n1", {"status": {"capacity": room, "allocatable": room}}, subresource="status"
    )
    gpus = [device(f"gpu-{i}", "20Gi", attributes={"type": "gpu"}, partitions=PARTS) for i in range(3)]
    inventory = builders.inventory("n1", *gpus, node_uid=node.metadata.uid)
    await client.create(DEVICE_INVENTORIES, inventory)
    status = {"status": inventory["status"]}
    await client.merge_patch(DEVICE_INVENTORIES, f"n1.{DRIVER}", status, subresource="status")
    policy = {"metadata": {"name": "cut"}, "spec": {"partitions": {"profiles": ["*"]}}}
    kind = {"apiVersion": DEVICE_POLICIES.api_version, "kind": DEVICE_POLICIES.kind}
    await client.create(DEVICE_POLICIES, kind | policy)


@contextlib.asynccontextmanager
async def controlling(server: RealApiServer) -> AsyncIterator[World]:
    """Run a controller that asks often what the API server keeps."""
    async with await server.client() as client:
        await installed(client)
        timings = Timings(drain=1.0, probe=1.0)
        config = ControllerConfig(drivers=(DRIVER_NAME,), leader_elect=False, timings=timings)
        controller = Controller(client, config, SystemClock(), answers_of=inline)
        task = asyncio.create_task(controller.run())
        try:
            yield World(client, task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def as_the_server_lets_it(world: World) -> ServerFeatures:
    """Wait until the pool is published for what the API server keeps; return that."""
    features: list[ServerFeatures] = []

    async def published() -> bool:
        found = await probe_features(world.client, DRIVER_NAME)
        inventory, devices = await world.inventory(), await world.devices()
        reasons = [c.reason for c in inventory.status.conditions if c.type == "Published"]
        tainted = {any(t.key == CONTROLLER_TAINT for t in d.taints) for d in devices.values()}
        features[:] = [found]
        return (
            inventory.status.publication.allocator == ("controller" if found.taints else "scheduler")
            and tainted == {found.taints}
            and (reasons == ["FeatureGateDisabled"]) is bool(found.missing_gates())
        )

    await world.until("the pool to be published as the API server lets it", published)
    return features[0]


async def on_an_old_version(world: World) -> None:
    """kube-scheduler allocates whole GPUs, the controller none."""
    await world.waiting("theirs", f"!({PART})")
    allocation = builders.allocation(builders.result("n1", "gpu-2", request="r"))
    await world.status("theirs", allocation | builders.reserved("theirs"))


async def on_a_new_version(world: World) -> None:
    """Partitions are there, and the controller allocates them, beside what kube-scheduler has given."""
    part = await world.allocated("part", PART)
    whole = await world.allocated("whole", f"!({PART})")
    assert not part.startswith((whole, "gpu-2"))
    assert whole != "gpu-2"


async def back_on_an_old_version(world: World, held: dict[str, str]) -> None:
    """Every claim has what it had, and a GPU of which a part is in use is given to nobody."""
    assert {name: device_of(await world.claim(name)) for name in held} == held
    whole = {f"gpu-{i}" for i in range(3)}
    (cut,) = (gpu for gpu in whole if held["part"].startswith(gpu))
    before = await world.client.list(RESOURCE_SLICES)
    assert {d.name for s in before.items for d in s.spec.devices} == whole - {cut}
    await asyncio.sleep(5)
    after = await world.client.list(RESOURCE_SLICES)
    versions = [[s.metadata.resource_version for s in found.items] for found in (before, after)]
    assert versions[0] == versions[1], "slices are written again and again"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_controller_follows_the_upgrade_and_the_rollback_of_its_server(tmp_path: Path) -> None:
    upgrade = versions()
    held: dict[str, str] = {}

    async def scenario(server: RealApiServer, stack: contextlib.AsyncExitStack) -> None:
        with server.running(*upgrade[0]):
            world = await stack.enter_async_context(controlling(server))
            assert not (await as_the_server_lets_it(world)).taints, "the oldest version is to be one without"
            await on_an_old_version(world)
        for version in upgrade[1:]:
            with server.running(*version):
                features = await as_the_server_lets_it(world)
                if version == upgrade[-1]:
                    assert features.missing_gates() == ()
                    await on_a_new_version(world)
                    held.update(
                        {name: device_of(await world.claim(name)) for name in ("theirs", "part", "whole")}
                    )
        for version in upgrade[-2::-1]:
            with server.running(*version):
                await as_the_server_lets_it(world)
                await back_on_an_old_version(world, held)

    async def main(server: RealApiServer) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await scenario(server, stack)

    with real_etcd(tmp_path) as server:
        asyncio.run(main(server))
