"""Attributes with lists: what is published where the API server keeps them, and where it does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dra_driver.api.meta import DriverName, ObjectMeta
from dra_driver.api.own.inventory import DeviceInventory, DeviceInventorySpec, InventoryDevice
from dra_driver.api.own.policy import DevicePolicy, DevicePolicySpec
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import CelSelector, DeviceAttribute, DeviceCapacity, DeviceSelector
from dra_driver.ownership import PoolAllocator
from dra_driver.publishing import conditions
from dra_driver.resourceslice import DesiredPool, PublishOptions, ServerFeatures, build_slices
from dra_driver.resourceslice.devices import problem_of_attribute

ROOT = "resource.kubernetes.io/pcieRoot"
ROOTS = DeviceAttribute(strings=("pci0000:15", "pci0000:3a"))
FIRST = DeviceAttribute(string_value="pci0000:15")


def built(
    *devices: InventoryDevice,
    lists: bool = True,
    policies: tuple[DevicePolicy, ...] = (),
    allocator: PoolAllocator = PoolAllocator.SCHEDULER,
) -> DesiredPool:
    spec = DeviceInventorySpec(driver=DriverName("d.example.com"), node_name="n", devices=devices)
    inventory = DeviceInventory(metadata=ObjectMeta(name="n-d"), spec=spec)
    options = PublishOptions(allocator=allocator)
    return build_slices(inventory, policies, options=options, features=ServerFeatures(lists=lists))


def nic(name: str = "nic-0", more: Mapping[str, DeviceAttribute] | None = None) -> InventoryDevice:
    return InventoryDevice(name=name, attributes={ROOT: ROOTS, **(more or {})})


def test_lists_are_published_where_the_server_keeps_them() -> None:
    pool = built(nic())
    assert pool.slices[0].devices[0].attributes == {ROOT: ROOTS}
    assert not pool.missing


def test_elsewhere_the_first_value_is_published_and_the_gate_is_named() -> None:
    more = {
        "i": DeviceAttribute(ints=(3, 4)),
        "b": DeviceAttribute(bools=(True, False)),
        "v": DeviceAttribute(versions=("2.0.0", "1.0.0")),
        "s": DeviceAttribute(string_value="x"),
    }
    pool = built(nic(more=more), lists=False)
    assert pool.slices[0].devices[0].attributes == {
        ROOT: FIRST,
        "i": DeviceAttribute(int_value=3),
        "b": DeviceAttribute(bool_value=True),
        "v": DeviceAttribute(version_value="2.0.0"),
        "s": more["s"],
    }
    assert pool.missing == {
        "DRAListTypeAttributes": "lists in attributes; only the first value of each is published"
    }
    condition = conditions.published(pool, ServerFeatures(lists=False))
    assert condition.reason == "FeatureGateDisabled"
    assert "enable the feature gate DRAListTypeAttributes" in condition.message
    assert "(off: DRAListTypeAttributes)" in condition.message


def test_a_gate_that_nothing_needs_is_not_reported() -> None:
    pool = built(InventoryDevice(name="nic-0", attributes={ROOT: FIRST}), lists=False)
    features = ServerFeatures(lists=False)
    assert not features.missing_gates()
    assert conditions.published(pool, features).reason == "Published"


@pytest.mark.parametrize(("lists", "slices"), [(True, [64, 36]), (False, [100])])
def test_a_slice_with_lists_has_fewer_devices(lists: bool, slices: list[int]) -> None:
    pool = built(*(nic(f"nic-{i}") for i in range(100)), lists=lists)
    assert [len(s.devices) for s in pool.slices] == slices


def test_of_too_many_values_the_least_important_attributes_are_left_out() -> None:
    long = {f"list{i}": DeviceAttribute(ints=tuple(range(20))) for i in range(3)}
    capacity = {"memory": DeviceCapacity(value=Quantity.parse("1Gi"))}
    device = InventoryDevice(name="nic-0", attributes={ROOT: ROOTS, **long}, capacity=capacity)
    pool = built(device)
    assert set(pool.slices[0].devices[0].attributes) == {ROOT, "list0", "list1"}
    assert set(pool.slices[0].devices[0].capacity) == {"memory"}
    assert pool.problems == (
        "device nic-0: more than 32 attributes and capacities, or 48 values; left out: list2",
    )


def test_an_attribute_that_the_server_would_refuse_is_left_out() -> None:
    wrong = {
        "empty": DeviceAttribute(strings=()),
        "both": DeviceAttribute(strings=("a",), string_value="a"),
        "long": DeviceAttribute(strings=("a", "b" * 65)),
        "large": DeviceAttribute(ints=(1, 2**63)),
        "version": DeviceAttribute(versions=("1.0.0", "1.0")),
        "many": DeviceAttribute(ints=tuple(range(49))),
    }
    assert all(problem_of_attribute(name, attribute) for name, attribute in wrong.items())
    pool = built(nic(more=wrong))
    assert set(pool.slices[0].devices[0].attributes) == {ROOT}
    assert len(pool.problems) == len(wrong)


def test_policies_select_by_lists_and_add_them_whatever_the_server_keeps() -> None:
    expression = 'device.attributes["resource.kubernetes.io"].pcieRoot.includes("pci0000:3a")'
    spec = DevicePolicySpec(
        device_selectors=(DeviceSelector(cel=CelSelector(expression=expression)),),
        attributes={"rails": DeviceAttribute(ints=(1, 2))},
    )
    policy = DevicePolicy(metadata=ObjectMeta(name="p"), spec=spec)
    other = InventoryDevice(name="nic-1", attributes={ROOT: FIRST})
    for lists, rails in ((True, DeviceAttribute(ints=(1, 2))), (False, DeviceAttribute(int_value=1))):
        pool = built(nic(), other, lists=lists, policies=(policy,))
        first, second = sorted(pool.slices[0].devices, key=lambda d: d.name)
        assert first.attributes["rails"] == rails
        assert "rails" not in second.attributes
