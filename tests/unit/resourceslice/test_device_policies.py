"""What policies do to the slices of a pool: pure, from inventory to devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from dra_driver.api.meta import DriverName, ObjectMeta
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.own.inventory import (
    DeviceHealth,
    DeviceInventory,
    DeviceInventorySpec,
    InventoryDevice,
    OccupiedPlace,
    PartitionPlacement,
    PartitionProfile,
)
from dra_driver.api.own.policy import (
    DevicePolicy,
    DevicePolicySpec,
    HealthPolicy,
    PartitionPolicy,
    ShareMemory,
    SharePolicy,
)
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    CelSelector,
    Counter,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceSelector,
    DeviceTaint,
)
from dra_driver.discovery.nvidia.mig_mode import mig_mode
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice import (
    HEALTH_TAINT,
    PENDING_TAINT,
    SHARES,
    DesiredPool,
    PublishOptions,
    ServerFeatures,
    Usage,
    build_slices,
)
from dra_driver.resourceslice.build import MAX_COUNTER_SETS

DRIVER = DriverName("gpu.example.com")
SCHEDULER = PublishOptions(allocator=PoolAllocator.SCHEDULER)


def profile(
    name: str = "1g.10gb",
    starts: tuple[int, ...] = (0, 1, 2, 3),
    size: int = 1,
    memory: str = "10Gi",
    **capacity: int,
) -> PartitionProfile:
    return PartitionProfile(
        name=name,
        placements=tuple(PartitionPlacement(start=s, size=size) for s in starts),
        attributes={
            "type": DeviceAttribute(string_value="mig"),
            "profile": DeviceAttribute(string_value=name),
        },
        capacity={
            "memory": DeviceCapacity(value=Quantity.parse(memory)),
            **{k: DeviceCapacity(value=Quantity.of(v)) for k, v in capacity.items()},
        },
    )


PROFILES = (
    profile(decoders=1),
    profile("2g.20gb", (0, 2), 2, "20Gi", decoders=2),
    profile("4g.40gb", (0,), 4, "40Gi"),
)


def gpu(
    name: str = "gpu-0",
    memory: str = "40Gi",
    partitions: tuple[PartitionProfile, ...] = (),
    model: str = "A",
    **more: Any,
) -> InventoryDevice:
    return InventoryDevice(
        name=name,
        attributes={
            "type": DeviceAttribute(string_value="gpu"),
            "model": DeviceAttribute(string_value=model),
            "uuid": DeviceAttribute(string_value=f"GPU-{name}"),
        },
        capacity={
            "memory": DeviceCapacity(value=Quantity.parse(memory)),
            "decoders": DeviceCapacity(value=Quantity.of(5)),
        },
        partitions=partitions,
        **more,
    )


def inventory(*devices: InventoryDevice) -> DeviceInventory:
    return DeviceInventory(
        metadata=ObjectMeta(name="n1.d"),
        spec=DeviceInventorySpec(node_name="n1", driver=DRIVER, devices=tuple(devices)),
    )


def policy(name: str = "p", selector: str | None = None, **spec: Any) -> DevicePolicy:
    if selector:
        spec["device_selectors"] = (DeviceSelector(cel=CelSelector(expression=selector)),)
    return DevicePolicy(metadata=ObjectMeta(name=name), spec=DevicePolicySpec(**spec))


def build(
    devices: Iterable[InventoryDevice],
    *policies: DevicePolicy,
    usage: Usage | None = None,
    options: PublishOptions = SCHEDULER,
    **features: bool,
) -> DesiredPool:
    return build_slices(
        inventory(*devices), policies, usage, options=options, features=ServerFeatures(**features)
    )


def devices(pool: DesiredPool) -> dict[str, Device]:
    return {d.name: d for s in pool.slices for d in s.devices}


def amounts(counters: Mapping[str, Counter]) -> dict[str, int]:
    return {name: int(c.value.value()) for name, c in counters.items()}


MODEL_A = f'device.attributes["{DRIVER}"].model == "A"'


# --- merging ------------------------------------------------------------------------------------------------


def test_the_higher_priority_wins_and_the_loser_is_told() -> None:
    low = policy("a-low", hide=True)
    high = policy("z-high", priority=5, hide=False)
    pool = build([gpu()], low, high)
    assert list(devices(pool)) == ["gpu-0"]
    lost = pool.outcomes["a-low"].overridden
    assert [(o.field, o.winner, o.tie) for o in lost] == [("hide", "z-high", False)]
    assert pool.outcomes["z-high"].overridden == ()


def test_between_equals_the_first_name_wins_and_it_is_a_conflict() -> None:
    pool = build([gpu()], policy("b", allocator="scheduler"), policy("a", allocator="controller"))
    assert pool.allocator is PoolAllocator.CONTROLLER
    assert [(o.field, o.tie) for o in pool.outcomes["b"].overridden] == [("allocator", True)]


def test_the_order_of_policies_does_not_matter() -> None:
    policies = [
        policy("a", taints=(DeviceTaint(key="x.io/t", value="a", effect="NoSchedule"),)),
        policy(
            "b", taints=(DeviceTaint(key="x.io/t", value="b", effect="NoSchedule"),), strategy="first-fit"
        ),
        policy("c", priority=1, attributes={"team": DeviceAttribute(string_value="c")}),
        policy("d", attributes={"team": DeviceAttribute(string_value="d")}),
    ]
    assert build([gpu()], *policies) == build([gpu()], *reversed(policies))
    d = devices(build([gpu()], *policies))["gpu-0"]
    assert [(t.key, t.value) for t in d.taints] == [("x.io/t", "a")]
    assert d.attributes["team"].string_value == "c"


def test_selectors_choose_devices_and_drivers_choose_pools() -> None:
    two = [gpu("gpu-0", model="A"), gpu("gpu-1", model="B")]
    pool = build(two, policy("mine", MODEL_A, hide=True), policy("theirs", hide=True, driver="other.io"))
    assert list(devices(pool)) == ["gpu-1"]
    assert pool.outcomes["mine"].devices == 1
    assert "theirs" not in pool.outcomes


@pytest.mark.parametrize(
    ("selector", "problem"),
    [
        ("device.nothing", "compile"),
        (f'device.attributes["{DRIVER}"].absent == "x"', "fails on device gpu-0"),
    ],
)
def test_a_selector_that_cannot_be_evaluated_matches_nothing_and_says_so(selector: str, problem: str) -> None:
    pool = build([gpu()], policy("p", selector, hide=True))
    assert list(devices(pool)) == ["gpu-0"]
    assert problem in pool.outcomes["p"].problems[0]


def test_attributes_are_added_but_what_the_node_says_stays() -> None:
    added = {"rack": DeviceAttribute(string_value="r1"), "model": DeviceAttribute(string_value="X")}
    pool = build([gpu()], policy(attributes=added))
    d = devices(pool)["gpu-0"]
    assert (d.attributes["rack"].string_value, d.attributes["model"].string_value) == ("r1", "A")
    assert "model" in pool.problems[0]


# --- health -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["None", "NoSchedule", "NoExecute", ""])
def test_the_policy_says_what_a_severity_does(effect: str) -> None:
    sick = gpu(health=(DeviceHealth(reason="EccError", severity="degraded"),))
    pool = build([sick], policy(health=HealthPolicy(degraded=effect)))
    taints = devices(pool)["gpu-0"].taints
    assert [(t.key, t.value, t.effect) for t in taints] == (
        [(HEALTH_TAINT, "EccError", effect)] if effect else []
    )
    assert devices(build([gpu()], policy(health=HealthPolicy(degraded=effect))))["gpu-0"].taints == ()


# --- shares -------------------------------------------------------------------------------------------------


def test_a_shared_device_gives_out_memory_in_steps_and_nothing_else_by_itself() -> None:
    gi = Quantity.parse
    share = SharePolicy(max_shares=3, memory=ShareMemory(min=gi("2Gi"), step=gi("4Gi")))
    d = devices(build([gpu(memory="40Gi")], policy(share=share)))["gpu-0"]
    memory = d.capacity["memory"]
    assert d.allow_multiple_allocations
    assert str(memory.value) == "40Gi"
    assert memory.request_policy is not None
    wanted = memory.request_policy.valid_range
    assert wanted is not None
    assert [str(q) for q in (wanted.min, wanted.max, wanted.step)] == ["2Gi", "38Gi", "4Gi"]
    assert str(memory.request_policy.default) == "10Gi"  # 40 / 3, rounded down to 2 + 4n
    assert str(d.capacity[SHARES].value) == "3"
    decoders = d.capacity["decoders"].request_policy
    assert decoders is not None
    assert decoders.default == Quantity.of(0)


def test_memory_is_not_over_committed_unless_an_admin_says_so() -> None:
    plain = devices(build([gpu()], policy(share=SharePolicy(max_shares=2))))["gpu-0"]
    assert str(plain.capacity["memory"].value) == "40Gi"
    more = devices(build([gpu()], policy(share=SharePolicy(max_shares=2, over_commit_percent=150))))["gpu-0"]
    assert str(more.capacity["memory"].value) == "60Gi"


def test_a_device_without_memory_or_with_too_little_is_not_shared() -> None:
    small = policy(share=SharePolicy(memory=ShareMemory(step=Quantity.parse("50Gi"))))
    pool = build([gpu()], small)
    assert not devices(pool)["gpu-0"].allow_multiple_allocations
    assert "do not fit" in pool.problems[0]


# --- partitions ---------------------------------------------------------------------------------------------


def test_partitions_consume_counters_of_their_gpu_and_come_before_it() -> None:
    pool = build([gpu(partitions=PROFILES)], policy(partitions=PartitionPolicy(profiles=("*",))))
    everything = [d for s in pool.slices for d in s.devices]
    assert len(everything) == 1 + 4 + 2 + 1
    memory = [d.capacity["memory"].value.nano for d in everything]
    assert memory == sorted(memory)
    (counters,) = pool.slices[-1].shared_counters
    assert pool.slices[-1].devices == ()
    whole = devices(pool)["gpu-0"].consumes_counters[0]
    assert amounts(whole.counters) == amounts(counters.counters)
    assert amounts(counters.counters) == {
        **{f"memory-slice-{i}": 1 for i in range(4)},
        "compute-slices": 4,
        "decoders": 5,
    }
    part = devices(pool)["gpu-0-mig-2g-20gb-2"]
    assert amounts(part.consumes_counters[0].counters) == {
        "memory-slice-2": 1,
        "memory-slice-3": 1,
        "compute-slices": 2,
        "decoders": 2,
    }
    assert part.attributes["type"].string_value == "mig"
    assert part.attributes["parentUUID"].string_value == "GPU-gpu-0"
    assert "uuid" not in part.attributes
    assert part.attributes["model"].string_value == "A"


def test_a_partition_cannot_be_handed_over_as_its_gpu_can() -> None:
    whole = gpu(partitions=PROFILES)
    attributes = {**whole.attributes, "passthrough": DeviceAttribute(bool_value=True)}
    one = build(
        [msgspec.structs.replace(whole, attributes=attributes)],
        policy(partitions=PartitionPolicy(profiles=("*",))),
    )
    can = {name for name, d in devices(one).items() if "passthrough" in d.attributes}
    assert can == {"gpu-0"}
    assert len(devices(one)) > 1


def test_a_gpu_that_is_shared_cannot_be_handed_over() -> None:
    attributes = {**gpu().attributes, "passthrough": DeviceAttribute(bool_value=True)}
    whole = msgspec.structs.replace(gpu(), attributes=attributes)
    assert "passthrough" in devices(build([whole]))["gpu-0"].attributes
    share = policy(share=SharePolicy(memory=ShareMemory(step=Quantity.parse("1Gi"))))
    shared = devices(build([whole], share))["gpu-0"]
    assert shared.allow_multiple_allocations
    assert "passthrough" not in shared.attributes


def test_only_listed_profiles_and_none_without_a_policy() -> None:
    one = build([gpu(partitions=PROFILES)], policy(partitions=PartitionPolicy(profiles=("4g.40gb",))))
    assert set(devices(one)) == {"gpu-0", "gpu-0-mig-4g-40gb-0"}
    for nothing in (
        build([gpu(partitions=PROFILES)]),
        build([gpu(partitions=PROFILES)], policy(partitions=PartitionPolicy())),
    ):
        assert set(devices(nothing)) == {"gpu-0"}
        assert not nothing.partitioned
        assert devices(nothing)["gpu-0"].consumes_counters == ()


def unmanaged(*places: OccupiedPlace) -> tuple[DeviceHealth, ...]:
    return (DeviceHealth(reason="UnmanagedPartitions", severity="degraded", places=places),)


def tainted(pool: DesiredPool) -> set[str]:
    return {name.removeprefix("gpu-0") for name, d in devices(pool).items() if d.taints}


ALL = PartitionPolicy(profiles=("*",))


@pytest.mark.parametrize(
    ("places", "without_room"),
    [
        # Of the mode in which it is cut: the device as a whole only.
        ((), set()),
        ((OccupiedPlace(start=3, size=1),), {"-mig-1g-10gb-3", "-mig-2g-20gb-2", "-mig-4g-40gb-0"}),
        (
            (OccupiedPlace(start=0, size=1), OccupiedPlace(start=1, size=1)),
            {"-mig-1g-10gb-0", "-mig-1g-10gb-1", "-mig-2g-20gb-0", "-mig-4g-40gb-0"},
        ),
        # Beyond what the device has, as of a node that lies.
        ((OccupiedPlace(start=60_000, size=65_535),), set()),
    ],
)
def test_a_condition_with_places_concerns_what_has_no_room_beside_them(
    places: tuple[OccupiedPlace, ...], without_room: set[str]
) -> None:
    found = gpu(partitions=PROFILES, health=unmanaged(*places))
    pool = build([found], policy(partitions=ALL))
    assert tainted(pool) == {"", *without_room}
    assert len(devices(pool)) == 8
    # A server without taints gets what has room, and nothing else.
    bare = build([found], policy(partitions=ALL), taints=False)
    assert devices(bare).keys() == devices(pool).keys() - {f"gpu-0{name}" for name in {"", *without_room}}
    assert not any(d.taints for d in devices(bare).values())


def test_engines_count_beside_an_unmanaged_partition() -> None:
    """Its profile may take all of an engine: no partition with such an engine fits beside it anywhere."""
    profiles = (
        msgspec.structs.replace(profile("1g.10gb+me", (0, 1, 2, 3), ofaEngines=1), profile_id=20),
        msgspec.structs.replace(profile(), profile_id=19),
        profile("4g.40gb", (0,), 4, "40Gi"),
    )
    found = gpu(partitions=profiles, health=unmanaged(OccupiedPlace(profile_id=20, start=0, size=1)))
    pool = build([found], policy(partitions=ALL))
    media = {f"-mig-1g-10gb-me-{i}" for i in range(4)}
    assert tainted(pool) == {"", "-mig-1g-10gb-0", "-mig-4g-40gb-0", *media}


def test_another_condition_of_the_device_stays_that_of_its_partitions() -> None:
    health = (
        *unmanaged(OccupiedPlace(start=0, size=1)),
        DeviceHealth(reason="RowRemapPending", severity="degraded"),
    )
    pool = build([gpu(partitions=PROFILES, health=health)], policy(partitions=ALL))
    taints = {name: [t.value for t in d.taints] for name, d in devices(pool).items()}
    assert taints["gpu-0"] == taints["gpu-0-mig-1g-10gb-0"] == ["UnmanagedPartitions"]
    assert taints["gpu-0-mig-1g-10gb-1"] == ["RowRemapPending"]


def test_a_gpu_that_needs_a_reset_to_leave_mig_mode_can_be_cut() -> None:
    """Before Hopper MIG mode is turned on by hand; its partitions had the taint of the whole GPU."""
    mode = mig_mode(needs_reset=True)
    pool = build([gpu(partitions=PROFILES, health=(mode.condition,))], policy(partitions=ALL))
    assert tainted(pool) == {""}


@pytest.mark.parametrize("count", [1, 8, 9, 20])
def test_the_limits_of_slices_hold_for_any_number_of_gpus(count: int) -> None:
    many = [gpu(f"gpu-{i:02}", partitions=PROFILES) for i in range(count)]
    pool = build(many, policy(partitions=PartitionPolicy(profiles=("*",))))
    assert sum(len(s.shared_counters) for s in pool.slices) == count
    for s in pool.slices:
        assert not (s.devices and s.shared_counters)
        assert len(s.devices) <= 64
        assert len(s.shared_counters) <= MAX_COUNTER_SETS
        assert all(len(c.counters) <= 32 for c in s.shared_counters)
    sets = {c.name for s in pool.slices for c in s.shared_counters}
    assert {c.counter_set for d in devices(pool).values() for c in d.consumes_counters} == sets


def test_a_device_is_shared_or_cut_and_the_stronger_policy_says_which() -> None:
    share = policy("share", share=SharePolicy(max_shares=2))
    cut = policy("cut", priority=1, partitions=PartitionPolicy(profiles=("*",)))
    pool = build([gpu(partitions=PROFILES)], share, cut)
    assert not devices(pool)["gpu-0"].allow_multiple_allocations
    assert [o.field for o in pool.outcomes["share"].overridden] == ["share"]


# --- servers without the features ---------------------------------------------------------------------------


def test_without_counters_there_are_whole_gpus_only_and_the_gate_is_named() -> None:
    pool = build(
        [gpu(partitions=PROFILES)], policy(partitions=PartitionPolicy(profiles=("*",))), counters=False
    )
    assert set(devices(pool)) == {"gpu-0"}
    assert list(pool.missing) == ["DRAPartitionableDevices"]


def test_without_multiple_allocations_nothing_is_shared_and_the_gate_is_named() -> None:
    pool = build([gpu()], policy(share=SharePolicy(max_shares=2)), multi_allocation=False)
    assert not devices(pool)["gpu-0"].allow_multiple_allocations
    assert list(pool.missing) == ["DRAConsumableCapacity"]


def test_without_taints_tainted_devices_are_left_out_and_the_gate_is_named() -> None:
    taint = DeviceTaint(key="x.io/t", effect="NoSchedule")
    pool = build([gpu()], policy(taints=(taint,), allocator="controller"), taints=False)
    assert devices(pool) == {}
    assert list(pool.missing) == ["DRADeviceTaints"]
    assert (pool.wanted, pool.allocator) == (PoolAllocator.CONTROLLER, PoolAllocator.SCHEDULER)


# --- devices in use -----------------------------------------------------------------------------------------


def in_use(pool: DesiredPool, *, whole: Iterable[str] = (), shared: Iterable[str] = ()) -> Usage:
    return Usage(frozenset(whole), frozenset(shared), devices(pool))


def test_a_hidden_device_in_use_stays_takes_nothing_new_and_is_pending() -> None:
    before = build([gpu()])
    hide = policy(hide=True)
    pool = build([gpu()], hide, usage=in_use(before, whole=["gpu-0"]))
    assert [t.key for t in devices(pool)["gpu-0"].taints] == [PENDING_TAINT]
    assert pool.outcomes["p"].pending
    assert devices(build([gpu()], hide, usage=in_use(before))) == {}


def test_a_device_that_one_claim_holds_is_not_shared_before_it_is_free() -> None:
    share = policy(share=SharePolicy(max_shares=2))
    before = build([gpu()])
    pool = build([gpu()], share, usage=in_use(before, whole=["gpu-0"]))
    assert devices(pool) == devices(before)
    assert "gpu-0" in pool.pending[0].text
    assert devices(build([gpu()], share, usage=in_use(before)))["gpu-0"].allow_multiple_allocations


@pytest.mark.parametrize(
    "after", [None, SharePolicy(max_shares=1), SharePolicy(max_shares=8), "hide", "partitions"]
)
def test_shares_that_are_held_keep_the_amounts_they_were_cut_from(after: SharePolicy | str | None) -> None:
    before = build([gpu(partitions=PROFILES)], policy(share=SharePolicy(max_shares=2)))
    policies: tuple[DevicePolicy, ...]
    match after:
        case None:
            policies = ()
        case "hide":
            policies = (policy(hide=True),)
        case "partitions":
            policies = (policy(partitions=PartitionPolicy(profiles=("*",))),)
        case _:
            assert isinstance(after, SharePolicy)
            policies = (policy(share=after),)
    pool = build([gpu(partitions=PROFILES)], *policies, usage=in_use(before, shared=["gpu-0"]))
    assert set(devices(pool)) == {"gpu-0"}
    now = devices(pool)["gpu-0"]
    assert now.allow_multiple_allocations
    assert now.capacity == devices(before)["gpu-0"].capacity
    assert [t.key for t in now.taints] == [PENDING_TAINT]
    assert pool.pending
    # Stable: what was published for this state leads to the same state.
    again = build([gpu(partitions=PROFILES)], *policies, usage=in_use(pool, shared=["gpu-0"]))
    assert again.slices == pool.slices


def test_partitions_in_use_stay_with_their_counters_and_the_rest_goes() -> None:
    before = build([gpu(partitions=PROFILES)], policy(partitions=PartitionPolicy(profiles=("*",))))
    held = "gpu-0-mig-1g-10gb-1"
    pool = build([gpu(partitions=PROFILES)], usage=in_use(before, whole=[held]))
    assert set(devices(pool)) == {"gpu-0", held}
    assert devices(pool)["gpu-0"].consumes_counters  # so the whole GPU is not free
    assert pool.slices[-1].shared_counters == before.slices[-1].shared_counters
    assert [t.key for t in devices(pool)[held].taints] == [PENDING_TAINT]
    assert held in pool.pending[0].text


def test_other_profiles_join_those_in_use() -> None:
    before = build([gpu(partitions=PROFILES)], policy(partitions=PartitionPolicy(profiles=("1g.10gb",))))
    held = "gpu-0-mig-1g-10gb-1"
    only = policy(partitions=PartitionPolicy(profiles=("2g.20gb",)))
    pool = build([gpu(partitions=PROFILES)], only, usage=in_use(before, whole=[held]))
    assert set(devices(pool)) == {"gpu-0", held, "gpu-0-mig-2g-20gb-0", "gpu-0-mig-2g-20gb-2"}


def test_a_forced_allocator_is_published_and_the_wanted_one_is_remembered() -> None:
    options = dataclasses.replace(SCHEDULER, forced=PoolAllocator.CONTROLLER)
    pool = build([gpu()], options=options)
    assert (pool.allocator, pool.wanted) == (PoolAllocator.CONTROLLER, PoolAllocator.SCHEDULER)
    assert [t.key for t in devices(pool)["gpu-0"].taints] == [CONTROLLER_TAINT]


# --- a server that was taken back to an older version -------------------------------------------------------


def test_a_gpu_with_a_partition_in_use_is_left_out_where_counters_are_dropped() -> None:
    cut = gpu(partitions=PROFILES)
    all_profiles = policy(partitions=PartitionPolicy(profiles=("*",)))
    part = min(d for d in devices(build([cut], all_profiles)) if d != "gpu-0")
    for policies in ((all_profiles,), ()):
        pool = build([cut, gpu("gpu-1")], *policies, usage=Usage(whole=frozenset({part})), counters=False)
        assert set(devices(pool)) == {"gpu-1"}, "the whole GPU would be given to a second claim"
        assert pool.problems == ("device gpu-0: left out, parts of it are in use",)
        assert "DRAPartitionableDevices" in pool.missing
        assert not pool.partitioned
    assert set(devices(build([cut], all_profiles, counters=False))) == {"gpu-0"}


def test_a_gpu_of_which_shares_are_in_use_is_left_out_where_they_are_dropped() -> None:
    shares = policy(share=SharePolicy(max_shares=4))
    published = devices(build([gpu()], shares))
    usage = Usage(shared=frozenset({"gpu-0"}), published=published)
    pool = build([gpu(), gpu("gpu-1")], shares, usage=usage, multi_allocation=False)
    assert set(devices(pool)) == {"gpu-1"}
    assert "DRAConsumableCapacity" in pool.missing
    assert set(devices(build([gpu()], shares, multi_allocation=False))) == {"gpu-0"}
