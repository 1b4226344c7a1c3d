"""Allocations of pods that kube-scheduler has not bound: kept, or deallocated on evidence. It is played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import virtual_time
from builders import allocation, container, result
from controller_harness import NS, Harness, claim, cluster_of, controlling, node, pod, pool, request, run
from fake_client import FakeClient, unreachable

from controller.allocate.attempts.window import LEAST
from controller.config import Timings
from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import ALLOCATION_GATE
from dra_driver.api.resource import RESOURCE_CLAIMS

# One node does not suit the pod; the other one would, but its claim is allocated here.
NOT_HERE = "0/2 nodes are available: 1 Too many pods, 1 resourceclaim not available on the node."
NOWHERE = "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."
# Found before claims were looked at: the nomination stays.
VOLUME = '0/2 nodes are available: persistentvolumeclaim "data-o" not found. not found'
TOO_EARLY = "0/2 nodes are available: 2 cannot allocate all claims."
# Seconds: between the evidence and the next allocation, and much longer than any reaction takes.
SETTLED, LATER = 1.5, 5.0


def nominated(h: Harness, name: str) -> str:
    return h.cluster.obj(PODS, name, NS).status.nominated_node_name


def writes(cluster: FakeClient, kind: str) -> int:
    return sum(w.kind == kind for w in cluster.writes)


def metric(h: Harness, name: str, **labels: str) -> float:
    registry = h.controller.metrics.registry
    return registry.get_sample_value(f"dra_driver_controller_{name}", labels) or 0.0


def waiting(**nodes: tuple[int, ...]) -> FakeClient:
    """Two pods that want one device each; the first is served first."""
    cluster = cluster_of(**nodes)
    for name in ("a", "b"):
        claim(cluster, name)
        pod(cluster, name, name, metadata={"creationTimestamp": f"2026-01-01T00:00:0{name == 'b':d}Z"})
    return cluster


def one_pod() -> FakeClient:
    """Two nodes, and a pod "p" with the claim "c" that gets its device on the first of them."""
    cluster = cluster_of(n1=(40,), n2=(80,))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    return cluster


# --- evidence -----------------------------------------------------------------------------------------------


async def tried_again(h: Harness) -> None:
    """Do as kube-scheduler when a node would suit "p" but for its claims; they are allocated."""
    h.report("p", TOO_EARLY)
    await h.quiet()
    assert h.devices("c")


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError"])
def test_a_pod_that_cannot_be_placed_gives_its_devices_to_one_that_waits(reason: str) -> None:
    cluster = waiting(n1=(40,))

    async def scenario(h: Harness) -> None:
        assert (h.devices("a"), h.devices("b")) == ([("n1", "gpu-0")], [])
        h.report("a", NOT_HERE, reason)
        await h.quiet()
        assert (h.devices("a"), h.devices("b")) == ([], [("n1", "gpu-0")])
        assert NOT_HERE in h.events("Deallocated")[0]
        assert metric(h, "tentative_deallocations_total", reason="unschedulable") == 1
        # The pod that is placed keeps them, whatever is said about the other one.
        h.bind("b", "n1")
        h.report("a", NOT_HERE + " Again.", reason)
        await asyncio.sleep(LATER)
        assert (h.devices("a"), h.devices("b")) == ([], [("n1", "gpu-0")])

    run(cluster, scenario)


def test_it_is_served_again_on_another_node_although_its_gate_is_off() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        assert (h.devices("c"), nominated(h, "p")) == ([("n1", "gpu-0")], "n1")
        h.report("p", NOT_HERE)
        await h.quiet(SETTLED)
        assert (h.devices("c"), nominated(h, "p")) == ([("n2", "gpu-0")], "n2")
        # The same words again: that the nomination is gone is the news.
        h.report("p", NOT_HERE)
        await h.quiet(SETTLED)
        assert h.devices("c") == []

    run(cluster, scenario)


def test_a_pod_that_suits_no_node_is_tried_again_when_kube_scheduler_says_that_one_would() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        h.report("p", NOWHERE)
        before = len(cluster.writes)
        await asyncio.sleep(20)
        assert h.devices("c") == []
        assert len(cluster.writes) - before <= 5  # the deallocation, Events, and why it waits
        h.report("p", "0/2 nodes are available: 1 Too many pods, 1 cannot allocate all claims.")
        await h.quiet()
        assert h.devices("c")

    run(cluster, scenario)


def test_a_report_that_leaves_the_nomination_is_evidence_where_nothing_is_preempted() -> None:
    cluster = waiting(n1=(40,))

    async def scenario(h: Harness) -> None:
        h.report("a", VOLUME, nominated="n1")
        await asyncio.sleep(2)
        assert (h.devices("a"), h.devices("b")) == ([], [("n1", "gpu-0")])
        # A change of the node is none for the volume.
        h.bind("b", "n1")
        cluster.remove(PODS, "b", NS)
        cluster.remove(RESOURCE_CLAIMS, "b", NS)
        await asyncio.sleep(5)
        assert h.devices("a") == []
        h.report("a", TOO_EARLY)
        await h.quiet()
        assert h.devices("a") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_while_other_pods_are_preempted_for_it_a_pod_keeps_its_devices() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        victim = _running("victim", "n1")
        evicted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        victim["status"] = {"phase": "Running", "conditions": [evicted]}
        h.report("p", "0/2 nodes are available: 1 Insufficient cpu.", nominated="n1")
        await asyncio.sleep(1)  # victims show later than the report
        cluster.put(PODS, victim)
        await asyncio.sleep(8)
        assert h.devices("c") == [("n1", "gpu-0")]
        h.bind("p", "n1")
        await asyncio.sleep(15)
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario, binding_seconds=10.0)


def test_what_was_said_before_the_allocation_is_no_evidence() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    claim(cluster, "other", request(memory="100Gi"))
    claim(cluster, "c")
    pod(cluster, "p", "c", "other", gated=False)

    async def scenario(h: Harness) -> None:
        h.report("p", NOT_HERE)
        await h.quiet()
        pool(cluster, "n1", 40, 100)
        await h.quiet()
        allocated = h.devices("c")
        assert allocated
        # A cycle that began before it could see the allocation ends.
        h.report("p", TOO_EARLY)
        await asyncio.sleep(20)
        assert h.devices("c") == allocated

    run(cluster, scenario)


def test_a_claim_that_is_reserved_in_the_last_moment_stays() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        def reserve(verb: str, kind: str, name: str, subresource: str) -> None:
            if kind == "ResourceClaim" and subresource == "status":
                cluster.before = lambda *_: None
                h.bind("p", "n1")

        cluster.before = reserve
        h.report("p", NOT_HERE)
        await asyncio.sleep(LATER)
        assert h.devices("c") == [("n1", "gpu-0")]
        assert cluster.obj(PODS, "p", NS).spec.node_name == "n1"

    run(cluster, scenario)


def test_all_claims_of_a_pod_are_given_back_before_it_is_tried_elsewhere() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(80, 80))
    claim(cluster, "a")
    claim(cluster, "b")
    pod(cluster, "p", "a", "b")

    async def scenario(h: Harness) -> None:
        assert {n for n, _ in h.devices("a") + h.devices("b")} == {"n1"}
        before, held = cluster.after, []

        def after(*call: str) -> None:
            held.append({node for node, _ in h.held()})
            before(*call)

        cluster.after = after
        h.report("p", NOT_HERE)
        await h.quiet(SETTLED)
        assert {n for n, _ in h.devices("a") + h.devices("b")} == {"n2"}
        assert set() in held
        assert {"n1", "n2"} not in held
        # As kube-scheduler does where other nodes were ruled out: one claim, then the report.
        cluster.edit(RESOURCE_CLAIMS, "a", {"status": {"allocation": None}}, NS)
        h.report("p", NOT_HERE)
        await h.quiet(SETTLED)
        assert h.held() == []

    run(cluster, scenario)


# --- shared claims ------------------------------------------------------------------------------------------


def test_a_shared_claim_stays_while_one_of_its_pods_may_still_be_placed() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(80,))
    claim(cluster, "shared")
    claim(cluster, "own")
    pod(cluster, "p", "shared", "own")
    pod(cluster, "q", "shared")

    async def scenario(h: Harness) -> None:
        assert len(h.held()) == 2
        h.report("p", NOT_HERE)
        await h.quiet(SETTLED)
        # What only the first pod uses is given back; it goes where the shared claim is, or nowhere.
        assert h.devices("own") == []
        assert h.devices("shared")
        h.report("q", NOT_HERE)
        await h.quiet(SETTLED)
        # On the other node it would serve one pod, and kube-scheduler looks first at the other one.
        assert h.devices("shared") == []
        h.cluster.remove(PODS, "p", NS)
        await h.quiet(SETTLED)
        assert h.devices("shared") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_a_shared_claim_of_which_one_pod_is_bound_is_kept_for_it() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "shared")
    pod(cluster, "p", "shared")
    pod(cluster, "q", "shared")

    async def scenario(h: Harness) -> None:
        h.bind("q", "n1")
        h.report("p", NOT_HERE)
        await asyncio.sleep(LATER)
        assert h.devices("shared") == [("n1", "gpu-0")]
        assert h.events("Deallocated") == []

    run(cluster, scenario)


# --- never elsewhere while it may be bound here -------------------------------------------------------------


def test_a_claim_goes_to_no_other_node_while_its_pod_is_nominated() -> None:
    """kube-scheduler reserves a claim as it finds it, so the pod would be bound to the wrong node."""
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"allocation": None}}, NS)
        await asyncio.sleep(10)
        assert h.devices("c") == []
        assert "may be binding pod p to node n1" in h.events("FailedAllocation")[0]
        h.report("p", 'running PreBind plugin "DynamicResources": claim c got deallocated', "SchedulerError")
        await h.quiet(SETTLED)
        assert h.devices("c") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_a_claim_goes_to_no_other_node_while_a_nomination_may_be_on_its_way() -> None:
    """A cycle that has seen the allocation sends its nomination when its turn comes, seconds later."""
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        def refuse(verb: str, kind: str, name: str, subresource: str) -> None:
            if kind == "ResourceClaim":
                unreachable()

        cluster.before = refuse  # meanwhile it tries the pod again
        h.report("p", "no answer from the API server", "SchedulerError")
        await asyncio.sleep(3)
        cluster.before = lambda *_: None
        await asyncio.sleep(LATER)
        assert h.devices("c") == []
        cluster.edit(PODS, "p", {"status": {"nominatedNodeName": "n1"}}, NS)
        await asyncio.sleep(LATER)
        assert h.devices("c") == []
        h.report("p", 'running PreBind plugin "DynamicResources": claim c got deallocated', "SchedulerError")
        await h.quiet(SETTLED)
        assert h.devices("c") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_a_controller_that_starts_does_not_know_whether_a_nomination_is_on_its_way() -> None:
    cluster = one_pod()

    async def main() -> None:
        async with controlling(cluster) as h:
            h.report("p", "no answer from the API server", "SchedulerError")
            await h.quiet()
            assert h.devices("c") == []
        async with controlling(cluster) as h:
            await asyncio.sleep(LATER)
            assert h.devices("c") == []
            await tried_again(h)

    virtual_time.run(main())


def test_a_pod_with_which_kube_scheduler_fails_before_it_looks_at_nodes_is_not_tried_again() -> None:
    """It reports the same again, which nobody sees, so its devices would be held until the time-out."""
    cluster = one_pod()
    for name in ("n1", "n2"):
        cluster.put(PODS, _running(f"old-{name}", name))

    async def main() -> None:
        async with controlling(cluster, binding_seconds=5.0) as h:
            h.report("p", VOLUME, nominated="n1")
            await asyncio.sleep(8)
            assert nominated(h, "p") == ""
            cluster.remove(PODS, "old-n2", NS)
            await asyncio.sleep(LATER)
            assert h.devices("c") == []
        async with controlling(cluster, binding_seconds=5.0) as h:
            cluster.remove(PODS, "old-n1", NS)
            await asyncio.sleep(LATER)
            assert h.devices("c") == []
            await tried_again(h)

    virtual_time.run(main())


def test_what_changes_for_kube_scheduler_alone_ends_the_back_off_of_all_nodes() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        for _ in range(2):
            h.report("p", NOT_HERE)
            await h.quiet(SETTLED)
        assert h.devices("c") == []
        await asyncio.sleep(6)
        assert h.devices("c") == []
        await tried_again(h)

    run(cluster, scenario)


def test_a_shared_claim_goes_nowhere_else_while_any_of_its_pods_is_nominated() -> None:
    cluster = one_pod()
    pod(cluster, "q", "c")

    async def scenario(h: Harness) -> None:
        cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"allocation": None}}, NS)
        h.report("p", NOT_HERE)
        await asyncio.sleep(10)
        assert h.devices("c") == []
        h.report("q", NOT_HERE)
        await h.quiet(SETTLED)
        assert h.devices("c") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_a_nomination_that_kube_scheduler_leaves_keeps_a_shared_claim_nowhere_for_ever() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    claim(cluster, "c")
    pod(cluster, "typo", "c")
    pod(cluster, "q", "c")

    async def scenario(h: Harness) -> None:
        h.report("typo", VOLUME, nominated="n1")
        h.report("q", NOT_HERE)
        await asyncio.sleep(4)
        assert h.devices("c") == []
        await asyncio.sleep(6)
        assert nominated(h, "typo") == ""
        assert h.devices("c") == [("n2", "gpu-0")]

    run(cluster, scenario, binding_seconds=5.0)


# --- without a sign -----------------------------------------------------------------------------------------


def test_a_pod_that_kube_scheduler_says_nothing_about_loses_its_devices_after_a_time() -> None:
    cluster = waiting(n1=(40,))

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(9)
        assert h.devices("a") == [("n1", "gpu-0")]
        await asyncio.sleep(2)
        assert (h.devices("a"), h.devices("b")) == ([], [("n1", "gpu-0")])
        assert metric(h, "tentative_deallocations_total", reason="timeout") == 1

    run(cluster, scenario, binding_seconds=10.0)


def test_each_time_doubles_for_the_same_pod() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(6)
        assert h.devices("c") == []
        await asyncio.sleep(2)  # its node is left out for 2 s
        assert h.devices("c") == [("n1", "gpu-0")]
        await asyncio.sleep(8)
        assert h.devices("c") == [("n1", "gpu-0")]
        await asyncio.sleep(2)
        assert h.devices("c") == []

    run(cluster, scenario, binding_seconds=5.0, timings=Timings(avoid=2.0))


def test_a_pod_whose_claim_is_reserved_is_being_bound_however_long_that_takes() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        holder = {"resource": "pods", "name": "p", "uid": cluster.raw(PODS, "p", NS)["metadata"]["uid"]}
        cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"reservedFor": [holder]}}, NS)
        await asyncio.sleep(12)
        assert h.devices("c") == [("n1", "gpu-0")]
        assert h.events("Deallocated") == []
        # It could not bind the pod after all.
        cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"reservedFor": None}}, NS)
        h.report("p", NOT_HERE, "SchedulerError")
        await h.quiet(SETTLED)
        assert h.devices("c") == [("n2", "gpu-0")]

    run(cluster, scenario, binding_seconds=5.0)


def test_claims_of_kube_schedulers_own_pools_are_none_of_ours() -> None:
    cluster = cluster_of()
    node(cluster, "n1")
    pool(cluster, "n1", 40, protected=False)
    claim(cluster, "c")
    on = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    selector = {"nodeSelector": {"nodeSelectorTerms": [on]}}
    cluster.edit(RESOURCE_CLAIMS, "c", {"status": allocation(result("n1", "gpu-0"), **selector)}, NS)
    pod(cluster, "p", "c", gated=False)

    async def scenario(h: Harness) -> None:
        h.report("p", NOT_HERE)
        await asyncio.sleep(12)
        assert h.devices("c") == [("n1", "gpu-0")]
        assert h.events("Deallocated") == []

    run(cluster, scenario, binding_seconds=5.0)


# --- pods that are gone, or of others -----------------------------------------------------------------------


def test_a_pod_that_is_being_deleted_before_it_is_bound_holds_nothing() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c", metadata={"finalizers": ["example.com/late"]})

    async def scenario(h: Harness) -> None:
        cluster.edit(PODS, "p", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, NS)
        await asyncio.sleep(3)
        assert h.devices("c") == []

    run(cluster, scenario)


@pytest.mark.parametrize(
    "change",
    [{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, {"status": {"phase": "Failed"}}],
    ids=["deleted", "failed"],
)
def test_a_pod_that_ends_before_it_is_bound_is_none_that_kube_scheduler_has_to_bind(
    change: dict[str, Any],
) -> None:
    """Its claim stays as it is, for a pod that runs."""
    cluster = cluster_of(n1=(40,))
    claim(cluster, "shared")
    pod(cluster, "p", "shared", metadata={"finalizers": ["example.com/late"]})
    pod(cluster, "q", "shared")

    async def scenario(h: Harness) -> None:
        assert metric(h, "unbound_pods") == 2
        h.bind("q", "n1")
        await h.quiet()
        assert metric(h, "unbound_pods") == 1
        cluster.edit(PODS, "p", change, NS)
        await h.quiet()
        assert metric(h, "unbound_pods") == 0
        assert h.devices("shared") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_nomination_for_which_kube_scheduler_preempts_others_stays() -> None:
    """The pod has no devices, but it was looked at with its claims."""
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        for _ in range(2):
            h.report("p", NOT_HERE)
            await h.quiet(SETTLED)
        assert h.devices("c") == []
        h.report("p", f"{NOT_HERE} Preempting.", nominated="n1")
        await asyncio.sleep(15)
        assert nominated(h, "p") == "n1"

    run(cluster, scenario, binding_seconds=5.0)


def test_a_pod_of_another_scheduler_is_left_alone_and_loses_the_gate() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c", schedulerName="volcano")

    async def scenario(h: Harness) -> None:
        assert (h.devices("c"), h.gates("p"), nominated(h, "p")) == ([], [], "")
        said = "its devices are left to volcano: pods of default-scheduler are served here"
        assert h.events("OtherScheduler") == [said]

    async def served(h: Harness) -> None:
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)
    run(cluster, served, schedulers=("default-scheduler", "volcano"))
    # What it was given before is taken from it when it is not served any more.
    run(cluster, lambda h: _sleep_then(h, lambda: h.devices("c") == []))


async def _sleep_then(h: Harness, condition: Callable[[], bool]) -> None:
    await asyncio.sleep(3)
    assert condition()


# --- after a restart ----------------------------------------------------------------------------------------


def test_a_controller_that_starts_knows_which_pods_could_not_be_placed() -> None:
    cluster = waiting(n1=(40,))

    async def main() -> None:
        async with controlling(cluster) as h:
            assert h.devices("a") == [("n1", "gpu-0")]
        h.report("a", NOT_HERE)
        async with controlling(cluster) as h:
            await h.quiet()
            assert (h.devices("a"), h.devices("b")) == ([], [("n1", "gpu-0")])

    virtual_time.run(main())


def test_a_controller_that_starts_keeps_what_is_being_bound() -> None:
    cluster = one_pod()

    async def main() -> None:
        async with controlling(cluster):
            pass
        async with controlling(cluster) as h:
            await asyncio.sleep(30)
            assert h.devices("c") == [("n1", "gpu-0")]
            h.report("p", NOT_HERE)
            await h.quiet(SETTLED)
            assert h.devices("c") == [("n2", "gpu-0")]

    virtual_time.run(main())


# --- bound without devices ----------------------------------------------------------------------------------


def test_a_bound_pod_whose_claim_is_not_allocated_is_served_before_anything_else() -> None:
    cluster = cluster_of(n1=(40,))
    for i in range(30):
        claim(cluster, f"c{i}", request(memory="100Gi"))
        pod(cluster, f"p{i}", f"c{i}")
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        h.bind("p", "n1")
        h.cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"allocation": None, "reservedFor": None}}, NS)
        cluster.edit(NODES, "n1", {"metadata": {"labels": {"changed": "yes"}}})  # everybody is looked at
        await h.quiet()
        assert h.devices("c") == [("n1", "gpu-0")]
        assert [r.name for r in h.claim("c").status.reserved_for] == ["p"]

    run(cluster, scenario)


def test_a_bound_pod_without_devices_gets_those_of_pods_that_are_not_bound_yet() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    for name in ("reserved", "a", "b"):
        claim(cluster, name)
        pod(cluster, name, name)
    claim(cluster, "two", request(count=2))

    async def scenario(h: Harness) -> None:
        h.bind("reserved", "n1")
        pod(cluster, "p", "two")
        await h.quiet()
        assert len(h.held()) == 3
        cluster.edit(PODS, "p", {"spec": {"nodeName": "n1", "schedulingGates": None}}, NS)
        await h.quiet()
        assert len(h.devices("two")) == 2
        assert h.devices("reserved")
        assert (h.devices("a"), h.devices("b")) == ([], [])
        assert metric(h, "tentative_deallocations_total", reason="displaced") == 2
        assert "a pod that is bound there needs them" in h.events("Deallocated")[0]

    run(cluster, scenario)


def test_a_bound_pod_that_its_node_can_never_serve_displaces_only_so_many() -> None:
    cluster = cluster_of(n1=(40,) * 4)
    for name in ("a", "b", "c", "d"):
        claim(cluster, name)
        pod(cluster, name, name)
    claim(cluster, "five", request(count=5))

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", "five")
        await h.quiet()
        cluster.edit(PODS, "p", {"spec": {"nodeName": "n1", "schedulingGates": None}}, NS)
        await asyncio.sleep(20)
        for number in range(40):
            cluster.edit(NODES, "n1", {"metadata": {"labels": {"changed": str(number)}}})
            await asyncio.sleep(0.1)
        assert metric(h, "tentative_deallocations_total", reason="displaced") <= 16
        assert len(h.held()) == 4

    run(cluster, scenario)


def test_a_pod_that_was_made_with_a_node_takes_nothing_from_others() -> None:
    cluster = waiting(n1=(40,))

    async def scenario(h: Harness) -> None:
        claim(cluster, "here")
        pod(cluster, "here", "here", gated=False, nodeName="n1")
        await asyncio.sleep(LATER)
        assert (h.devices("a"), h.devices("here")) == ([("n1", "gpu-0")], [])

    run(cluster, scenario)


# --- a node that is freed, and the window -------------------------------------------------------------------


@pytest.mark.parametrize("messages", [(NOT_HERE, NOT_HERE), (NOWHERE,)], ids=["one by one", "nowhere"])
def test_a_node_that_a_pod_leaves_is_tried_within_two_seconds(messages: tuple[str, ...]) -> None:
    cluster = one_pod()
    cluster.put(PODS, {**_running("old", "n1")})

    async def scenario(h: Harness) -> None:
        for message in messages:
            h.report("p", message)
            await h.quiet(SETTLED)
        assert h.devices("c") == []
        await asyncio.sleep(4)
        cluster.remove(PODS, "old", NS)
        await asyncio.sleep(1.9)
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario, binding_seconds=9.0)


def _running(name: str, on: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": NS}
    spec = {"nodeName": on, "containers": [container()]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


# --- pods that no node suits, for reasons that the controller does not look at -----------------------------


async def leaves(h: Harness, name: str, on: str = "n1") -> None:
    """Have a pod run on a node for a moment."""
    h.cluster.put(PODS, _running(name, on))
    await asyncio.sleep(0.1)
    h.cluster.remove(PODS, name, NS)


async def held_seconds(h: Harness, names: Iterable[str], seconds: float) -> float:
    """Return for how long claims are allocated in all, while a pod leaves the node now and then."""
    found, step, names = 0.0, 0.25, tuple(names)
    for number in range(int(seconds / step)):
        if number % 8 == 0:
            await leaves(h, f"churn-{number}")
            await asyncio.sleep(step - 0.1)
        else:
            await asyncio.sleep(step)
        found += step * sum(bool(h.devices(name)) for name in names)
    return found


def test_a_pod_that_no_node_suits_holds_devices_for_seconds_at_ever_rarer_attempts() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def main() -> None:
        async with controlling(cluster) as h:
            h.report("p", NOWHERE)
            await h.quiet(SETTLED)
            assert h.devices("c") == []
            # kube-scheduler looks at it again after each change, and finds the same: nothing shows it.
            assert 1.5 <= await held_seconds(h, ["c"], 50) <= 2.5
            assert nominated(h, "p") == ""
            assert await held_seconds(h, ["c"], 370) <= 2.5 * 3
            # What was known before counts no longer when a node would suit it.
            h.report("p", TOO_EARLY)
            await h.quiet()
            assert (h.devices("c"), nominated(h, "p")) == ([("n1", "gpu-0")], "n1")
            await asyncio.sleep(LATER)
            assert h.devices("c") == [("n1", "gpu-0")]

    virtual_time.run(main())


def test_pods_that_no_node_suits_hold_devices_one_after_the_other() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    names = ("a", "b", "c")
    for name in names:
        claim(cluster, name)
        pod(cluster, name, name)

    async def scenario(h: Harness) -> None:
        for name in names:
            h.report(name, NOWHERE)
        await h.quiet(SETTLED)
        most = 0
        await leaves(h, "old")
        for _ in range(100):
            most = max(most, sum(bool(h.devices(name)) for name in names))
            await asyncio.sleep(0.1)
        assert most == 1
        assert not any(h.devices(name) for name in names)

    run(cluster, scenario)


def test_a_pod_that_kube_scheduler_binds_slowly_after_all_keeps_its_devices() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        h.report("p", NOWHERE)
        await h.quiet(SETTLED)
        await leaves(h, "old")
        await asyncio.sleep(1)
        # Its volumes are made meanwhile.
        cluster.edit(PODS, "p", {"status": {"nominatedNodeName": "n1"}}, NS)
        await asyncio.sleep(15)
        assert h.devices("c") == [("n1", "gpu-0")]
        h.bind("p", "n1")
        await asyncio.sleep(LATER)
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_pod_whose_claims_are_missing_after_all_keeps_its_devices() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        h.report("p", NOWHERE)
        await h.quiet(SETTLED)
        await leaves(h, "old")
        await asyncio.sleep(1)
        assert h.devices("c")
        # A cycle that began before it could see the allocation; kube-scheduler looks again seconds later.
        h.report("p", TOO_EARLY)
        await asyncio.sleep(20)
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


@pytest.mark.parametrize("allocated", [False, True])
def test_a_controller_that_starts_knows_which_pods_no_node_suits(allocated: bool) -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def main() -> None:
        async with controlling(cluster) as h:
            h.report("p", NOWHERE)
            await h.quiet(SETTLED)
        if allocated:
            on = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
            devices = allocation(result("n1", "gpu-0"), nodeSelector={"nodeSelectorTerms": [on]})
            cluster.edit(RESOURCE_CLAIMS, "c", {"status": devices}, NS)
        async with controlling(cluster) as h:
            assert await held_seconds(h, ["c"], 60) <= 5
            h.report("p", TOO_EARLY)
            await h.quiet()
            assert h.devices("c") == [("n1", "gpu-0")]

    virtual_time.run(main())


def test_a_pod_that_no_node_suits_keeps_a_shared_claim_from_nobody() -> None:
    """kube-scheduler looks at it first, but deallocates only what keeps a pod from a node."""
    cluster = cluster_of(n1=(40,), n2=(80,))
    claim(cluster, "c")
    pod(cluster, "p", "c", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    pod(cluster, "q", "c", metadata={"creationTimestamp": "2026-01-01T00:00:01Z"})

    async def scenario(h: Harness) -> None:
        for name in ("p", "q"):
            h.report(name, NOWHERE)
        await h.quiet(SETTLED)
        assert h.devices("c") == []
        h.report("q", TOO_EARLY)
        await h.quiet(SETTLED)
        assert h.devices("c")
        await asyncio.sleep(LATER)  # it is held for the one that can be placed
        assert h.devices("c")

    run(cluster, scenario)


def test_a_pod_that_was_reported_before_it_was_looked_at_waits_for_another_report() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c", gated=False)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NOWHERE}
    cluster.edit(PODS, "p", {"status": {"conditions": [condition]}}, NS)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(20)
        assert h.devices("c") == []
        assert h.reason("p").reason
        await tried_again(h)

    run(cluster, scenario)


def test_no_more_pods_are_allocated_than_kube_scheduler_binds() -> None:
    number = LEAST + 40
    cluster = cluster_of()
    for i in range(number):
        node(cluster, f"n{i}")
        pool(cluster, f"n{i}", 40)
        claim(cluster, f"c{i:03}")
        pod(cluster, f"p{i:03}", f"c{i:03}")

    def served(h: Harness) -> list[str]:
        return [p.metadata.name for p in cluster.all(PODS) if ALLOCATION_GATE not in h.gates(p.metadata.name)]

    async def scenario(h: Harness) -> None:
        first = served(h)
        assert LEAST <= len(first) <= LEAST + 16  # several are decided side by side
        assert len(h.held()) == len(first)
        for name in first[:10]:
            h.bind(name, h.devices(name.replace("p", "c"))[0][0])
        await h.quiet()
        assert len(served(h)) == len(first) + 10 - (len(first) - LEAST)
        # One that cannot be placed makes room as well.
        h.report(first[-1], NOT_HERE)
        await h.quiet()
        assert metric(h, "unbound_pods") == LEAST
        for name in served(h):
            if not cluster.obj(PODS, name, NS).spec.node_name and h.devices(name.replace("p", "c")):
                h.bind(name, h.devices(name.replace("p", "c"))[0][0])
        await h.quiet(SETTLED)
        assert len(h.held()) == number

    run(cluster, scenario)


def test_pods_of_unlabelled_namespaces_are_nominated_too() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c", gated=False)

    async def scenario(h: Harness) -> None:
        assert nominated(h, "p") == "n1"

    run(cluster, scenario)
