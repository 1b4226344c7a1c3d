"""Slices of a pool: what is built meets the API's limits, and no reader ever sees a mix of two states."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import earlier_slices
import msgspec
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.api import codec, names
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, ObjectMeta, Uid
from dra_driver.api.own.inventory import (
    DeviceHealth,
    DeviceInventory,
    DeviceInventorySpec,
    InventoryDevice,
)
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    ResourceSlice,
)
from dra_driver.ownership import PoolAllocator, newest_generation, owner_of, slice_name
from dra_driver.resourceslice import (
    HEALTH_TAINT,
    DesiredPool,
    PublishOptions,
    ServerFeatures,
    build_slices,
    plan_slices,
)
from dra_driver.resourceslice.types import SliceContent

T = TypeVar("T")

DRIVER = DriverName("gpu.example.com")
OWNER = owner_of(Node(metadata=ObjectMeta(name="n1", uid=Uid("u1"))))


def device(name: str, memory: str | None = "40Gi", **kwargs: Any) -> InventoryDevice:
    capacity = {"memory": DeviceCapacity(value=Quantity.parse(memory))} if memory else {}
    return InventoryDevice(name=name, capacity=capacity, **kwargs)


def inventory(*devices: InventoryDevice, truncated: int = 0) -> DeviceInventory:
    spec = DeviceInventorySpec(node_name="n1", driver=DRIVER, devices=devices, truncated=truncated)
    return DeviceInventory(metadata=ObjectMeta(name="n1." + DRIVER), spec=spec)


def store(cluster: dict[str, ResourceSlice], written: ResourceSlice) -> None:
    """As the API server does: a taint without a time gets one."""
    devices = tuple(
        msgspec.structs.replace(
            d,
            taints=tuple(
                t if t.time_added else msgspec.structs.replace(t, time_added="2026-01-01T00:00:00Z")
                for t in d.taints
            ),
        )
        for d in written.spec.devices
    )
    spec = msgspec.structs.replace(written.spec, devices=devices)
    cluster[written.metadata.name] = msgspec.structs.replace(written, spec=spec)


def visible(cluster: dict[str, ResourceSlice]) -> list[str] | None:
    """What a reader takes the pool for: names of devices, or None for an incomplete pool."""
    newest = max((s.spec.pool.generation for s in cluster.values()), default=0)
    current = [s for s in cluster.values() if s.spec.pool.generation == newest]
    if not current or len(current) != current[0].spec.pool.resource_slice_count:
        return None
    return sorted(d.name for s in current for d in s.spec.devices)


def steps(desired: DesiredPool, cluster: dict[str, ResourceSlice]) -> Iterator[None]:
    """Applies a plan one write at a time."""
    todo = plan_slices(cluster.values(), desired, OWNER)
    for write in (*todo.creates, *todo.updates):
        store(cluster, write.slice)
        yield
    for slice_ in todo.deletes:
        del cluster[slice_.metadata.name]
        yield


pools = st.lists(st.integers(0, 400), max_size=300, unique=True).map(
    lambda numbers: inventory(*(device(f"gpu-{n}", f"{n % 7}Gi") for n in numbers))
)


@settings(max_examples=examples(60), deadline=None)
@given(before=pools, after=pools, stop=st.integers(0, 20))
def test_a_reader_sees_the_old_pool_or_the_new_one_or_none_even_when_writing_stops_anywhere(
    before: DeviceInventory, after: DeviceInventory, stop: int
) -> None:
    cluster: dict[str, ResourceSlice] = {}
    old, new = build_slices(before), build_slices(after)
    for _ in steps(old, cluster):
        pass
    allowed = [sorted(d.name for s in p.slices for d in s.devices) for p in (old, new)]
    assert visible(cluster) == allowed[0]
    for i, _ in enumerate(steps(new, cluster)):
        assert visible(cluster) in (None, *allowed)
        if i == stop:
            break
    # Whoever comes next finishes it, and then nothing is left to write.
    for _ in steps(new, cluster):
        assert visible(cluster) in (None, *allowed)
    assert visible(cluster) == allowed[1]
    assert plan_slices(cluster.values(), new, OWNER).empty


def cut(parts: Sequence[int]) -> DesiredPool:
    """A pool of GPUs with so many partitions each, which share a counter set."""
    one = {"memory": Counter(value=Quantity.of(1))}
    devices = [
        Device(
            name=f"gpu-{gpu}-{part}",
            consumes_counters=(DeviceCounterConsumption(counter_set=f"gpu-{gpu}", counters=one),),
        )
        for gpu, number in enumerate(parts)
        for part in range(number)
    ]
    sets = [CounterSet(name=f"gpu-{gpu}", counters=one) for gpu in range(len(parts))]
    contents = [SliceContent(devices=tuple(c)) for c in batched(devices, 64)]
    contents += [SliceContent(shared_counters=tuple(c)) for c in batched(sets, 8)]
    pool = build_slices(inventory())
    return replace(pool, slices=tuple(contents), partitioned=True)


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


parts = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(states=st.lists(parts, min_size=1, max_size=4), withheld=st.booleans(), stop=st.integers(0, 9))
def test_kube_scheduler_sees_all_counters_of_a_pool_or_none(
    states: list[list[int]], withheld: bool, stop: int
) -> None:
    """Also where an earlier version has stored them in an annotation."""
    cluster: dict[str, ResourceSlice] = {}
    if withheld:
        for _ in steps(cut(states[0]), cluster):
            pass
        raws = map(earlier_slices.withheld, cluster.values())
        cluster = {s.metadata.name: s for s in (codec.convert(ResourceSlice, raw) for raw in raws)}
    for number, gpus in enumerate(states):
        for i, _ in enumerate(steps(cut(gpus), cluster)):
            if visible(cluster) is not None:
                newest = [earlier_slices.as_stored(s)["spec"] for s in newest_generation(cluster.values())]
                devices = [d for spec in newest for d in spec.get("devices", ())]
                consumed = {c["counterSet"] for d in devices for c in d.get("consumesCounters", ())}
                there = {c["name"] for spec in newest for c in spec.get("sharedCounters", ())}
                assert consumed == there
                assert len({"consumesCounters" in d for d in devices}) <= 1
            if i == stop and number < len(states) - 1:
                break
    for _ in steps(cut(states[-1]), cluster):
        pass
    assert not any(s.withholds_counters for s in cluster.values())
    assert plan_slices(cluster.values(), cut(states[-1]), OWNER).empty


@settings(max_examples=examples(60), deadline=None)
@given(found=pools, allocator=st.sampled_from(PoolAllocator), taints=st.booleans())
def test_slices_keep_the_limits_and_hold_every_device_once(
    found: DeviceInventory, allocator: PoolAllocator, taints: bool
) -> None:
    pool = build_slices(
        found, options=PublishOptions(allocator=allocator), features=ServerFeatures(taints=taints)
    )
    everything = [d for s in pool.slices for d in s.devices]
    assert sorted(d.name for d in everything) == sorted(d.name for d in found.spec.devices)
    assert len(pool.slices) >= 1
    protected = taints and allocator is PoolAllocator.CONTROLLER
    for slice_ in pool.slices:
        assert len(slice_.devices) <= (64 if protected else 128)
    for d in everything:
        assert [t.key for t in d.taints] == ([names.CONTROLLER_TAINT] if protected else [])
    sizes = [d.capacity["memory"].value for d in everything]
    assert sizes == sorted(sizes)


@given(pools, st.randoms(use_true_random=False))
@settings(max_examples=examples(30), deadline=None)
def test_the_order_of_the_inventory_does_not_matter(found: DeviceInventory, random: Random) -> None:
    devices = list(found.spec.devices)
    random.shuffle(devices)
    assert build_slices(inventory(*devices)) == build_slices(found)


def test_a_pool_without_devices_is_one_empty_slice() -> None:
    pool = build_slices(inventory())
    assert [s.devices for s in pool.slices] == [()]
    todo = plan_slices([], pool, OWNER)
    assert len(todo.creates) == 1
    assert todo.creates[0].slice.spec.pool.resource_slice_count == 1


def test_without_taints_there_is_no_controller_mode_and_sick_devices_are_left_out() -> None:
    sick = device("gpu-1", health=(DeviceHealth(reason="XidError", severity="failed"),))
    pool = build_slices(inventory(device("gpu-0"), sick), features=ServerFeatures(taints=False))
    assert pool.allocator is PoolAllocator.SCHEDULER
    assert [d.name for s in pool.slices for d in s.devices] == ["gpu-0"]
    assert "XidError" in pool.problems[0]


def test_sick_devices_are_tainted_and_come_last() -> None:
    sick = device("gpu-0", "1Gi", health=(DeviceHealth(reason="XidError", severity="failed"),))
    pool = build_slices(inventory(sick, device("gpu-1")))
    last = pool.slices[0].devices[-1]
    assert last.name == "gpu-0"
    assert [(t.key, t.effect) for t in last.taints] == [
        (names.CONTROLLER_TAINT, "NoSchedule"),
        (HEALTH_TAINT, "NoExecute"),
    ]


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"x": DeviceAttribute(string_value="a" * 65)}, "longer than 64"),
        ({"x": DeviceAttribute()}, "exactly one"),
        ({"x": DeviceAttribute(int_value=1, bool_value=True)}, "exactly one"),
        ({"x": DeviceAttribute(version_value="one")}, "x"),
        ({"x y": DeviceAttribute(int_value=1)}, "C identifier"),
        ({"a_b/x": DeviceAttribute(int_value=1)}, "domain"),
        ({"a/b/c": DeviceAttribute(int_value=1)}, "domain"),
        ({"x": DeviceAttribute(strings=())}, "list"),
    ],
)
def test_what_the_server_would_refuse_is_left_out_with_the_reason(
    attributes: dict[str, DeviceAttribute], problem: str
) -> None:
    pool = build_slices(inventory(device("gpu-0", attributes=attributes)))
    assert pool.slices[0].devices[0].attributes == {}
    assert problem in pool.problems[0]
    assert "gpu-0" in pool.problems[0]


@pytest.mark.parametrize("name", ["", "GPU", "a/b", "-a", "a" * 64, "a.b"])
def test_a_device_name_that_is_no_label_is_left_out(name: str) -> None:
    pool = build_slices(inventory(device(name), device("ok")))
    assert pool.devices == 1
    assert pool.problems


def test_a_device_has_at_most_32_facts_and_the_important_ones_stay() -> None:
    attributes = {f"a{i:02}": DeviceAttribute(int_value=i) for i in range(40)}
    attributes["uuid"] = DeviceAttribute(string_value="u")
    attributes["type"] = DeviceAttribute(string_value="gpu")
    published = build_slices(inventory(device("gpu-0", attributes=attributes))).slices[0].devices[0]
    assert len(published.attributes) + len(published.capacity) == 32
    assert {"uuid", "type", "a00"} <= set(published.attributes)
    assert "memory" in published.capacity
    assert "a39" not in published.attributes


def test_unchanged_slices_are_not_written_and_one_changed_slice_keeps_the_generation() -> None:
    many = [device(f"gpu-{i:03}") for i in range(100)]
    cluster: dict[str, ResourceSlice] = {}
    for _ in steps(build_slices(inventory(*many)), cluster):
        pass
    assert plan_slices(cluster.values(), build_slices(inventory(*many)), OWNER).empty
    many[99] = device("gpu-099", attributes={"x": DeviceAttribute(int_value=1)})
    todo = plan_slices(cluster.values(), build_slices(inventory(*many)), OWNER)
    assert (len(todo.creates), len(todo.updates), len(todo.deletes)) == (0, 1, 0)
    assert todo.generation == 1


def test_taints_keep_their_time() -> None:
    cluster: dict[str, ResourceSlice] = {}
    for _ in steps(build_slices(inventory(device("gpu-0"))), cluster):
        pass
    sick = device("gpu-0", health=(DeviceHealth(reason="Hot", severity="degraded"),))
    update = plan_slices(cluster.values(), build_slices(inventory(sick)), OWNER).updates[0].slice
    times = {t.key: t.time_added for t in update.spec.devices[0].taints}
    assert times == {names.CONTROLLER_TAINT: "2026-01-01T00:00:00Z", HEALTH_TAINT: None}


def test_slices_of_a_node_that_was_replaced_get_the_new_owner() -> None:
    cluster: dict[str, ResourceSlice] = {}
    for _ in steps(build_slices(inventory(device("gpu-0"))), cluster):
        pass
    other = owner_of(Node(metadata=ObjectMeta(name="n1", uid=Uid("u2"))))
    todo = plan_slices(cluster.values(), build_slices(inventory(device("gpu-0"))), other)
    assert [o.uid for o in todo.updates[0].slice.metadata.owner_references or ()] == ["u2"]


def test_generation_never_falls_behind_what_was_noted() -> None:
    todo = plan_slices([], build_slices(inventory(device("gpu-0"))), OWNER, least_generation=9)
    assert todo.generation == 9


def test_slice_names_are_unique_sorted_and_short_enough() -> None:
    assert slice_name("a-b", "c", 0) != slice_name("a", "b-c", 0)
    assert slice_name("n", "d", 2) < slice_name("n", "d", 10)
    assert len(slice_name("n" * 253, "d" * 63, 0)) <= 253
