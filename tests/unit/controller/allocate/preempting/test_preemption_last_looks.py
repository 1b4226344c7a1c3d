"""What is looked at again while victims are removed: pods that belong together, and what came meanwhile."""

from __future__ import annotations

import asyncio

from controller_harness import NS, Harness, classes, cluster_of, node, pod, pool
from fake_client import FakeClient
from group_members import member
from preemption_world import (
    allow_removal,
    begins,
    budget,
    create,
    evictions,
    holder,
    play,
    refuse_removal,
    runs,
    served,
    until,
)

from dra_driver.api.core import PODS
from dra_driver.api.names import GROUP_LABEL, GROUP_MIN_LABEL, GROUP_SIZE_LABEL


def test_a_group_goes_with_members_that_wait() -> None:
    async def scenario(h: Harness) -> None:
        member(h.cluster, "first", 2, least=1, priority=1)
        await runs(h, "first")
        member(h.cluster, "second", 2, least=1, priority=1)
        await asyncio.sleep(5)
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"))
        assert sorted(evictions(h)) == ["first", "second"]

    play(cluster_of(n1=(80,)), scenario)


def test_members_without_devices_go_after_those_that_a_budget_is_for() -> None:
    async def scenario(h: Harness) -> None:
        member(h.cluster, "first", 2, least=1, priority=1)
        h.cluster.edit(PODS, "first", {"metadata": {"labels": {"app": "x"}}}, NS)
        await runs(h, "first")
        member(h.cluster, "second", 2, least=1, priority=1)
        budget(h.cluster, "x", {"app": "x"}, allowed=1)
        await asyncio.sleep(5)
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"))
        assert evictions(h) == ["first", "second"]

    play(cluster_of(n1=(80,)), scenario, ends=10.0)


def test_what_is_set_aside_for_a_group_is_for_all_of_its_members() -> None:
    async def scenario(h: Harness) -> None:
        for name in ("a", "b", "c", "d"):
            await holder(h, name, priority=1)
        for i in range(4):
            member(h.cluster, f"high-{i}", 4, group="high", least=2, priority=100)
        await until(lambda: len(evictions(h)) == 2)
        await until(lambda: sum(served(h, f"high-{i}") for i in range(4)) >= 2, seconds=40)
        # One that comes later has its devices, too.
        assert len(evictions(h)) == 2

    play(cluster_of(n1=(80, 80), n2=(80, 80)), scenario, ends=10.0)


def test_a_claim_that_another_pod_has_come_to_use_keeps_the_first() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "low", priority=1)
        await refuse_removal(h, "low")
        create(h, "high", priority=100)
        await begins(h, "high")
        pod(h.cluster, "dear", "low", priority=1000, gated=False, nodeName="n1")
        await asyncio.sleep(5)
        allow_removal(h, "low")
        await asyncio.sleep(200)
        assert evictions(h) == []

    play(cluster_of(n1=(80,)), scenario)


def test_a_group_that_has_grown_meanwhile_stays() -> None:
    async def scenario(h: Harness) -> None:
        member(h.cluster, "low-0", 2, least=1, priority=1)
        await runs(h, "low-0")
        await holder(h, "dear", priority=1000)
        await refuse_removal(h, "low-0")
        create(h, "high", priority=100)
        await begins(h, "high")
        labels = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: "2", GROUP_MIN_LABEL: "1"}
        h.cluster.edit(PODS, "dear", {"metadata": {"labels": labels}}, NS)
        await asyncio.sleep(5)
        allow_removal(h, "low-0")
        await asyncio.sleep(200)
        assert evictions(h) == []

    play(cluster_of(n1=(80, 80)), scenario)


def test_a_pod_that_joins_a_group_preempts_no_more_for_that() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "a", priority=1)
        await holder(h, "b", priority=1)
        create(h, "high", priority=100)
        await until(lambda: len(evictions(h)) == 1)
        labels = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: "1"}
        h.cluster.edit(PODS, "high", {"metadata": {"labels": labels}}, NS)
        create(h, "higher", priority=1000, preemptionPolicy="Never")
        await until(lambda: served(h, "higher"))
        await asyncio.sleep(200)
        assert len(evictions(h)) == 1

    play(cluster_of(n1=(80, 80)), scenario, ends=5.0)


class SlowEvictions(FakeClient):
    """An API server that takes some seconds for each eviction, as where webhooks are asked about it."""

    async def evict(self, name: str, namespace: str, *, uid: str = "", resource_version: str = "") -> None:
        await asyncio.sleep(3)
        await super().evict(name, namespace, uid=uid, resource_version=resource_version)


def test_a_pod_is_not_evicted_again_while_its_eviction_is_under_way() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "a", priority=1)
        await holder(h, "b", priority=1)
        create(h, "high", 2, priority=100)
        await until(lambda: served(h, "high"))
        assert sorted(c.name for c in h.cluster.calls if c.verb == "evict") == ["a", "b"]

    cluster = SlowEvictions()
    classes(cluster)
    node(cluster, "n1")
    pool(cluster, "n1", 80, 80)
    play(cluster, scenario)


def test_pods_that_may_not_preempt_keep_no_others_from_it() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "low", priority=1)
        for count in range(2, 22):
            create(h, f"never-{count}", count, priority=1000, preemptionPolicy="Never")
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"))
        assert evictions(h) == ["low"]

    play(cluster_of(n1=(80,)), scenario)
