"""Plans against an exhaustive search: the smallest number of freed, and of moved, holders is the smallest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from random import Random
from typing import Any

import pytest
from allocator_world import allocated, claim, device, exactly, node, partitioned_pool, pool, snapshot, takes
from examples import parts

from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.planning import Checks, Freeing, Holder, PlannedCluster, Workload
from dra_driver.planning.changes.moving import fewest_moves
from dra_driver.structured import (
    Allocated,
    GroupAllocated,
    GroupMember,
    Level,
    Snapshot,
    allocate,
    allocate_group,
)

_NUMA = "gpu.example.com/numaNode"


def random_slices(random: Random, nodes: int) -> Iterable[ResourceSlice | list[ResourceSlice]]:
    """Yield nodes of two to four GPUs, or of two GPUs that are published as their partitions."""
    for n in range(nodes):
        if random.random() < 0.5:
            devices = [
                device(f"g{g}-{units}u-{k}", f"{units}0Gi", consumesCounters=takes(f"g{g}", units=str(units)))
                for g in range(2)
                for units, number in ((4, 1), (2, 2), (1, 4))
                for k in range(number)
            ]
            yield partitioned_pool(f"n{n}", {f"g{g}": {"units": "4"} for g in range(2)}, *devices)
        else:
            devices = [
                device(f"d{k}", random.choice(("24Gi", "40Gi", "80Gi")), attributes={"numaNode": k // 2})
                for k in range(random.randint(2, 4))
            ]
            yield pool(f"n{n}", *devices)


def occupied(random: Random, empty: Snapshot, number: int) -> tuple[Snapshot, list[Holder]]:
    """Return the cluster with claims on random nodes, and their holders."""
    now, holders = empty, list[Holder]()
    for i in range(number):
        one = claim(f"held-{i}", exactly(random.choice((1, 1, 2)), random.choice(("", "", "10Gi", "30Gi"))))
        outcome = allocate(now, [one], nodes=[random.choice(list(now.nodes))])
        if not isinstance(outcome, Allocated):
            continue
        held = allocated(one, outcome.results[0])
        priority = random.choice((0, 0, 5))
        holders.append(Holder(str(one.key), (held,), priority=priority, members=(GroupMember((one,)),)))
        now = now.with_allocated(now.allocated.with_allocations([(str(one.key), outcome.results[0])]))
    return now, holders


def random_workload(random: Random) -> Workload:
    """Return one to three pods of at most two kinds, perhaps on one rack."""

    def asked() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        constraints = random.choice(([], [], [{"matchAttribute": _NUMA}]))
        return exactly(random.choice((1, 1, 2, 3)), random.choice(("", "20Gi", "40Gi", "80Gi"))), constraints

    kinds = [asked() for _ in range(random.choice((1, 1, 2)))]
    members: list[GroupMember] = []
    for i in range(random.choice((1, 1, 2, 3))):
        request, constraints = kinds[i % len(kinds)]
        members.append(GroupMember((claim(f"m{i}", request, constraints=constraints),)))
    return Workload("w", tuple(members), random.choice(((), (), (Level(label="rack"),))))


def random_case(seed: int) -> tuple[Checks, Workload]:
    """Return a small cluster that others use, and what is asked of it."""
    random = Random(seed)
    number = random.randint(1, 3)
    slices = list(random_slices(random, number))
    racks = [node(f"n{i}", rack=random.choice("ab")) for i in range(number)]
    now, holders = occupied(random, snapshot(*slices, nodes=racks), random.randint(1, 9))
    checks = Checks(PlannedCluster(now, tuple(holders)), lambda: 0.0, 60.0)
    return checks, random_workload(random)


def smallest(number: int, holds: Callable[[tuple[int, ...]], bool]) -> int | None:
    """Return the size of the smallest set for which the answer is yes, by trying all."""
    sets = (s for size in range(number + 1) for s in combinations(range(number), size))
    return next((len(s) for s in sets if holds(s)), None)


def without(checks: Checks, freed: Iterable[int]) -> Snapshot:
    """Return the cluster with the claims of other holders alone."""
    gone = set(freed)
    kept: list[ResourceClaim] = [
        c for i, holder in enumerate(checks.cluster.holders) if i not in gone for c in holder.claims
    ]
    given = [(str(c.key), c.status.allocation) for c in kept if c.status.allocation is not None]
    base = checks.cluster.snapshot
    return base.with_allocated(type(base.allocated)().with_allocations(given))


@pytest.mark.parametrize("part", parts(8, by_day=3))
def test_the_fewest_freed_holders_are_the_fewest(part: int) -> None:
    tried = 0
    for seed in range(part * 15, part * 15 + 15):
        checks, workload = random_case(seed)
        if isinstance(checks.solve(workload), GroupAllocated):
            continue

        def fits(freed: tuple[int, ...], c: Checks = checks, w: Workload = workload) -> bool:
            answer = allocate_group(without(c, freed), w.members, levels=w.levels)
            return isinstance(answer, GroupAllocated)

        best = smallest(len(checks.cluster.holders), fits)
        freeing = Freeing(checks, workload)
        found = freeing.fewest()
        assert (None if found is None else len(found.holders)) == best, seed
        assert found is None or (found.proven and fits(tuple(found.holders))), seed
        assert freeing.possible is (best is not None), seed
        tried += best is not None
    assert tried


@pytest.mark.parametrize("part", parts(4))
def test_the_fewest_moves_are_the_fewest(part: int) -> None:
    tried = 0
    for seed in range(1000 + part * 30, 1000 + part * 30 + 30):
        checks, workload = random_case(seed)
        freed = None
        if not workload.levels and not isinstance(checks.solve(workload), GroupAllocated):
            freed = Freeing(checks, workload).fewest()
        if freed is None:
            continue

        def fits(moved: tuple[int, ...], c: Checks = checks, w: Workload = workload) -> bool:
            others = [m for i in moved for m in c.cluster.holders[i].members]
            answer = allocate_group(without(c, moved), [*w.members, *others])
            return isinstance(answer, GroupAllocated)

        best = smallest(len(checks.cluster.holders), fits)
        moved, fails = fewest_moves(checks, workload, freed)
        assert (None if moved is None else len(moved.holders)) == best, seed
        assert moved.proven if moved is not None else fails, seed
        tried += best is not None
    assert tried
