"""Holders of many MIG partitions of many sizes: what is the fewest is proven, with few questions."""

from __future__ import annotations

from random import Random

import pytest
from allocator_world import allocated

from dra_driver.api import codec
from dra_driver.api.resource import ResourceClaim
from dra_driver.cli.described_fleet import described_fleet
from dra_driver.planning import Checks, Freeing, Holder, PlannedCluster, Workload
from dra_driver.planning.counting import Count, how_many
from dra_driver.structured import Allocated, AllocatedState, GroupAllocated, GroupMember, Snapshot, allocate

DRIVER = "gpu.dra-driver.dev"
PROFILES = ("1g.10gb", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb")


def mig(name: str, profile: str, count: int = 1) -> ResourceClaim:
    expression = f'device.attributes["{DRIVER}"].?profile.orValue("") == "{profile}"'
    exactly = {
        "deviceClassName": f"mig.{DRIVER}",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    devices = {"requests": [{"name": "mig", "exactly": exactly}]}
    raw = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}
    return codec.convert(ResourceClaim, raw)


def full(pairs: float) -> PlannedCluster:
    """Return two nodes of three GPUs whose partitions are nearly all held; some holders have two of them."""
    fleet = described_fleet("h100x3:2", ["*"], driver=DRIVER)
    now = Snapshot.build(
        slices=fleet.slices, classes=fleet.classes, nodes=fleet.nodes, allocated=AllocatedState()
    )
    random = Random(3)
    holders: list[Holder] = []
    missed = 0
    while missed < 6:
        asked = mig(f"held-{len(holders)}", random.choice(PROFILES), 2 if random.random() < pairs else 1)
        outcome = allocate(now, [asked], nodes=[random.choice(list(now.nodes))])
        if not isinstance(outcome, Allocated):
            missed += 1
            continue
        given = [(str(asked.key), outcome.results[0])]
        now = now.with_allocated(now.allocated.with_allocations(given))
        held = allocated(asked, outcome.results[0])
        holders.append(
            Holder(str(asked.key), (held,), priority=random.choice((0, 9)), members=(GroupMember((asked,)),))
        )
    return PlannedCluster(now, tuple(holders))


@pytest.mark.parametrize("pairs", [0.0, 0.4])
def test_partitions_in_one_claim_and_in_several_need_as_few_holders(pairs: float) -> None:
    """Six of 3g.40gb on six GPUs; a claim for four of them needs one node, four pods have the choice."""
    cluster = full(pairs)
    assert len(cluster.holders) > 12
    one = Workload("one", (GroupMember((mig("x", "3g.40gb", 4),)),))
    four = Workload("four", tuple(GroupMember((mig(f"x{i}", "3g.40gb"),)) for i in range(4)))
    numbers = []
    for workload in (one, four):
        checks = Checks(cluster, lambda: 0.0, 60.0)
        found = Freeing(checks, workload).fewest()
        assert found is not None
        assert found.proven
        assert isinstance(checks.solve(workload, found.holders), GroupAllocated)
        assert checks.asked < 400 if pairs else checks.asked < 10
        numbers.append(len(found.holders))
    assert numbers[1] <= numbers[0]


def test_as_many_partitions_fit_as_all_gpus_can_be_cut_into() -> None:
    fleet = described_fleet("h100x1:2", ["*"], driver=DRIVER)
    empty = Snapshot.build(
        slices=fleet.slices, classes=fleet.classes, nodes=fleet.nodes, allocated=AllocatedState()
    )
    for profile, number in (("1g.10gb", 14), ("2g.20gb", 6), ("3g.40gb", 4), ("7g.80gb", 2)):
        checks = Checks(PlannedCluster(empty), lambda: 0.0, 60.0)
        assert how_many(checks, Workload("w", (GroupMember((mig("x", profile),)),))) == Count(number, True)
