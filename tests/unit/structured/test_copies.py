"""How often a claim still fits, and what the sum of what is free suggests."""

from __future__ import annotations

from typing import Any

import builders
from allocator_world import claim, device, exactly, gpu_class, node, partitioned_pool, pool, snapshot, takes

from dra_driver.api import codec
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import DeviceTaint, ResourceClaim, ResourceSlice
from dra_driver.structured import (
    AllocatedState,
    Budget,
    Copies,
    DeviceID,
    PersistentMap,
    PoolID,
    PoolPolicy,
    Snapshot,
    count_copies,
)

NUMA = f"{builders.DRIVER}/numa"
ONE = claim("one", exactly())
PAIR = claim("pair", exactly(2), constraints=[{"matchAttribute": NUMA}])


def gpus(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [device(f"gpu-{i}", attributes={"numa": i % 2}, **fields) for i in range(number)]


def held(of: Snapshot, *devices: tuple[str, str]) -> Snapshot:
    """The snapshot with some devices (node, name) allocated."""
    ids = [(DeviceID(builders.DRIVER, PoolName(node_), name), "ns/holder") for node_, name in devices]
    return of.with_allocated(of.allocated.with_devices(ids))


def numbers(found: Copies) -> tuple[int, int, bool]:
    return found.fits, found.suggested, found.exact


def test_free_devices_that_do_not_stand_together_are_suggested_and_do_not_fit() -> None:
    fleet = snapshot(*(pool(f"n{i}", *gpus(4)) for i in range(3)))
    assert numbers(count_copies(fleet, PAIR)) == (6, 6, True)
    apart = held(fleet, *((f"n{i}", name) for i in range(3) for name in ("gpu-0", "gpu-1")))
    assert numbers(count_copies(apart, PAIR)) == (0, 3, True)
    assert numbers(count_copies(apart, ONE)) == (6, 6, True)


def test_a_small_partition_keeps_a_large_one_from_a_gpu_of_which_most_is_free() -> None:
    def gpu(number: int) -> list[dict[str, Any]]:
        whole = device(
            f"g{number}-7g",
            attributes={"profile": "7g"},
            consumesCounters=takes(f"g{number}", **{f"slice-{i}": "1" for i in range(4)}),
        )
        small = [
            device(
                f"g{number}-1g-{i}",
                attributes={"profile": "1g"},
                consumesCounters=takes(f"g{number}", **{f"slice-{i}": "1"}),
            )
            for i in range(4)
        ]
        return [whole, *small]

    def of(profile: str) -> ResourceClaim:
        expression = f'device.attributes["{builders.DRIVER}"].profile == "{profile}"'
        return claim(profile, exactly(selectors=[{"cel": {"expression": expression}}]))

    counters = {f"g{n}": {f"slice-{i}": "1" for i in range(4)} for n in range(4)}
    fleet = snapshot(partitioned_pool("n1", counters, *(d for n in range(4) for d in gpu(n))))
    assert numbers(count_copies(fleet, of("7g"))) == (4, 4, True)
    apart = held(fleet, *(("n1", f"g{n}-1g-{n}") for n in range(4)))
    # Twelve of sixteen slices are free: enough for three.
    assert numbers(count_copies(apart, of("7g"))) == (0, 3, True)
    assert numbers(count_copies(apart, of("1g"))) == (12, 12, True)


def test_shares_of_a_device_count_as_long_as_its_capacity_lasts() -> None:
    fleet = snapshot(pool("n1", device("shared", "10Gi", allowMultipleAllocations=True)))
    assert numbers(count_copies(fleet, claim("c", exactly(1, "3Gi")))) == (3, 3, True)


def test_a_node_with_copies_that_are_in_each_others_way_is_solved_as_a_whole() -> None:
    # A flexible request first, and one that only the first device serves.
    large = claim("c", exactly(1, "10Gi"), exactly(1, "40Gi"))
    fleet = snapshot(
        pool("n1", *(device(f"d{i}", m) for i, m in enumerate(("40Gi", "40Gi", "10Gi", "10Gi"))))
    )
    assert numbers(count_copies(fleet, large)) == (2, 2, True)


def test_devices_that_several_nodes_can_use_count_once() -> None:
    fabric = codec.convert(
        ResourceSlice,
        builders.resource_slice("fabric", *gpus(3), allNodes=True, nodeName=None),
    )
    fleet = snapshot(fabric, pool("n1", *gpus(1), name="own"), nodes=[node("n1"), node("n2")])
    found = count_copies(fleet, ONE)
    assert (found.fits, found.suggested) == (4, 4)


def test_what_may_not_be_used_does_not_count() -> None:
    taint = {"key": "sick", "effect": "NoSchedule"}
    fleet = snapshot(pool("n1", *gpus(2, taints=[taint])), pool("n2", *gpus(2)), pool("n3", *gpus(2)))
    assert numbers(count_copies(fleet, ONE)) == (4, 4, True)

    def ignored(found: DeviceTaint) -> bool:
        return found.key == "sick"

    assert numbers(count_copies(fleet, ONE, ignore_taint=ignored)) == (6, 6, True)
    mine = PersistentMap([(PoolID(builders.DRIVER, PoolName("n3")), PoolPolicy())])
    assert numbers(count_copies(fleet, ONE, pools=mine)) == (2, 2, True)


def test_a_count_that_gives_up_is_a_lower_bound() -> None:
    fleet = snapshot(*(pool(f"n{i}", *gpus(4, capacity={"x": {"value": str(i + 1)}})) for i in range(40)))
    everything = count_copies(fleet, PAIR)
    assert numbers(everything) == (80, 80, True)
    found = {
        (part.fits, part.suggested, bool(part.problem))
        for steps in range(0, 20_000, 500)
        for part in [count_copies(fleet.with_allocated(AllocatedState()), PAIR, budget=Budget(steps))]
        if not part.exact
    }
    assert (0, 0, True) in found
    assert any(0 < fits < 80 for fits, *_ in found)
    assert {suggested for _, suggested, problem in found if not problem} == {80}


def test_what_cannot_be_counted_says_why() -> None:
    fleet = snapshot(pool("n1", *gpus(2)), classes=[gpu_class()])
    for asked, why in (
        (claim("c", exactly(deviceClassName="missing")), "'missing' does not exist"),
        (claim("c", exactly(None)), "asks for all devices"),
        (claim("c", exactly(33)), "more than 32"),
    ):
        found = count_copies(fleet, asked)
        assert why in found.problem
        assert (found.fits, found.suggested) == (0, 0)
