"""Groups: all members are allocated, or none."""

from __future__ import annotations

import asyncio

import pytest
from controller_harness import NS, OURS, Harness, claim, cluster_of, node, pod, pool, request, run
from fake_client import FakeClient
from group_members import allocate, member

from controller.observe.reasons import shown_reason
from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import (
    GROUP_DOMAIN_ANNOTATION,
    TOPOLOGY_ANNOTATION,
)
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import Invalid


def reserve(cluster: FakeClient, name: str) -> None:
    """As kube-scheduler does with an ungated pod."""
    uid = cluster.raw(PODS, name, NS)["metadata"]["uid"]
    reference = {"resource": "pods", "name": name, "uid": uid}
    cluster.edit(RESOURCE_CLAIMS, name, {"status": {"reservedFor": [reference]}}, NS)


@pytest.mark.parametrize("on", ["pod", "claim"])
def test_nobody_is_allocated_before_all_are_there(on: str) -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    member(cluster, "a", on=on)
    member(cluster, "b", on=on)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert all(h.gates(n) for n in "ab")
        assert "2 of 3 pods" in h.events("WaitingForGroup")[0]
        member(cluster, "c", on=on)
        await h.quiet()
        assert len(set(h.held())) == 3
        assert not any(h.gates(n) for n in "abc")

    run(cluster, scenario)


def test_each_member_says_how_many_are_there_also_those_that_came_first() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    member(cluster, "a")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(3)
        member(cluster, "b")
        await asyncio.sleep(15)
        conditions = [shown_reason(cluster.obj(PODS, n, NS)) for n in "ab"]
        assert [c and c.message.rpartition(": ")[2] for c in conditions] == ["2 of 3 pods are there"] * 2

    run(cluster, scenario)


def test_nobody_is_allocated_where_not_all_fit_and_all_are_when_they_do() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in "abc":
        member(cluster, name)
    claim(cluster, "single")
    pod(cluster, "single", "single")

    async def scenario(h: Harness) -> None:
        # The group holds nothing back from others while it waits.
        assert [len(h.devices(n)) for n in ("a", "b", "c", "single")] == [0, 0, 0, 1]
        assert "all 3 pods together" in h.events("FailedAllocation")[0]
        writes = len(cluster.writes)
        await asyncio.sleep(0.4)
        assert len(cluster.writes) == writes  # it does not spin
        node(cluster, "n2")
        pool(cluster, "n2", 40, 40)
        await h.quiet()
        assert [len(h.devices(n)) for n in ("a", "b", "c")] == [1, 1, 1]
        assert len(set(h.held())) == 4

    run(cluster, scenario)


def test_two_groups_that_do_not_fit_together_come_one_after_the_other() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for i in range(2):
        for group in ("x", "y"):
            member(cluster, f"{group}{i}", 2, group=group)

    async def scenario(h: Harness) -> None:
        by_group = [[len(h.devices(f"{g}{i}")) for i in range(2)] for g in ("x", "y")]
        assert sorted(by_group) == [[0, 0], [1, 1]]

    run(cluster, scenario)


def test_members_that_ask_for_more_are_placed_first() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    member(cluster, "a", 2)
    member(cluster, "b", 2, count=2)

    async def scenario(h: Harness) -> None:
        assert len(h.devices("b")) == 2
        assert h.devices("a") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_a_refused_write_gives_everything_back_after_a_while() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "abc":
        member(cluster, name)
    refused = {"c"}

    def before(verb: str, kind: str, name: str, subresource: str) -> None:
        if verb == "patch" and kind == "ResourceClaim" and name in refused and subresource == "status":
            raise Invalid("no", code=422)

    cluster.before = before

    async def scenario(h: Harness) -> None:
        assert [len(h.devices(n)) for n in "abc"] == [1, 1, 0]
        assert all(h.gates(n) for n in "abc")
        h.clock.time += 31.0
        claim(cluster, "single")
        pod(cluster, "single", "single")
        claim(cluster, "another")
        pod(cluster, "another", "another")
        async with asyncio.timeout(10):
            while not (h.devices("single") and h.devices("another")):
                cluster.edit(PODS, "a", {"metadata": {"labels": {"x": str(len(cluster.writes))}}}, NS)
                await asyncio.sleep(0.02)
        await h.quiet()
        assert [len(h.devices(n)) for n in "abc"] == [0, 0, 0]

    run(cluster, scenario)


def test_a_restart_between_writes_completes_the_group() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "abc":
        member(cluster, name)
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-2"}
    allocation = {"allocation": {"devices": {"results": [result]}}}
    cluster.edit(RESOURCE_CLAIMS, "a", {"status": allocation}, NS)

    async def scenario(h: Harness) -> None:
        assert h.devices("a") == [("n1", "gpu-2")]
        assert len(set(h.held())) == 3
        assert not h.gates("c")

    run(cluster, scenario)


def test_a_restart_between_writes_gives_back_where_the_rest_does_not_fit() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in "abc":
        member(cluster, name)
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-1"}
    cluster.edit(RESOURCE_CLAIMS, "a", {"status": {"allocation": {"devices": {"results": [result]}}}}, NS)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert h.gates("a")

    run(cluster, scenario)


def test_a_member_that_goes_while_a_part_is_written_gives_back_in_time() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "ab":
        member(cluster, name)
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-1"}
    cluster.edit(RESOURCE_CLAIMS, "a", {"status": {"allocation": {"devices": {"results": [result]}}}}, NS)

    async def scenario(h: Harness) -> None:
        assert h.devices("a")
        h.clock.time += 31.0
        cluster.edit(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, NS)
        await h.quiet()
        assert h.held() == []

    run(cluster, scenario)


def test_a_member_that_fails_later_is_replaced_and_the_others_keep_what_they_have() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in "abc":
        member(cluster, name)

    async def scenario(h: Harness) -> None:
        before = {n: h.devices(n) for n in "abc"}
        for name in "abc":
            reserve(cluster, name)
            cluster.edit(PODS, name, {"spec": {"nodeName": "n1"}}, NS)
        cluster.edit(PODS, "b", {"status": {"phase": "Failed"}}, NS)
        h.deallocate("b")
        await h.quiet()
        assert (h.devices("a"), h.devices("c")) == (before["a"], before["c"])
        member(cluster, "b2")
        await h.quiet()
        assert h.devices("b2") == before["b"]
        assert not h.gates("b2")
        assert (h.devices("a"), h.devices("c")) == (before["a"], before["c"])

    run(cluster, scenario)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (("3", "2"), "one dra-driver.dev/group-size"),
        (("x", "x"), "expected 1 to"),
        (("1", "1"), "has 2 pods"),
    ],
)
def test_labels_that_make_no_sense_are_refused_with_the_reason(sizes: tuple[str, ...], text: str) -> None:
    cluster = cluster_of(n1=(40, 40))
    for name, size in zip("ab", sizes, strict=True):
        member(cluster, name, size)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert any(text in e for e in h.events("FailedAllocation"))

    run(cluster, scenario)


def test_labels_that_make_no_sense_are_reported_where_pods_have_no_gate() -> None:
    cluster = cluster_of(n1=(40,))
    member(cluster, "a", "x", gated=False)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert any("expected 1 to" in e for e in h.events("FailedAllocation"))

    run(cluster, scenario)


DOMAIN = {"metadata": {"annotations": {GROUP_DOMAIN_ANNOTATION: "rack"}}}


def racks(cluster: FakeClient, **names: str) -> None:
    for name, rack in names.items():
        cluster.edit(NODES, name, {"metadata": {"labels": {"rack": rack}}})


def test_a_group_stays_within_one_domain() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,), n3=(40, 40), n4=(40,))
    racks(cluster, n1="a", n2="b", n3="b", n4="c")
    for name in "xyz":
        member(cluster, name)
        cluster.edit(PODS, name, DOMAIN, NS)

    async def scenario(h: Harness) -> None:
        await h.quiet()
        assert {h.devices(n)[0][0] for n in "xyz"} == {"n2", "n3"}

    run(cluster, scenario)


def test_a_group_that_no_domain_holds_waits() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    racks(cluster, n1="a", n2="b")
    for name in "xyz":
        member(cluster, name, on="claim")
        cluster.edit(RESOURCE_CLAIMS, name, DOMAIN, NS)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert any("all 3 pods together on nodes of one rack" in e for e in h.events("FailedAllocation"))
        racks(cluster, n2="a")
        await h.quiet()
        assert len(set(h.held())) == 3

    run(cluster, scenario)


def test_members_must_name_one_domain() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name, label in (("x", "rack"), ("y", "zone")):
        member(cluster, name, 2)
        cluster.edit(PODS, name, {"metadata": {"annotations": {GROUP_DOMAIN_ANNOTATION: label}}}, NS)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert any(
            "name several dra-driver.dev/group-domain: rack, zone" in e for e in h.events("FailedAllocation")
        )

    run(cluster, scenario)


def test_topology_is_asked_for_by_annotation() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40))
    for name, numa in (("n1", (0, 1)), ("n2", (1, 1))):
        slice_ = cluster.raw(RESOURCE_SLICES, f"{name}-{OURS}")
        devices = [
            {**d, "attributes": {"numaNode": {"int": n}}}
            for d, n in zip(slice_["spec"]["devices"], numa, strict=True)
        ]
        cluster.edit(RESOURCE_SLICES, f"{name}-{OURS}", {"spec": {"devices": devices}})
    near = {"metadata": {"annotations": {TOPOLOGY_ANNOTATION: "required:numaNode"}}}
    for name in ("a", "b", "c"):
        claim(cluster, name, request(count=2))
        if name != "c":
            cluster.edit(RESOURCE_CLAIMS, name, near, NS)
        pod(cluster, name, name)

    async def scenario(h: Harness) -> None:
        await h.quiet()
        # One of those that ask for it, and the one that does not: equal but for the annotation.
        assert sorted(h.devices(n)[0][0] for n in "abc" if h.devices(n)) == ["n1", "n2"]
        assert h.devices("c")[0][0] == "n1"

    run(cluster, scenario)


@pytest.mark.parametrize("wrong", ["size", "podgroup"])
def test_a_gated_member_of_a_group_that_is_wrong_gives_its_devices_back_in_time(wrong: str) -> None:
    cluster = cluster_of(n1=(40, 40))
    if wrong == "size":
        for name, size in (("a", 3), ("b", 2)):
            member(cluster, name, size)
    else:
        claim(cluster, "a")
        pod(cluster, "a", "a", schedulingGroup={"podGroupName": "gone"})
    allocate(cluster, "a", "n1", "gpu-0")

    async def scenario(h: Harness) -> None:
        await h.quiet()
        assert h.devices("a") == [("n1", "gpu-0")]
        await asyncio.sleep(5)
        assert h.devices("a") == []
        assert h.gates("a") != []
        before = len(cluster.writes)
        await asyncio.sleep(10)
        assert [w for w in cluster.writes[before:] if w.kind == "ResourceClaim"] == []

    run(cluster, scenario, group_seconds=3.0)


def test_a_pod_in_order_keeps_what_it_shares_with_a_member_of_a_group_that_is_wrong() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name, size in (("a", 3), ("b", 2)):
        member(cluster, name, size)
    claim(cluster, "lacking", request(count=3))
    pod(cluster, "beside", "a", "lacking")
    allocate(cluster, "a", "n1", "gpu-0")

    async def scenario(h: Harness) -> None:
        before = len(cluster.writes)
        await asyncio.sleep(10)
        assert h.devices("a") == [("n1", "gpu-0")]
        assert [w for w in cluster.writes[before:] if w.kind == "ResourceClaim"] == []

    run(cluster, scenario, group_seconds=3.0)
