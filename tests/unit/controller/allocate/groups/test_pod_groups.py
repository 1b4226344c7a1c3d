"""PodGroups of scheduling.k8s.io: their pods are allocated all or none, by their minCount."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import pytest
import virtual_time
from controller_harness import NS, Harness, Scenario, claim, cluster_of, controlling, node, pod, pool, run
from fake_client import FakeClient
from forked_worker import ForkedWorker
from group_members import allocate, allocated, member, racks
from worker_audit import Bench

from controller.allocate.decide import ObjectSeen, PodGroupsUnknown, rank_of_group
from controller.allocate.worker.wire import Frames, change_of, frame_of_change
from dra_driver.api import codec
from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import GANG_REPORTS, GROUP_DOMAIN_ANNOTATION
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.scheduling import PodGroup, pod_groups
from dra_driver.errors import Forbidden

POD_GROUPS = pod_groups("v1alpha2")
_WAITS, OTHER_FAILED, _ = GANG_REPORTS
# As it was recorded of Kubernetes 1.36.
WAITS = f"pod group is unschedulable, {_WAITS}, one or more plugins asked to wait and no plugin rejected pod"
RESERVED_BEFORE = (
    'running PreBind plugin "DynamicResources": add reservation to claim tenant/shared: '
    'ResourceClaim.resource.k8s.io "shared" is invalid: status.reservedFor[1]: Duplicate value: "07dc069d"'
)


def pod_group(
    cluster: FakeClient, name: str = "job", least: int | None = 3, version: str = "v1alpha2", **spec: Any
) -> None:
    policy: dict[str, Any] = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    body = {"schedulingPolicy": policy, **spec}
    if version == POD_GROUPS.version:
        cluster.put(POD_GROUPS, {"metadata": {"name": name, "namespace": NS}, "spec": body})
        return
    kind = pod_groups(version)
    cluster.serve(kind)
    if cluster.find(kind, name, NS) is None:
        cluster.put(kind, {"metadata": {"name": name, "namespace": NS}})
    # The fields are those of v1alpha2 there.
    cluster.edit(kind, name, {"spec": body}, NS, as_is=True)


def in_group(name: str = "job") -> dict[str, Any]:
    """Return the part of a pod's spec that makes it a member."""
    return {"schedulingGroup": {"podGroupName": name}}


def native_member(cluster: FakeClient, name: str, group: str = "job", **spec: Any) -> None:
    claim(cluster, name)
    pod(cluster, name, name, **in_group(group), **spec)


def run_long(cluster: FakeClient, scenario: Scenario) -> None:
    """Do as ``run``, for a scenario in which minutes pass."""

    async def main() -> None:
        async with asyncio.timeout(3600), controlling(cluster) as harness:
            await scenario(harness)

    virtual_time.run(main())


def gone(cluster: FakeClient, *names: str) -> None:
    """Delete pods with their claims, as garbage collection does."""
    for name in names:
        cluster.remove(PODS, name, NS)
        cluster.remove(RESOURCE_CLAIMS, name, NS)


def test_no_pod_is_allocated_before_min_count_of_them_are_there() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    pod_group(cluster)
    native_member(cluster, "a")
    native_member(cluster, "b")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert h.events("WaitingForGroup")[0] == "PodGroup job: 2 of 3 pods are there"
        native_member(cluster, "c")
        await h.quiet()
        assert len(set(h.held())) == 3
        assert not any(h.gates(n) for n in "abc")
        assert "with all 3 pods of PodGroup job" in h.events("GroupAllocated")[0]

    run(cluster, scenario)


def test_of_two_pod_groups_that_do_not_fit_together_one_runs_and_then_the_other() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40))
    for group in "xy":
        pod_group(cluster, group)
    for i in range(3):
        for group in "xy":
            native_member(cluster, f"{group}{i}", group)

    async def scenario(h: Harness) -> None:
        held = {g: [n for n in (f"{g}0", f"{g}1", f"{g}2") if h.devices(n)] for g in "xy"}
        assert sorted(map(len, held.values())) == [0, 3]
        first, second = sorted(held, key=lambda g: -len(held[g]))
        for i in range(3):
            h.bind(f"{first}{i}", h.devices(f"{first}{i}")[0][0])
        await h.quiet()
        assert "PodGroup" in h.events("FailedAllocation")[0]
        assert "all 3 pods together" in h.events("FailedAllocation")[0]
        gone(cluster, *held[first])
        await h.quiet()
        assert all(h.devices(f"{second}{i}") for i in range(3))

    run(cluster, scenario)


def test_pods_wait_for_a_pod_group_that_is_not_there_yet() -> None:
    cluster = cluster_of(n1=(40, 40))
    native_member(cluster, "a")
    native_member(cluster, "b")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert "PodGroup job does not exist (yet)" in h.events("WaitingForGroup")
        pod_group(cluster, least=2)
        await h.quiet()
        assert allocated(h, "ab") == "ab"

    run(cluster, scenario)


def test_pods_beyond_min_count_join_as_devices_become_free() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    pod_group(cluster)
    for name in "abcd":
        native_member(cluster, name)

    async def scenario(h: Harness) -> None:
        assert allocated(h, "abcd") == "abc"
        pool(cluster, "n2", 40)
        node(cluster, "n2")
        await h.quiet()
        assert allocated(h, "abcd") == "abcd"

    run(cluster, scenario)


def test_the_policy_basic_is_no_gang() -> None:
    cluster = cluster_of(n1=(40,))
    pod_group(cluster, least=None)
    for name in "ab":
        native_member(cluster, name)

    async def scenario(h: Harness) -> None:
        assert allocated(h, "ab") == "a"
        assert not h.events("WaitingForGroup")

    run(cluster, scenario)


@pytest.mark.parametrize("version", ["v1alpha3", "v1beta1"])
def test_the_versions_of_kubernetes_1_37_are_read_and_min_count_may_change(version: str) -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    workload = {"workloadName": "w", "templateName": "t"}
    more: dict[str, Any] = {"disruptionMode": {"all": {}}, "workloadRef": workload}
    pod_group(cluster, least=4, version=version, priority=7, preemptionPolicy="Never", **more)
    for name in "abc":
        native_member(cluster, name)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert "PodGroup job: 3 of 4 pods are there" in h.events("WaitingForGroup")
        pod_group(cluster, least=3, version=version, priority=7, **more)
        await h.quiet()
        assert allocated(h, "abc") == "abc"

    run(cluster, scenario)


@pytest.mark.parametrize("least", [2, None])
def test_a_part_of_a_composite_pod_group_is_refused_with_the_name_of_the_field(least: int | None) -> None:
    cluster = cluster_of(n1=(40, 40))
    pod_group(cluster, least=least, version="v1beta1", parentCompositePodGroupName="whole")
    for name in "ab":
        native_member(cluster, name)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        (text,) = set(h.events("FailedAllocation"))
        assert "PodGroup job: needs a newer controller: spec.parentCompositePodGroupName" in text
        assert "whole" in text

    run(cluster, scenario)


@pytest.mark.parametrize(
    "policy", [{"gang": {"minCount": 1, "minDomains": 2}}, {"basic": {}, "spread": {"key": "rack"}}]
)
def test_a_policy_with_a_field_that_is_not_known_is_refused(policy: dict[str, Any]) -> None:
    cluster = cluster_of(n1=(40, 40))
    pod_group(cluster, least=1, version="v1beta1", schedulingPolicy=policy)
    native_member(cluster, "a")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        (text,) = set(h.events("FailedAllocation"))
        assert "PodGroup job: needs a newer controller: spec.schedulingPolicy." in text

    run(cluster, scenario)


def test_pods_that_have_succeeded_do_not_count_as_kube_scheduler_counts() -> None:
    cluster = cluster_of(n1=(40, 40))
    pod_group(cluster, least=2)
    native_member(cluster, "a")
    cluster.edit(PODS, "a", {"status": {"phase": "Succeeded"}}, NS)
    native_member(cluster, "b")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert "PodGroup job: 1 of 2 pods are there" in h.events("WaitingForGroup")

    run(cluster, scenario)


def test_a_topology_constraint_is_refused_because_kube_scheduler_deallocates() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    racks(cluster, n1="r1")
    pod_group(cluster, least=1, schedulingConstraints={"topology": [{"key": "rack"}]})
    native_member(cluster, "a")

    async def scenario(h: Harness) -> None:
        assert not h.held()
        assert "PodGroup job: its topology constraint cannot be kept" in h.events("FailedAllocation")[0]

    run(cluster, scenario)


def test_the_annotation_keeps_the_pods_on_nodes_of_one_value() -> None:
    cluster = cluster_of(n1=(40,), n2=(40,), n3=(40,), n4=(40,))
    racks(cluster, n1="r1", n2="r2", n3="r2", n4="r2")
    pod_group(cluster)
    for name in "abc":
        native_member(cluster, name, metadata={"annotations": {GROUP_DOMAIN_ANNOTATION: "rack"}})

    async def scenario(h: Harness) -> None:
        assert {h.devices(n)[0][0] for n in "abc"} == {"n2", "n3", "n4"}

    run(cluster, scenario)


def test_a_pod_group_grows_by_whole_parts() -> None:
    cluster = cluster_of(n1=(40, 40, 40), n2=(40, 40, 40))
    racks(cluster, n1="r1", n2="r2")
    pod_group(cluster, least=2)
    parts = {"annotations": {GROUP_DOMAIN_ANNOTATION: "rack*2"}}
    for name in "abc":
        native_member(cluster, name, metadata=parts)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(2.0)  # another one might be coming
        assert allocated(h, "abc") == "ab"
        native_member(cluster, "d", metadata=parts)
        await h.quiet()
        assert {h.devices(n)[0][0] for n in "ab"} != {h.devices(n)[0][0] for n in "cd"}

    run_long(cluster, scenario)


def test_a_min_count_of_no_whole_parts_is_refused() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    racks(cluster, n1="r1")
    pod_group(cluster)
    for name in "abc":
        native_member(cluster, name, metadata={"annotations": {GROUP_DOMAIN_ANNOTATION: "rack*2"}})

    async def scenario(h: Harness) -> None:
        text = "its minCount is 3, expected a multiple of 2: dra-driver.dev/group-domain has so many members"
        assert f"PodGroup job: {text} share each rack" in h.events("FailedAllocation")

    run(cluster, scenario)


@pytest.mark.parametrize("least", [0, 5000])
def test_a_number_that_no_group_can_have_is_refused(least: int) -> None:
    cluster = cluster_of(n1=(40,))
    pod_group(cluster, least=least)
    native_member(cluster, "a")

    async def scenario(h: Harness) -> None:
        text = f"PodGroup job: its minCount is {least}, expected 1 to 1024"
        assert text in h.events("FailedAllocation")

    run(cluster, scenario)


def test_a_pod_is_in_a_pod_group_or_in_a_group_by_labels() -> None:
    cluster = cluster_of(n1=(40, 40))
    pod_group(cluster, least=1)
    member(cluster, "a", 1, group="other", **in_group())

    async def scenario(h: Harness) -> None:
        assert not h.held()
        expected = "the pod belongs to PodGroup job, and it and its claims name group other"
        assert expected in h.events("FailedAllocation")

    run(cluster, scenario)


def test_a_pod_of_two_groups_counts_in_none_of_them() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    pod_group(cluster, least=2)
    member(cluster, "a", 2, group="other", **in_group())
    member(cluster, "b", 2, group="other")
    native_member(cluster, "c")

    async def scenario(h: Harness) -> None:
        assert not h.held()
        assert all(h.gates(name) for name in "abc")
        messages = h.events("WaitingForGroup")
        assert {"group other: 1 of 2 pods are there", "PodGroup job: 1 of 2 pods are there"} <= set(messages)

    run(cluster, scenario)


def test_a_label_makes_the_group_of_a_pod_whose_pod_group_is_no_gang() -> None:
    cluster = cluster_of(n1=(40, 40))
    pod_group(cluster, least=None)
    member(cluster, "a", 2, group="other", **in_group())

    async def scenario(h: Harness) -> None:
        assert not h.held()
        member(cluster, "b", 2, group="other", **in_group())
        await h.quiet()
        assert allocated(h, "ab") == "ab"

    run(cluster, scenario)


def test_groups_of_both_kinds_may_have_one_name() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    pod_group(cluster, least=2)
    native_member(cluster, "a")
    member(cluster, "b", 2, group="job")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        native_member(cluster, "c")
        await h.quiet()
        assert allocated(h, "abc") == "ac"

    run(cluster, scenario)


def test_a_pod_group_of_kube_schedulers_claims_is_none_of_ours() -> None:
    cluster = cluster_of()
    node(cluster, "n1")
    pool(cluster, "n1", 40, protected=False)
    pod_group(cluster, least=1, schedulingConstraints={"topology": [{"key": "rack"}]})
    native_member(cluster, "a")
    native_member(cluster, "b", "missing")

    async def scenario(h: Harness) -> None:
        assert not h.held()
        assert not any(h.gates(name) for name in "ab")

    run(cluster, scenario)


# --- what may not be read -----------------------------------------------------------------------------------


def test_pods_wait_where_pod_groups_may_not_be_read_and_go_on_when_they_may() -> None:
    cluster = cluster_of(n1=(40,))
    pod_group(cluster, least=1)
    native_member(cluster, "a")
    claim(cluster, "alone")
    pod(cluster, "alone", "alone")
    node(cluster, "n2")
    pool(cluster, "n2", 40)
    refused = {"PodGroup"}

    def before(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind in refused and verb in ("list", "watch"):
            raise Forbidden("no", code=403, reason="Forbidden")

    cluster.before = before

    async def scenario(h: Harness) -> None:
        assert h.devices("alone")
        assert not h.devices("a")
        text = "PodGroup job is not known: the controller may not list podgroups of scheduling.k8s.io"
        assert text in h.events("WaitingForGroup")
        refused.clear()
        await asyncio.sleep(60)
        assert h.devices("a")

    run_long(cluster, scenario)


def test_pods_wait_where_pod_groups_are_not_served() -> None:
    cluster = cluster_of(n1=(40,))
    cluster.registry.kinds.remove("scheduling.k8s.io", "podgroups")
    native_member(cluster, "a")

    async def scenario(h: Harness) -> None:
        text = "PodGroup job is not known: the API server serves no PodGroups"
        assert text in h.events("WaitingForGroup")

    run(cluster, scenario)


def test_an_upgrade_that_brings_pod_groups_is_seen_and_one_that_takes_them_too() -> None:
    cluster = cluster_of(n1=(40, 40))
    cluster.withdraw(POD_GROUPS)
    native_member(cluster, "a")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(60)
        assert not h.devices("a")
        cluster.serve(POD_GROUPS)
        pod_group(cluster, least=1)
        await asyncio.sleep(60)
        assert h.devices("a")
        # A rollback: the objects are not served, and the server's restart ends what is watched.
        cluster.withdraw(POD_GROUPS)
        cluster.expire()
        await asyncio.sleep(120)
        native_member(cluster, "b")
        await asyncio.sleep(10)
        assert not h.devices("b")
        assert h.devices("a")

    run_long(cluster, scenario)


# --- beside kube-scheduler ----------------------------------------------------------------------------------


def test_what_is_said_because_of_another_member_takes_no_devices_away() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    pod_group(cluster)
    for name in "abc":
        native_member(cluster, name)

    async def scenario(h: Harness) -> None:
        assert len(h.held()) == 3
        h.report("a", WAITS)
        h.report("b", f"{OTHER_FAILED}: no", "SchedulerError")
        h.report("c", RESERVED_BEFORE, "SchedulerError")
        await h.quiet()
        assert allocated(h, "abc") == "abc"
        assert not h.events("Deallocated")

    run(cluster, scenario)


def test_a_member_that_cannot_be_placed_takes_the_others_with_it() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    pod_group(cluster)
    for name in "abc":
        native_member(cluster, name)

    async def scenario(h: Harness) -> None:
        before = {n: h.claim(n).metadata.resource_version for n in "abc"}
        h.report("a", WAITS)
        h.report("b", WAITS)
        h.report("c", "0/1 nodes are available: 1 Insufficient cpu.")
        await h.quiet()
        assert any("of PodGroup job was not placed" in e for e in h.events("Deallocated"))
        assert all(before[n] != h.claim(n).metadata.resource_version for n in "abc")

    run(cluster, scenario)


def test_kube_scheduler_may_hold_a_pod_for_as_long_as_it_waits_for_the_others() -> None:
    cluster = cluster_of(n1=(40, 40))
    pod_group(cluster, least=2)
    for name in "ab":
        native_member(cluster, name)

    async def scenario(h: Harness) -> None:
        h.clock.time += 299.0  # it says nothing while a pod waits in Permit
        h.bind("a", "n1")
        await h.quiet()
        assert allocated(h, "ab") == "ab"
        h.clock.time += 400.0
        cluster.edit(PODS, "b", {"metadata": {"labels": {"x": "y"}}}, NS)
        await asyncio.sleep(700)
        assert any("kube-scheduler has not said anything" in e for e in h.events("Deallocated"))

    run_long(cluster, scenario)


@pytest.mark.parametrize("written", [("a",), ("a", "b")])
def test_a_restart_between_writes_completes_the_pod_group(written: tuple[str, ...]) -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    pod_group(cluster)
    for name in "abc":
        native_member(cluster, name)
    for i, name in enumerate(written):
        allocate(cluster, name, "n1", f"gpu-{i}")

    async def scenario(h: Harness) -> None:
        assert len(set(h.held())) == 3
        assert not any(h.gates(n) for n in "abc")

    run(cluster, scenario)


def test_a_restart_between_writes_gives_back_what_the_rest_does_not_fit_beside() -> None:
    cluster = cluster_of(n1=(40, 40))
    pod_group(cluster)
    for name in "abc":
        native_member(cluster, name)
    allocate(cluster, "a", "n1", "gpu-0")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert h.gates("a")

    run(cluster, scenario)


@pytest.mark.parametrize(("priority", "expected"), [(None, 7), (3, 3), (1000, 7)])
def test_a_pod_group_can_lower_the_rank_of_its_pods_only(priority: int | None, expected: int) -> None:
    pods = [codec.convert(Pod, builders.pod(name, priority=given)) for name, given in (("a", 9), ("b", 7))]
    assert rank_of_group(pods, priority).level == -expected


# --- claims of the group ------------------------------------------------------------------------------------


def with_group_claim(cluster: FakeClient, *names: str, **spec: Any) -> None:
    """Make pods that share the claim of their PodGroup, and have one of their own."""
    claim(cluster, "shared")
    of_group = {"name": "c1", "resourceClaimName": "shared"}
    pod_group(cluster, least=len(names), resourceClaims=[of_group])
    for name in names:
        claim(cluster, name)
        pod(cluster, name, name, "shared", **in_group(), **spec)


def reserve_for_group(cluster: FakeClient, name: str) -> None:
    """Reserve a claim for the PodGroup, as kube-scheduler does before it binds the first pod."""
    uid = cluster.raw(POD_GROUPS, "job", NS)["metadata"]["uid"]
    reference = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "job", "uid": uid}
    cluster.edit(RESOURCE_CLAIMS, name, {"status": {"reservedFor": [reference]}}, NS)


def test_a_claim_of_the_group_is_allocated_once_where_all_its_pods_can_use_it() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40, 40), n3=(40,))
    with_group_claim(cluster, "a", "b")

    async def scenario(h: Harness) -> None:
        assert {h.devices(n)[0][0] for n in ("shared", "a", "b")} == {"n2"}
        assert len(set(h.held())) == 3
        assert not any(h.gates(n) for n in "ab")

    run(cluster, scenario)


def test_a_claim_that_is_reserved_for_a_pod_group_stays() -> None:
    cluster = cluster_of(n1=(40, 40, 40))
    with_group_claim(cluster, "a", "b")

    async def scenario(h: Harness) -> None:
        shared = h.devices("shared")
        reserve_for_group(cluster, "shared")
        h.report("a", WAITS)
        h.report("b", "0/1 nodes are available: 1 Insufficient cpu.")
        await h.quiet()
        assert h.devices("shared") == shared
        gone(cluster, "a", "b")
        await asyncio.sleep(120)
        assert h.devices("shared") == shared  # until the controller-manager removes the reservation
        cluster.edit(RESOURCE_CLAIMS, "shared", {"status": {"reservedFor": None}}, NS)
        await asyncio.sleep(120)
        assert not h.devices("shared")

    run_long(cluster, scenario)


def test_a_claim_of_the_group_is_reserved_for_it_where_a_pod_is_made_with_a_node() -> None:
    cluster = cluster_of(n1=(40, 40))
    with_group_claim(cluster, "a", gated=False, nodeName="n1")

    async def scenario(h: Harness) -> None:
        [of_group] = h.claim("shared").status.reserved_for
        assert (of_group.api_group, of_group.resource, of_group.name) == (
            "scheduling.k8s.io",
            "podgroups",
            "job",
        )
        [own] = h.claim("a").status.reserved_for
        assert (own.resource, own.name) == ("pods", "a")

    run(cluster, scenario)


# --- the worker ---------------------------------------------------------------------------------------------


def test_pod_groups_cross_the_border_to_the_worker() -> None:
    raw = {
        "metadata": {"name": "job", "namespace": NS, "annotations": {"x": "y" * 1000}},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}, "priority": 5},
    }
    group = codec.convert(PodGroup, raw)
    assert group.metadata.annotations is None
    for change in (ObjectSeen(group), PodGroupsUnknown("no right")):
        [message] = Frames().feed(frame_of_change(1, change))
        assert change_of(message) == change


def test_a_worker_process_knows_pod_groups() -> None:
    cluster = cluster_of(n1=(40, 40))
    native_member(cluster, "a")
    native_member(cluster, "b")

    async def main() -> None:
        answers_of = Bench(ForkedWorker.start).answers_of()
        async with asyncio.timeout(60), controlling(cluster, answers_of) as h:
            assert not h.held()
            pod_group(cluster, least=2)
            while allocated(h, "ab") != "ab":
                await asyncio.sleep(0.05)

    asyncio.run(main())
