"""Elastic groups, and members in parts that share a domain."""

from __future__ import annotations

import pytest
from controller_harness import NS, Harness, cluster_of, node, pool, run
from group_members import allocated, member, racks

from dra_driver.api.core import PODS

# Until no more members are waited for.
GATHERED = 1.5
# Until the conditions of pods are written.
CONDITIONS = 5.0


def test_as_many_members_start_as_fit_and_others_join_later() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "abcde":
        member(cluster, name, 5, least=2)

    async def scenario(h: Harness) -> None:
        assert allocated(h, "abcde") == "abc"
        assert [n for n in "abcde" if not h.gates(n)] == ["a", "b", "c"]
        assert "3 of 5 pods of group job have their devices" in h.events("GroupAllocated")[0]
        await h.quiet(CONDITIONS)
        assert "group job, 3 of 2 to 5 pods have devices, 1 more" in h.reason("d").message
        assert h.reason("a").message == ""
        h.bind("a", "n1")
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await h.quiet()
        assert allocated(h, "abcde") == "abcd"
        assert not h.gates("d")
        assert h.gates("e")
        assert "4 of 5 pods of group job have their devices, 1 of them run" in h.events("GroupAllocated")[-1]
        writes = len(cluster.writes)
        await h.quiet(5.0)
        assert len(cluster.writes) == writes  # it does not spin

    run(cluster, scenario)


def test_fewer_than_the_least_members_hold_nothing() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in "abcd":
        member(cluster, name, 4, least=3)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert all(h.gates(n) for n in "abcd")
        refused = h.events("FailedAllocation")[0]
        assert "group job, 3 to 4 pods together: the cluster does not have free devices" in refused
        assert "for 3 of them, at best for 2" in refused
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await h.quiet()
        assert allocated(h, "abcd") == "abc"

    run(cluster, scenario)


def test_members_that_are_still_being_made_are_waited_for() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40, 40, 40))
    racks(cluster, n1="a", n2="b")
    member(cluster, "a", 4, least=2, domain="rack")

    async def scenario(h: Harness) -> None:
        assert "1 of at least 2 pods are there" in h.events("WaitingForGroup")[0]
        for name in "bcd":
            member(cluster, name, 4, least=2, domain="rack")
            await h.quiet()
        assert {d[0] for d in h.held()} == {"n2"}
        assert allocated(h, "abcd") == "abcd"

    run(cluster, scenario)


def test_members_that_do_not_come_are_not_waited_for_long() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "ab":
        member(cluster, name, 3, least=2)

    async def scenario(h: Harness) -> None:
        await h.quiet(GATHERED)
        assert allocated(h, "ab") == "ab"
        member(cluster, "c", 3, least=2)
        await h.quiet()
        assert allocated(h, "abc") == "abc"

    run(cluster, scenario)


@pytest.mark.parametrize("domain", ["rack", "preferred:rack"])
def test_members_that_join_go_to_the_domain_of_the_others(domain: str) -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40, 40))
    racks(cluster, n1="a", n2="b")
    for name in "ab":
        member(cluster, name, 3, least=2, domain=domain)

    async def scenario(h: Harness) -> None:
        await h.quiet(GATHERED)
        assert {d[0] for d in h.held()} == {"n1"}
        member(cluster, "c", 3, least=2, domain=domain)
        await h.quiet()
        # A required one is waited for, a preferred one is given up.
        assert h.devices("c") == ([] if domain == "rack" else [("n2", "gpu-0")])
        if domain == "rack":
            await h.quiet(CONDITIONS)
            assert "1 more on nodes of one rack" in h.reason("c").message
            pool(cluster, "n1", 40, 40, 40)
            await h.quiet()
            assert h.devices("c") == [("n1", "gpu-2")]

    run(cluster, scenario)


def test_a_member_that_ends_makes_room_for_one_that_waits() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in "abc":
        member(cluster, name, 3, least=2)

    async def scenario(h: Harness) -> None:
        for name in "ab":
            h.bind(name, "n1")
        cluster.edit(PODS, "a", {"status": {"phase": "Succeeded"}}, NS)
        h.deallocate("a")
        await h.quiet()
        assert allocated(h, "bc") == "bc"

    run(cluster, scenario)


def test_a_member_that_fits_joins_although_one_before_it_does_not() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "abcd":
        member(cluster, name, 4, least=2, count=2 if name == "c" else 1)

    async def scenario(h: Harness) -> None:
        await h.quiet()
        assert allocated(h, "abcd") == "abd"
        await h.quiet(CONDITIONS)
        assert "3 of 2 to 4 pods have devices, 1 more" in h.reason("c").message

    run(cluster, scenario)


def test_each_part_of_a_group_shares_a_domain() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40, 40), n3=(40,))
    racks(cluster, n1="a", n2="b", n3="c")
    for name in "abcd":
        member(cluster, name, 4, domain="rack*2")

    async def scenario(h: Harness) -> None:
        assert sorted(d[0] for d in h.held()) == ["n1", "n1", "n2", "n2"]

    run(cluster, scenario)


def test_a_refusal_says_what_the_parts_lack() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,), n3=(40,))
    racks(cluster, n1="a", n2="b", n3="c")
    for name in "abcd":
        member(cluster, name, 4, domain="rack*2")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert "2 of 4 members fit in parts of 2 that share rack" in h.events("FailedAllocation")[0]

    run(cluster, scenario)


def test_an_elastic_group_grows_by_whole_parts() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    racks(cluster, n1="a", n2="b")
    for name in "abcd":
        member(cluster, name, 4, least=2, domain="rack*2")

    async def scenario(h: Harness) -> None:
        assert allocated(h, "abcd") == "ab"
        assert {d[0] for d in h.held()} == {"n1"}
        pool(cluster, "n2", 40, 40)
        await h.quiet()
        assert allocated(h, "abcd") == "abcd"
        assert {d[0] for d in (*h.devices("c"), *h.devices("d"))} == {"n2"}

    run(cluster, scenario)


def test_a_member_that_is_replaced_joins_its_part() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40), n3=(40, 40, 40))
    racks(cluster, n1="a", n2="b", n3="c")
    for name in "abcd":
        member(cluster, name, 4, domain="rack*2")

    async def scenario(h: Harness) -> None:
        on = {name: h.devices(name)[0][0] for name in "abcd"}
        for name in "abcd":
            h.bind(name, on[name])
        cluster.edit(PODS, "b", {"status": {"phase": "Failed"}}, NS)
        h.deallocate("b")
        member(cluster, "e", 4, domain="rack*2")
        await h.quiet()
        assert h.devices("e")[0][0] == on["b"]

    run(cluster, scenario)
