"""The attribute that names the types of partitions: where it is true, and the server can count by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from test_device_policies import DRIVER, SCHEDULER, devices, gpu, inventory, policy, profile

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta, Uid
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.own.policy import PartitionPolicy
from dra_driver.api.resource import RESOURCE_SLICES, Device, DeviceAttribute, ResourceSlice
from dra_driver.kube.features import probe_features
from dra_driver.ownership import owner_of
from dra_driver.resourceslice import DesiredPool, ServerFeatures, build_slices, plan_slices
from dra_driver.resourceslice.devices import MAX_FACTS
from dra_driver.resourceslice.partition_types import MAX_TYPES, PARTITION_TYPE, same_consumption, with_types

CUT = policy(partitions=PartitionPolicy(profiles=("*",)))
NAME = f"{DRIVER}/{PARTITION_TYPE}"
OWNER = owner_of(Node(metadata=ObjectMeta(name="n1", uid=Uid("u1"))))
# Each at one place: devices of one type consume the same.
SINGLE = (profile("3g.40gb", (0,), 4, "40Gi"), profile("7g.80gb", (0,), 8, "80Gi"))


def pool(*found: InventoryDevice, types: bool = True, **more: Any) -> DesiredPool:
    features = ServerFeatures(partition_types=types)
    return build_slices(inventory(*found), [CUT], options=SCHEDULER, features=features, **more)


def types_of(made: DesiredPool) -> dict[str, str | None]:
    found: Mapping[str, Device] = devices(made)
    none = DeviceAttribute()
    return {n: d.attributes.get(PARTITION_TYPE, none).string_value for n, d in found.items()}


def declared(made: DesiredPool) -> list[str | None]:
    return [s.partition_type_attribute for s in made.slices]


def test_devices_have_their_type_and_slices_say_which_attribute_it_is() -> None:
    made = pool(gpu(partitions=SINGLE))
    assert types_of(made) == {
        "gpu-0": "whole",
        "gpu-0-mig-3g-40gb-0": "3g.40gb",
        "gpu-0-mig-7g-80gb-0": "7g.80gb",
    }
    # The last one has the counters.
    assert declared(made) == [NAME, None]


def test_a_slice_in_which_nothing_consumes_counters_says_nothing() -> None:
    """The API server would refuse it."""
    small = [gpu(f"small-{i:03}", "1Gi") for i in range(64)]
    made = pool(*small, gpu(partitions=SINGLE))
    assert declared(made) == [None, NAME, None]
    assert {n for n, t in types_of(made).items() if t} == {n for n in types_of(made) if n.startswith("gpu-0")}
    assert declared(pool(gpu())) == [None]
    assert declared(pool()) == [None]


NOT_TRUE = {
    "a profile at two places consumes other memory slices at each": [gpu(partitions=(profile(),))],
    "two GPUs have a set of counters each": [gpu(partitions=SINGLE), gpu("gpu-1", partitions=SINGLE)],
    "a node calls something else so": [
        msgspec.structs.replace(
            gpu(partitions=SINGLE), attributes={PARTITION_TYPE: DeviceAttribute(string_value="whole")}
        )
    ],
    "a node calls something else so, with its domain": [
        msgspec.structs.replace(
            gpu(partitions=SINGLE), attributes={NAME: DeviceAttribute(string_value="whole")}
        )
    ],
    "a profile has the name of the whole": [gpu(partitions=(*SINGLE, profile("whole", (0,))))],
    "there is no room for another attribute": [
        msgspec.structs.replace(
            gpu(partitions=SINGLE),
            attributes={f"a{i}": DeviceAttribute(int_value=i) for i in range(MAX_FACTS - 2)},
        )
    ],
    "more types than can be counted": [
        gpu(partitions=tuple(profile(f"1g.{i}gb", (0,)) for i in range(MAX_TYPES)))
    ],
}


@pytest.mark.parametrize("found", NOT_TRUE.values(), ids=NOT_TRUE)
def test_it_is_left_out_where_it_would_not_be_true(found: list[InventoryDevice]) -> None:
    made = pool(*found)
    assert set(declared(made)) == {None}
    # To the last byte what it would be without.
    assert made == pool(*found, types=False)


def test_as_many_types_as_can_be_counted() -> None:
    made = pool(gpu(partitions=tuple(profile(f"1g.{i}gb", (0,)) for i in range(MAX_TYPES - 1))))
    assert declared(made) == [NAME, None]


def test_a_server_without_it_gets_what_it_got_before() -> None:
    made = pool(gpu(partitions=SINGLE), types=False)
    assert set(declared(made)) == {None}
    assert set(types_of(made).values()) == {None}


def test_an_attribute_that_is_no_string_names_no_type() -> None:
    (whole, *_), _ = with_types(
        list(devices(pool(gpu(partitions=SINGLE), types=False)).values()), "abc", DRIVER
    )
    number = {PARTITION_TYPE: DeviceAttribute(int_value=1)}
    assert not same_consumption([msgspec.structs.replace(whole, attributes=number)], PARTITION_TYPE)
    assert not same_consumption([], PARTITION_TYPE)


# --- what is stored -----------------------------------------------------------------------------------------


def stored(made: DesiredPool, there: list[ResourceSlice] | None = None) -> list[dict[str, Any]]:
    plan = plan_slices(there or [], made, OWNER)
    return [codec.to_raw(RESOURCE_SLICES, w.slice)["spec"] for w in (*plan.creates, *plan.updates)]


def test_slices_are_written_once() -> None:
    made = pool(gpu(partitions=SINGLE))
    bodies = [codec.to_raw(RESOURCE_SLICES, w.slice) for w in plan_slices([], made, OWNER).creates]
    assert [b["spec"].get("partitionTypeAttribute") for b in bodies] == [NAME, None]
    back = [codec.decode_kept(RESOURCE_SLICES, codec.encode(body)) for body in bodies]
    assert stored(made, back) == []


def test_a_pool_changes_when_the_server_learns_or_forgets_the_field() -> None:
    before, after = pool(gpu(partitions=SINGLE), types=False), pool(gpu(partitions=SINGLE))
    for old, new, name in ((before, after, NAME), (after, before, None)):
        there = [w.slice for w in plan_slices([], old, OWNER).creates]
        (changed,) = stored(new, there)
        assert changed.get("partitionTypeAttribute") == name


# --- whether the server knows it ----------------------------------------------------------------------------


class Echo:
    """A server that stores what it is sent, less what it drops."""

    def __init__(self, *dropped: str) -> None:
        self.dropped = dropped

    async def create(self, resource: Any, body: dict[str, Any], *_: Any, dry_run: bool) -> Any:
        assert dry_run
        for each in (body["spec"], *body["spec"].get("devices", ())):
            for field in self.dropped:
                each.pop(field, None)
        return codec.decode_kept(resource, codec.encode(body))


@pytest.mark.parametrize(
    ("dropped", "known"),
    [((), True), (("partitionTypeAttribute",), False), (("consumesCounters", "sharedCounters"), False)],
)
def test_whether_the_server_knows_the_field_is_found_out_by_a_dry_run(
    dropped: tuple[str, ...], known: bool
) -> None:
    found: Any = Echo(*dropped)
    features = asyncio.run(probe_features(found, DRIVER))
    assert features.partition_types is known
    # It is alpha: nobody lacks it.
    assert "DRAPartitionableDevicesType" not in features.missing_gates()
