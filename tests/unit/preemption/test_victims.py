"""Which pods go for which preemptor, and what is said about it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from allocator_world import allocated, claim, device, exactly, node, partitioned_pool, pool, snapshot, takes

from dra_driver.api.meta import DriverName, ObjectKey, PoolName
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.preemption import (
    Fits,
    HoldingPod,
    NoVictims,
    OccupiedCluster,
    Preemptor,
    Removal,
    choose_victims,
)
from dra_driver.structured import Allocated, Budget, GroupMember, Level, Snapshot, allocate

MODEL = 'device.attributes["gpu.example.com"].model == "{}"'


class Fleet:
    """A cluster that fills up.

    Args:
        slices: of its devices.
        nodes: as far as their labels matter.
    """

    def __init__(self, *slices: ResourceSlice | list[ResourceSlice], nodes: Iterable[Any] = ()) -> None:
        self.now: Snapshot = snapshot(*slices, nodes=tuple(nodes))
        self.claims: list[ResourceClaim] = []
        self.pods: list[HoldingPod] = []

    def hold(self, name: str, at: str, *requests: dict[str, Any], **fields: Any) -> HoldingPod:
        """Let a pod have devices of a node."""
        one = claim(f"claim-{name}", *(requests or (exactly(1),)))
        outcome = allocate(self.now, [one], nodes=[at])
        assert isinstance(outcome, Allocated)
        given = [(str(one.key), outcome.results[0])]
        self.now = self.now.with_allocated(self.now.allocated.with_allocations(given))
        self.claims.append(allocated(one, outcome.results[0]))
        return self.use(name, one.key, node=at, **fields)

    def use(self, name: str, *claims: ObjectKey, **fields: Any) -> HoldingPod:
        """Let one more pod use claims."""
        self.pods.append(HoldingPod(ObjectKey("default", name), claims=claims, **fields))
        return self.pods[-1]

    def cluster(self, **fields: Any) -> OccupiedCluster:
        return OccupiedCluster(self.now, tuple(self.claims), tuple(self.pods), **fields)


def gpus(*nodes: str, count: int = 2) -> Fleet:
    return Fleet(*(pool(n, *(device(f"d{k}", "80Gi") for k in range(count))) for n in nodes))


def asks(*requests: dict[str, Any], members: int = 1, priority: int = 100, **fields: Any) -> Preemptor:
    of = [GroupMember((claim(f"x{i}", *(requests or (exactly(1),))),)) for i in range(members)]
    return Preemptor("Pod default/x", tuple(of), priority, **fields)


def victims(found: object) -> list[str]:
    assert isinstance(found, Removal), found
    assert found.proven
    return [v.key.name for v in found.victims]


def profile(name: str) -> dict[str, Any]:
    return exactly(1, selectors=[{"cel": {"expression": MODEL.format(name)}}])


def sliced(name: str, parts: int = 4, of: int = 2) -> list[ResourceSlice]:
    """Return GPUs that can be had whole, or in parts."""
    sets = {f"g{g}": {f"slice-{i}": "1" for i in range(parts)} for g in range(of)}
    devices = []
    for g in range(of):
        for i in range(parts):
            consumed = takes(f"g{g}", **{f"slice-{i}": "1"})
            devices.append(
                device(f"g{g}-{i}", "10Gi", attributes={"model": "part"}, consumesCounters=consumed)
            )
        consumed = takes(f"g{g}", **{f"slice-{i}": "1" for i in range(parts)})
        devices.append(device(f"g{g}", "80Gi", attributes={"model": "whole"}, consumesCounters=consumed))
    return partitioned_pool(name, sets, *devices)


def test_the_lowest_priority_goes_before_fewer_pods_and_older_ones() -> None:
    fleet = gpus("n1", "n2")
    fleet.hold("a", "n1", exactly(2), priority=5, started=900)
    fleet.hold("b", "n2", priority=4, started=100)
    fleet.hold("c", "n2", priority=4, started=200)
    found = choose_victims(fleet.cluster(), asks(exactly(2)))
    assert victims(found) == ["c", "b"]
    assert isinstance(found, Removal)
    assert found.devices == {"n2": ("d0", "d1")}
    assert found.summary() == (
        "would preempt default/c (priority 4), default/b (priority 4); on node n2: d0, d1"
    )
    assert victims(choose_victims(fleet.cluster(), asks())) == ["c"]


def test_a_budget_is_kept_where_any_other_choice_exists() -> None:
    fleet = gpus("n1", "n2", count=1)
    fleet.hold("a", "n1", priority=0, budgets=("default/web",))
    fleet.hold("b", "n2", priority=50)
    assert victims(choose_victims(fleet.cluster(), asks())) == ["b"]
    assert victims(choose_victims(fleet.cluster(budgets={"default/web": 1}), asks())) == ["a"]
    fleet.pods[1] = replace(fleet.pods[1], priority=100)
    found = choose_victims(fleet.cluster(), asks())
    assert isinstance(found, Removal)
    assert found.violated == {"default/web": 1}
    assert found.victims[0].budgets == ("default/web",)
    assert found.summary().endswith("violates the PodDisruptionBudgets default/web")


def test_budgets_allow_as_much_as_all_nodes_together_take() -> None:
    """One disruption is allowed: of two pods that are needed one is of another budget."""
    fleet = gpus("n1", "n2", "n3", count=1)
    fleet.hold("a", "n1", priority=0, budgets=("default/web",))
    fleet.hold("b", "n2", priority=0, budgets=("default/web",))
    fleet.hold("c", "n3", priority=7)
    found = choose_victims(fleet.cluster(budgets={"default/web": 1}), asks(members=2))
    assert victims(found)[1:] == ["c"]


def test_pods_that_share_a_claim_and_groups_go_as_a_whole() -> None:
    fleet = gpus("n1", "n2", "n3", count=1)
    shared = fleet.hold("a", "n1")
    fleet.use("b", *shared.claims, priority=3)
    fleet.hold("m1", "n2", group="group default/g")
    fleet.hold("m2", "n3", group="group default/g")
    fleet.use("m3", group="group default/g", priority=1)
    found = choose_victims(fleet.cluster(), asks())
    assert victims(found) == ["m1", "m2", "m3"]
    assert isinstance(found, Removal)
    assert [v.reason for v in found.victims] == [
        "holds n2/d0, of group default/g",
        "holds n3/d0, of group default/g",
        "belongs to group default/g",
    ]
    fleet.pods[-1] = replace(fleet.pods[-1], priority=3)
    assert victims(choose_victims(fleet.cluster(), asks())) == ["a", "b"]


def test_a_group_displaces_a_group() -> None:
    fleet = gpus(*(f"n{i}" for i in range(6)))
    for i in range(4):
        fleet.hold(f"old-{i}", f"n{i}", exactly(2), group="default/old", priority=2)
    for i in (4, 5):
        fleet.hold(f"alone-{i}", f"n{i}", exactly(2), priority=9)
    found = choose_victims(fleet.cluster(), asks(exactly(2), members=4))
    assert victims(found) == ["old-0", "old-1", "old-2", "old-3"]
    assert isinstance(found, Removal)
    assert sorted(found.devices) == ["n0", "n1", "n2", "n3"]
    few = choose_victims(fleet.cluster(), asks(exactly(2), members=4, least=2))
    assert len(victims(few)) == 4


def test_a_group_gets_its_domain() -> None:
    nodes = [node("n1", rack="a"), node("n2", rack="b"), node("n3", rack="b")]
    fleet = Fleet(*(pool(f"n{i}", device("d0", "80Gi")) for i in (1, 2, 3)), nodes=nodes)
    for i in (1, 2, 3):
        fleet.hold(f"p{i}", f"n{i}", priority=i)
    assert victims(choose_victims(fleet.cluster(), asks(members=2))) == ["p1", "p2"]
    inside = asks(members=2, levels=(Level(label="rack"),))
    assert victims(choose_victims(fleet.cluster(), inside)) == ["p2", "p3"]


def test_the_one_partition_that_is_in_the_way_goes() -> None:
    fleet = Fleet(sliced("n1"))
    for i in range(5):
        fleet.hold(f"p{i}", "n1", profile("part"), priority=9, started=i)
    found = choose_victims(fleet.cluster(), asks(profile("whole")))
    assert victims(found) == ["p4"]
    assert isinstance(found, Removal)
    assert found.devices == {"n1": ("g1",)}
    assert found.claims == fleet.pods[4].claims


def test_of_a_shared_device_as_much_goes_as_is_needed() -> None:
    fleet = Fleet(pool("n1", device("d0", "80Gi", allowMultipleAllocations=True)))
    for i, amount in enumerate(("40Gi", "20Gi", "20Gi")):
        fleet.hold(f"p{i}", "n1", exactly(1, amount), priority=0)
    assert victims(choose_victims(fleet.cluster(), asks(exactly(1, "40Gi")))) == ["p0"]
    assert len(victims(choose_victims(fleet.cluster(), asks(exactly(1, "20Gi"))))) == 1
    assert len(victims(choose_victims(fleet.cluster(), asks(exactly(1, "60Gi"))))) == 2


def test_room_besides_devices_counts_too() -> None:
    """Pod a alone has the device; without b there is too little CPU beside it."""
    fleet = gpus("n1", "n2")
    fleet.hold("a", "n1", priority=1, takes=(2,))
    fleet.hold("b", "n1", priority=1, takes=(6,))
    fleet.hold("c", "n2", exactly(2), priority=50, takes=(8,))
    cluster = fleet.cluster(free={"n1": (0,), "n2": (0,)})
    members = tuple(replace(m, needs=(7,)) for m in asks().members)
    assert victims(choose_victims(cluster, replace(asks(), members=members))) == ["a", "b"]
    members = tuple(replace(m, needs=(6,)) for m in asks().members)
    assert victims(choose_victims(cluster, replace(asks(), members=members))) == ["b"]


def test_pods_that_are_being_deleted_are_waited_for() -> None:
    fleet = gpus("n1", count=1)
    fleet.hold("a", "n1", priority=200, going=True)
    found = choose_victims(fleet.cluster(), asks())
    assert isinstance(found, Fits)
    assert found.going == (ObjectKey("default", "a"),)
    assert found.summary() == "waits for pods that are being deleted: default/a"
    assert isinstance(choose_victims(gpus("n1").cluster(), asks()), Fits)


def test_what_a_pod_holds_that_does_not_end_stays_and_its_group_goes_without_it() -> None:
    fleet = gpus("n1", "n2", count=1)
    fleet.hold("m1", "n1", group="group default/g", hangs=True)
    fleet.hold("m2", "n2", group="group default/g")
    found = choose_victims(fleet.cluster(), asks())
    assert victims(found) == ["m2"]
    assert isinstance(found, Removal)
    assert found.devices == {"n2": ("d0",)}
    assert isinstance(choose_victims(fleet.cluster(), asks(members=2)), NoVictims)


def test_a_claim_that_a_pod_shares_which_does_not_end_is_not_freed() -> None:
    fleet = gpus("n1", count=1)
    shared = fleet.hold("a", "n1", hangs=True)
    fleet.use("b", *shared.claims)
    assert isinstance(choose_victims(fleet.cluster(), asks()), NoVictims)


@pytest.mark.parametrize(
    ("pod", "asked", "reason"),
    [
        ({}, asks(preempts=False), "its preemptionPolicy is Never"),
        ({"priority": 100}, asks(), "has priority 100 or higher (1 pod)"),
        ({"kept": "opts out"}, asks(), "opts out (1 pod)"),
        ({"group": "group default/g"}, asks(group="group default/g"), "belongs to what preempts (1 pod)"),
        ({}, asks(pods=frozenset([ObjectKey("default", "a")])), "belongs to what preempts (1 pod)"),
        ({}, asks(exactly(2)), "does not fit without 1 pod of lower priority either"),
    ],
)
def test_why_nothing_is_removed_is_said(pod: dict[str, Any], asked: Preemptor, reason: str) -> None:
    fleet = gpus("n1", count=1)
    fleet.hold("a", "n1", **pod)
    found = choose_victims(fleet.cluster(), asked)
    assert isinstance(found, NoVictims)
    assert found.proven
    assert reason in found.reason


def test_devices_of_others_and_claims_without_pods_stay() -> None:
    fleet = gpus("n1", count=1)
    fleet.hold("a", "n1")
    other = PoolID(DriverName("gpu.example.com"), PoolName("n2"))
    found = choose_victims(fleet.cluster(ours={other}), asks())
    assert isinstance(found, NoVictims)
    assert "holds devices that are not allocated by this driver" in found.reason
    fleet.pods.clear()
    assert isinstance(choose_victims(fleet.cluster(), asks()), NoVictims)


def test_what_was_found_is_given_when_the_time_is_over() -> None:
    fleet = gpus(*(f"n{i}" for i in range(30)), count=4)
    for i in range(120):
        fleet.hold(f"p{i}", f"n{i // 4}", priority=i % 7)
    found = []
    for seconds in (1, 10, 20, 40, 80, 160, 10_000):
        budget = Budget(100_000, seconds=seconds, clock=itertools.count(0.0).__next__)
        found.append(choose_victims(fleet.cluster(), asks(exactly(3)), budget))
    removals = [r for r in found if isinstance(r, Removal)]
    assert removals[-1].proven
    assert all(r.cost >= removals[-1].cost for r in removals)
    assert isinstance(found[0], NoVictims)


def test_what_a_small_budget_finds_is_enough_and_not_called_the_least() -> None:
    fleet = gpus(*(f"n{i}" for i in range(8)), count=4)
    for i in range(32):
        fleet.hold(f"p{i}", f"n{i // 4}", priority=i % 7)
    best = choose_victims(fleet.cluster(), asks(exactly(3), members=2))
    assert isinstance(best, Removal)
    unfinished = 0
    for steps in range(0, 6_000, 150):
        found = choose_victims(fleet.cluster(), asks(exactly(3), members=2), Budget(steps))
        if isinstance(found, Removal):
            assert found.cost >= best.cost
            assert found.cost == best.cost or not found.proven
            unfinished += not found.proven
        else:
            assert isinstance(found, NoVictims)
            assert not found.proven
            unfinished += 1
    assert unfinished
