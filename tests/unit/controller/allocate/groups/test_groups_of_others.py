"""Groups of pods as Kueue, JobSet, LeaderWorkerSet and the coscheduling plugin have them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from controller_harness import NS, Harness, claim, cluster_of, node, pool, run
from fake_client import FakeClient
from written_pods import documented, pods_of, with_metadata

from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import (
    ALLOCATION_GATE,
    GROUP_BY_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_SIZE_LABEL,
)
from dra_driver.api.resource import RESOURCE_CLAIMS

KUEUE, TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
COUNT = "kueue.x-k8s.io/pod-group-total-count"


def add(cluster: FakeClient, body: dict[str, Any], *, name: str = "", **spec: Any) -> str:
    """Make a pod as it is written, with a claim of its name, and our gate as the admission policy adds it."""
    body = copy.deepcopy(body)
    body["metadata"] |= {"namespace": NS, "name": name or body["metadata"]["name"]}
    name = body["metadata"]["name"]
    claim(cluster, name)
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    gates = [*body["spec"].get("schedulingGates", ()), {"name": ALLOCATION_GATE}]
    body["spec"] |= {"schedulingGates": gates, **spec}
    cluster.put(PODS, {**body, "status": {"phase": "Pending"}})
    return str(name)


def edit(body: dict[str, Any], what: str, **changes: str | None) -> dict[str, Any]:
    """Return a pod with other labels or annotations, by the ends of their keys."""
    body = copy.deepcopy(body)
    entries = body["metadata"].setdefault(what, {})
    for end, value in changes.items():
        key = next(k for k in entries if k.endswith(end.replace("_", "-")))
        if value is None:
            del entries[key]
        else:
            entries[key] = value
    return body


def admit(cluster: FakeClient, name: str) -> None:
    """Admit a pod as Kueue does."""
    found = cluster.raw(PODS, name, NS)
    left = [g for g in found["spec"]["schedulingGates"] if g["name"] != KUEUE]
    meta = {
        "labels": {"kueue.x-k8s.io/podset": "6b1bd2a3"},
        "annotations": {"kueue.x-k8s.io/workload": "train"},
    }
    cluster.edit(PODS, name, {"metadata": meta, "spec": {"schedulingGates": left}}, NS)


def place(cluster: FakeClient, name: str, node: str) -> None:
    """Choose a node as Kueue's topology-aware scheduling does: selector and gate in one write."""
    found = cluster.raw(PODS, name, NS)
    left = [g for g in found["spec"]["schedulingGates"] if g["name"] != TOPOLOGY]
    chosen = {"schedulingGates": left, "nodeSelector": {"kubernetes.io/hostname": node}}
    cluster.edit(PODS, name, {"spec": chosen}, NS)


def served(h: Harness, *names: str) -> list[int]:
    return [len(h.devices(name)) for name in names]


# --- Kueue --------------------------------------------------------------------------------------------------


def test_a_group_of_kueue_gets_all_when_the_last_gate_is_gone_where_kueue_says() -> None:
    cluster = cluster_of(n1=(40,) * 3, n2=(40, 40))
    names = [add(cluster, body) for body in pods_of("kueue")]

    async def scenario(h: Harness) -> None:
        for name in names:
            admit(cluster, name)
        await h.quiet()
        assert h.held() == []
        assert h.events("FailedAllocation") == []
        for name, chosen in zip(names, ("n2", "n1", "n2"), strict=True):
            assert h.held() == []
            place(cluster, name, chosen)
            await h.quiet()
        assert [h.devices(name)[0][0] for name in names] == ["n2", "n1", "n2"]
        assert [h.gates(name) for name in names] == [[], [], []]
        assert f"1 of 3 pods are held by scheduling gate {TOPOLOGY}" in h.events("WaitingForGroup")[-1]

    run(cluster, scenario)


def test_a_group_of_kueue_that_does_not_fit_where_kueue_says_gets_nothing() -> None:
    cluster = cluster_of(n1=(40,), n2=(40,) * 4)
    names = [add(cluster, body, schedulingGates=[{"name": ALLOCATION_GATE}]) for body in pods_of("kueue")]
    for name in names[:2]:
        cluster.edit(PODS, name, {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}}, NS)

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert "group kueue.x-k8s.io/train, all 3 pods together" in h.events("FailedAllocation")[0]

    run(cluster, scenario)


@pytest.mark.parametrize("how", ["fast", "serving", "off", "ours", "empty"])
def test_pods_of_kueue_that_are_no_group_of_it_are_served_by_themselves(how: str) -> None:
    cluster = cluster_of(n1=(40,))
    body = pods_of("kueue")[0]
    del body["spec"]["schedulingGates"]
    meta = body["metadata"]
    if how == "fast":
        meta["annotations"]["kueue.x-k8s.io/pod-group-fast-admission"] = "true"
    elif how == "serving":
        meta["annotations"]["kueue.x-k8s.io/pod-group-serving"] = "true"
    elif how == "ours":
        meta["labels"] |= {GROUP_LABEL: "mine", GROUP_SIZE_LABEL: "1"}
    elif how == "empty":
        meta["labels"][GROUP_LABEL] = ""
    name = add(cluster, body)

    async def scenario(h: Harness) -> None:
        assert served(h, name) == [1]

    run(cluster, scenario, group_labels=("coscheduling",) if how == "off" else ("kueue",))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (("1000000000",) * 2, f"{COUNT} is '1000000000', expected 1 to 1024"),
        (("two",) * 2, f"{COUNT} is 'two', expected 1 to 1024"),
        (("9" * 100_000,) * 2, f"{COUNT} is '99999"),
        (("2", "3"), f"its members need one {COUNT}; they say 2, 3"),
        (("1",) * 2, f"group kueue.x-k8s.io/train has 2 pods, its {COUNT} is 1"),
    ],
)
def test_a_count_that_makes_no_sense_is_refused(counts: tuple[str, str], message: str) -> None:
    cluster = cluster_of(n1=(40,) * 4)
    names = []
    for body, count in zip(pods_of("kueue"), counts, strict=False):
        del body["spec"]["schedulingGates"]
        names.append(add(cluster, edit(body, "annotations", total_count=count)))

    async def scenario(h: Harness) -> None:
        assert served(h, *names) == [0, 0]
        (found, *_) = h.events("FailedAllocation")
        assert message in found
        assert len(found) < 400

    run(cluster, scenario)


def test_a_claim_with_our_label_takes_a_pod_out_of_the_group_of_kueue() -> None:
    cluster = cluster_of(n1=(40,) * 3)
    names = []
    for body in pods_of("kueue"):
        del body["spec"]["schedulingGates"]
        names.append(add(cluster, body))
    labels = {GROUP_LABEL: "mine", GROUP_SIZE_LABEL: "1"}
    cluster.edit(RESOURCE_CLAIMS, names[0], {"metadata": {"labels": labels}}, NS)

    async def scenario(h: Harness) -> None:
        assert served(h, *names) == [1, 0, 0]
        assert "2 of 3 pods are there" in h.events("WaitingForGroup")[-1]

    run(cluster, scenario)


@pytest.mark.parametrize("count", ["3", "5000"])
def test_pods_that_kube_scheduler_serves_are_not_held_back(count: str) -> None:
    cluster = cluster_of(n1=(40,) * 4)
    *pods, last = pods_of("kueue")
    names = []
    for body in pods:
        del body["spec"]["schedulingGates"]
        names.append(add(cluster, edit(body, "annotations", total_count=count)))
        claim(cluster, names[-1], {"name": "gpu", "exactly": {"deviceClassName": "nic"}})
    del last["spec"]["schedulingGates"]
    theirs = names.pop()
    cluster.remove(PODS, theirs, NS)
    ours = add(cluster, last)

    async def scenario(h: Harness) -> None:
        assert h.gates(names[0]) == []
        assert served(h, ours) == [0]
        body = copy.deepcopy(pods[1])
        add(cluster, edit(body, "annotations", total_count=count))
        claim(cluster, theirs, {"name": "gpu", "exactly": {"deviceClassName": "nic"}})
        await h.quiet()
        assert h.gates(theirs) == []
        # Where the labels make sense, the one that is ours has waited until they were there.
        assert served(h, ours) == ([1] if count == "3" else [0])

    run(cluster, scenario)


def test_a_member_of_kueue_without_claims_counts() -> None:
    cluster = cluster_of(n1=(40,) * 4)
    launcher, *workers = pods_of("kueue")
    for body in (launcher, *workers):
        del body["spec"]["schedulingGates"]
    names = [add(cluster, body) for body in workers]

    async def scenario(h: Harness) -> None:
        assert served(h, *names) == [0, 0]
        body = copy.deepcopy(launcher)
        del body["spec"]["resourceClaims"]
        body["metadata"]["namespace"] = NS
        cluster.put(PODS, {**body, "status": {"phase": "Pending"}})
        await h.quiet()
        assert served(h, *names) == [1, 1]

    run(cluster, scenario)


def test_a_group_of_kueue_can_be_kept_in_one_nvlink_clique() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40), n3=(40, 40), n4=(40,))
    label = "dra-driver.dev/gpu.clique"
    for name, clique in {"n1": "f.1", "n2": "f.2", "n3": "f.3", "n4": "f.3"}.items():
        cluster.edit(NODES, name, {"metadata": {"labels": {label: clique}}})
    names = []
    for body in pods_of("kueue"):
        del body["spec"]["schedulingGates"]
        body["metadata"]["annotations"][GROUP_DOMAIN_ANNOTATION] = label
        names.append(add(cluster, body))

    async def scenario(h: Harness) -> None:
        assert sorted(h.devices(name)[0][0] for name in names) == ["n3", "n3", "n4"]

    run(cluster, scenario)


# --- coscheduling -------------------------------------------------------------------------------------------


def test_as_many_as_suffice_are_served_together_and_others_when_there_is_room() -> None:
    cluster = cluster_of(n1=(40,) * 2)
    names = [add(cluster, body) for body in pods_of("coscheduling")]

    async def scenario(h: Harness) -> None:
        await h.quiet(2)
        assert h.held() == []
        assert "at least 3 pods together" in h.events("FailedAllocation")[0]
        node(cluster, "n2")
        pool(cluster, "n2", 40)
        await h.quiet(2)
        assert served(h, *names) == [1, 1, 1, 0]
        assert "3 of 4 pods of group scheduling.sigs.k8s.io/train" in h.events("GroupAllocated")[0]
        node(cluster, "n3")
        pool(cluster, "n3", 40)
        await h.quiet(2)
        assert served(h, *names) == [1, 1, 1, 1]

    run(cluster, scenario)


def test_two_of_three_wait_for_the_third() -> None:
    cluster = cluster_of(n1=(40,) * 4)
    first, second, third, _ = pods_of("coscheduling")
    names = [add(cluster, first), add(cluster, second)]

    async def scenario(h: Harness) -> None:
        await h.quiet(2)
        assert h.held() == []
        assert "2 of at least 3 pods are there" in h.events("WaitingForGroup")[0]
        names.append(add(cluster, third))
        await h.quiet(3)
        assert served(h, *names) == [1, 1, 1]

    run(cluster, scenario)


def test_the_name_of_a_pod_group_alone_makes_no_group() -> None:
    cluster = cluster_of(n1=(40,) * 2)
    body = pods_of("coscheduling")[0]
    body["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
    alone = add(cluster, body)
    body["metadata"] |= {"annotations": {GROUP_BY_ANNOTATION: "scheduling.x-k8s.io/pod-group"}}
    body["metadata"]["labels"][GROUP_SIZE_LABEL] = "2"
    member = add(cluster, body, name="member")

    async def scenario(h: Harness) -> None:
        assert served(h, alone, member) == [1, 0]
        assert "group scheduling.x-k8s.io/pod-group=train: 1 of 2 pods" in h.events("WaitingForGroup")[0]

    run(cluster, scenario)


def test_pods_of_another_scheduler_are_no_group_of_ours() -> None:
    cluster = cluster_of(n1=(40,) * 4)
    names = [add(cluster, body, schedulerName="theirs") for body in pods_of("coscheduling")]

    async def scenario(h: Harness) -> None:
        await h.quiet(2)
        assert h.held() == []
        assert [h.gates(name) for name in names] == [[]] * 4
        assert len(h.events("OtherScheduler")) == 4

    run(cluster, scenario)


# --- JobSet -------------------------------------------------------------------------------------------------


def job_set() -> list[dict[str, Any]]:
    """Return the pods of a JobSet with the templates of the documentation."""
    jobs = {j["name"]: j["template"]["spec"] for j in documented("JobSet")["spec"]["replicatedJobs"]}
    name = "jobset.sigs.k8s.io/replicatedjob-name"
    return [with_metadata(p, jobs[p["metadata"]["labels"][name]]["template"]) for p in pods_of("jobset")]


def test_the_documented_size_is_the_number_of_pods() -> None:
    jobs = [(j["replicas"], j["template"]["spec"]) for j in documented("JobSet")["spec"]["replicatedJobs"]]
    number = sum(replicas * spec["parallelism"] for replicas, spec in jobs)
    assert {p["metadata"]["labels"][GROUP_SIZE_LABEL] for p in job_set()} == {str(number)}
    assert number == len(job_set())


def test_all_replicated_jobs_of_a_job_set_start_together() -> None:
    cluster = cluster_of(n1=(40,) * 3, n2=(40,) * 2)
    *first, last = job_set()
    names = [add(cluster, body) for body in first]

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        names.append(add(cluster, last))
        await h.quiet()
        assert served(h, *names) == [1] * 5

    run(cluster, scenario)


def test_pods_from_before_a_restart_are_no_members_after_it() -> None:
    cluster = cluster_of(n1=(40,) * 6)
    before = [add(cluster, body) for body in job_set()]

    async def scenario(h: Harness) -> None:
        assert served(h, *before) == [1] * 5
        for name in before:
            h.bind(name, "n1")
        await h.quiet()
        # JobSet deletes its Jobs one after the other, and makes each anew as soon as it is gone.
        after = []
        for i, body in enumerate(job_set()):
            again = edit(edit(body, "labels", restart_attempt="1"), "annotations", restart_attempt="1")
            after.append(add(cluster, again, name=f"{before[i]}-again"))
            await h.quiet()
            assert served(h, *after) == [0] * (i + 1)  # although there is room for one, and four others run
        assert "all 5 pods together" in h.events("FailedAllocation")[-1]
        for name in before:
            cluster.remove(PODS, name, NS)
            cluster.remove(RESOURCE_CLAIMS, name, NS)
        await h.quiet()
        assert served(h, *after) == [1] * 5

    run(cluster, scenario)


def test_a_pod_from_before_a_restart_that_waits_is_left_to_its_job_set() -> None:
    cluster = cluster_of(n1=(40,) * 6)
    old, *_ = job_set()
    name = add(cluster, old, name="old")
    for body in job_set():
        add(cluster, edit(body, "labels", restart_attempt="1"))

    async def scenario(h: Harness) -> None:
        assert served(h, name) == [0]
        assert len(h.held()) == 5
        assert "before a restart of its JobSet" in h.events("FailedAllocation")[0]

    run(cluster, scenario)


# --- LeaderWorkerSet ----------------------------------------------------------------------------------------


def groups(*, ours: bool = True) -> list[dict[str, Any]]:
    template = documented("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    pods = pods_of("leaderworkerset")
    return [with_metadata(p, template) for p in pods] if ours else pods


def test_a_leader_gets_devices_before_there_are_workers() -> None:
    cluster = cluster_of(n1=(40,))
    leader = add(cluster, groups(ours=False)[0])

    async def scenario(h: Harness) -> None:
        assert served(h, leader) == [1]

    run(cluster, scenario)


def test_each_group_of_a_leader_worker_set_starts_as_a_whole() -> None:
    cluster = cluster_of(n1=(40,) * 2, n2=(40,) * 2)
    names = [add(cluster, body) for body in groups()]

    async def scenario(h: Harness) -> None:
        assert sorted([served(h, *names[:3]), served(h, *names[3:])]) == [[0, 0, 0], [1, 1, 1]]

    run(cluster, scenario)


def test_a_group_of_a_new_revision_is_another_group() -> None:
    cluster = cluster_of(n1=(40,) * 6)
    names = [add(cluster, body) for body in groups()[:3]]

    async def scenario(h: Harness) -> None:
        for name in names:
            h.bind(name, "n1")
        leader = add(cluster, edit(groups()[0], "labels", revision_hash="6d5f8c7b4"), name="llm-0-new")
        await h.quiet()
        assert served(h, leader) == [0]
        assert "1 of 3 pods are there" in h.events("WaitingForGroup")[-1]

    run(cluster, scenario)


def test_a_pod_without_a_label_that_names_its_group_waits() -> None:
    cluster = cluster_of(n1=(40,))
    name = add(cluster, edit(groups()[0], "labels", group_index=None))

    async def scenario(h: Harness) -> None:
        assert served(h, name) == [0]
        message = "names labels that the pod has not: leaderworkerset.sigs.k8s.io/group-index"
        assert message in h.events("FailedAllocation")[0]
        # The label may still come, from another webhook, or by hand.
        label = {"leaderworkerset.sigs.k8s.io/group-index": "0"}
        cluster.edit(PODS, name, {"metadata": {"labels": {**label, GROUP_SIZE_LABEL: "1"}}}, NS)
        await h.quiet()
        assert served(h, name) == [1]

    run(cluster, scenario)
