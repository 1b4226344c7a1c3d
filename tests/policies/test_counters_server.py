"""Partitions on API servers that keep counters in one form or the other, or drop them: each takes all slices.

The embedded one, and the real one of ``DRA_K8S_BIN``. Kubernetes 1.34 takes counters in the slice of the
devices that consume them only, later versions only in slices of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from real_apiserver import RealApiServer, gate_flag, real_apiserver

from dra_driver.api import codec
from dra_driver.api.core import NODES, Node
from dra_driver.api.meta import DriverName, ObjectMeta
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import (
    DeviceInventory,
    DeviceInventorySpec,
    InventoryDevice,
    PartitionPlacement,
    PartitionProfile,
)
from dra_driver.api.own.policy import DevicePolicy, DevicePolicySpec, PartitionPolicy
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import RESOURCE_SLICES, DeviceCapacity
from dra_driver.kube import KubeApi
from dra_driver.kube.features import probe_features
from dra_driver.ownership import PoolAllocator, owner_of
from dra_driver.resourceslice import PublishOptions, altered, build_slices, plan_slices
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.objects.releases import COUNTERS_TOGETHER

GATE = "DRAPartitionableDevices"
NODE, DRIVER = "n1", DriverName(DEFAULT_DRIVER_NAME)
POLICY = DevicePolicy(
    metadata=ObjectMeta(name="all"), spec=DevicePolicySpec(partitions=PartitionPolicy(profiles=("*",)))
)
Server = tuple[RealApiServer | None, tuple[str, ...]]


@pytest.fixture(
    scope="module",
    params=["embedded", "embedded, together", "real, gate on", "real, gate off"],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server, or None and the gates of an embedded one."""
    if request.param.startswith("embedded"):
        yield None, (COUNTERS_TOGETHER,) * ("together" in request.param)
        return
    gate_flag(GATE)  # skips where the server has none
    flag = f"--feature-gates={GATE}={'true' if request.param.endswith('on') else 'false'}"
    with real_apiserver(tmp_path_factory.mktemp("real"), flag) as started:
        yield started, ()


@contextlib.asynccontextmanager
async def connected(server: Server, folder: Path) -> AsyncIterator[KubeApi]:
    started, gates = server
    if started is not None:
        async with await started.client() as client:
            yield client
        return
    async with ApiServer(gates=gates) as embedded:
        embedded.write_kubeconfig(folder / "kubeconfig")
        async with await KubeApi.connect(folder / "kubeconfig") as client:
            yield client


def profile(name: str, starts: range, size: int) -> PartitionProfile:
    engines = ("copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines", "multiprocessors")
    amounts = {"memory": "10Gi", **dict.fromkeys(engines, "1")}
    return PartitionProfile(
        name=name,
        placements=tuple(PartitionPlacement(start=s, size=size) for s in starts),
        capacity={k: DeviceCapacity(value=Quantity.parse(v)) for k, v in amounts.items()},
    )


def inventory() -> DeviceInventory:
    """Eight GPUs with 24 partitions each, as an H100 has, and one whose 80 do not fit into a slice."""
    usual = (
        profile("1g.10gb", range(7), 1),
        profile("1g.10gb.me", range(7), 1),
        profile("1g.20gb", range(0, 8, 2), 2),
        profile("2g.20gb", range(0, 6, 2), 2),
        profile("3g.40gb", range(0, 8, 4), 4),
        profile("7g.80gb", range(1), 8),
    )
    many = tuple(profile(f"1g.{i}gb", range(16), 1) for i in range(1, 6))
    devices = [
        InventoryDevice(
            name=f"gpu-{i}",
            capacity={"memory": DeviceCapacity(value=Quantity.parse("80Gi"))},
            partitions=usual if i < 8 else many,
        )
        for i in range(9)
    ]
    spec = DeviceInventorySpec(node_name=NODE, driver=DRIVER, devices=tuple(devices))
    return DeviceInventory(metadata=ObjectMeta(name=f"{NODE}.{DRIVER}"), spec=spec)


@pytest.mark.parametrize("allocator", PoolAllocator, ids=lambda a: a.value)
def test_the_server_stores_every_slice_as_it_is_sent(
    server: Server, tmp_path: Path, allocator: PoolAllocator
) -> None:
    async def main() -> None:
        async with connected(server, tmp_path) as client:
            features = await probe_features(client, DRIVER)
            pool = build_slices(
                inventory(), [POLICY], options=PublishOptions(allocator=allocator), features=features
            )
            node: Node = await client.create(NODES, {"metadata": {"name": f"{NODE}-{allocator.value}"}})
            for write in plan_slices([], pool, owner_of(node)).creates:
                body = codec.to_raw(RESOURCE_SLICES, write.slice)
                body["metadata"]["name"] += allocator.value
                stored = await client.create(RESOURCE_SLICES, body)
                assert not altered(write.slice.spec, stored.spec)
            devices = {d.name for s in pool.slices for d in s.devices}
            print(f"{features}: {len(devices)} devices in {len(pool.slices)} slices")
            assert {f"gpu-{i}" for i in range(9)} <= devices
            cut = {name.partition("-mig-")[0] for name in devices if "-mig-" in name}
            assert ("gpu-0" in cut) is features.counters
            assert ("gpu-8" in cut) is (features.counters and not features.together)

    asyncio.run(main())
