"""Units of exclusion, slices with lent devices, and what kube-scheduler takes of them."""

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.own.inventory import (
    DeviceInventory,
    DeviceInventorySpec,
    InventoryDevice,
    PartitionPlacement,
    PartitionProfile,
)
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    Counter,
    Device,
    DeviceCapacity,
    DeviceClass,
    DeviceCounterConsumption,
    ResourceClaim,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.ownership import PROTECTION_TAINT, PoolAllocator, devices_in, owner_of, unit_of, units
from dra_driver.resourceslice import DesiredPool, PublishOptions, Usage, build_slices, plan_slices
from dra_driver.structured import AllocatedState, Snapshot, scheduler_takes

DRIVER = DriverName("gpu.example.com")
NODE = Node(metadata=ObjectMeta(name="n1", uid="u1"))  # type: ignore[arg-type]
OURS = PublishOptions(allocator=PoolAllocator.CONTROLLER)
CUT = codec.convert(
    DevicePolicy, {"metadata": {"name": "cut"}, "spec": {"devices": {"partitions": {"profiles": ["*"]}}}}
)
CLASS = codec.convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}})


def a_gpu(name: str, parts: int) -> InventoryDevice:
    memory = {"memory": DeviceCapacity(value=Quantity.parse("40Gi"))}
    part = {"memory": DeviceCapacity(value=Quantity.parse("5Gi"))}
    places = tuple(PartitionPlacement(start=i, size=1) for i in range(parts))
    profiles = (PartitionProfile(name="1g.5gb", placements=places, capacity=part),) if parts else ()
    return InventoryDevice(name=name, capacity=memory, partitions=profiles)


INVENTORIES = st.lists(st.integers(0, 4), min_size=1, max_size=5).map(
    lambda parts: DeviceInventory(
        metadata=ObjectMeta(name="n1." + DRIVER),
        spec=DeviceInventorySpec(
            node_name="n1", driver=DRIVER, devices=tuple(a_gpu(f"gpu-{i}", n) for i, n in enumerate(parts))
        ),
    )
)


def stored(desired: DesiredPool, existing: tuple[ResourceSlice, ...] = ()) -> tuple[ResourceSlice, ...]:
    plan = plan_slices(existing, desired, owner_of(NODE))
    now = {s.metadata.name: s for s in existing} | {
        w.slice.metadata.name: w.slice for w in (*plan.creates, *plan.updates)
    }
    return tuple(s for name, s in sorted(now.items()) if s not in plan.deletes)


def devices_of(slices: tuple[ResourceSlice, ...]) -> list[Device]:
    return [d for s in slices for d in s.spec.devices]


def policies(cut: bool) -> tuple[DevicePolicy, ...]:
    return (CUT,) if cut else ()


@given(INVENTORIES, st.booleans(), st.data())
def test_lent_devices_come_first_without_our_taint_and_nothing_else_changes(
    inventory: DeviceInventory, cut: bool, data: st.DataObject
) -> None:
    plain = stored(build_slices(inventory, policies(cut), options=OURS))
    names = [d.name for d in devices_of(plain)]
    lent = data.draw(st.sets(st.sampled_from(names)))
    with_loans = devices_of(stored(build_slices(inventory, policies(cut), options=OURS, loans=lent)))
    assert {d.name for d in with_loans[: len(lent)]} == lent
    assert [d.name for d in with_loans[len(lent) :]] == [n for n in names if n not in lent]
    before = {d.name: d for d in devices_of(plain)}
    for device in with_loans:
        old = before[device.name]
        assert (PROTECTION_TAINT in device.taints) == (device.name not in lent)
        assert device.taints == tuple(
            t for t in old.taints if device.name not in lent or t != PROTECTION_TAINT
        )
        assert (device.capacity, device.consumes_counters) == (old.capacity, old.consumes_counters)


@given(INVENTORIES, st.booleans())
def test_a_pool_of_kube_scheduler_knows_no_loans(inventory: DeviceInventory, cut: bool) -> None:
    names = [d.name for d in inventory.spec.devices]
    theirs = PublishOptions(allocator=PoolAllocator.SCHEDULER)
    plain = build_slices(inventory, policies(cut), options=theirs)
    assert build_slices(inventory, policies(cut), options=theirs, loans=names) == plain


@given(INVENTORIES, st.booleans(), st.data())
def test_a_lent_unit_keeps_its_form_and_is_found_again_in_any_form(
    inventory: DeviceInventory, cut: bool, data: st.DataObject
) -> None:
    before = stored(build_slices(inventory, policies(cut), options=OURS))
    unit = data.draw(st.sampled_from(sorted(set(units(before).values()))))
    lent = devices_in(before, [unit])
    published = {d.name: d for d in devices_of(before)}
    usage = Usage(published=published).with_lent(lent)
    assert build_slices(inventory, policies(cut), usage, options=OURS).slices == (
        build_slices(inventory, policies(cut), options=OURS).slices
    )
    # A policy that wants another form waits.
    after = stored(build_slices(inventory, policies(not cut), usage, options=OURS), before)
    assert {d.name for d in devices_of(after)} >= lent & published.keys()
    # Whatever happens to the rest, and to the unit without that: the GPU is found by the unit's name.
    anyhow = stored(build_slices(inventory, policies(not cut), options=OURS), before)
    assert unit in devices_in(anyhow, [unit])


@given(INVENTORIES, st.data())
def test_kube_scheduler_takes_the_device_that_is_lent_also_of_a_cut_gpu(
    inventory: DeviceInventory, data: st.DataObject
) -> None:
    plain = build_slices(inventory, (CUT,), options=OURS)
    device = data.draw(st.sampled_from([d.name for d in devices_of(stored(plain))]))
    slices = stored(build_slices(inventory, (CUT,), options=OURS, loans=[device]))
    claim = codec.convert(
        ResourceClaim,
        {
            "metadata": {"name": "c", "namespace": "default", "uid": "c"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        },
    )

    def taken(of: tuple[ResourceSlice, ...]) -> tuple[tuple[str, ...], ...] | str:
        snapshot = Snapshot.build(slices=of, classes=[CLASS], nodes=[NODE], allocated=AllocatedState())
        found = scheduler_takes(snapshot, [claim], "n1")
        return found if isinstance(found, str) else tuple(tuple(d.device for d in c) for c in found)

    assert taken(slices) == ((device,),)
    assert taken(stored(plain)) == "no devices fit"


# --- units --------------------------------------------------------------------------------------------------


def one_slice(consumed: list[list[str]]) -> tuple[ResourceSlice, ...]:
    devices = tuple(
        Device(
            name=f"d{i}",
            consumes_counters=tuple(
                DeviceCounterConsumption(counter_set=s, counters={"c": Counter(value=Quantity.of(1))})
                for s in sets
            ),
        )
        for i, sets in enumerate(consumed)
    )
    pool = ResourcePool(name=PoolName("n1"), generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(driver=DRIVER, pool=pool, node_name="n1", devices=devices)
    return (ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec),)


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=3, unique=True), max_size=8))
def test_devices_are_of_one_unit_where_counters_join_them(consumed: list[list[str]]) -> None:
    slices = one_slice(consumed)
    of_device = units(slices)
    # Two devices with a set in common, and whatever these join.
    joined = {f"d{i}": {f"d{i}"} for i in range(len(consumed))}
    for _ in consumed:
        for i, mine in enumerate(consumed):
            for j, others in enumerate(consumed):
                if set(mine) & set(others):
                    both = joined[f"d{i}"] | joined[f"d{j}"]
                    joined[f"d{i}"] = joined[f"d{j}"] = both
    for one, unit in of_device.items():
        assert {other for other, u in of_device.items() if u == unit} == joined[one]
        assert unit_of(slices, one) == unit
        assert devices_in(slices, [unit]) == joined[one] | {unit}
