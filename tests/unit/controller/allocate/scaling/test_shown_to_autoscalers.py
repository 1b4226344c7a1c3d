"""Pods that only another node could serve are shown to autoscalers. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import pytest
import virtual_time
from controller_harness import (
    NS,
    OURS,
    Harness,
    Scenario,
    claim,
    cluster_of,
    controlling,
    inline,
    node,
    pod,
    pool,
    request,
)
from fake_client import FakeClient
from group_members import member
from late_answers import late

from controller.assembly import AnswersOf
from dra_driver.api.core import PODS
from dra_driver.api.names import CANNOT_ALLOCATE
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import Invalid
from dra_driver.ownership import PoolAllocator

DELAY = 15.0
BUSY = f"0/1 nodes are available: 1 {CANNOT_ALLOCATE}. still not schedulable"


def policy(cluster: FakeClient, name: str = "autoscaled", **spec: Any) -> None:
    cluster.put(DEVICE_POLICIES, {"metadata": {"name": name, "generation": 1}, "spec": spec})


def group_of_nodes(*values: str, key: str = "node-group") -> dict[str, Any]:
    expression = {"key": key, "operator": "In", "values": list(values)}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def scaling(cluster: FakeClient, **spec: Any) -> None:
    """Say that a group of nodes of kube-scheduler scales, as the documentation does."""
    policy(cluster, allocator="scheduler", nodeSelector=group_of_nodes("gpus"), **spec)


def create(cluster: FakeClient, name: str, *, count: int = 1, **spec: Any) -> None:
    claim(cluster, name, request(count=count))
    pod(cluster, name, name, **spec)


def alike(cluster: FakeClient, name: str, creation: str, *, count: int = 1, **spec: Any) -> None:
    """Make a pod with a claim from a template: such pods are of one kind."""
    metadata = {"creationTimestamp": creation}
    entry = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    body = builders.pod(name, uid=name, gated=True, metadata=metadata, resourceClaims=[entry], **spec)
    body["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": name}]
    cluster.put(PODS, body)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True}
    made = builders.claim(name, request(count=count))
    cluster.put(RESOURCE_CLAIMS, {**made, "metadata": {**made["metadata"], "ownerReferences": [owner]}})


def play(cluster: FakeClient, scenario: Scenario, answers_of: AnswersOf = inline, **config: Any) -> None:
    async def main() -> None:
        async with controlling(cluster, answers_of, **config) as harness:
            await scenario(harness)

    virtual_time.run(main())


def shown(h: Harness) -> list[str]:
    return sorted(p.metadata.name for p in h.cluster.all(PODS) if not p.spec.scheduling_gates)


def from_zero() -> FakeClient:
    """Return a cluster with a node without devices."""
    cluster = cluster_of()
    node(cluster, "n0")
    return cluster


def test_a_pod_is_shown_where_there_is_no_node_with_devices_yet() -> None:
    cluster = from_zero()
    scaling(cluster)
    create(cluster, "a")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY - 5)
        assert h.gates("a"), "it may be served in a moment"
        await asyncio.sleep(10)
        assert not h.gates("a")
        assert len(h.events("WaitingForScaleUp")) == 1
        assert h.reason("a").reason == "WaitingForScaleUp"
        assert h.reason("a").message.startswith("autoscalers see the pod, and may add a node")
        metrics = h.controller.metrics.registry
        await asyncio.sleep(2)
        assert metrics.get_sample_value("dra_driver_controller_scale_up_pods") == 1
        writes = len(cluster.writes)
        await asyncio.sleep(300)
        assert len(cluster.writes) == writes, "it does not spin"

    play(cluster, scenario)


def test_a_pod_that_waits_for_busy_devices_is_shown_and_served_here_when_they_become_free() -> None:
    cluster = cluster_of(n1=(40,))
    scaling(cluster)
    create(cluster, "user")
    create(cluster, "a")

    async def scenario(h: Harness) -> None:
        h.bind("user", "n1")
        await asyncio.sleep(DELAY + 5)
        assert not h.gates("a")
        h.report("a", BUSY)
        cluster.remove(PODS, "user", NS)
        h.deallocate("user")
        await asyncio.sleep(5)
        assert h.devices("a") == [("n1", "gpu-0")]

    play(cluster, scenario)


def test_the_new_node_may_be_one_of_this_controller() -> None:
    cluster = from_zero()
    policy(cluster, autoscaled=True, nodeSelector=group_of_nodes("gpus"))
    create(cluster, "a")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY + 5)
        assert not h.gates("a")
        h.report("a", BUSY)
        node(cluster, "n1", labels={"node-group": "gpus"})
        pool(cluster, "n1", 40)
        await asyncio.sleep(60)
        assert h.devices("a") == [("n1", "gpu-0")]
        assert h.reason("a").reason == "", "it waits no longer"

    play(cluster, scenario)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"strategy": "first-fit"},
        {"allocator": "scheduler", "autoscaled": False},
        {"allocator": "scheduler", "driver": "nic.example.com"},
        {"autoscaled": True, "nodeSelector": group_of_nodes("other")},
    ],
    ids=["no policy", "another policy", "it says no", "another driver", "nodes that the pod rules out"],
)
def test_a_pod_keeps_its_gate_where_no_policy_speaks_of_nodes_for_it(spec: dict[str, Any] | None) -> None:
    cluster = from_zero()
    if spec is not None:
        policy(cluster, **spec)
    create(cluster, "a", nodeSelector={"node-group": "gpus"})

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(20 * DELAY)
        assert h.gates("a")
        assert h.events("WaitingForScaleUp") == []

    play(cluster, scenario)


def test_nothing_is_shown_where_that_is_turned_off() -> None:
    cluster = from_zero()
    scaling(cluster)
    create(cluster, "a")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(20 * DELAY)
        assert h.gates("a")
        assert h.reason("a").reason == "FailedAllocation"

    play(cluster, scenario, scale_up_pods=0)


def test_nodes_that_no_policy_names_may_be_added_where_kube_scheduler_is_the_default() -> None:
    cluster = from_zero()
    policy(cluster, allocator="controller", nodeSelector=group_of_nodes("fixed"))
    create(cluster, "a")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY + 5)
        assert not h.gates("a")

    play(cluster, scenario, allocator=PoolAllocator.SCHEDULER)


def test_pods_that_never_had_a_gate_say_so_too_and_follow_the_policies() -> None:
    cluster = from_zero()
    create(cluster, "a", gated=False)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(30)
        assert h.reason("a").reason == "FailedAllocation"
        scaling(cluster)
        await asyncio.sleep(30)
        assert h.reason("a").reason == "WaitingForScaleUp"
        scaling(cluster, autoscaled=False)
        await asyncio.sleep(60)
        assert h.reason("a").reason == "FailedAllocation"

    play(cluster, scenario)


def test_what_no_node_can_mend_shows_nothing() -> None:
    cluster = from_zero()
    scaling(cluster)
    claim(cluster, "lost", {"name": "gpu", "exactly": {"deviceClassName": "missing"}})
    pod(cluster, "lost", "lost")
    create(cluster, "held", other_gates=("example.com/queue",))
    create(cluster, "other", schedulerName="volcano")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(20 * DELAY)
        assert h.gates("lost")
        assert len(h.gates("held")) == 2
        assert h.events("WaitingForScaleUp") == []

    play(cluster, scenario)


def test_a_pod_that_shares_its_claim_is_not_shown() -> None:
    """kube-scheduler would take the claim from the pods that use it, for as long as this one fits nowhere."""
    cluster = cluster_of(n1=(40,))
    scaling(cluster)
    claim(cluster, "shared")
    create(cluster, "big", count=2)
    claim(cluster, "own", request(count=2))
    pod(cluster, "both", "shared", "own")
    pod(cluster, "user", "shared")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY + 5)
        assert not h.gates("big"), "only another node could serve it"
        assert not h.gates("user")
        assert len(h.devices("shared")) == 1
        # Allocated already, the claim is no reason any more to keep the pod from kube-scheduler.
        h.bind("user", "n1")
        await asyncio.sleep(2 * DELAY)
        assert len(h.devices("shared")) == 1

    play(cluster, scenario)


def test_members_of_a_group_are_shown_together_and_all_or_none_holds() -> None:
    cluster = cluster_of(n1=(40,))
    policy(cluster, autoscaled=True, nodeSelector=group_of_nodes("gpus"))
    for name in "abc":
        member(cluster, name)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY - 5)
        assert shown(h) == []
        await asyncio.sleep(10)
        assert shown(h) == ["a", "b", "c"]
        assert {h.reason(n).reason for n in "abc"} == {"WaitingForScaleUp"}
        for name in "abc":
            h.report(name, BUSY)
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await asyncio.sleep(5)
        assert h.held() == [], "two devices are too few for three"
        node(cluster, "n3")
        pool(cluster, "n3", 40)
        await asyncio.sleep(5)
        assert len(set(h.held())) == 3

    play(cluster, scenario, scale_up_pods=1)


def test_members_that_lack_another_are_not_shown() -> None:
    cluster = from_zero()
    policy(cluster, autoscaled=True)
    for name in "ab":
        member(cluster, name)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(4 * DELAY)
        assert shown(h) == []
        member(cluster, "c")
        await asyncio.sleep(DELAY + 5)
        assert shown(h) == ["a", "b", "c"]

    play(cluster, scenario)


def test_a_group_is_shown_to_kube_schedulers_pools_only_where_a_policy_says_so() -> None:
    cluster = from_zero()
    scaling(cluster)
    for name in "abc":
        member(cluster, name)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(4 * DELAY)
        assert shown(h) == []
        scaling(cluster, autoscaled=True)
        await asyncio.sleep(15)
        assert shown(h) == ["a", "b", "c"]

    play(cluster, scenario)


def test_so_many_are_shown_at_a_time_by_priority_and_namespaces_and_kinds_take_turns() -> None:
    cluster = from_zero()
    scaling(cluster)
    for i in range(6):
        alike(cluster, f"old-{i}", f"2026-01-01T00:00:0{i}Z")
    alike(cluster, "another-kind", "2026-02-01T00:00:00Z", count=2)
    alike(cluster, "high", "2026-03-01T00:00:00Z", priority=7)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY + 5)
        assert shown(h) == ["another-kind", "high", "old-0", "old-1"]
        await asyncio.sleep(600)
        assert len(shown(h)) == 4
        cluster.remove(PODS, "high", NS)
        await asyncio.sleep(5)
        assert shown(h) == ["another-kind", "old-0", "old-1", "old-2"]
        # Those that were shown in vain for long do not keep the others from it for ever.
        await asyncio.sleep(600)
        assert len(shown(h)) == 7

    play(cluster, scenario, scale_up_pods=4)


def test_each_namespace_may_show_some_however_many_others_show() -> None:
    cluster = from_zero()
    scaling(cluster)
    for i in range(20):
        create(cluster, f"hog-{i}")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY + 5)
        assert len(shown(h)) == 10
        for i in range(10):
            made = builders.claim(f"late-{i}", request(), namespace="late")
            cluster.put(RESOURCE_CLAIMS, made)
            cluster.put(PODS, builders.pod(f"late-{i}", f"late-{i}", namespace="late", gated=True))
        await asyncio.sleep(DELAY + 5)
        assert len(shown(h)) == 18

    play(cluster, scenario, scale_up_pods=10)


def test_a_restart_shows_no_pod_twice_or_before_its_time() -> None:
    cluster = from_zero()
    scaling(cluster)
    for name in "ab":
        create(cluster, name)

    async def first(h: Harness) -> None:
        await asyncio.sleep(DELAY + 5)
        assert shown(h) == ["a"]

    async def second(h: Harness) -> None:
        create(cluster, "c")
        await asyncio.sleep(DELAY + 5)
        assert shown(h) == ["a"], "it keeps its place"
        cluster.remove(PODS, "a", NS)
        await asyncio.sleep(5)
        assert shown(h) == ["b"]
        assert len(h.events("WaitingForScaleUp")) == 2

    play(cluster, first, scale_up_pods=1)
    play(cluster, second, scale_up_pods=1)


def test_a_group_that_was_shown_in_part_is_completed() -> None:
    cluster = from_zero()
    policy(cluster, autoscaled=True)
    for name in "abc":
        member(cluster, name)
    cluster.edit(PODS, "b", {"spec": {"schedulingGates": None}}, NS)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(3)
        assert shown(h) == ["a", "b", "c"]

    play(cluster, scenario)


def test_devices_that_come_and_go_put_it_off_but_not_for_ever() -> None:
    cluster = cluster_of(n1=(40,))
    scaling(cluster)
    create(cluster, "big", count=2)

    async def scenario(h: Harness) -> None:
        for _ in range(5):
            await asyncio.sleep(DELAY - 3)
            cluster.remove(RESOURCE_SLICES, f"n1-{OURS}")
            pool(cluster, "n1", 40)
        assert h.gates("big")
        for _ in range(8):
            await asyncio.sleep(DELAY - 3)
            cluster.remove(RESOURCE_SLICES, f"n1-{OURS}")
            pool(cluster, "n1", 40)
        assert not h.gates("big")

    play(cluster, scenario)


def test_nothing_is_shown_by_what_may_be_out_of_date() -> None:
    cluster = from_zero()
    scaling(cluster)
    create(cluster, "a")

    async def scenario(h: Harness) -> None:
        cluster.down = True
        await asyncio.sleep(4 * DELAY)
        # While nothing was heard of it, a node came.
        node(cluster, "n1")
        pool(cluster, "n1", 40)
        cluster.down = False
        await asyncio.sleep(4 * DELAY)
        assert h.devices("a") == [("n1", "gpu-0")]
        assert h.events("WaitingForScaleUp") == []

    play(cluster, scenario)


def test_a_pod_that_the_api_server_does_not_let_go_keeps_no_other_from_being_shown() -> None:
    cluster = from_zero()
    scaling(cluster)
    for name in ("refused", "z"):
        create(cluster, name)

    async def scenario(h: Harness) -> None:
        asked: list[float] = []

        def before(verb: str, kind: str, name: str, subresource: str) -> None:
            if (verb, kind, name, subresource) == ("patch", "Pod", "refused", ""):
                asked.append(h.clock.monotonic())
                raise Invalid("a webhook says no", code=422, reason="Invalid")

        cluster.before = before
        await asyncio.sleep(DELAY + 150)
        assert shown(h) == ["z"]
        assert len(asked) == 3

    play(cluster, scenario)


def test_members_that_share_a_claim_are_not_shown() -> None:
    cluster = from_zero()
    policy(cluster, autoscaled=True)
    for name in "abc":
        member(cluster, name)
    pod(cluster, "beside", "c")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(4 * DELAY)
        assert shown(h) == []

    play(cluster, scenario)


def test_an_answer_that_comes_late_shows_nothing_that_has_devices_by_then() -> None:
    cluster = from_zero()
    scaling(cluster)
    create(cluster, "a")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY - 1)
        node(cluster, "n1")
        pool(cluster, "n1", 40)
        await asyncio.sleep(10)
        assert h.devices("a") == [("n1", "gpu-0")]
        assert h.events("WaitingForScaleUp") == []

    play(cluster, scenario, answers_of=late(0.8))


@pytest.mark.long
def test_many_members_are_shown_at_once() -> None:
    cluster = from_zero()
    policy(cluster, autoscaled=True)
    names = [f"m-{i}" for i in range(200)]
    for name in names:
        member(cluster, name, len(names))

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(DELAY + 15)
        assert len(shown(h)) == len(names)

    play(cluster, scenario, scale_up_pods=1)
