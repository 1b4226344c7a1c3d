"""The taint that keeps kube-scheduler off devices, and what it and other taints keep off."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import DRIVER, device, resource_slice

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import DeviceTaint, DeviceToleration, ResourceSlice
from dra_driver.ownership import (
    OPEN_POOL,
    PROTECTION_TAINT,
    PoolAllocator,
    PoolID,
    allocating_pools,
    bare_devices,
    blocks,
    is_controller_taint,
    protected_pools,
    tolerates,
)

TAINT: dict[str, str] = codec.plain(PROTECTION_TAINT)


def tainted(name: str, **changes: str) -> dict[str, Any]:
    return device(name, taints=[{**TAINT, **changes}])


def slice_(pool: str, *devices: dict[str, Any], driver: str = DRIVER, **more: Any) -> ResourceSlice:
    return codec.convert(ResourceSlice, resource_slice(pool, *devices, driver=driver, **more))


def pool(name: str, driver: str = DRIVER) -> PoolID:
    return PoolID(DriverName(driver), PoolName(name))


@pytest.mark.parametrize(
    ("effect", "expected"), [("NoSchedule", True), ("NoExecute", True), ("None", False), ("Later", False)]
)
def test_which_effects_keep_new_allocations_away(effect: str, expected: bool) -> None:
    assert blocks(DeviceTaint(key="k", value="", effect=effect)) is expected


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"key": "k", "operator": "Equal", "value": "v"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "other"}, False),
        ({"key": "k", "operator": "Equal"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Like", "value": "v"}, False),
    ],
)
def test_what_a_toleration_covers(toleration: dict[str, str], covers: bool) -> None:
    taint = DeviceTaint(key="k", value="v", effect="NoSchedule")
    one = codec.convert(DeviceToleration, toleration)
    assert tolerates([one], taint) is covers
    never = codec.convert(DeviceToleration, {"key": "never", "operator": "Exists"})
    assert tolerates([never, one], taint) is covers
    assert not tolerates([], taint)


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, True),
        ({"key": "other.dev/x"}, False),
        ({"value": "looks"}, False),
        ({"effect": "NoExecute"}, False),
        ({"timeAdded": "2026-01-01T00:00:00Z"}, True),
    ],
)
def test_only_the_whole_taint_keeps_kube_scheduler_off(changes: dict[str, str], ours: bool) -> None:
    found = slice_("n1", tainted("gpu-0", **changes))
    assert is_controller_taint(found.spec.devices[0].taints[0]) is ours
    assert bare_devices(found) == (set() if ours else {"gpu-0"})
    assert protected_pools([found]) == ({pool("n1")} if ours else set())


def test_other_taints_beside_it_change_nothing() -> None:
    other = {"key": "k", "effect": "NoSchedule"}
    found = slice_("n1", device("gpu-0", taints=[other, TAINT]), device("gpu-1", taints=[other]))
    assert bare_devices(found) == {"gpu-1"}


def test_a_pool_is_protected_if_every_device_is() -> None:
    whole = slice_("n1", tainted("a"), tainted("b"), count=2)
    part = slice_("n1", tainted("c"), device("d"), count=2)
    assert protected_pools([whole]) == {pool("n1")}
    for order in ([whole, part], [part, whole]):
        assert protected_pools(order) == set()
        assert protected_pools([*order, slice_("n2", tainted("a"))]) == {pool("n2")}
    assert protected_pools([slice_("n1")]) == set()
    assert protected_pools([slice_("n1", count=2), whole]) == {pool("n1")}


def test_a_pool_is_the_controllers_if_any_device_has_the_taint() -> None:
    ours, bare = slice_("n1", tainted("a"), count=2), slice_("n1", device("b"), count=2)
    left = slice_("n2", device("a"))
    foreign = slice_("n1", device("a"), driver="other.example.com")
    for order in ([ours, bare, left, foreign], [foreign, left, bare, ours]):
        found = allocating_pools(order)
        assert found == {pool("n1"): PoolAllocator.CONTROLLER, pool("n2"): PoolAllocator.SCHEDULER}
        assert list(found) == sorted(found)
    assert allocating_pools([foreign, left]) == {}


def test_an_open_pool_is_the_controllers_by_the_label_of_its_slices() -> None:
    opened = slice_("n1", device("gpu-0"))
    opened = msgspec.structs.replace(
        opened, metadata=msgspec.structs.replace(opened.metadata, labels={"a": "b", **OPEN_POOL})
    )
    theirs = slice_("n2", device("gpu-0"))
    found = allocating_pools([opened, theirs])
    assert found == {pool("n1"): PoolAllocator.CONTROLLER, pool("n2"): PoolAllocator.SCHEDULER}
    # kube-scheduler can allocate from it as far as taints go.
    assert bare_devices(opened) == {"gpu-0"}
    assert not protected_pools([opened])
