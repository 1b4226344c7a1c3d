"""What others do while a round is under way: budgets, opting out, members that go, victims that two want."""

from __future__ import annotations

import asyncio

from controller_harness import NS, Harness, claim, cluster_of, pod, request
from group_members import member
from preemption_world import (
    allow_removal,
    begins,
    create,
    evictions,
    holder,
    lives,
    play,
    refuse_removal,
    served,
    shown,
    until,
)

from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.names import PREEMPTIBLE_LABEL
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.fleet import OPEN


async def guarded(h: Harness, name: str) -> None:
    """Have a pod of priority 1 run whose removal is refused."""
    await holder(h, name, priority=1)
    await refuse_removal(h, name)


def test_a_pod_whose_removal_is_refused_throughout_a_round_makes_way_for_another_choice() -> None:
    async def scenario(h: Harness) -> None:
        await guarded(h, "guarded")
        await holder(h, "other", priority=2)
        create(h, "high", priority=100)
        await asyncio.sleep(290)
        assert evictions(h) == []
        await until(lambda: served(h, "high"))
        assert evictions(h) == ["other"]

    play(cluster_of(n1=(80, 80)), scenario)


def test_a_removal_that_was_refused_is_tried_again_where_there_is_no_other_choice() -> None:
    async def scenario(h: Harness) -> None:
        await guarded(h, "guarded")
        create(h, "high", priority=100)
        await asyncio.sleep(600)
        assert evictions(h) == []
        allow_removal(h, "guarded")
        await until(lambda: served(h, "high"), seconds=1_500)

    play(cluster_of(n1=(80,)), scenario)


def test_a_namespace_that_opts_out_meanwhile_keeps_its_pods() -> None:
    async def scenario(h: Harness) -> None:
        await guarded(h, "guarded")
        create(h, "high", priority=100)
        await begins(h, "high")
        h.cluster.put(NAMESPACES, {"metadata": {"name": NS, "labels": {PREEMPTIBLE_LABEL: "false"}}})
        await asyncio.sleep(5)
        allow_removal(h, "guarded")
        await asyncio.sleep(200)
        assert evictions(h) == []

    play(cluster_of(n1=(80,)), scenario)


def test_a_victim_that_two_want_is_removed_once_and_for_the_higher() -> None:
    async def scenario(h: Harness) -> None:
        await guarded(h, "low")
        create(h, "high", priority=100)
        await begins(h, "high")
        create(h, "higher", priority=1000)
        await begins(h, "higher")
        allow_removal(h, "low")
        await until(lambda: served(h, "higher"))
        await asyncio.sleep(400)
        assert evictions(h) == ["low"]
        assert not served(h, "high")

    play(cluster_of(n1=(80,)), scenario)


def test_a_group_that_loses_a_member_meanwhile_removes_nobody_else() -> None:
    async def scenario(h: Harness) -> None:
        await guarded(h, "a")
        await holder(h, "b", priority=1)
        for name in ("high-0", "high-1"):
            member(h.cluster, name, 2, group="high", priority=100)
        await until(lambda: any((s := shown(h, f"high-{i}")) and s.reason == OPEN for i in (0, 1)))
        h.cluster.remove(PODS, "high-1", NS)
        await asyncio.sleep(5)
        allow_removal(h, "a")
        await asyncio.sleep(600)
        assert evictions(h) == []

    play(cluster_of(n1=(80, 80)), scenario)


def test_a_claim_that_the_preemptor_uses_itself_is_not_taken_from_others() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "low", priority=1)
        claim(h.cluster, "more", request())
        pod(h.cluster, "high", "low", "more", priority=100)
        await asyncio.sleep(120)
        assert evictions(h) == []

    play(cluster_of(n1=(80,)), scenario)


def test_a_group_whose_record_goes_while_no_controller_runs_removes_no_more_than_it_needs() -> None:
    """The member on which the round is written down is replaced between a removal and the next process."""

    async def before(h: Harness) -> None:
        killed = asyncio.Event()

        def kill(verb: str, kind: str, name: str, _: str) -> None:
            if verb == "evict":
                h.cluster.down = True
                killed.set()

        for name in ("a", "b"):
            await holder(h, name, priority=1)
        for name in ("c", "d"):
            await holder(h, name, priority=2)
        for name in ("high-0", "high-1"):
            member(h.cluster, name, 2, group="high", priority=100)
        h.cluster.after = kill
        await killed.wait()
        (recorded,) = (name for name in ("high-0", "high-1") if shown(h, name) is not None)
        h.cluster.remove(PODS, recorded, NS)
        h.cluster.remove(RESOURCE_CLAIMS, recorded, NS)
        member(h.cluster, recorded, 2, group="high", priority=100)

    async def after(h: Harness) -> None:
        await until(lambda: all(served(h, f"high-{i}") for i in (0, 1)))
        assert sorted(evictions(h)) == ["a", "b"]

    lives(cluster_of(n1=(80, 80), n2=(80, 80)), [before, after], ends=3.0)
