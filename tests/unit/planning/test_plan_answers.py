"""What a plan says where time runs out, nodes share devices, or only one part of the request is too much."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from allocator_world import allocated, claim, device, exactly, node, partitioned_pool, pool, snapshot, takes

from dra_driver.api import codec
from dra_driver.api.meta import DriverName
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.planning import Checks, Holder, Plan, PlannedCluster, Workload, make_plan
from dra_driver.planning.changes.expressions import conjuncts
from dra_driver.planning.holders.sets import fewest, irreducible
from dra_driver.structured import Allocated, GroupAllocated, GroupMember, Level, allocate

_MODEL = 'device.attributes["gpu.example.com"].model {} "{}"'


def selected(expression: str, *values: str) -> list[dict[str, dict[str, str]]]:
    """Return the selectors of a request: one."""
    return [{"cel": {"expression": expression.format(*values)}}]


def ticking(seconds: float) -> Callable[[], float]:
    """Return a clock that goes on by so much whenever it is read."""
    count = itertools.count()
    return lambda: next(count) * seconds


def cluster(*held: tuple[str, str, int], nodes: int = 3, shared: bool = False) -> PlannedCluster:
    """Return nodes of four GPUs on two racks; each holder is a name, a node and a number of devices."""
    slices = []
    for n in range(nodes):
        of_node = {"model": "ab"[n % 2]}
        devices = [device(f"d{k}", "80Gi" if n else "40Gi", attributes=of_node) for k in range(4)]
        slices.append(pool(f"n{n}", *devices))
    if shared:
        raw = {
            "metadata": {"name": "fabric"},
            "spec": {
                "driver": DriverName("gpu.example.com"),
                "allNodes": True,
                "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1},
                "devices": [device(f"f{k}", "80Gi", attributes={"model": "f"}) for k in range(3)],
            },
        }
        slices.append(codec.convert(ResourceSlice, raw))
    now = snapshot(*slices, nodes=[node(f"n{n}", rack="xy"[n // 2]) for n in range(nodes)])
    holders: list[Holder] = []
    for name, at, count in held:
        one = claim(name, exactly(count, selectors=selected(_MODEL, "==" if "fabric" in name else "!=", "f")))
        outcome = allocate(now, [one], nodes=[at])
        assert isinstance(outcome, Allocated)
        taken = allocated(one, outcome.results[0])
        now = now.with_allocated(now.allocated.with_allocations([(name, outcome.results[0])]))
        holders.append(Holder(name, (taken,), members=(GroupMember((one,)),)))
    return PlannedCluster(now, tuple(holders), coupled=shared)


def workload(*claims: ResourceClaim, levels: tuple[Level, ...] = ()) -> Workload:
    return Workload("w", tuple(GroupMember((c,)) for c in claims), levels)


def planned(of: PlannedCluster, asked: Workload, seconds: float = 60, tick: float = 0) -> Plan:
    return make_plan(Checks(of, ticking(tick), seconds), asked, count=True)


HELD = (("a", "n0", 2), ("b", "n0", 1), ("c", "n1", 3), ("d", "n2", 1), ("e", "n2", 2))


@pytest.mark.long
def test_what_is_said_before_the_time_is_over_holds() -> None:
    """Whenever the search ends, holders that are named are enough, and what is called proven is true."""
    of, asked = cluster(*HELD), workload(claim("x", exactly(4)), claim("y", exactly(3)))
    whole = planned(of, asked)
    assert whole.freed is not None
    assert whole.freed.proven
    checks = Checks(of, lambda: 0.0, 60)
    unfinished = 0
    for limit in range(0, 400, 3):
        plan = planned(of, asked, seconds=limit, tick=1)
        unfinished += bool(plan.out_of_time)
        assert plan.placed is None
        assert not plan.never
        if plan.freed is None:
            assert plan.out_of_time
            continue
        assert isinstance(checks.solve(asked, plan.freed.holders), GroupAllocated)
        assert plan.freed.at_least <= len(whole.freed.holders) <= len(plan.freed.holders)
        assert not plan.freed.proven or len(plan.freed.holders) == len(whole.freed.holders)
    assert unfinished > 5


def test_devices_that_nodes_share_are_counted_once() -> None:
    held = (("a", "n0", 4), ("b", "n1", 4), ("fabric-1", "n0", 1), ("fabric-2", "n1", 2))
    of = cluster(*held, nodes=2, shared=True)
    request = exactly(1, selectors=selected(_MODEL, "==", "f"))
    asked = workload(*(claim(f"m{i}", request) for i in range(2)))
    plan = planned(of, asked)
    assert plan.freed is not None
    assert [of.holders[i].name for i in plan.freed.holders] == ["fabric-2"]
    assert plan.freed.proven


def test_pods_that_no_node_takes_again_are_not_moved_but_others_are() -> None:
    """Holder b, which freeing would choose, has a node selector that its node no longer matches."""
    of = cluster(("a", "n0", 1), ("b", "n1", 4), ("c", "n2", 3))
    a, b, c = of.holders
    b = replace(b, priority=-1, members=tuple(replace(m, nodes=frozenset()) for m in b.members))
    plan = planned(replace(of, holders=(a, b, c)), workload(claim("x", exactly(4))))
    assert plan.freed is not None
    assert list(plan.freed.holders) == [1]
    assert plan.moved is not None
    assert len(plan.moved.holders) == 1
    assert 1 not in plan.moved.holders
    assert plan.moved.proven


def test_members_that_share_a_rack_have_its_holders_freed() -> None:
    of = cluster(("a", "n0", 1), ("b", "n1", 1), ("c", "n2", 1))
    asked = workload(claim("x", exactly(4)), claim("y", exactly(4)), levels=(Level(label="rack"),))
    plan = planned(of, asked)
    assert plan.freed is not None
    assert sorted(of.holders[i].name for i in plan.freed.holders) == ["a", "b"]
    level = next(r for r in plan.relaxed if r.part == "one rack for all pods")
    assert level.answer is None
    assert level.proven


def test_the_part_that_excludes_most_is_counted() -> None:
    of = cluster(nodes=4)
    memory = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("80Gi")) >= 0'
    selectors = selected(f"{_MODEL} && {memory}", "==", "a")
    asked = workload(claim("x", exactly(5, selectors=selectors)))
    plan = planned(of, asked)
    parts = {r.part.rpartition(": ")[2][:20]: r.excludes for r in plan.relaxed if "selector" in r.part}
    assert list(parts.values()) == [8, 4]
    fewer = next(r for r in plan.relaxed if r.part.startswith("5 devices"))
    assert fewer.change == "4 instead"
    assert not plan.never


def test_never_needs_a_proof_of_everything() -> None:
    of = cluster(("a", "n0", 2), nodes=1)
    asked = workload(claim("x", exactly(9, "90Gi")))
    assert planned(of, asked).never
    assert not planned(of, asked, seconds=8, tick=1).never


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a && b", ["a", "b"]),
        ("a && (b || c) && f(x && y)", ["a", "(b || c)", "f(x && y)"]),
        ('x == "a && b" && y', ['x == "a && b"', "y"]),
        ("a || b && c", ["a || b && c"]),
        ("a ? b : c && d", ["a ? b : c && d"]),
        ('d.?m.orValue("") == "x" && y', ['d.?m.orValue("") == "x"', "y"]),
        (r'x == "\" && " && y', [r'x == "\" && "', "y"]),
        ("x == '''a && b''' && y", ["x == '''a && b''' && y"]),
        ("a && ", ["a &&"]),
    ],
)
def test_selectors_are_taken_apart(expression: str, parts: list[str]) -> None:
    assert conjuncts(expression) == parts


def test_a_smallest_set_is_found_and_an_irreducible_one() -> None:
    solutions = [frozenset((1, 2, 3)), frozenset((4, 5)), frozenset((0, 6, 7, 8))]

    def holds(chosen: frozenset[int]) -> bool:
        return any(s <= chosen for s in solutions)

    assert fewest(range(9), holds, below=9) == frozenset((4, 5))
    assert fewest(range(9), holds, below=2) is None
    assert irreducible(range(9), holds) in solutions
    assert irreducible(range(9), lambda _: True) == frozenset()


def test_a_device_that_takes_from_several_counter_sets_may_need_a_holder_of_each() -> None:
    """Two holders are in the way of one of the shared devices, three of lower priority of the other one."""
    sets = {f"set-{i}": {"slices": "1" if i < 5 else "2"} for i in range(6)}
    devices = []
    for i in range(7):
        consumed = takes(f"set-{min(i, 5)}", slices="1")
        devices.append(device(f"part-{i}", "10Gi", attributes={"model": f"p{i}"}, consumesCounters=consumed))
    for name, of in (("large", (0, 1, 2)), ("small", (3, 4))):
        consumed = [one for i in of for one in takes(f"set-{i}", slices="1")]
        more = {"consumesCounters": consumed, "allowMultipleAllocations": True}
        devices.append(device(name, "80Gi", attributes={"model": name}, **more))
    now = snapshot(partitioned_pool("n0", sets, *devices))
    holders: list[Holder] = []
    for i in range(7):
        one = claim(f"held-{i}", exactly(1, selectors=selected(_MODEL, "==", f"p{i}")))
        outcome = allocate(now, [one])
        assert isinstance(outcome, Allocated)
        now = now.with_allocated(now.allocated.with_allocations([(f"held-{i}", outcome.results[0])]))
        holders.append(Holder(f"held-{i}", (allocated(one, outcome.results[0]),), priority=9 * (i > 2)))
    plan = planned(PlannedCluster(now, tuple(holders)), workload(claim("x", exactly(1, "40Gi"))))
    assert plan.freed is not None
    assert plan.freed.holders == {3, 4}
    assert plan.freed.proven
