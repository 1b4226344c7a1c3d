"""Pods that somebody else holds back by a scheduling gate: a queue such as Kueue, for example."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import builders
import pytest
import virtual_time
from controller_harness import (
    NS,
    Harness,
    claim,
    cluster_of,
    controlling,
    pod,
    request,
    run,
)
from fake_client import FakeClient

from controller.config import Timings
from dra_driver.api import codec
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import ALLOCATION_GATE, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.cli.allocator import manifests as allocator_manifests
from dra_driver.cli.explain import explained
from dra_driver.fleet import Fleet
from dra_driver.resourceclaim import foreign_gates, held_by

KUEUE = "kueue.x-k8s.io/admission"
TOPOLOGY = "kueue.x-k8s.io/topology"


def lift(cluster: FakeClient, name: str, *left: str) -> None:
    """As the queue does; our gate stays."""
    gates = [{"name": g} for g in left] or None
    cluster.edit(PODS, name, {"spec": {"schedulingGates": gates}}, NS)


def allocated_before(cluster: FakeClient, name: str, device: str = "gpu-0", **status: object) -> None:
    """As an earlier version of the controller left it behind."""
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": device}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
            ]
        },
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
    cluster.edit(RESOURCE_CLAIMS, name, {"status": {"allocation": allocation, **status}}, NS)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(8):
        while not condition():
            await asyncio.sleep(0.02)


# --- single pods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [True, False])
def test_a_pod_that_is_held_back_takes_no_devices_from_those_that_are_ready(gated: bool) -> None:
    cluster = cluster_of(n1=(40,) * 8)
    claim(cluster, "held", request(count=6))
    pod(cluster, "held", "held", gated=gated, other_gates=(KUEUE,))
    for i in range(4):
        claim(cluster, f"c{i}", request(count=2))
        pod(cluster, f"p{i}", f"c{i}")

    async def scenario(h: Harness) -> None:
        assert h.devices("held") == []
        assert [len(h.devices(f"c{i}")) for i in range(4)] == [2, 2, 2, 2]
        assert h.gates("held") == [KUEUE, *([ALLOCATION_GATE] if gated else [])]
        assert h.events("FailedAllocation") == []

    run(cluster, scenario)


def test_it_is_served_at_once_when_the_last_foreign_gate_goes_and_keeps_ours_until_then() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "c")
    pod(cluster, "p", "c", other_gates=(KUEUE, TOPOLOGY))

    async def scenario(h: Harness) -> None:
        assert cluster.writes == []
        lift(cluster, "p", TOPOLOGY, ALLOCATION_GATE)
        await h.quiet()
        assert cluster.writes == []
        lift(cluster, "p", ALLOCATION_GATE)
        await until(lambda: h.gates("p") == [])
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_it_waits_for_nothing_of_ours_and_nobody_is_told_that_it_failed() -> None:
    """More than there is, so that it would be refused if it were looked at."""
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c", request(count=2))
    pod(cluster, "p", "c", other_gates=(KUEUE,))

    async def scenario(h: Harness) -> None:
        claim(cluster, "other")
        pod(cluster, "other", "other")
        await h.quiet()
        cluster.remove(PODS, "other", NS)  # a change for the better
        await h.quiet()
        assert h.events("FailedAllocation") == []
        lift(cluster, "p", ALLOCATION_GATE)
        await until(lambda: h.events("FailedAllocation"))

    run(cluster, scenario)


def test_a_pod_whose_claims_are_none_of_ours_keeps_our_gate_as_long_as_the_other() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c", request("nic", "nic"))
    pod(cluster, "p", "c", other_gates=(KUEUE,))

    async def scenario(h: Harness) -> None:
        assert h.gates("p") == [KUEUE, ALLOCATION_GATE]
        lift(cluster, "p", ALLOCATION_GATE)
        await until(lambda: h.gates("p") == [])

    run(cluster, scenario)


def test_a_claim_that_a_ready_pod_shares_with_one_that_is_held_back_is_served() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "shared")
    claim(cluster, "own")
    pod(cluster, "held", "shared", "own", other_gates=(KUEUE,))
    pod(cluster, "ready", "shared")

    async def scenario(h: Harness) -> None:
        assert h.devices("shared") == [("n1", "gpu-0")]
        assert h.gates("ready") == []
        assert (h.devices("own"), h.gates("held")) == ([], [KUEUE, ALLOCATION_GATE])

    run(cluster, scenario)


# --- what it holds already ----------------------------------------------------------------------------------


def test_what_only_pods_that_are_held_back_have_is_taken_back() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "hoard")
    allocated_before(cluster, "hoard")
    pod(cluster, "held", "hoard", other_gates=(KUEUE,))
    claim(cluster, "c")
    pod(cluster, "ready", "c")

    async def scenario(h: Harness) -> None:
        await until(lambda: h.devices("c") == [("n1", "gpu-0")])
        assert h.devices("hoard") == []
        cluster.remove(PODS, "ready", NS)
        cluster.remove(RESOURCE_CLAIMS, "c", NS)
        lift(cluster, "held", ALLOCATION_GATE)
        await until(lambda: h.gates("held") == [])
        assert h.devices("hoard") == [("n1", "gpu-0")]

    run(cluster, scenario, timings=Timings(unused=0.1))


def test_what_is_reserved_or_shared_with_a_ready_pod_stays() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "reserved")
    allocated_before(cluster, "reserved", reservedFor=[{"resource": "pods", "name": "x", "uid": "u"}])
    claim(cluster, "shared")
    allocated_before(cluster, "shared", "gpu-1")
    pod(cluster, "held", "reserved", "shared", other_gates=(KUEUE,))
    pod(cluster, "ready", "shared")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(0.4)
        await h.quiet()
        assert h.devices("reserved") == [("n1", "gpu-0")]
        assert h.devices("shared") == [("n1", "gpu-1")]
        cluster.remove(PODS, "ready", NS)
        await until(lambda: not h.devices("shared"))
        assert h.devices("reserved") == [("n1", "gpu-0")]

    run(cluster, scenario, timings=Timings(unused=0.1))


def test_a_pod_that_is_held_back_does_not_keep_what_pins_a_ready_one() -> None:
    """The ready pod needs both on one node; the pod that is held back has all that it asks for."""
    cluster = cluster_of(n1=(40,), n2=(40, 40))
    claim(cluster, "shared")
    allocated_before(cluster, "shared")
    claim(cluster, "own")
    pod(cluster, "held", "shared", other_gates=(KUEUE,))
    pod(cluster, "ready", "shared", "own")

    async def scenario(h: Harness) -> None:
        await until(lambda: h.gates("ready") == [])
        assert {d[0] for d in h.held()} == {"n2"}

    run(cluster, scenario)


def test_a_node_is_not_avoided_for_a_pod_that_the_scheduler_did_not_look_at() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "shared")
    pod(cluster, "ready", "shared", gated=False)
    pod(cluster, "held", "shared", gated=False, other_gates=(KUEUE,))

    async def scenario(h: Harness) -> None:
        assert h.devices("shared") == [("n1", "gpu-0")]
        cluster.remove(PODS, "ready", NS)
        h.deallocate("shared")
        await h.quiet()
        lift(cluster, "held")
        await until(lambda: h.devices("shared") == [("n1", "gpu-0")])

    run(cluster, scenario)


# --- groups -------------------------------------------------------------------------------------------------


def member(cluster: FakeClient, name: str, size: int, *gates: str) -> None:
    claim(cluster, name)
    pod(cluster, name, name, other_gates=gates)
    labels = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: str(size)}
    cluster.edit(PODS, name, {"metadata": {"labels": labels}}, NS)


def test_a_group_waits_for_its_members_that_are_held_back_and_says_so() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    member(cluster, "a", 3)
    member(cluster, "b", 3, KUEUE)
    member(cluster, "c", 3, KUEUE)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        (told,) = set(h.events("WaitingForGroup"))
        assert told == f"group job: 2 of 3 pods are held by scheduling gate {KUEUE}"
        lift(cluster, "b", ALLOCATION_GATE)
        await h.quiet()
        assert h.held() == []
        lift(cluster, "c", ALLOCATION_GATE)
        await until(lambda: not any(h.gates(n) for n in "abc"))
        assert len(set(h.held())) == 3
        assert h.events("FailedAllocation") == []

    run(cluster, scenario)


def test_a_group_of_which_a_part_is_allocated_gives_it_back_while_others_are_held_back() -> None:
    cluster = cluster_of(n1=(40,))
    member(cluster, "a", 2)
    allocated_before(cluster, "a")
    member(cluster, "b", 2, KUEUE)
    claim(cluster, "single")
    pod(cluster, "single", "single")

    async def scenario() -> None:
        async with asyncio.timeout(30), controlling(cluster, group_seconds=0.0) as h:
            await until(lambda: h.devices("single") == [("n1", "gpu-0")])
            assert h.devices("a") == []

    virtual_time.run(scenario())


# --- what people are told -----------------------------------------------------------------------------------


def pod_of(*gates: str, name: str = "p", node: str = "") -> Pod:
    spec = {
        "schedulingGates": [{"name": g} for g in gates],
        "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
        "nodeName": node,
    }
    return codec.convert(Pod, {"metadata": {"name": name, "namespace": NS}, "spec": spec})


CLAIM = codec.convert(
    ResourceClaim,
    {"metadata": {"name": "c", "namespace": NS, "uid": "u"}, "spec": {"devices": {}}, "status": {}},
)


def test_which_gates_are_foreign() -> None:
    assert foreign_gates(pod_of()) == ()
    assert foreign_gates(pod_of(ALLOCATION_GATE)) == ()
    assert foreign_gates(pod_of(ALLOCATION_GATE, KUEUE, TOPOLOGY)) == (KUEUE, TOPOLOGY)


def test_who_is_held_by_what_is_one_line_however_many_there_are() -> None:
    assert held_by([]) == ""
    assert held_by([pod_of(KUEUE), pod_of()]) == ""
    assert held_by([pod_of(KUEUE), pod_of(KUEUE)]) == f"held by scheduling gate {KUEUE}"
    assert held_by([pod_of(KUEUE, "a.b/c")]) == f"held by scheduling gates a.b/c, {KUEUE}"
    many = held_by([pod_of(*(f"a.b/g{i:03}" for i in range(100)))])
    assert many == "held by scheduling gates a.b/g000, a.b/g001, a.b/g002 and 97 more"


def test_status_and_the_page_say_what_holds_the_pod() -> None:
    fleet = Fleet(("gpu.example.com",))
    fleet.put_claim(CLAIM)
    fleet.put_pod(pod_of(KUEUE, ALLOCATION_GATE))

    def reason() -> str:
        # An Event of an earlier time does not hide what holds the pod now.
        return fleet.waiting(lambda _claim, _pods: "an old refusal")[0][0].reason

    assert reason() == f"held by scheduling gate {KUEUE}"
    fleet.put_pod(pod_of(name="ready"))
    assert reason() == "an old refusal"
    fleet.remove_pod(pod_of(name="ready"))
    assert reason() == f"held by scheduling gate {KUEUE}"
    fleet.put_pod(pod_of(ALLOCATION_GATE))  # the queue lets it go
    assert reason() == "an old refusal"


def test_status_and_explain_say_that_a_pod_is_for_another_scheduler() -> None:
    volcano = codec.convert(Pod, builders.pod("v", "c", schedulerName="volcano"))
    fleet = Fleet(("gpu.example.com",))
    fleet.put_claim(CLAIM)
    fleet.put_pod(volcano)
    reasons = [fleet.waiting(lambda *_, text=text: text)[0][0].reason for text in ("", "no room")]
    assert reasons == [
        "for the scheduler volcano: served only if --scheduler-name of the controller names it",
        "for the scheduler volcano: no room",
    ]
    manifests = allocator_manifests.Manifests(claims=[CLAIM], pods=[volcano])
    assert "its pods are for the scheduler volcano" in str(explained(manifests))
    assert '"scheduler": "for the scheduler volcano"' in str(explained(manifests, output="json"))
    # It is served through the other pod.
    other = codec.convert(Pod, builders.pod("d", "c", schedulerName="default-scheduler"))
    fleet.put_pod(other)
    manifests.pods.append(other)
    assert fleet.waiting(lambda *_: "no room")[0][0].reason == "no room"
    assert "volcano" not in str(explained(manifests))


def test_explain_says_what_holds_the_pod() -> None:
    manifests = allocator_manifests.Manifests(claims=[CLAIM], pods=[pod_of(KUEUE), pod_of(name="q")])
    table = str(explained(manifests))
    assert "held by" not in table
    manifests.pods.pop()
    table = str(explained(manifests))
    assert f"{ObjectKey(NS, 'c')}: its pods are held by scheduling gate {KUEUE}" in table
    assert f'"held": "held by scheduling gate {KUEUE}"' in str(explained(manifests, output="json"))
