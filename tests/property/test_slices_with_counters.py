"""Slices for a server that takes counters beside their devices only: it takes all, whatever a node says."""

from __future__ import annotations

from typing import Any

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, ObjectMeta, Uid
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
from dra_driver.ownership import PoolAllocator, owner_of
from dra_driver.resourceslice import PublishOptions, ServerFeatures, Usage, build_slices, plan_slices
from dra_driver.sim.apiserver.objects.releases import COUNTERS_TOGETHER, served
from dra_driver.sim.apiserver.objects.status import Causes
from dra_driver.sim.apiserver.validation.meta import Surroundings
from dra_driver.sim.apiserver.validation.slices import check_slice

DRIVER = DriverName("gpu.example.com")
OWNER = owner_of(Node(metadata=ObjectMeta(name="n1", uid=Uid("u1"))))
ALL = DevicePolicy(
    metadata=ObjectMeta(name="all"), spec=DevicePolicySpec(partitions=PartitionPolicy(profiles=("*",)))
)
TOGETHER = ServerFeatures(together=True)
ENGINES = ("copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines", "multiprocessors")


def profile(number: int, placements: int, size: int, engines: int) -> PartitionProfile:
    amounts = {"memory": "10Gi", **dict.fromkeys(ENGINES[:engines], "1")}
    return PartitionProfile(
        name=f"{size}g.{number}gb",
        placements=tuple(PartitionPlacement(start=s, size=size) for s in range(min(placements, 17 - size))),
        capacity={k: DeviceCapacity(value=Quantity.parse(v)) for k, v in amounts.items()},
    )


profiles = st.builds(
    profile, st.integers(1, 99), st.integers(1, 16), st.integers(1, 16), st.integers(0, len(ENGINES))
)
cuts = st.lists(profiles, max_size=9, unique_by=lambda p: p.name).map(tuple)


@st.composite
def pools(draw: st.DrawFn) -> DeviceInventory:
    devices = [
        InventoryDevice(
            name=f"gpu-{i}",
            capacity={"memory": DeviceCapacity(value=Quantity.parse(f"{draw(st.integers(1, 99))}Gi"))},
            partitions=partitions,
        )
        for i, partitions in enumerate(draw(st.lists(cuts, max_size=12)))
    ]
    spec = DeviceInventorySpec(node_name="n1", driver=DRIVER, devices=tuple(devices))
    return DeviceInventory(metadata=ObjectMeta(name=f"n1.{DRIVER}"), spec=spec)


def refusals(raw: dict[str, Any]) -> list[str]:
    causes = Causes()
    check_slice(raw, None, causes, Surroundings({}, [], served("1.36", [COUNTERS_TOGETHER])))
    return [str(cause) for cause in causes]


@settings(max_examples=examples(60), deadline=None)
@given(found=pools(), allocator=st.sampled_from(PoolAllocator), taints=st.booleans())
def test_the_server_takes_every_slice_and_no_device_is_lost(
    found: DeviceInventory, allocator: PoolAllocator, taints: bool
) -> None:
    features = ServerFeatures(together=True, taints=taints)
    pool = build_slices(found, [ALL], options=PublishOptions(allocator=allocator), features=features)
    for write in plan_slices([], pool, OWNER).creates:
        assert refusals(codec.to_raw(RESOURCE_SLICES, write.slice)) == []
    published = [d.name for s in pool.slices for d in s.devices]
    assert len(published) == len(set(published))
    assert {d.name for d in found.spec.devices} <= set(published)
    apart = build_slices(found, [ALL], options=PublishOptions(allocator=allocator))
    everywhere = {d.name for s in apart.slices for d in s.devices}
    # What is missing are all partitions of devices of which the reason is told.
    lost = {name.partition("-mig-")[0] for name in everywhere - set(published)}
    assert all(any(f"device {gpu}: no partitions" in text for text in pool.problems) for gpu in lost)


@settings(max_examples=examples(30), deadline=None)
@given(found=pools(), counters=st.booleans(), taints=st.booleans(), data=st.data())
def test_a_device_with_a_partition_in_use_is_free_for_nobody_else(
    found: DeviceInventory, counters: bool, taints: bool, data: st.DataObject
) -> None:
    everywhere = [d.name for s in build_slices(found, [ALL]).slices for d in s.devices]
    parts = [name for name in everywhere if "-mig-" in name]
    if not parts:
        return
    held = data.draw(st.sampled_from(parts))
    gpu = held.partition("-mig-")[0]
    features = ServerFeatures(together=True, counters=counters, taints=taints)
    pool = build_slices(found, [ALL], Usage(whole=frozenset({held})), features=features)
    published = {d.name: d for s in pool.slices for d in s.devices}
    if held in published:
        # The counters exclude the whole from what is free.
        assert published[gpu].consumes_counters
    else:
        assert gpu not in published
        assert any(f"device {gpu}: left out, parts of it are in use" in text for text in pool.problems)
