"""Groups: all members or none, on nodes with something in common."""

from __future__ import annotations

import pytest
from allocator_world import claim, device, exactly, names, node, pool, snapshot

from dra_driver.api.resource import ResourceSlice
from dra_driver.structured import DoesNotFit, Domain, GroupAllocated, allocate_group


def machine(name: str, gpus: int = 2, clique: str = "") -> ResourceSlice:
    attributes = {"attributes": {"clique": clique}} if clique else {}
    return pool(name, *(device(f"d{i}", "80Gi", **attributes) for i in range(gpus)))


def where(outcome: object) -> list[str]:
    assert isinstance(outcome, GroupAllocated), outcome
    return [m.node for m in outcome.members]


def test_members_are_spread_over_nodes() -> None:
    cluster = snapshot(machine("n1"), machine("n2"))
    outcome = allocate_group(cluster, [[claim(f"c{i}", exactly(2))] for i in range(2)])
    assert sorted(where(outcome)) == ["n1", "n2"]


def test_a_group_that_does_not_fit_gets_nothing_and_says_why() -> None:
    cluster = snapshot(machine("n1"), machine("n2"))
    outcome = allocate_group(cluster, [[claim(f"c{i}", exactly(2))] for i in range(3)])
    assert isinstance(outcome, DoesNotFit)
    assert outcome.summary().startswith("0 of 2 nodes: 2 have 4 devices that fit, all allocated")


def test_devices_are_given_once() -> None:
    cluster = snapshot(machine("n1", 4), machine("n2", 3))
    outcome = allocate_group(cluster, [[claim(f"c{i}", exactly(n))] for i, n in enumerate((1, 3, 2))])
    assert isinstance(outcome, GroupAllocated)
    given = [d for m in outcome.members for r in m.results for d in names(r)]
    assert len(given) == len(set(given)) == 6
    assert [len(names(m.results[0])) for m in outcome.members] == [1, 3, 2]


def test_a_choice_that_leaves_no_room_is_taken_back() -> None:
    """The first member fits on both nodes, the second on one: the first has to go to the other."""
    small = {"attributes": {"kind": "small"}}
    cluster = snapshot(
        pool("n1", device("d", "40Gi", attributes={"kind": "special"})),
        pool("n2", device("d", "80Gi", **small)),
    )
    special = [{"cel": {"expression": 'device.attributes["gpu.example.com"].kind == "special"'}}]
    outcome = allocate_group(
        cluster, [[claim("any", exactly())], [claim("special", exactly(selectors=special))]]
    )
    assert where(outcome) == ["n2", "n1"]


def test_a_domain_is_a_label_of_nodes() -> None:
    nodes = [node(f"n{i}", rack="ab"[i // 2]) for i in range(4)]
    slices = [machine("n0"), machine("n1", 1), machine("n2"), machine("n3")]
    cluster = snapshot(*slices, nodes=[*nodes, node("n4")])
    pair = [[claim(f"c{i}", exactly(2))] for i in range(2)]
    outcome = allocate_group(cluster, pair, domain=Domain(label="rack"))
    assert sorted(where(outcome)) == ["n2", "n3"]
    assert isinstance(outcome, GroupAllocated)
    assert outcome.domain == "b"
    three = [[claim(f"c{i}", exactly(2))] for i in range(3)]
    assert isinstance(allocate_group(cluster, three, domain=Domain(label="rack")), DoesNotFit)
    assert isinstance(allocate_group(cluster, pair, domain=Domain(label="row")), DoesNotFit)


def test_a_domain_is_an_attribute_of_devices() -> None:
    cluster = snapshot(machine("n0", clique="x"), machine("n1", clique="y"), machine("n2", clique="y"))
    outcome = allocate_group(
        cluster,
        [[claim(f"c{i}", exactly(2))] for i in range(2)],
        domain=Domain(attribute="gpu.example.com/clique"),
    )
    assert sorted(where(outcome)) == ["n1", "n2"]
    assert isinstance(outcome, GroupAllocated)
    assert outcome.domain == "y"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_shared_claim_is_allocated_once_and_binds_the_others(order: tuple[int, int]) -> None:
    shared = claim("shared", exactly())
    members = [[shared, claim("own", exactly())], [shared]]
    outcome = allocate_group(snapshot(machine("n1"), machine("n2")), [members[i] for i in order])
    assert isinstance(outcome, GroupAllocated)
    first, second = (outcome.members[order.index(i)] for i in (0, 1))
    assert first.node == second.node
    assert first.results[0] == second.results[0]
    assert names(first.results[0]) != names(first.results[1])
