"""Members that kube-scheduler cannot place take the tentative allocations of their group with them."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time
from controller_harness import NS, Harness, Scenario, cluster_of, controlling, node, pod, pool
from fake_client import FakeClient
from group_members import allocate, allocated, member

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import Conflict

NO_ROOM = (
    "0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules, "
    "1 resourceclaim not available on the node."
)


def run(cluster: FakeClient, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(300), controlling(cluster) as harness:
            await scenario(harness)

    virtual_time.run(main())


def group_of_three(some_run: str = "", least: int | str = "") -> FakeClient:
    """Two nodes; on the one with three GPUs the group is allocated."""
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "abc":
        member(cluster, name, 3, some_run=some_run, least=least)
    return cluster


def test_a_member_that_comes_back_takes_the_others_with_it() -> None:
    cluster = group_of_three()

    async def scenario(h: Harness) -> None:
        assert allocated(h, "abc") == "abc"
        h.report("b", NO_ROOM)
        await h.quiet()
        # Its node is left out for it for a while, so they do not fit together.
        assert h.held() == []
        texts = h.events("Deallocated")
        assert sum("pod b of group job was not placed" in t for t in texts) == 2
        assert sum("none of 3 pods runs" in t for t in texts) == 2
        await h.quiet(30.0)
        assert allocated(h, "abc") == "abc"

    run(cluster, scenario)


def test_they_are_allocated_again_together_where_they_fit() -> None:
    cluster = group_of_three()

    async def scenario(h: Harness) -> None:
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await h.quiet()
        h.report("b", NO_ROOM)
        await h.quiet(5.0)
        assert allocated(h, "abc") == "abc"
        assert h.devices("b") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_members_left_to_kube_scheduler_are_looked_at_when_their_pools_come_back() -> None:
    cluster = cluster_of()
    node(cluster, "n1")
    pool(cluster, "n1", 40, 40, protected=False)
    for name in "ab":
        member(cluster, name, 2, least=1)

    async def scenario(h: Harness) -> None:
        await h.quiet(5.0)
        assert [h.gates(n) for n in "ab"] == [[], []]
        assert allocated(h, "ab") == ""
        pool(cluster, "n1", 40, 40)
        await asyncio.sleep(60)
        assert allocated(h, "ab") == "ab"

    run(cluster, scenario)


def test_a_claim_stays_with_another_pod_that_is_being_placed_with_it() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in "abc":
        member(cluster, name, 3)
    pod(cluster, "alone", "a")

    async def scenario(h: Harness) -> None:
        assert allocated(h, "abc") == "a"
        await h.quiet()
        # The group does not fit beside it, which is looked at again whenever something becomes free.
        pool(cluster, "n1", 40, 40)
        before = len(cluster.writes)
        await asyncio.sleep(30)
        assert allocated(h, "abc") == "a"
        assert [w for w in cluster.writes[before:] if w.kind == "ResourceClaim"] == []

    run(cluster, scenario)


@pytest.mark.parametrize("some_run", ["", "wait", "release"])
def test_what_becomes_of_the_others_where_some_run(some_run: str) -> None:
    cluster = group_of_three(some_run)

    async def scenario(h: Harness) -> None:
        h.bind("a", "n1")
        h.report("b", NO_ROOM)
        await h.quiet(3.0)
        assert allocated(h, "abc") == ("a" if some_run == "release" else "ac")
        refused = h.reason("b").message
        if some_run == "release":
            assert "1 of 3 pods run and keep theirs" in h.events("Deallocated")[-1]
            assert "group job, 1 of 3 pods run, the other 2 together" in refused
        else:
            (text,) = h.events("GroupInPart")
            assert text == (
                "group job: 1 of 3 pods run, 1 more keep their devices until they are bound; "
                "this pod waits for devices"
            )
            assert "1 of 3 pods run, 1 more have devices and keep them, the other 1: " in refused
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await asyncio.sleep(25)  # an Event is written again after 20 s
        assert allocated(h, "abc") == "abc"
        whole = "3 of 3 pods of group job have their devices, 1 of them run"
        assert any(whole in text for text in h.events("GroupAllocated"))

    run(cluster, scenario)


def test_an_elastic_group_goes_on_without_a_member_that_comes_back() -> None:
    cluster = group_of_three(least=2)

    async def scenario(h: Harness) -> None:
        h.report("b", NO_ROOM)
        await h.quiet()
        assert allocated(h, "abc") == "ac"
        h.report("c", NO_ROOM)
        await h.quiet()
        assert h.held() == []

    run(cluster, scenario)


def test_no_member_is_allocated_elsewhere_while_kube_scheduler_may_be_binding_it() -> None:
    """Whichever member is looked at, all are decided about."""
    cluster = cluster_of(n1=(40, 40))
    for name in "abc":
        member(cluster, name, 3, least=1)

    async def scenario(h: Harness) -> None:
        assert allocated(h, "abc") == "ab"
        await asyncio.sleep(5)
        cluster.after = lambda *_: None  # kube-scheduler says nothing about the deallocation yet
        h.report("a", NO_ROOM)
        await h.quiet()
        assert allocated(h, "abc") == "b"
        node(cluster, "n2")
        pool(cluster, "n2", 40, 40)
        await h.quiet()
        assert allocated(h, "abc") == "b"
        await asyncio.sleep(25)
        assert allocated(h, "abc") == "abc"

    run(cluster, scenario)


def test_what_kube_scheduler_deallocates_itself_counts_as_coming_back() -> None:
    cluster = group_of_three()

    async def scenario(h: Harness) -> None:
        h.deallocate("b")
        await h.quiet()
        assert h.held() == []

    run(cluster, scenario)


def test_a_member_that_is_reserved_in_the_same_moment_keeps_its_devices() -> None:
    """The write that would deallocate it fails, and it is about to be bound."""
    cluster = group_of_three()

    def before(verb: str, kind: str, name: str, subresource: str) -> None:
        held = cluster.raw(RESOURCE_CLAIMS, "c", NS)["status"] if kind == "ResourceClaim" else {}
        if (verb, name, subresource) == ("patch", "c", "status") and held.get("allocation"):
            raise Conflict("the claim has changed", code=409)

    async def scenario(h: Harness) -> None:
        cluster.before = before
        h.report("b", NO_ROOM)
        await h.quiet()
        assert allocated(h, "abc") == "c"
        cluster.before = lambda *_: None
        h.bind("c", "n1")
        await h.quiet(30.0)
        assert allocated(h, "abc") == "abc"

    run(cluster, scenario)


@pytest.mark.parametrize("fits", [True, False])
def test_a_controller_that_ended_in_between_left_a_part(fits: bool) -> None:
    """One claim was deallocated; the others have been with kube-scheduler, which has bound none of them."""
    cluster = cluster_of(n1=(40, 40, 40) if fits else (40, 40))
    for name in "abc":
        member(cluster, name, 3, gated=False)
    for i, name in enumerate("ab"):
        allocate(cluster, name, "n1", f"gpu-{i}")

    async def scenario(h: Harness) -> None:
        await h.quiet(30.0)
        assert allocated(h, "abc") == ("abc" if fits else "")
        if not fits:
            assert "what its pods hold that do not run is given back" in h.events("Deallocated")[0]

    run(cluster, scenario)


@pytest.mark.parametrize("some_run", ["wait", "release"])
def test_a_controller_that_ended_in_between_left_a_part_beside_one_that_runs(some_run: str) -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in "abc":
        member(cluster, name, 3, gated=False, some_run=some_run)
    for i, name in enumerate("ab"):
        allocate(cluster, name, "n1", f"gpu-{i}")
    uid = cluster.raw(PODS, "a", NS)["metadata"]["uid"]
    reference = {"resource": "pods", "name": "a", "uid": uid}
    cluster.edit(RESOURCE_CLAIMS, "a", {"status": {"reservedFor": [reference]}}, NS)
    cluster.edit(PODS, "a", {"spec": {"nodeName": "n1"}}, NS)

    async def scenario(h: Harness) -> None:
        await h.quiet(5.0)
        assert allocated(h, "abc") == ("a" if some_run == "release" else "ab")

    run(cluster, scenario)


def test_the_end_of_a_member_leaves_those_alone_that_kube_scheduler_is_placing() -> None:
    cluster = group_of_three()

    async def scenario(h: Harness) -> None:
        cluster.edit(PODS, "b", {"status": {"phase": "Failed"}}, NS)
        await h.quiet(5.0)
        assert allocated(h, "ac") == "ac"
        h.report("c", NO_ROOM)
        await h.quiet()
        assert allocated(h, "ac") == ""
        member(cluster, "d", 3)
        await h.quiet(5.0)
        await asyncio.sleep(30)  # the node is left out for the pod for a while
        assert allocated(h, "acd") == "acd"

    run(cluster, scenario)
