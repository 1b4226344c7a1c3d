"""Preemption by the controller, in virtual time: who is removed, for whom, when, and when nobody is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from controller_harness import NS, Harness, claim, cluster_of, pod
from preemption_world import (
    ON,
    allow_removal,
    budget,
    create,
    evictions,
    holder,
    play,
    refuse_removal,
    served,
    shown,
    until,
)

from controller.config import PreemptionMode, PreemptionSettings
from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.names import PREEMPTIBLE_LABEL
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.fleet import CLOSED, OPEN, WOULD_PREEMPT

DRY_RUN = PreemptionSettings()


async def low(h: Harness, *names: str, priority: int = 0) -> None:
    for name in names:
        await holder(h, name, priority=priority)


def test_a_pod_of_higher_priority_gets_the_devices_of_the_lowest() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "middle", priority=50)
        await holder(h, "lowest", priority=10)
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"))
        assert evictions(h) == ["lowest"]
        assert h.events("Preempting") == ["preempts lowest"]
        (text,) = h.events("Preempted")
        assert text == "preempted by pod high of priority 100, which waits for its devices"

    play(cluster_of(n1=(80, 80)), scenario)


def test_in_a_dry_run_nobody_is_removed_and_it_is_said_once_who_would_be() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a", "b")
        create(h, "high", 2, priority=100)
        await until(lambda: bool(h.events("WouldPreempt")))
        assert h.events("WouldPreempt") == ["would preempt a, b"]
        await asyncio.sleep(5)
        found = shown(h, "high")
        assert found is not None
        assert found.reason == WOULD_PREEMPT
        uids = {h.cluster.obj(PODS, name, NS).metadata.uid for name in ("a", "b")}
        assert set(found.record.victims) == uids
        writes = [w for w in h.cluster.writes if w.kind == "Pod"]
        await asyncio.sleep(600)
        assert [w for w in h.cluster.writes if w.kind == "Pod"] == writes
        assert evictions(h) == []
        h.cluster.remove(PODS, "a", NS)
        h.cluster.remove(PODS, "b", NS)
        await until(lambda: served(h, "high"))
        await until(lambda: shown(h, "high") is None)

    play(cluster_of(n1=(80, 80)), scenario, DRY_RUN)


def test_nobody_is_asked_about_where_all_priorities_are_equal_or_preemption_is_off() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a", priority=100)
        create(h, "same", priority=100)
        await asyncio.sleep(60)
        assert evictions(h) == []
        assert h.events("WouldPreempt") == []

    play(cluster_of(n1=(80,)), scenario)

    async def off(h: Harness) -> None:
        await low(h, "a")
        create(h, "high", priority=100)
        await asyncio.sleep(60)
        assert evictions(h) == []
        assert shown(h, "high") is None

    play(cluster_of(n1=(80,)), off, PreemptionSettings(mode=PreemptionMode.OFF))


def test_a_pod_whose_policy_is_never_preempts_nobody() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a")
        create(h, "high", priority=100, preemptionPolicy="Never")
        await asyncio.sleep(60)
        assert evictions(h) == []

    play(cluster_of(n1=(80,)), scenario)


def test_pods_that_are_made_with_a_node_do_not_take_the_devices_of_the_preempted() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, *(f"low-{i}" for i in range(4)))
        for number in range(3):
            create(h, f"made-{number}", nodeName="n1", gated=False)
        create(h, "high", 4, priority=1000)
        await until(lambda: len(evictions(h)) == 4)
        for number in range(4):
            # One after the other: for a while there are devices for them, and too few for the preemptor.
            h.cluster.remove(PODS, f"low-{number}", NS)
            h.cluster.remove(RESOURCE_CLAIMS, f"low-{number}", NS)
            await asyncio.sleep(2)
        assert served(h, "high")
        assert not any(served(h, f"made-{number}") for number in range(3))

    play(cluster_of(n1=(80,) * 4), scenario, ends=None)


def test_a_pod_that_names_its_claim_twice_preempts_nobody() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a")
        claim(h.cluster, "high")
        pod(h.cluster, "high", "high", "high", priority=100)
        await asyncio.sleep(60)
        assert evictions(h) == []
        assert "names ResourceClaim high 2 times" in h.reason("high").message

    play(cluster_of(n1=(80,)), scenario)


def test_a_pod_or_claim_that_is_too_large_preempts_nobody() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a")
        claim(h.cluster, "pod")
        pod(h.cluster, "pod", "pod", priority=100, tolerations=[{"operator": "Exists"}] * 1_025)
        claim(h.cluster, "claim")
        many = {"metadata": {"finalizers": [f"example.com/{i}" for i in range(65)]}}
        h.cluster.edit(RESOURCE_CLAIMS, "claim", many, NS)
        pod(h.cluster, "claim", "claim", priority=100)
        await asyncio.sleep(60)
        assert evictions(h) == []
        assert "spec.tolerations of the pod has 1025 entries" in h.reason("pod").message
        assert "metadata.finalizers of the claim has 65 entries" in h.reason("claim").message
        assert len(h.claim("claim").metadata.finalizers or ()) == 65

    play(cluster_of(n1=(80,)), scenario)


def test_pods_and_namespaces_opt_out_by_a_label() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "a", metadata={"labels": {PREEMPTIBLE_LABEL: "false"}})
        create(h, "high", priority=100)
        await asyncio.sleep(60)
        assert evictions(h) == []

    play(cluster_of(n1=(80,)), scenario)

    async def namespace(h: Harness) -> None:
        await low(h, "a")
        create(h, "high", priority=100)
        await asyncio.sleep(60)
        assert evictions(h) == []

    cluster = cluster_of(n1=(80,))
    cluster.put(NAMESPACES, {"metadata": {"name": NS, "labels": {PREEMPTIBLE_LABEL: "false"}}})
    play(cluster, namespace)


def test_a_budget_is_kept_where_another_choice_exists() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "guarded", priority=1, metadata={"labels": {"app": "x"}})
        await holder(h, "other", priority=2)
        budget(h.cluster, "x", {"app": "x"}, allowed=0)
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"))
        assert evictions(h) == ["other"]

    play(cluster_of(n1=(80, 80)), scenario)


def test_a_budget_that_forbids_all_choices_keeps_them() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "guarded", metadata={"labels": {"app": "x"}})
        budget(h.cluster, "x", {"app": "x"}, allowed=0)
        create(h, "high", priority=100)
        await asyncio.sleep(900)
        assert evictions(h) == []
        # Nothing else changes in this cluster.
        h.cluster.remove(POD_DISRUPTION_BUDGETS, "x", NS)
        await until(lambda: served(h, "high"), seconds=600)

    play(cluster_of(n1=(80,)), scenario)


def test_an_eviction_that_a_budget_refuses_is_tried_again_until_the_time_out() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "guarded")
        await refuse_removal(h, "guarded")
        create(h, "high", priority=100)
        await until(lambda: shown(h, "high") is not None)
        await asyncio.sleep(30)
        assert evictions(h) == []
        tries = sum(c.verb == "evict" for c in h.cluster.calls)
        assert 2 <= tries <= 10
        allow_removal(h, "guarded")
        await until(lambda: served(h, "high"))

    play(cluster_of(n1=(80,)), scenario)


def test_what_is_freed_is_kept_from_pods_of_the_same_priority() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a", "b")
        create(h, "high", 2, priority=100)
        await until(lambda: len(evictions(h)) > 0)
        # Older pods of its priority would come first, and small ones fit as soon as one device is free.
        create(h, "thief", priority=100, metadata={"creationTimestamp": "2020-01-01T00:00:00Z"})
        create(h, "low", priority=1)
        await until(lambda: served(h, "high"))
        assert not served(h, "thief")
        assert not served(h, "low")

    play(cluster_of(n1=(80, 80)), scenario, ends=5.0)
    # A pod that starves is given nothing of it either.
    play(cluster_of(n1=(80, 80)), scenario, ends=5.0, starvation_seconds=300.0)


def test_nobody_is_removed_twice_for_one_pod_within_the_time_out() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a", "b")
        create(h, "high", priority=100)
        await until(lambda: evictions(h) == [evictions(h)[0]] if evictions(h) else False)
        # A pod of a priority above takes the device.
        create(h, "higher", priority=1000, preemptionPolicy="Never")
        await until(lambda: served(h, "higher"))
        await asyncio.sleep(200)
        assert len(evictions(h)) == 1
        await until(lambda: served(h, "high"), seconds=400)
        assert len(evictions(h)) == 2

    play(cluster_of(n1=(80, 80)), scenario, ends=5.0)


def test_the_record_is_there_before_the_first_removal_and_is_closed_when_the_pod_is_served() -> None:
    async def scenario(h: Harness) -> None:
        before: list[str] = []

        def look(verb: str, kind: str, name: str, _: str) -> None:
            if verb == "evict":
                found = shown(h, "high")
                before.append(found.reason if found is not None else "")

        await low(h, "a", "b")
        h.cluster.before = look
        create(h, "high", 2, priority=100)
        await until(lambda: served(h, "high"))
        assert before == [OPEN, OPEN]
        await asyncio.sleep(3)
        found = shown(h, "high")
        assert found is not None
        assert found.reason == CLOSED

    play(cluster_of(n1=(80, 80)), scenario)


def test_no_more_than_the_rate_says_are_removed() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, *(f"a{i}" for i in range(4)))
        for i in range(4):
            create(h, f"high{i}", priority=100)
        await asyncio.sleep(30)
        assert 1 <= len(evictions(h)) <= 2
        await asyncio.sleep(300)
        assert len(evictions(h)) == 4

    play(cluster_of(n1=(80,) * 4), scenario, replace(ON, per_minute=1.0))


def test_a_pod_that_ends_in_the_middle_keeps_the_other_victims() -> None:
    async def scenario(h: Harness) -> None:
        await low(h, "a", "b")

        def ends(verb: str, kind: str, name: str, _: str) -> None:
            if verb == "evict":
                h.cluster.remove(PODS, "high", NS)

        h.cluster.after = ends
        create(h, "high", 2, priority=100)
        await until(lambda: len(evictions(h)) == 1)
        await asyncio.sleep(60)
        assert len(evictions(h)) == 1

    play(cluster_of(n1=(80, 80)), scenario)
