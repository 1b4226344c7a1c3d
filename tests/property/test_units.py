"""Units: what is exclusive together because counters join it."""

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    Counter,
    Device,
    DeviceCounterConsumption,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.ownership import devices_in, unit_of, units

DRIVER = DriverName("gpu.example.com")


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
