"""A pool is frozen from before devices change their form until the informer shows everything written."""

from __future__ import annotations

import msgspec
import pytest

from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    Counter,
    Device,
    DeviceCapacity,
    DeviceCounterConsumption,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.ownership import PROTECTION_TAINT
from dra_driver.publishing.freeze import Freeze, FreezeEffect, FreezeState, changes_forms
from dra_driver.resourceslice import SlicePlan, SliceWrite

Slices = tuple[ResourceSlice, ...]
Pairs = tuple[tuple[ResourceSlice, ResourceSlice], ...]


def written(name: str, version: str) -> ResourceSlice:
    pool = ResourcePool(name=PoolName("n1"), generation=1, resource_slice_count=1)
    return ResourceSlice(
        metadata=ObjectMeta(name=name, resource_version=version),
        spec=ResourceSliceSpec(driver=DriverName("gpu.example.com"), pool=pool, node_name="n1"),
    )


def writing() -> Freeze:
    freeze, effects = Freeze().begin()
    assert (freeze.state, effects) == (FreezeState.WRITING, (FreezeEffect.BLOCK,))
    return freeze


def test_a_pool_opens_when_the_informer_shows_the_last_of_its_slices() -> None:
    freeze = (
        writing().wrote(written("a", "9"), "8").wrote(written("b", "11"), "").wrote(written("c", "10"), "8")
    )
    freeze, effects = freeze.end()
    assert (freeze.blocked, effects) == (True, ())
    for version in ("8", "9", "10"):
        freeze, effects = freeze.saw(version)
        assert (freeze.blocked, effects) == (True, ()), version
    assert freeze.awaited == {"b": "11"}
    assert freeze.saw("11") == freeze.saw("100") == (Freeze(), (FreezeEffect.UNBLOCK,))


def test_a_slice_that_the_informer_shows_already_is_not_waited_for() -> None:
    """No event about it would come any more, and the pool would stay frozen."""
    for shown in ("9", "10"):
        assert writing().wrote(written("a", "9"), shown).end() == (Freeze(), (FreezeEffect.UNBLOCK,))


def test_a_slice_that_is_written_again_is_waited_for_as_it_was_written_last() -> None:
    freeze, _ = writing().wrote(written("a", "9"), "").wrote(written("a", "12"), "").end()
    assert freeze.saw("9")[0].blocked
    assert not freeze.saw("12")[0].blocked


def test_a_pool_stays_frozen_while_it_is_written_whatever_is_shown() -> None:
    freeze, effects = writing().wrote(written("a", "9"), "").saw("9")
    assert (freeze.blocked, freeze.awaited, effects) == (True, {}, ())
    assert writing().saw("100") == (writing(), ())


def test_what_is_written_to_an_open_pool_is_not_waited_for() -> None:
    assert Freeze().wrote(written("a", "9"), "") == Freeze()


def test_a_pool_that_is_written_again_before_it_is_seen_stays_frozen_until_the_end_of_that() -> None:
    freeze, _ = writing().wrote(written("a", "9"), "").end()
    freeze, effects = freeze.begin()
    assert (freeze.state, effects) == (FreezeState.WRITING, ())
    freeze, effects = freeze.saw("9")
    assert (freeze.blocked, effects) == (True, ())
    assert freeze.end() == (Freeze(), (FreezeEffect.UNBLOCK,))


# --- what freezes a pool ------------------------------------------------------------------------------------


def with_devices(name: str, *devices: Device) -> ResourceSlice:
    bare = written(name, "1")
    return msgspec.structs.replace(bare, spec=msgspec.structs.replace(bare.spec, devices=devices))


def plan(*, creates: Slices = (), updates: Pairs = (), deletes: Slices = ()) -> SlicePlan:
    return SlicePlan(
        creates=tuple(map(SliceWrite, creates)),
        updates=tuple(SliceWrite(new, old) for old, new in updates),
        deletes=deletes,
        generation=2,
        names=(),
    )


A, B = Device(name="a"), Device(name="b")
SHARED = Device(name="a", allow_multiple_allocations=True)
LARGER = Device(name="a", capacity={"memory": DeviceCapacity(value=Quantity.of(1))})
CUT = Device(
    name="a",
    consumes_counters=(
        DeviceCounterConsumption(counter_set="c", counters={"m": Counter(value=Quantity.of(1))}),
    ),
)


@pytest.mark.parametrize("now", [SHARED, LARGER, CUT])
def test_a_device_that_is_allocated_in_another_way_freezes_its_pool(now: Device) -> None:
    old = with_devices("s", A, B)
    assert changes_forms(plan(updates=((old, with_devices("s", now, B)),)), [old])
    assert changes_forms(plan(updates=((with_devices("s", now, B), old),)), [with_devices("s", now, B)])
    # In a new slice, before the old one goes.
    assert changes_forms(plan(creates=(with_devices("t", now),)), [old])


def test_a_device_that_is_withdrawn_freezes_its_pool() -> None:
    old, other = with_devices("s", A), with_devices("t", B)
    assert changes_forms(plan(updates=((old, with_devices("s")),)), [old, other])
    assert changes_forms(plan(deletes=(old,)), [old, other])


def test_devices_that_come_stay_or_move_freeze_nothing() -> None:
    old, other = with_devices("s", A), with_devices("t", B)
    assert not changes_forms(plan(), [old, other])
    assert not changes_forms(plan(creates=(with_devices("u", Device(name="c")),)), [old, other])
    assert not changes_forms(plan(updates=((old, with_devices("s", A, Device(name="c"))),)), [old, other])
    assert not changes_forms(plan(creates=(with_devices("u", A),), deletes=(old,)), [old, other])
    assert not changes_forms(plan(creates=(with_devices("s", A),)), [])
    tainted = Device(name="a", taints=(PROTECTION_TAINT,))
    assert not changes_forms(plan(updates=((old, with_devices("s", tainted)),)), [old, other])
