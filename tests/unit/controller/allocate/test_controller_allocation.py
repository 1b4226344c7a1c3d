"""The controller allocating beside a scheduler that is played by the test."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from builders import container
from controller_harness import (
    NS,
    OTHER,
    OURS,
    Harness,
    claim,
    classes,
    cluster_of,
    node,
    nothing,
    pod,
    pool,
    request,
    run,
)
from fake_client import FakeClient, unreachable

from controller.config import Timings
from dra_driver.api.core import EVENTS, NODES, PODS
from dra_driver.api.names import ALLOCATION_GATE, CLAIM_FINALIZER
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import Conflict, Invalid
from dra_driver.ownership import PoolAllocator
from dra_driver.trimming import MOST_GATES

# Seconds after which a pod that could not be placed is served anew.
SETTLED = 1.5
EIGHT_CORES = [container(cpu="8")]


# --- the ordinary way ---------------------------------------------------------------------------------------


def test_a_gated_pod_gets_its_device_and_loses_the_gate() -> None:
    cluster = cluster_of(n1=(80, 40))
    claim(cluster, "c", request(memory="32Gi"))
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-1")]
        status = h.claim("c").status
        assert status.allocation is not None
        assert status.allocation.node_selector is not None
        assert status.allocation.allocation_timestamp == "2027-01-15T08:00:00Z"
        assert status.allocation.node_selector.node_selector_terms[0].match_fields[0].values == ("n1",)
        assert status.reserved_for == ()  # the scheduler's
        assert h.claim("c").metadata.finalizers == (CLAIM_FINALIZER,)
        assert h.gates("p") == []
        order = [(kind, sub) for _, kind, _, sub in cluster.writes if kind in ("ResourceClaim", "Pod")]
        assert order == [("ResourceClaim", ""), ("ResourceClaim", "status"), ("Pod", "status"), ("Pod", "")]
        # Before the gate was lifted: kube-scheduler tries this node first, and has nothing to write.
        assert cluster.obj(PODS, "p", NS).status.nominated_node_name == "n1"

    run(cluster, scenario)


def test_an_ungated_pod_is_served_as_well() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c", gated=False)

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_claim_that_no_pod_uses_is_not_allocated() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == []
        assert [w for w in cluster.writes if w[1] == "ResourceClaim"] == []

    run(cluster, scenario)


def test_pods_that_do_not_concern_us_lose_the_gate_at_once() -> None:
    cluster = cluster_of(n1=(40,))
    pool(cluster, "n1", 1, driver=OTHER, protected=False)
    claim(cluster, "theirs", request(device_class="nic"))
    pod(cluster, "without-claims")
    pod(cluster, "with-theirs", "theirs")

    async def scenario(h: Harness) -> None:
        assert h.gates("without-claims") == []
        assert h.gates("with-theirs") == []
        assert h.devices("theirs") == []

    run(cluster, scenario)


def test_no_gate_is_removed_of_a_pod_with_more_than_are_kept() -> None:
    cluster = cluster_of(n1=(40,))
    others = tuple(f"example.com/{i}" for i in range(MOST_GATES))
    pod(cluster, "p", other_gates=others)

    async def scenario(h: Harness) -> None:
        assert h.gates("p") == [*others, ALLOCATION_GATE]
        fewer = [{"name": gate} for gate in (*others[1:], ALLOCATION_GATE)]
        cluster.edit(PODS, "p", {"spec": {"schedulingGates": fewer}}, NS)
        await h.quiet()
        assert h.gates("p") == [*others[1:]]

    run(cluster, scenario)


def test_a_pod_that_is_too_large_is_told_which_field_it_is() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c", tolerations=[{"operator": "Exists"}] * 1_025)
    claim(cluster, "d")
    pod(cluster, "q", "d", tolerations=[{"operator": "Exists"}] * 1_024)
    text = "spec.tolerations of the pod has 1025 entries, and the controller serves at most 1024"

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == []
        assert ("FailedAllocation", text) in [(e.reason, e.message) for e in cluster.all(EVENTS)]
        await h.quiet(3)
        assert h.reason("p").message == text
        assert len(cluster.obj(PODS, "p", NS).spec.tolerations) == 1_025
        assert h.devices("d") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_all_claims_of_a_pod_are_on_one_node_and_gone_wrong_as_one() -> None:
    cluster = cluster_of(n1=(40,), n2=(40, 40))
    claim(cluster, "a")
    claim(cluster, "b")
    pod(cluster, "p", "a", "b")
    claim(cluster, "x", request(count=2))
    claim(cluster, "y", request(count=2))
    pod(cluster, "q", "x", "y")

    async def scenario(h: Harness) -> None:
        assert {p for p, _ in (*h.devices("a"), *h.devices("b"))} == {"n2"}
        assert h.devices("x") == h.devices("y") == []
        assert h.gates("q") == [ALLOCATION_GATE]

    run(cluster, scenario)


def test_a_claim_that_waits_for_its_template_is_allocated_when_it_is_there() -> None:
    cluster = cluster_of(n1=(40,))
    pod(cluster, "p", resourceClaims=[{"name": "t", "resourceClaimTemplateName": "tpl"}])

    async def scenario(h: Harness) -> None:
        assert h.gates("p") == [ALLOCATION_GATE]
        claim(cluster, "p-t-abc")
        statuses = [{"name": "t", "resourceClaimName": "p-t-abc"}]
        cluster.edit(PODS, "p", {"status": {"resourceClaimStatuses": statuses}}, NS)
        await h.quiet()
        assert h.devices("p-t-abc") == [("n1", "gpu-0")]
        assert h.gates("p") == []

    run(cluster, scenario)


def test_a_shared_claim_is_allocated_once_and_both_pods_go_on() -> None:
    cluster = cluster_of(n1=(40,), n2=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    pod(cluster, "q", "c")

    async def scenario(h: Harness) -> None:
        assert len(h.devices("c")) == 1
        assert h.gates("p") == h.gates("q") == []

    run(cluster, scenario)


def test_a_bound_pod_gets_allocation_and_reservation_on_its_node() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    claim(cluster, "c")
    pod(cluster, "p", "c", gated=False, nodeName="n2")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n2", "gpu-0")]
        uid = cluster.raw(PODS, "p", NS)["metadata"]["uid"]
        assert [(r.resource, r.name, r.uid) for r in h.claim("c").status.reserved_for] == [("pods", "p", uid)]

    run(cluster, scenario)


# --- where the pod can go -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {"zone": "b"}}, "n2"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchFields": [
                                        {"key": "metadata.name", "operator": "In", "values": ["n2"]}
                                    ]
                                }
                            ]
                        }
                    }
                }
            },
            "n2",
        ),
        ({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "6"}}}]}, "n2"),
        (
            {"tolerations": [{"key": "maintenance", "operator": "Exists"}], "nodeSelector": {"zone": "c"}},
            "n3",
        ),
        ({"nodeSelector": {"zone": "c"}}, None),
        ({"nodeSelector": {"zone": "d"}}, None),
    ],
)
def test_the_node_suits_the_pod(spec: dict[str, Any], expected: str | None) -> None:
    cluster = FakeClient()
    classes(cluster)
    node(cluster, "n1", cpu="4")
    node(cluster, "n2", cpu="8", labels={"zone": "b"})
    node(cluster, "n3", labels={"zone": "c"})
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    cluster.edit(NODES, "n3", {"spec": {"taints": [taint]}})
    node(cluster, "n4", labels={"zone": "d"})
    cluster.edit(NODES, "n4", {"spec": {"unschedulable": True}})
    pool(cluster, "n1", 40)
    pool(cluster, "n2", 80)
    pool(cluster, "n3", 80)
    pool(cluster, "n4", 80)
    claim(cluster, "c")
    pod(cluster, "p", "c", **spec)

    async def scenario(h: Harness) -> None:
        assert [p for p, _ in h.devices("c")] == ([expected] if expected else [])
        if expected is None:
            (message,) = set(h.events("FailedAllocation"))
            assert "0/4 nodes can take the pod" in message

    run(cluster, scenario)


def test_pods_whose_devices_were_allocated_count_before_they_are_bound() -> None:
    cluster = FakeClient()
    classes(cluster)
    node(cluster, "n1", cpu="2")
    node(cluster, "n2", cpu="2")
    for name in ("n1", "n2"):
        pool(cluster, name, 40, 40, 40, 40)
    for i in range(4):
        claim(cluster, f"c{i}")
        pod(cluster, f"p{i}", f"c{i}")

    async def scenario(h: Harness) -> None:
        pools = [h.devices(f"c{i}")[0][0] for i in range(4)]
        assert sorted(pools) == ["n1", "n1", "n2", "n2"]

    run(cluster, scenario)


# --- refusals -----------------------------------------------------------------------------------------------


def test_an_unsatisfiable_claim_says_why_and_is_served_when_a_device_appears() -> None:
    cluster = cluster_of(n1=(24,))
    claim(cluster, "c", request(memory="32Gi"))
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.gates("p") == [ALLOCATION_GATE]
        about = {e.involved_object.kind for e in cluster.all(EVENTS) if e.reason == "FailedAllocation"}
        assert about == {"Pod", "ResourceClaim"}
        assert "32Gi" in h.events("FailedAllocation")[0]
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await h.quiet()
        assert h.devices("c") == [("n2", "gpu-0")]
        assert h.gates("p") == []
        assert h.events("Allocated") == ["allocated gpu-0 on node n2 for pod p"]

    run(cluster, scenario)


def test_a_claim_that_is_allocated_at_once_costs_no_event() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c", request())
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        assert cluster.all(EVENTS) == []

    run(cluster, scenario)


def test_a_device_that_becomes_free_goes_to_the_pod_that_waits() -> None:
    cluster = cluster_of(n1=(40,))
    for name in ("a", "b"):
        claim(cluster, name)
        pod(cluster, name, name)

    async def scenario(h: Harness) -> None:
        (winner,) = [n for n in ("a", "b") if h.devices(n)]
        loser = "b" if winner == "a" else "a"
        cluster.remove(PODS, winner, NS)
        h.deallocate(winner)
        await h.quiet()
        assert h.devices(loser) == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_claim_that_mixes_ours_with_another_driver_is_refused_with_the_reason() -> None:
    cluster = cluster_of(n1=(40,))
    pool(cluster, "n1", 1, driver=OTHER, protected=False)
    claim(cluster, "c", request("a", "gpu"), request("b", "nic"))
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == []
        assert h.gates("p") == [ALLOCATION_GATE]
        message = h.events("FailedAllocation")[0]
        assert "request a, class gpu" in message
        assert "request b, class nic" in message

    run(cluster, scenario)


def test_a_pool_without_our_taint_is_never_touched() -> None:
    cluster = cluster_of()
    node(cluster, "n1")
    pool(cluster, "n1", 40, protected=False)
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == []
        assert h.gates("p") == []

    run(cluster, scenario)


def test_the_gate_of_a_pod_that_another_controller_serves_is_left_to_it() -> None:
    cluster = cluster_of(n1=(40,))
    pool(cluster, "n1", 1, driver=OTHER)  # carries the taint, so somebody allocates it as we do
    claim(cluster, "c", request(device_class="nic"))
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.gates("p") == [ALLOCATION_GATE]
        assert h.devices("c") == []

    run(cluster, scenario)


def test_a_missing_class_is_named() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c", request(device_class="nonesuch"))
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert "DeviceClass nonesuch does not exist" in h.events("FailedAllocation")[0]
        cluster.put(DEVICE_CLASSES, {"metadata": {"name": "nonesuch"}, "spec": {}})
        await h.quiet()
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_separate_claim_of_another_driver_decides_the_node_and_is_not_written() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    pool(cluster, "n2", 1, driver=OTHER, protected=False)
    claim(cluster, "gpu")
    claim(cluster, "nic", request(device_class="nic"))
    pod(cluster, "p", "gpu", "nic")

    async def scenario(h: Harness) -> None:
        assert h.devices("gpu") == [("n2", "gpu-0")]  # n1 would fit better, but has no nic
        assert h.devices("nic") == []
        assert h.gates("p") == []

    run(cluster, scenario)


def test_while_the_scheduler_allocates_gates_come_off_and_nothing_is_written() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == []
        assert h.gates("p") == []

    run(cluster, scenario, allocator=PoolAllocator.SCHEDULER)


# --- beside others ------------------------------------------------------------------------------------------


def test_when_the_scheduler_deallocates_another_node_is_tried() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        h.deallocate("c")
        await h.quiet(SETTLED)
        assert h.devices("c") == [("n2", "gpu-0")]
        h.deallocate("c")
        await h.quiet(SETTLED)
        assert h.devices("c") == []
        assert "could not place it a short while ago" in h.events("FailedAllocation")[0]
        h.clock.time += 1000
        cluster.edit(NODES, "n1", {"metadata": {"labels": {"changed": "yes"}}})
        await h.quiet()
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_node_is_tried_again_when_it_is_avoided_no_longer() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        h.deallocate("c")
        # A change that wakes the pod while the node is still avoided must not be its last chance.
        cluster.edit(NODES, "n1", {"metadata": {"labels": {"changed": "yes"}}})
        await asyncio.sleep(0.1)
        assert h.devices("c") == []
        h.clock.time += 1.0
        async with asyncio.timeout(5):
            while not h.devices("c"):
                await asyncio.sleep(0.02)

    run(cluster, scenario, timings=Timings(avoid=0.2))


def test_a_pod_that_was_left_to_the_scheduler_is_served_when_a_pool_becomes_ours() -> None:
    cluster = cluster_of()
    node(cluster, "n1")
    pool(cluster, "n1", 40, protected=False)
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert (h.devices("c"), h.gates("p")) == ([], [])
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await h.quiet()
        assert h.devices("c") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_a_pod_for_which_we_have_no_room_may_go_to_pools_of_the_scheduler() -> None:
    cluster = cluster_of(n1=(40,))
    node(cluster, "n2")
    pool(cluster, "n2", 40, protected=False)
    for name in "ab":
        claim(cluster, name)
        pod(cluster, f"p{name}", name)

    async def scenario(h: Harness) -> None:
        served, waits = ("a", "b") if h.devices("a") else ("b", "a")
        assert (h.devices(served), h.devices(waits)) == ([("n1", "gpu-0")], [])
        assert h.gates(f"p{waits}") == []  # kube-scheduler may give it n2
        cluster.remove(PODS, f"p{served}", NS)
        h.deallocate(served)
        await h.quiet()
        assert h.devices(waits) == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_the_gate_stays_while_the_scheduler_has_nothing_either() -> None:
    cluster = cluster_of(n1=(40,))
    node(cluster, "n2")
    pool(cluster, "n2", 40, protected=False)
    claim(cluster, "theirs")
    result = {"request": "gpu", "driver": OURS, "pool": "n2", "device": "gpu-0"}
    user = {"resource": "pods", "name": "somebody", "uid": "somebody"}
    state = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    cluster.edit(RESOURCE_CLAIMS, "theirs", {"status": state}, NS)
    for name, wanted in (("huge", request(memory="500Gi")), ("a", request()), ("b", request())):
        claim(cluster, name, wanted)
        pod(cluster, f"p{name}", name)

    async def scenario(h: Harness) -> None:
        waits = "b" if h.devices("a") else "a"
        assert (h.gates("phuge"), h.gates(f"p{waits}")) == ([ALLOCATION_GATE], [ALLOCATION_GATE])
        messages = h.events("FailedAllocation")
        assert any(m.endswith("n2 skipped: its pool is allocated by kube-scheduler") for m in messages), (
            messages
        )
        h.deallocate("theirs")
        cluster.remove(RESOURCE_CLAIMS, "theirs", NS)
        async with asyncio.timeout(5):
            while h.gates(f"p{waits}"):
                await asyncio.sleep(0.02)
        assert h.gates("phuge") == [ALLOCATION_GATE]

    run(cluster, scenario)


def test_an_unused_allocation_is_taken_back_when_its_node_is_there_again() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        cluster.remove(RESOURCE_SLICES, f"n1-{OURS}")  # a kubelet restarts
        await asyncio.sleep(0.1)
        cluster.remove(PODS, "p", NS)
        await asyncio.sleep(0.4)
        assert h.devices("c") == [("n1", "gpu-0")]
        pool(cluster, "n1", 40)
        async with asyncio.timeout(5):
            while h.devices("c"):
                await asyncio.sleep(0.02)

    run(cluster, scenario, timings=Timings(unused=0.1))


def test_an_unused_allocation_is_taken_back_when_the_answer_to_its_write_came_late() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    def lose(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "ResourceClaim" and subresource == "status":
            unreachable()

    def no_answer(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "ResourceClaim" and verb == "get":
            unreachable()

    cluster.before, cluster.after = no_answer, lose

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        cluster.remove(PODS, "p", NS)
        await asyncio.sleep(1.0)
        assert h.devices("c") == [("n1", "gpu-0")]
        cluster.before = cluster.after = lambda *_: None
        await asyncio.sleep(10.0)
        assert h.devices("c") == []

    run(cluster, scenario, timings=Timings(unused=0.1))


def test_an_unused_allocation_is_taken_back_when_its_pool_has_gone_to_the_scheduler() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]
        pool(cluster, "n1", 40, protected=False)
        await asyncio.sleep(0.2)
        assert h.devices("c") == [("n1", "gpu-0")]  # its pod is on the way
        cluster.remove(PODS, "p", NS)
        async with asyncio.timeout(5):
            while h.devices("c"):
                await asyncio.sleep(0.02)

    run(cluster, scenario, timings=Timings(unused=0.1))


def test_a_shared_claim_is_not_taken_from_the_pod_that_can_run_with_it() -> None:
    cluster = cluster_of(n1=(40,))
    for name in ("shared", "own"):
        claim(cluster, name)
    pod(cluster, "both", "shared", "own")
    pod(cluster, "one", "shared")

    async def scenario(h: Harness) -> None:
        assert h.devices("shared") == [("n1", "gpu-0")]
        assert h.devices("own") == []
        count = len(cluster.writes)
        await asyncio.sleep(0.5)
        assert len(cluster.writes) == count

    run(cluster, scenario)


def test_a_conflict_means_look_again_and_two_claims_never_hold_one_device() -> None:
    cluster = cluster_of(n1=(40, 40, 40, 40), n2=(40, 40, 40, 40))
    for i in range(12):
        claim(cluster, f"c{i}")
        pod(cluster, f"p{i}", f"c{i}")
    counter = itertools.count()

    def now_and_then(verb: str, kind: str, name: str, subresource: str) -> None:
        if verb != "patch" or kind != "ResourceClaim":
            return
        n = next(counter)
        if n % 3 == 0:
            cluster.edit(RESOURCE_CLAIMS, name, {"metadata": {"labels": {"n": str(n)}}}, NS)
        elif n % 7 == 1:
            raise Conflict("somebody was faster", code=409)
        elif n % 7 == 2:
            unreachable()

    cluster.before = now_and_then

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(1)
        await h.quiet(0.5)
        cluster.before = lambda *_: None
        await asyncio.sleep(1.5)
        held = h.held()
        assert len(held) == len(set(held)) == 8

    run(cluster, scenario)


@pytest.mark.parametrize("applied", [True, False])
def test_an_allocation_without_an_answer_keeps_its_device_until_it_is_known(applied: bool) -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "a")
    pod(cluster, "a", "a")
    lost: list[str] = []

    def lose(verb: str, kind: str, name: str, subresource: str) -> None:
        if verb == "patch" and kind == "ResourceClaim" and subresource == "status" and not lost:
            lost.append(name)
            claim(cluster, "b")
            pod(cluster, "b", "b")
            unreachable()

    if applied:
        cluster.after = lose
    else:
        cluster.before = lose

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(0.5)
        await h.quiet()
        assert h.devices("a") == [("n1", "gpu-0")]
        assert h.devices("b") == []
        assert h.gates("a") == []

    run(cluster, scenario)


def test_devices_stay_taken_while_the_informer_lags() -> None:
    cluster = cluster_of(n1=(40, 40))

    async def scenario(h: Harness) -> None:
        cluster.quiet.add("ResourceClaim")
        claim(cluster, "a")
        pod(cluster, "a", "a")
        claim(cluster, "b")
        pod(cluster, "b", "b")
        cluster.quiet.clear()
        cluster.wake()
        await asyncio.sleep(0.02)
        cluster.quiet.add("ResourceClaim")  # what we write now does not come back
        await h.quiet()
        for name in ("c", "d"):
            claim(cluster, name)
            pod(cluster, name, name)
        await h.quiet()
        cluster.quiet.clear()
        cluster.wake()
        await h.quiet()
        held = h.held()
        assert len(held) == len(set(held)) == 2

    run(cluster, scenario)


def test_a_restart_knows_what_is_taken() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "a")
    pod(cluster, "a", "a")
    run(cluster, nothing)
    claim(cluster, "b")
    pod(cluster, "b", "b")

    async def scenario(h: Harness) -> None:
        assert sorted((*h.devices("a"), *h.devices("b"))) == [("n1", "gpu-0"), ("n1", "gpu-1")]

    run(cluster, scenario)


def test_a_restart_between_allocation_and_ungating_removes_the_gate() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    def no_ungating(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "Pod" and verb == "patch":
            unreachable()

    async def first(h: Harness) -> None:
        assert h.gates("p") == [ALLOCATION_GATE]
        assert h.devices("c")

    cluster.before = no_ungating
    run(cluster, first)
    cluster.before = lambda *_: None

    async def second(h: Harness) -> None:
        assert h.gates("p") == []

    run(cluster, second)


def test_a_restart_between_two_claims_of_a_pod_finishes_or_starts_over() -> None:
    """One claim is allocated on a node where the other no longer fits: the first is taken back."""
    cluster = cluster_of(n1=(40, 40), n2=(80, 80))
    claim(cluster, "a")
    claim(cluster, "b")
    pod(cluster, "p", "a", "b")

    def only_one(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "ResourceClaim" and name == "b" and subresource == "status":
            raise Invalid("refused", code=422)

    async def first(h: Harness) -> None:
        assert h.devices("a")[0][0] == "n1"
        assert h.devices("b") == []

    cluster.before = only_one
    run(cluster, first)
    cluster.before = lambda *_: None
    pool(cluster, "n1", 40)  # the second device of n1 is gone

    async def second(h: Harness) -> None:
        async with asyncio.timeout(10):  # taken back and given anew, which takes a few writes
            while {p for p, _ in (*h.devices("a"), *h.devices("b"))} != {"n2"} or h.gates("p"):
                await asyncio.sleep(0.02)
        assert len(h.held()) == 2

    run(cluster, second)


def test_a_refused_write_is_told_and_the_device_goes_to_others() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "a")
    pod(cluster, "a", "a")

    def forbid(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "ResourceClaim" and name == "a" and subresource == "status":
            raise Invalid("not allowed: resourceclaims/binding", code=422)

    cluster.before = forbid

    async def scenario(h: Harness) -> None:
        assert any("resourceclaims/binding" in m for m in h.events("FailedAllocation"))
        cluster.remove(PODS, "a", NS)
        claim(cluster, "b")
        pod(cluster, "b", "b")
        await h.quiet()
        assert h.devices("b") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_bound_pod_that_went_away_during_its_write_takes_nothing_of_its_node() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "a")
    pod(cluster, "a", "a", gated=False, nodeName="n1", containers=EIGHT_CORES)

    def take_away(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "ResourceClaim" and name == "a" and subresource == "status":
            cluster.remove(PODS, "a", NS)
            cluster.remove(RESOURCE_CLAIMS, "a", NS)
            unreachable()

    cluster.before = take_away

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(0.5)
        claim(cluster, "b")
        pod(cluster, "b", "b", containers=EIGHT_CORES)
        await h.quiet()
        assert h.events("FailedAllocation") == []
        assert h.devices("b") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_pod_that_others_write_at_the_same_time_keeps_no_gate() -> None:
    """A patch without a resourceVersion meets conflicts, too: the API server gives up after some attempts."""
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    conflicts = [Conflict("somebody was faster", code=409)]

    def before(verb: str, kind: str, name: str, subresource: str) -> None:
        if (verb, kind, subresource) == ("patch", "Pod", "") and conflicts:
            raise conflicts.pop()

    cluster.before = before

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(5.0)
        assert h.gates("p") == []

    run(cluster, scenario)
    assert not conflicts


def test_who_could_not_take_an_allocation_back_knows_the_schedulers_work_by_itself() -> None:
    cluster = cluster_of(n1=(40,), n2=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        before = h.devices("c")
        cluster.remove(PODS, "p", NS)
        await h.quiet()

        def first(verb: str, kind: str, name: str, subresource: str) -> None:
            if kind == "ResourceClaim" and subresource == "status":
                cluster.before = lambda *_: None
                pod(cluster, "q", "c", gated=False)
                uid = cluster.raw(PODS, "q", NS)["metadata"]["uid"]
                holder = {"resource": "pods", "name": "q", "uid": uid}
                cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"reservedFor": [holder]}}, NS)

        cluster.before = first
        await asyncio.sleep(2.2)
        await h.quiet()
        assert h.devices("c") == before
        h.deallocate("c")  # by kube-scheduler: the pod cannot go there
        await h.quiet(SETTLED)
        assert h.devices("c") not in ([], before)

    run(cluster, scenario)


def test_an_allocation_whose_pod_went_away_unscheduled_is_taken_back() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c")
        cluster.remove(PODS, "p", NS)
        await asyncio.sleep(2.2)
        await h.quiet()
        assert h.devices("c") == []

    run(cluster, scenario)


def test_a_reserved_claim_is_left_to_the_controller_manager() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        consumer = [{"resource": "pods", "name": "p", "uid": "u"}]
        cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"reservedFor": consumer}}, NS)
        cluster.remove(PODS, "p", NS)
        await asyncio.sleep(2.2)
        await h.quiet()
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_nothing_is_written_once_everything_is_allocated() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in ("a", "b"):
        claim(cluster, name)
        pod(cluster, name, name)
    run(cluster, nothing)
    cluster.writes.clear()
    run(cluster, nothing)
    assert cluster.writes == []
