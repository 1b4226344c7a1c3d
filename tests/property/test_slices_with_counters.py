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


few = st.lists(
    st.builds(profile, st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 1)),
    max_size=3,
    unique_by=lambda p: p.name,
).map(tuple)


@st.composite
def small_pools(draw: st.DrawFn) -> DeviceInventory:
    """Pools in which the types of partitions are true now and then."""
    found = draw(pools()) if draw(st.booleans()) else None
    if found is not None:
        return found
    devices = tuple(
        InventoryDevice(name=f"gpu-{i}", partitions=partitions)
        for i, partitions in enumerate(draw(st.lists(few, min_size=1, max_size=2)))
    )
    spec = DeviceInventorySpec(node_name="n1", driver=DRIVER, devices=devices)
    return DeviceInventory(metadata=ObjectMeta(name=f"n1.{DRIVER}"), spec=spec)


def type_on(device: dict[str, Any], name: str) -> str | None:
    """The type of a device as kube-controller-manager looks it up."""
    attributes = device.get("attributes", {})
    attribute = attributes.get(name, attributes.get(name.removeprefix(f"{DRIVER}/"), {}))
    value: str | None = attribute.get("string")
    return value


def cost(device: dict[str, Any]) -> str:
    """What kube-controller-manager compares of devices of one type."""
    parts = (
        f"{c['counterSet']}/{name}={counter['value']}"
        for c in device["consumesCounters"]
        for name, counter in c["counters"].items()
    )
    return ",".join(sorted(parts))


@settings(max_examples=examples(100), deadline=None)
@given(found=small_pools(), known=st.booleans())
def test_types_of_partitions_are_those_that_can_be_counted(found: DeviceInventory, known: bool) -> None:
    pool = build_slices(found, [ALL], features=ServerFeatures(partition_types=known))
    specs = [codec.to_raw(RESOURCE_SLICES, w.slice)["spec"] for w in plan_slices([], pool, OWNER).creates]
    costs: dict[str, set[str]] = {}
    for spec in specs:
        consuming = [d for d in spec.get("devices", ()) if d.get("consumesCounters")]
        name = spec.get("partitionTypeAttribute")
        if name is None:
            assert not (consuming and costs)
            continue
        assert known
        assert consuming  # the API server refuses the slice otherwise
        for device in consuming:
            type_ = type_on(device, name)
            assert type_ is not None  # and where one has none
            costs.setdefault(type_, set()).add(cost(device))
    assert all(len(each) == 1 for each in costs.values())
    assert len(costs) <= 32
    # Nothing is lost by it, and where each type is at one place of the only GPU, it is there.
    plain = build_slices(found, [ALL], features=ServerFeatures(partition_types=False))
    assert [d.name for s in pool.slices for d in s.devices] == [
        d.name for s in plain.slices for d in s.devices
    ]
    cut = [d for d in found.spec.devices if d.partitions]
    if len(cut) == 1 and pool.partitioned and known:
        places = [len(p.placements) for p in cut[0].partitions]
        assert bool(costs) is (max(places) == 1 and len(places) < 32)
