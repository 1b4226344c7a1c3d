"""Groups: all members or none, on nodes with something in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from allocator_world import allocated, claim, device, exactly, names, node, pool, snapshot

from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.structured import (
    Budget,
    Failed,
    GroupAllocated,
    GroupMember,
    GroupRefused,
    Level,
    Snapshot,
    allocate_group,
)

RACK = Level(label="rack")


def machine(name: str, gpus: int = 2, memory: str = "80Gi", **attributes: Any) -> ResourceSlice:
    return pool(name, *(device(f"d{i}", memory, attributes=attributes) for i in range(gpus)))


def members(*counts: int, nodes: Collection[str] | None = None, **fields: Any) -> list[GroupMember]:
    """A member for each number of devices."""
    return [GroupMember((claim(f"c{i}", exactly(count, **fields)),), nodes) for i, count in enumerate(counts)]


def of_model(*models: str) -> dict[str, Any]:
    """A request for one of the models, the first that can be had."""

    def one(model: str) -> dict[str, Any]:
        expression = f'device.attributes["gpu.example.com"].model == "{model}"'
        return exactly(selectors=[{"cel": {"expression": expression}}])

    if len(models) == 1:
        return one(models[0])
    return {"firstAvailable": [{"name": f"s{i}", **one(model)} for i, model in enumerate(models)]}


def served(outcome: object) -> GroupAllocated:
    assert isinstance(outcome, GroupAllocated), outcome
    return outcome


def where(outcome: object) -> list[str | None]:
    return [m.node if m is not None else None for m in served(outcome).members]


def refused(outcome: object) -> GroupRefused:
    assert isinstance(outcome, GroupRefused), outcome
    return outcome


def racks(**of: str) -> list[Any]:
    """Nodes with the racks that they are in."""
    return [node(name, rack=rack) for name, rack in of.items()]


# --- what fits ----------------------------------------------------------------------------------------------


def test_members_are_spread_over_nodes() -> None:
    assert sorted(map(str, where(allocate_group(snapshot(machine("n1"), machine("n2")), members(2, 2))))) == [
        "n1",
        "n2",
    ]


def test_a_group_that_does_not_fit_gets_nothing_and_says_how_many_do() -> None:
    outcome = refused(allocate_group(snapshot(machine("n1"), machine("n2")), members(2, 2, 2)))
    assert (outcome.held, outcome.wanted, outcome.level) == (2, 3, None)
    assert outcome.summary() == "2 of 3 members fit at the same time"


def test_a_group_of_which_no_member_fits_says_why() -> None:
    outcome = refused(allocate_group(snapshot(machine("n1")), members(3)))
    assert outcome.summary().startswith("0 of 1 members fit at the same time: needs ")


def test_devices_are_given_once() -> None:
    cluster = snapshot(machine("n1", 4), machine("n2", 3))
    outcome = served(allocate_group(cluster, members(1, 3, 2)))
    given = [d for m in outcome.members if m is not None for r in m.results for d in names(r)]
    assert len(given) == len(set(given)) == 6
    assert [len(names(m.results[0])) for m in outcome.members if m is not None] == [1, 3, 2]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_member_leaves_the_only_device_of_another_to_it(order: tuple[int, int]) -> None:
    """Whatever they are called, and whichever comes first."""
    cluster = snapshot(machine("n1", 1, "80Gi", model="A100"), machine("n2", 1, "141Gi", model="H200"))
    both = [claim("large", of_model("A100", "H200")), claim("a100", of_model("A100"))]
    outcome = served(allocate_group(cluster, [GroupMember((both[i],)) for i in order]))
    assert [where(outcome)[order.index(i)] for i in (0, 1)] == ["n2", "n1"]


def test_on_one_node_as_well() -> None:
    models = {"A100": "80Gi", "H200": "141Gi"}
    cluster = snapshot(
        pool("n1", *(device(m.lower(), size, attributes={"model": m}) for m, size in models.items()))
    )
    both = [claim("large", of_model("A100", "H200")), claim("a100", of_model("A100"))]
    outcome = served(allocate_group(cluster, [GroupMember((c,)) for c in both]))
    assert [names(m.results[0]) for m in outcome.members if m is not None] == [["n1/h200"], ["n1/a100"]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_shared_claim_is_allocated_once_and_binds_the_others(order: tuple[int, int]) -> None:
    shared = claim("shared", exactly())
    both = [[shared, claim("own", exactly())], [shared]]
    outcome = served(
        allocate_group(snapshot(machine("n1"), machine("n2")), [GroupMember(tuple(both[i])) for i in order])
    )
    first, second = (outcome.members[order.index(i)] for i in (0, 1))
    assert first is not None
    assert second is not None
    assert first.node == second.node
    assert first.results[0] == second.results[0]
    assert names(first.results[0]) != names(first.results[1])


def test_a_member_that_is_allocated_already_stays_where_it_is() -> None:
    cluster = snapshot(machine("n1"), machine("n2"), nodes=racks(n1="a", n2="b"))
    first = claim("first", exactly())
    there = served(allocate_group(cluster, [GroupMember((first,), ["n2"])])).members[0]
    assert there is not None
    held: ResourceClaim = allocated(first, there.results[0])
    later = cluster.with_allocated(cluster.allocated.with_allocations([("default/first", there.results[0])]))
    group = [GroupMember((held,)), *members(1)]
    assert where(allocate_group(later, group, levels=[RACK])) == ["n2", "n2"]


def test_nodes_that_share_devices_do_not_give_them_twice() -> None:
    far = [device(f"f{i}", "80Gi") for i in range(2)]
    cluster = snapshot(pool("fabric", *far, nodeName=None, allNodes=True), nodes=[node("n1"), node("n2")])
    outcome = served(allocate_group(cluster, members(1, 1)))
    assert len({d for m in outcome.members if m is not None for r in m.results for d in names(r)}) == 2
    assert isinstance(allocate_group(cluster, members(1, 1, 1)), GroupRefused | Failed)


# --- which nodes and devices --------------------------------------------------------------------------------


def test_as_few_nodes_as_possible_are_used() -> None:
    cluster = snapshot(machine("n1", 2), machine("n2", 3), machine("n3", 8))
    assert set(where(allocate_group(cluster, members(1, 1, 1, 1)))) == {"n3"}


def test_of_nodes_that_hold_as_many_the_one_with_the_least_to_spare() -> None:
    cluster = snapshot(machine("n1", 4, "80Gi"), machine("n2", 4, "40Gi"))
    assert set(where(allocate_group(cluster, members(2, 2, memory="32Gi")))) == {"n2"}


def test_idle_devices_come_first() -> None:
    cluster = snapshot(machine("n1", 2, busy=True), machine("n2", 2, busy=False))
    assert set(where(allocate_group(cluster, members(1, 1)))) == {"n2"}


def test_what_nodes_have_besides_devices_counts() -> None:
    cluster = snapshot(machine("n1", 4), machine("n2", 4))
    group = [GroupMember(m.claims, needs=(3, 1)) for m in members(1, 1, 1)]
    found = where(allocate_group(cluster, group, free={"n1": (7, 9), "n2": (4, 9)}))
    assert sorted(map(str, found)) == ["n1", "n1", "n2"]
    assert refused(allocate_group(cluster, group, free={"n1": (7, 9), "n2": (2, 9)})).held == 2
    assert refused(allocate_group(cluster, group, free={"n1": (7, 1), "n2": (4, 1)})).held == 2


def test_members_go_to_nodes_that_can_take_them() -> None:
    cluster = snapshot(machine("n1"), machine("n2"), machine("n3"))
    small = GroupMember((claim("small", exactly()),), ["n2"])
    large = GroupMember((claim("large", exactly(2)),), ["n1", "n2"])
    assert where(allocate_group(cluster, [small, large])) == ["n2", "n1"]


# --- levels -------------------------------------------------------------------------------------------------


def test_a_domain_is_a_label_of_nodes() -> None:
    slices = [machine("n0"), machine("n1", 1), machine("n2"), machine("n3")]
    cluster = snapshot(*slices, nodes=[*racks(n0="a", n1="a", n2="b", n3="b"), node("n4")])
    outcome = served(allocate_group(cluster, members(2, 2), levels=[RACK]))
    assert sorted(map(str, where(outcome))) == ["n2", "n3"]
    assert outcome.domains == ("b",)
    three = refused(allocate_group(cluster, members(2, 2, 2), levels=[RACK]))
    assert three.summary() == "2 of 3 members fit in the best of 2 domains of rack (b)"
    row = refused(allocate_group(cluster, members(2, 2), levels=[Level(label="row")]))
    assert row.summary() == "no node that can be used has the label row"


def test_a_domain_is_an_attribute_of_devices() -> None:
    cluster = snapshot(machine("n0", clique="x"), machine("n1", clique="y"), machine("n2", clique="y"))
    level = Level(attribute="gpu.example.com/clique")
    outcome = served(allocate_group(cluster, members(2, 2), levels=[level]))
    assert sorted(map(str, where(outcome))) == ["n1", "n2"]
    assert outcome.domains == ("y",)
    assert refused(allocate_group(cluster, members(2, 2, 2), levels=[level])).held == 2


def test_devices_of_other_domains_on_a_node_are_left_out() -> None:
    groups = [device(f"d{i}", "80Gi", attributes={"link": "xxy"[i]}) for i in range(3)]
    cluster = snapshot(pool("n1", *groups))
    level = Level(attribute="gpu.example.com/link")
    outcome = served(allocate_group(cluster, members(1, 1), levels=[level]))
    given = sorted(d for m in outcome.members if m is not None for d in names(m.results[0]))
    assert given == ["n1/d0", "n1/d1"]
    assert refused(allocate_group(cluster, members(1, 1, 1), levels=[level])).held == 2


def test_the_domain_with_the_least_to_spare_is_taken() -> None:
    """Not the scarcest devices because their domain is small or comes first by name."""
    large, small = [machine(f"a{i}", 2, "141Gi") for i in range(2)], [machine(f"b{i}", 2) for i in range(3)]
    of = {s.spec.pool.name: s.spec.pool.name[0] for s in [*large, *small]}
    cluster = snapshot(*large, *small, nodes=racks(**of))
    assert served(allocate_group(cluster, members(2, 2), levels=[RACK])).domains == ("b",)


@pytest.mark.parametrize(("size", "racks_used", "shared"), [(2, {"a"}, "a"), (3, {"a", "b"}, "")])
def test_a_preferred_level_is_kept_where_that_is_possible(
    size: int, racks_used: set[str], shared: str
) -> None:
    of = {"n0": "a", "n1": "a", "n2": "b"}
    cluster = snapshot(*(machine(n) for n in of), nodes=racks(**of))
    level = Level(label="rack", required=False)
    outcome = served(allocate_group(cluster, members(*[2] * size), levels=[level]))
    assert {of[str(n)] for n in where(outcome)} == racks_used
    assert outcome.domains == (shared,)


def two_levels() -> tuple[Snapshot, list[Level]]:
    """Blocks with two racks of two nodes each, but the second block has a rack of one."""
    labels = [("x", "r0"), ("x", "r0"), ("x", "r1"), ("x", "r1"), ("y", "r2"), ("y", "r2"), ("y", "r3")]
    nodes = [node(f"n{i}", block=block, rack=rack) for i, (block, rack) in enumerate(labels)]
    slices = [machine(f"n{i}") for i in range(len(labels))]
    return snapshot(*slices, nodes=nodes), [Level(label="block"), RACK]


def test_a_refusal_names_the_level_that_failed() -> None:
    cluster, levels = two_levels()
    racks_are_too_small = refused(allocate_group(cluster, members(2, 2, 2), levels=levels))
    assert (racks_are_too_small.level, racks_are_too_small.held) == (RACK, 2)
    assert racks_are_too_small.summary() == "2 of 3 members fit in the best of 4 domains of rack (x/r0)"
    blocks_are_too_small = refused(allocate_group(cluster, members(*[2] * 5), levels=levels))
    assert (blocks_are_too_small.level, blocks_are_too_small.held) == (levels[0], 4)
    cluster_is_too_small = refused(allocate_group(cluster, members(*[2] * 8), levels=levels))
    assert (cluster_is_too_small.level, cluster_is_too_small.held) == (None, 7)


def test_a_required_level_stands_while_a_preferred_one_is_given_up() -> None:
    cluster, (block, rack) = two_levels()
    wanted = [block, Level(label="rack", required=False)]
    assert served(allocate_group(cluster, members(2, 2, 2), levels=wanted)).domains == ("y", "")
    assert served(allocate_group(cluster, members(2, 2), levels=wanted)).domains == ("x", "r0")
    assert rack.required


def test_members_come_in_parts_that_share_a_domain() -> None:
    cluster, (block, _) = two_levels()
    parts = Level(label="rack", count=2)
    found = where(allocate_group(cluster, members(*[2] * 4), levels=[block, parts]))
    assert sorted(map(str, found)) == ["n0", "n1", "n2", "n3"]
    everywhere = refused(allocate_group(cluster, members(*[2] * 8), levels=[parts]))
    assert everywhere.held == 7
    assert refused(allocate_group(cluster, members(*[2] * 6), levels=[block, parts])).held == 4
    assert where(allocate_group(cluster, members(*[2] * 6), levels=[parts]))


def test_an_elastic_group_in_parts_needs_whole_parts() -> None:
    machines = [machine(f"n{i}") for i in range(3)]
    cluster = snapshot(*machines, nodes=racks(n0="a", n1="a", n2="b"))
    parts = [Level(label="rack", count=2)]
    # Two parts, for which there are four members, but three nodes.
    few = refused(allocate_group(cluster, members(*[2] * 4), levels=parts, least=3))
    assert (few.wanted, few.held) == (4, 3)
    assert where(allocate_group(cluster, members(*[2] * 4), levels=parts, least=1)) == [
        "n0",
        "n1",
        None,
        None,
    ]


def test_parts_need_members_that_ask_for_the_same() -> None:
    cluster, _ = two_levels()
    mixed = allocate_group(cluster, members(1, 2), levels=[Level(label="rack", count=2)])
    assert isinstance(mixed, Failed)
    assert "members that ask for the same" in mixed.message
    odd = allocate_group(cluster, members(1, 1, 1), levels=[Level(label="rack", count=2)])
    assert isinstance(odd, Failed)
    assert "3 members cannot be divided in parts of 2" in odd.message


# --- elastic groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "levels"), [(3, ()), (2, [RACK])])
def test_an_elastic_group_gets_as_many_members_as_fit(least: int, levels: Sequence[Level]) -> None:
    of = {"n0": "a", "n1": "a", "n2": "b"}
    cluster = snapshot(*(machine(n) for n in of), nodes=racks(**of))
    found = where(allocate_group(cluster, members(*[2] * 5), levels=levels, least=least))
    assert [n is not None for n in found] == [i < (2 if levels else 3) for i in range(5)]
    short = refused(allocate_group(cluster, members(*[2] * 5), levels=levels, least=least + 1))
    assert (short.held, short.wanted) == (least, least + 1)


# --- limits -------------------------------------------------------------------------------------------------


def test_a_group_without_members_fits() -> None:
    assert served(allocate_group(snapshot(machine("n1")), [])).members == ()


def test_a_class_that_does_not_exist_is_an_error() -> None:
    outcome = allocate_group(snapshot(machine("n1")), members(1, deviceClassName="nothing"))
    assert isinstance(outcome, Failed)
    assert "'nothing' does not exist" in outcome.message


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ('device.attributes["gpu.example.com"].modle == "A"', "no such key: modle"),
        ('device.attributes["gpu.example.com"].model ==', "does not compile"),
    ],
)
def test_a_group_whose_selector_fails_says_so(expression: str, said: str) -> None:
    asked = members(1, 1, selectors=[{"cel": {"expression": expression}}])
    # What nodes have besides devices is not the reason, however much of it there is.
    asked = [GroupMember(m.claims, None, (1,)) for m in asked]
    outcome = refused(allocate_group(snapshot(machine("n1", model="A")), asked, free={"n1": (8,)}))
    assert outcome.summary().startswith("0 of 2 members fit at the same time: claim default/c0, request ")
    assert said in outcome.summary()


def test_many_equal_members_cost_little_on_many_equal_nodes() -> None:
    cluster = snapshot(*(machine(f"n{i:03}", 8) for i in range(320)))
    budget = Budget()
    assert len(served(allocate_group(cluster, members(*[8] * 300), budget=budget)).nodes) == 300
    assert budget.spent < 3_000


def test_members_of_which_no_two_are_equal_are_served_as_well() -> None:
    """So many that a search which nests once for each of them would nest too deep."""
    cluster = snapshot(*(machine(f"n{i:03}", 8) for i in range(80)))
    group = [GroupMember((claim(f"c{i}", exactly(memory=f"{i + 1}Mi")),)) for i in range(600)]
    assert len(served(allocate_group(cluster, group)).nodes) == 75


def test_a_group_ends_with_its_budget() -> None:
    cluster = snapshot(*(machine(f"n{i}", 8) for i in range(9)))
    outcome = allocate_group(cluster, members(*range(1, 9), *range(1, 9)), budget=Budget(500))
    assert isinstance(outcome, GroupAllocated) or (isinstance(outcome, Failed) and outcome.gave_up)
