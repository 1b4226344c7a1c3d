"""``dra-driver plan``: on described fleets, exported objects and files, with bad input too."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest
import yaml

from dra_driver.cli.main import kubectl_dra, main
from dra_driver.cli.plan import until_interrupted

DRIVER = "gpu.dra-driver.dev"
Capture = pytest.CaptureFixture[str]


def plan(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status, and the first of the answers; they must not depend on the machine's load."""
    status = main(["plan", *arguments, "--seconds", "3600", "-o", "json"])
    return status, json.loads(capsys.readouterr().out)["plans"][0]


def write(folder: Path, name: str, *objects: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def gpus(name: str, *names: str, **more: Any) -> dict[str, Any]:
    """Return the slice of a node, as a cluster in the default mode has it: with the controller's taint."""
    devices = [
        {
            "name": n,
            "attributes": {"type": {"string": "gpu"}, "model": {"string": "H100"}},
            "capacity": {"memory": {"value": "80Gi"}},
            "taints": [builders.PROTECTED],
        }
        for n in names
    ]
    spec = {
        "driver": DRIVER,
        "nodeName": name,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
        **more,
    }
    api = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return {**api, "metadata": {"name": name}, "spec": spec}


def claim(name: str, count: int = 1, holds: tuple[str, ...] = (), node: str = "n1") -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    made: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    if holds:
        results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": d} for d in holds]
        made["status"] = {"allocation": {"devices": {"results": results}}}
    return made


def template(name: str, count: int = 1) -> dict[str, Any]:
    of = claim(name, count)
    return {**of, "kind": "ResourceClaimTemplate", "spec": {"spec": of["spec"]}}


CLASS: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def pod(name: str, claim_name: str = "", from_template: str = "", **more: Any) -> dict[str, Any]:
    source = {"resourceClaimName": claim_name} if claim_name else {"resourceClaimTemplateName": from_template}
    metadata = {"name": name, "namespace": "default", **more.pop("metadata", {})}
    spec = {"containers": [builders.container(more.pop("cpu", ""))], **more}
    spec["resourceClaims"] = [{"name": "gpu", **source}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


# --- a described fleet --------------------------------------------------------------------------------------


def test_a_request_in_flags_fits_a_described_fleet(capsys: Capture) -> None:
    flags = ("--gpus", "4", "--memory", "32Gi", "--model", "H100", "--same", "nvlinkGroup", "--how-many")
    status, answer = plan(capsys, "--fleet", "h100x8:3,l4x4:2", *flags)
    assert (status, answer["fits"]) == (0, True)
    assert answer["fitting"] == {"number": 6, "proven": True}
    assert answer["largestClaim"] == {"now": 8, "after": 8}
    (placed,) = answer["placement"]
    assert placed["node"].startswith("h100x8-")
    assert len(placed["devices"]) == 4


def test_more_nodes_and_smaller_requests_are_named(capsys: Capture) -> None:
    status, answer = plan(capsys, "--fleet", "h100x8:2", "--gpus", "5", "--pods", "4")
    assert (status, answer["fits"], answer["never"]) == (1, False, "")
    assert answer["free"]["helps"] is False
    (more,) = answer["addNodes"]
    assert (more["like"], more["number"], more["proven"]) == ("h100x8-1", 2, True)
    fewer = next(r for r in answer["relax"] if r["part"].startswith("5 devices"))
    assert (fewer["change"], fewer["fits"]) == ("4 instead", True)


def test_other_kinds_of_nodes_can_be_tried(capsys: Capture) -> None:
    flags = ("--fleet", "l4x4:2", "--memory", "70Gi", "--node-profile", "h100x8", "--node-profile", "t4x2")
    _, answer = plan(capsys, *flags)
    assert [(n["like"], n["helps"]) for n in answer["addNodes"]] == [("h100x8", True), ("t4x2", False)]


def test_never_is_said_with_its_reason(capsys: Capture) -> None:
    _, answer = plan(capsys, "--fleet", "l4x4:2", "--gpus", "9", "--memory", "200Gi")
    assert "memory of at most 22.4Gi" in answer["never"]
    assert main(["plan", "--fleet", "l4x4:2", "--gpus", "9", "--memory", "200Gi"]) == 1
    out = capsys.readouterr().out
    assert "Never: no change of these kinds makes it fit." in out
    assert "Relax" not in out


def test_only_what_helps_is_said(capsys: Capture) -> None:
    flags = ["plan", "--fleet", "l4x4:4", "--gpus", "2", "--memory", "40Gi"]
    kinds = ["--node-profile", "h100x8", "--node-profile", "l4x4"]
    assert main([*flags, *kinds]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "More nodes like h100x8: 1",
        "Relax one part of the request:",
        "  PART                          CHANGE            DEVICES EXCLUDED",
        "  memory 40Gi of request gpus   23034Mi instead   16",
        "Largest such claim that fits now: 0 devices",
    ]


def test_what_is_wrong_with_a_request_is_said_once(tmp_path: Path, capsys: Capture) -> None:
    export = write(tmp_path, "export.yaml", CLASS, gpus("n1", "a"))
    wrong = claim("c")
    wrong["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nothing"
    assert main(["plan", "-s", export, "-f", write(tmp_path, "asked.yaml", wrong)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("does not exist")) == ("", 1)


def test_partitions_are_published_where_they_are_asked_for(capsys: Capture) -> None:
    status, answer = plan(capsys, "--fleet", "h100x2:1", "--mig", "3g.40gb", "--how-many")
    assert (status, answer["fitting"]) == (0, {"number": 4, "proven": True})


# --- exported objects ---------------------------------------------------------------------------------------


def test_the_fewest_holders_and_where_they_could_go(tmp_path: Path, capsys: Capture) -> None:
    export = write(
        tmp_path,
        "export.yaml",
        CLASS,
        gpus("n1", "a", "b", "c", "d"),
        gpus("n2", "a", "b", "c", "d"),
        claim("one", 1, ("a",)),
        claim("three", 3, ("a", "b", "c"), "n2"),
        pod("p", "one", priority=7, nodeName="n1"),
        pod("q", "three", nodeName="n2"),
    )
    asked = write(tmp_path, "asked.yaml", claim("new", 4))
    status, answer = plan(capsys, "-s", export, "-f", asked)
    assert status == 1
    assert "dra-driver.dev/controller" not in answer["reason"]
    free = answer["free"]
    assert (free["number"], free["proven"]) == (1, True)
    assert answer["move"]["number"] == 1
    (moved,) = answer["move"]["holders"]
    assert (moved["name"], moved["priority"], moved["to"][0]["node"]) == ("default/q", 0, "n1")
    assert main(["plan", "-s", export, "-f", asked]) == 1
    assert "Move holders: 1 (the fewest), then it fits on n2:" in capsys.readouterr().out


def test_cpu_of_nodes_counts_and_is_given_back(tmp_path: Path, capsys: Capture) -> None:
    node = builders.node("n1", allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"})
    export = write(
        tmp_path,
        "export.yaml",
        CLASS,
        node,
        gpus("n1", "a", "b"),
        claim("one", 1, ("a",)),
        pod("p", "one", cpu="3", nodeName="n1"),
    )
    asked = write(tmp_path, "asked.yaml", template("t"), pod("new", from_template="t", cpu="2"))
    status, answer = plan(capsys, "-s", export, "-f", asked)
    assert (status, answer["free"]["number"]) == (1, 1)
    assert answer["reason"].endswith("their nodes have too little left of cpu, pods")
    helps = [r["part"] for r in answer["relax"] if r["fits"]]
    assert helps == [f"free {what} on the node" for what in ("cpu, pod slots", "cpu")]
    small = write(tmp_path, "small.yaml", template("t"), pod("new", from_template="t", cpu="1"))
    assert plan(capsys, "-s", export, "-f", small)[0] == 0


def test_claims_fit_beside_what_pods_take_of_nodes(tmp_path: Path, capsys: Capture) -> None:
    node = builders.node("n1", allocatable={"cpu": "4", "pods": "10"})
    export = write(tmp_path, "export.yaml", CLASS, node, gpus("n1", "a"), pod("p", "none", nodeName="n1"))
    asked = write(tmp_path, "asked.yaml", claim("new"))
    status, answer = plan(capsys, "-s", export, "-f", asked, "--how-many")
    assert (status, answer["fitting"]) == (0, {"number": 1, "proven": True})


def test_number_of_pods_and_ephemeral_storage_of_nodes_count(tmp_path: Path, capsys: Capture) -> None:
    asked = pod("new", from_template="t")
    asked["spec"]["containers"][0]["resources"] = {"requests": {"ephemeral-storage": "2Gi"}}
    file = write(tmp_path, "asked.yaml", template("t"), asked)
    for allocatable, fits in (
        ({"cpu": "4", "pods": "2", "ephemeral-storage": "2Gi"}, True),
        ({"cpu": "4", "pods": "1", "ephemeral-storage": "2Gi"}, False),
        ({"cpu": "4", "ephemeral-storage": "2Gi"}, False),
        ({"cpu": "4", "pods": "2", "ephemeral-storage": "1Gi"}, False),
    ):
        node = builders.node("n1", allocatable=allocatable)
        bound = pod("p", "none", nodeName="n1")
        export = write(tmp_path, "export.yaml", CLASS, node, gpus("n1", "a"), bound)
        assert plan(capsys, "-s", export, "-f", file)[1]["fits"] is fits, allocatable


def test_pods_count_on_the_node_for_which_they_are_nominated(tmp_path: Path, capsys: Capture) -> None:
    node = builders.node("n1", allocatable={"cpu": "4", "pods": "10"})
    nominated = pod("p", "one", cpu="3")
    nominated["status"] = {"nominatedNodeName": "n1"}
    export = write(
        tmp_path, "export.yaml", CLASS, node, gpus("n1", "a", "b"), claim("one", 1, ("a",)), nominated
    )
    asked = write(tmp_path, "asked.yaml", template("t"), pod("new", from_template="t", cpu="2"))
    status, answer = plan(capsys, "-s", export, "-f", asked)
    assert (status, answer["free"]["number"]) == (1, 1)
    # A pod that is asked about itself does not stand in its own way.
    assert plan(capsys, "-s", export, "--pod", "p")[0] == 0


def test_pods_that_no_node_takes_are_told_so(tmp_path: Path, capsys: Capture) -> None:
    selected = pod("p", from_template="t", nodeSelector={"pool": "none"})
    asked = write(tmp_path, "asked.yaml", template("t"), selected)
    status, answer = plan(capsys, "--fleet", "h100x4:1", "-f", asked)
    assert (status, answer["reason"]) == (
        1,
        "no node matches the node selector, affinity and tolerations of the pod",
    )
    assert [r["part"] for r in answer["relax"] if r["fits"]] == [
        "node selector, affinity and tolerations of the pods"
    ]


def test_a_waiting_pod_of_the_cluster_can_be_asked_about(tmp_path: Path, capsys: Capture) -> None:
    export = write(tmp_path, "export.yaml", CLASS, gpus("n1", "a"), claim("c", 2), pod("p", "c"))
    assert plan(capsys, "-s", export, "--pod", "p")[0] == 1
    assert plan(capsys, "-s", export, "--claim", "default/c")[0] == 1
    assert main(["plan", "-s", export, "--pod", "nothing"]) == 2
    assert "--pod nothing: no such pod; waiting are default/p" in capsys.readouterr().err


def test_pools_from_which_somebody_else_allocates_are_left_out(tmp_path: Path, capsys: Capture) -> None:
    bare = gpus("n2", "b", "c")
    for device in bare["spec"]["devices"]:
        del device["taints"]
    gate: dict[str, Any] = {"schedulingGates": [{"name": "dra-driver.dev/allocation"}]}
    pods = [pod("gated", "c", **gate), pod("free", "d")]
    claims = [claim("c", 2), claim("d", 2)]
    export = write(tmp_path, "export.yaml", CLASS, gpus("n1", "a"), bare, *claims, *pods)
    draft = write(tmp_path, "draft.yaml", claim("draft", 2))

    def answer(*arguments: str) -> tuple[int, str]:
        status = main(["plan", "-s", export, *arguments])
        return status, capsys.readouterr().err

    note = "1 pool from which kube-scheduler allocates left out (n2); --allocator chooses"
    for asked in (("-f", draft), ("--gpus", "2"), ("--pod", "gated"), ("--claim", "c")):
        assert answer(*asked) == (1, f"note: {note}\n"), asked
        assert answer(*asked, "--allocator", "any") == (0, ""), asked
        status, said = answer(*asked, "--allocator", "scheduler")
        assert (status, "1 pool from which the controller allocates left out (n1)" in said) == (0, True)
    assert answer("--pod", "free") == answer("--claim", "d") == (0, "")
    # The reasons are those that the controller gives: the node has devices, but they are not its own.
    nodes = write(
        tmp_path, "nodes.yaml", *(builders.node(n, allocatable={"pods": "9"}) for n in ("n1", "n2"))
    )
    for asked in (("-f", draft), ("--pod", "gated")):
        status, found = plan(capsys, "-s", export, nodes, *asked)
        assert status == 1
        assert found["reason"] == (
            "needs 2 gpu.dra-driver.dev together: n1 has 1 free · "
            "n2 skipped: its pool is allocated by kube-scheduler"
        )
    # Where the controller has no pool, nobody keeps kube-scheduler away.
    alone = write(tmp_path, "alone.yaml", CLASS, bare)
    assert main(["plan", "-s", alone, "--gpus", "2"]) == 0
    assert "left out" not in capsys.readouterr().err


# --- workloads of files -------------------------------------------------------------------------------------


_KUEUE = "kueue.x-k8s.io/pod-group-"
_KUEUE_META = {
    "labels": {f"{_KUEUE}name": "g"},
    "annotations": {f"{_KUEUE}total-count": "2"},
}


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulingGroup": {"podGroupName": "g"}},
        {"metadata": _KUEUE_META},
        {"metadata": {"labels": {"job": "g"}, "annotations": {"dra-driver.dev/group-by": "job"}}},
    ],
)
def test_a_waiting_pod_is_asked_about_with_its_group(
    tmp_path: Path, capsys: Capture, spec: dict[str, Any]
) -> None:
    members = [claim("a"), claim("b"), pod("p", "a", **spec), pod("q", "b", **spec)]
    export = write(tmp_path, "export.yaml", CLASS, gpus("n1", "a"), *members, claim("c"), pod("alone", "c"))
    assert plan(capsys, "-s", export, "--pod", "p")[0] == 1, "there is room for one of them"
    assert plan(capsys, "-s", export, "--pod", "alone")[0] == 0


def _deployment() -> dict[str, Any]:
    inner = pod("x", from_template="t")
    spec = {"replicas": 3, "template": {"spec": inner["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def _job() -> dict[str, Any]:
    spec = {"parallelism": 5, "completions": 3, "template": {"spec": pod("x", from_template="t")["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}


def _job_set() -> dict[str, Any]:
    inner = {"parallelism": 1, "template": {"spec": pod("x", from_template="t")["spec"]}}
    jobs = [
        {"name": "a", "replicas": 2, "template": {"spec": inner}},
        {"name": "b", "template": {"spec": inner}},
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s"},
        "spec": {"replicatedJobs": jobs},
    }


def _group() -> list[dict[str, Any]]:
    labels = {"dra-driver.dev/group": "g", "dra-driver.dev/group-size": "3"}
    return [pod(f"p{i}", from_template="t", metadata={"labels": labels}) for i in range(2)]


def test_counts_of_members_for_each_domain_are_not_planned(tmp_path: Path, capsys: Capture) -> None:
    group = _group()
    for one in group:
        one["metadata"]["annotations"] = {"dra-driver.dev/group-domain": "rack*3"}
    asked = write(tmp_path, "asked.yaml", template("t", 4), *group)
    assert main(["plan", "--fleet", "h100x8:1", "-f", asked]) == 2
    assert "counts of members for each domain are not planned" in capsys.readouterr().err


def _pod_group() -> list[dict[str, Any]]:
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
    }
    inner: dict[str, Any] = {"schedulingGroup": {"podGroupName": "g"}}
    return [group, *(pod(f"p{i}", from_template="t", **inner) for i in range(3))]


@pytest.mark.parametrize(
    "objects",
    [lambda: [_deployment()], lambda: [_job()], lambda: [_job_set()], _group, _pod_group],
    ids=["Deployment", "Job", "JobSet", "label group", "PodGroup"],
)
def test_all_pods_of_a_workload_must_fit(
    tmp_path: Path, capsys: Capture, objects: Callable[[], list[dict[str, Any]]]
) -> None:
    asked = write(tmp_path, "asked.yaml", template("t", 4), *objects())
    status, answer = plan(capsys, "--fleet", "h100x4:3", "-f", asked)
    assert (status, answer["pods"], len(answer["placement"])) == (0, 3, 3)
    assert len({p["node"] for p in answer["placement"]}) == 3
    status, answer = plan(capsys, "--fleet", "h100x4:2", "-f", asked)
    assert (status, answer["addNodes"][0]["number"]) == (1, 1)


def test_pods_of_a_group_may_share_one_claim(tmp_path: Path, capsys: Capture) -> None:
    group, *pods = _pod_group()
    group["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    asked = write(tmp_path, "asked.yaml", template("t", 4), group, *pods)
    status, answer = plan(capsys, "--fleet", "h100x4:1", "-f", asked)
    assert (status, {p["claim"] for p in answer["placement"]}) == (0, {"default/g-gpu"})


def test_pods_without_claims_are_left_out(tmp_path: Path, capsys: Capture) -> None:
    other = pod("other", "c")
    del other["spec"]["resourceClaims"]
    asked = write(tmp_path, "asked.yaml", template("t"), pod("p", from_template="t"), other)
    assert main(["plan", "--fleet", "h100x4:1", "-f", asked]) == 0
    assert "Pod default/other: pods without claims" in capsys.readouterr().err
    assert main(["plan", "--fleet", "h100x4:1", "-f", write(tmp_path, "other.yaml", other)]) == 2
    assert "nothing that asks for devices" in capsys.readouterr().err


def test_several_workloads_are_answered_beside_each_other(tmp_path: Path, capsys: Capture) -> None:
    asked = write(tmp_path, "asked.yaml", claim("a", 3), claim("b", 3), claim("c", 2))
    assert main(["plan", "--fleet", "h100x4:2", "-f", asked]) == 1
    out = capsys.readouterr().out
    assert "ResourceClaim default/b fits now" in out
    assert "ResourceClaim default/c does not fit now" in out


# --- bad input ----------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once(capsys: Capture) -> None:
    wrong = (
        "--gpus",
        "0",
        "--memory",
        "x",
        "--same",
        "1",
        "--seconds",
        "w",
        "--domain",
        "a:b",
        "--pods",
        "9999",
    )
    assert main(["plan", "--fleet", "q:4,h100x8:x", *wrong, "--select", "1 +"]) == 2
    told = capsys.readouterr().err.splitlines()
    for flag in ("--gpus 0", "--memory", "--same", "--seconds w", "--domain", "--pods 9999", "--select"):
        assert any(line.startswith(f"dra-driver plan: {flag}") for line in told), flag
    assert sum("--fleet" in line for line in told) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing is asked"),
        (["--fleet", "h100x8:1"], "nothing is asked"),
        (["--fleet", "h100x8:1", "-s", "x", "--gpus", "1"], "give one cluster only"),
        (["--fleet", "h100x8:1", "--pod", "p", "--gpus", "1"], "give one of -f, --claim, --pod"),
        (["--fleet", "h100x8:1", "--device-class", "c"], "there is no DeviceClass c; there are"),
        (
            ["--fleet", "h100x8:1", "--gpus", "1", "--node-profile", "q"],
            "--node-profile: profile 'q'",
        ),
        (["-s", "/nonexistent", "--gpus", "1"], "/nonexistent: No such file"),
        (["--fleet", "", "--gpus", "1"], "--fleet: '' is not understood"),
        (["--fleet", "h100x8:1", "--device-class", ""], "there is no DeviceClass ''; there are"),
        (["--fleet", "h100x8:1", "--gpus", ""], "--gpus : expected a number from 1 to 32"),
        (
            ["--fleet", "h100x8:1", "--gpus", "1", "--driver-name", "A b"],
            "--driver-name 'A b': not a DNS name",
        ),
        (["--kubeconfig", "/nonexistent", "--gpus", "1"], "/nonexistent: no such file"),
    ],
)
def test_wrong_arguments_are_refused(capsys: Capture, arguments: list[str], said: str) -> None:
    assert main(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_wrong_objects_are_refused_with_their_place(tmp_path: Path, capsys: Capture) -> None:
    job = _job()
    job["spec"]["parallelism"] = "many"
    bad_claim = claim("c")
    bad_claim["spec"]["devices"]["request"] = []
    other = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    asked = write(tmp_path, "asked.yaml", job, bad_claim, other, pod("p", from_template="none"), {"kind": 3})
    assert main(["plan", "--fleet", "h100x8:1", "-f", asked]) == 2
    told = capsys.readouterr().err
    assert "asked.yaml, document 1: Job default/j: spec.parallelism is 'many'; expected 0 to 4096" in told
    assert "document 2: ResourceClaim c: unknown field spec.devices.request" in told
    assert "document 3: kind Service is not understood; allowed are" in told
    assert "document 4: Pod default/p: claim gpu: no ResourceClaimTemplate default/none" in told
    assert "document 5: not a Kubernetes object" in told


def test_a_class_that_does_not_exist_is_bad_input(tmp_path: Path, capsys: Capture) -> None:
    of = claim("c")
    of["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "none"
    assert main(["plan", "--fleet", "h100x8:1", "-f", write(tmp_path, "a.yaml", of)]) == 2
    assert "none" in capsys.readouterr().err


def test_only_devices_of_the_class_count_as_excluded(tmp_path: Path, capsys: Capture) -> None:
    other = gpus("n1", "x", "y", driver="other.example.com")
    other["metadata"]["name"] = "other"
    export = write(tmp_path, "export.yaml", CLASS, gpus("n1", "a", "b", "c"), gpus("n2", "d"), other)
    vast = claim("vast")
    exactly = vast["spec"]["devices"]["requests"][0]["exactly"]
    exactly["capacity"] = {"requests": {"memory": "1000Gi"}}
    status, answer = plan(capsys, "-s", export, "-f", write(tmp_path, "vast.yaml", vast))
    assert (status, "2 nodes have 4 devices with memory of at most " in answer["reason"]) == (1, True)
    (memory,) = (r for r in answer["relax"] if r["part"].startswith("memory"))
    assert (memory["excludedDevices"], memory["fits"]) == (4, True)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (f'device.attributes["{DRIVER}"].modle == "H100"', "no such key: modle"),
        (f'device.attributes["{DRIVER}"].model ==', "does not compile"),
    ],
)
@pytest.mark.parametrize("pods", [1, 2])
def test_a_selector_that_fails_is_the_reason_whatever_is_left_of_nodes(
    tmp_path: Path, capsys: Capture, expression: str, said: str, pods: int
) -> None:
    # Pods that run make the CPU and the pods of nodes known, as those of a live cluster are.
    node = builders.node("n1", allocatable={"cpu": "4", "pods": "10"})
    export = write(tmp_path, "export.yaml", CLASS, node, gpus("n1", "a"), pod("p", "none", nodeName="n1"))
    of = template("t")
    of["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [
        {"cel": {"expression": expression}}
    ]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "new", "namespace": "default"},
        "spec": {"parallelism": pods, "template": {"spec": pod("new", from_template="t")["spec"]}},
    }
    status, answer = plan(capsys, "-s", export, "-f", write(tmp_path, "asked.yaml", of, job))
    assert (status, answer["error"]) == (2, True)
    assert said in answer["reason"]


def test_it_is_a_command_of_kubectl(capsys: Capture) -> None:
    assert kubectl_dra(["plan", "--fleet", "h100x8:1", "--gpus", "2"]) == 0
    assert "fits now" in capsys.readouterr().out


def test_lists_of_kubectl_and_standard_input_are_read(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [CLASS, gpus("n1", "a", "b"), claim("held", 1, ("a",)), {"apiVersion": "v1", "kind": "Secret"}]
    export = tmp_path / "export.json"
    export.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump_all([claim("x"), claim("y")])))
    assert main(["plan", "-s", str(export), "-f", "-"]) == 1
    printed = capsys.readouterr()
    assert "ResourceClaim default/x fits now" in printed.out
    assert "ResourceClaim default/y does not fit now" in printed.out
    assert "no pods are exported" in printed.err


def test_help_shows_no_empty_defaults(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "are marked; default: 30 " in shown
    assert "default: False" not in shown
    assert "default: []" not in shown


# --- what pods take of nodes besides devices ----------------------------------------------------------------


def _taking(name: str, claim_name: str = "", *, port: int = 0, **requests: Any) -> dict[str, Any]:
    """Return a pod on n1, or one that waits, with a host port or requests of its container."""
    made = pod(name, claim_name or "c", **({"nodeName": "n1"} if claim_name else {}))
    if not claim_name:
        made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    (container,) = made["spec"]["containers"]
    container["resources"] = {"requests": requests}
    if port:
        container["ports"] = [{"containerPort": port, "hostPort": port}]
    return made


def _ordinary(name: str, **requests: Any) -> dict[str, Any]:
    """Return a pod on n1 without claims."""
    made = _taking(name, "none", **requests)
    del made["spec"]["resourceClaims"]
    return made


ROOMY = {"cpu": "8", "memory": "64Gi", "pods": "110", "hugepages-2Mi": "4Gi", "example.com/dongle": "1"}


def test_a_node_with_more_pods_than_it_has_room_for_gives_less_when_they_go(
    tmp_path: Path, capsys: Capture
) -> None:
    """12 of 8 CPUs are taken: a holder of 5 that goes leaves 1, not 5."""
    export = write(
        tmp_path,
        "export.yaml",
        CLASS,
        builders.node("n1", allocatable=ROOMY),
        gpus("n1", "a", "b", "c"),
        *(claim(n, 1, (n,)) for n in "ab"),
        _taking("p", "a", cpu="5"),
        _taking("q", "b", cpu="4"),
        _ordinary("r", cpu="3"),
    )
    two = write(tmp_path, "two.yaml", template("t"), _taking("new", cpu="2"))
    status, answer = plan(capsys, "-s", export, "-f", two)
    assert (status, answer["free"]["number"], answer["free"]["proven"]) == (1, 2, True)
    one = write(tmp_path, "one.yaml", template("t"), _taking("new", cpu="1"))
    assert plan(capsys, "-s", export, "-f", one)[1]["free"]["number"] == 1
    # What is not asked for does not matter.
    none = write(tmp_path, "none.yaml", template("t"), _taking("new", memory="1Gi"))
    assert plan(capsys, "-s", export, "-f", none)[0] == 0


@pytest.mark.parametrize(
    ("taken", "asked", "named"),
    [
        ({"port": 8080}, {"port": 8080}, "host port 8080/TCP"),
        ({"hugepages-2Mi": "4Gi"}, {"hugepages-2Mi": "1Gi"}, "hugepages-2Mi"),
        ({"example.com/dongle": "1"}, {"example.com/dongle": "1"}, "example.com/dongle"),
    ],
)
def test_ports_huge_pages_and_extended_resources_count(
    tmp_path: Path, capsys: Capture, taken: dict[str, Any], asked: dict[str, Any], named: str
) -> None:
    """A device is free, but another pod has all that there is of what the new one needs besides."""
    export = write(
        tmp_path,
        "export.yaml",
        CLASS,
        builders.node("n1", allocatable=ROOMY),
        gpus("n1", "a", "b"),
        claim("one", 1, ("a",)),
        _taking("p", "one", **taken),
    )
    file = write(tmp_path, "asked.yaml", template("t"), _taking("new", **asked))
    status, answer = plan(capsys, "-s", export, "-f", file)
    assert (status, answer["free"]["number"], answer["free"]["proven"]) == (1, 1, True)
    assert f"free {named} on the node" in [r["part"] for r in answer["relax"] if r["fits"]]
    # Beside each other they have as much room.
    empty = write(tmp_path, "empty.yaml", CLASS, builders.node("n1", allocatable=ROOMY), gpus("n1", "a", "b"))
    ordinary = write(tmp_path, "ordinary.yaml", _ordinary("r"))
    fitting = plan(capsys, "-s", empty, ordinary, "-f", file, "--how-many")[1]["fitting"]
    assert fitting == {"number": 2 if "hugepages-2Mi" in asked else 1, "proven": True}


def test_extended_resources_that_a_class_serves_are_no_obstacle(tmp_path: Path, capsys: Capture) -> None:
    """A node without the resource of its own gets devices for it (KEP-5004)."""
    other: dict[str, Any] = {"example.com/other": "1"}
    serving = {**CLASS, "spec": {**CLASS["spec"], "extendedResourceName": "example.com/other"}}
    export = write(
        tmp_path, "export.yaml", serving, builders.node("n1", allocatable=ROOMY), gpus("n1", "a"),
        _ordinary("p", cpu="1"),
    )  # fmt: skip
    file = write(tmp_path, "asked.yaml", template("t"), _taking("new", **other))
    assert plan(capsys, "-s", export, "-f", file)[0] == 0


# --- exports ------------------------------------------------------------------------------------------------


def _export(path: Path, *objects: dict[str, Any]) -> str:
    """Write a list as kubectl exports it: the objects have UIDs."""
    items = [{**o, "metadata": {**o["metadata"], "uid": f"uid-{i}"}} for i, o in enumerate(objects)]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4))
    return str(path)


def test_an_export_is_read_as_the_server_has_it(tmp_path: Path, capsys: Capture) -> None:
    """Fields of a newer server are no mistakes, and objects of other kinds are not even looked at."""
    slice_ = gpus("n1", "a", "b")
    slice_["metadata"]["newField"] = 1
    other = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": 3}
    held = {**claim("held", 1, ("a",)), "metadata": {"name": "held", "namespace": "x"}}
    export = _export(tmp_path / "export.json", CLASS, slice_, held, other)
    status, answer = plan(capsys, "-s", export, "--gpus", "2")
    assert (status, [h["name"] for h in answer["free"]["holders"]]) == (1, ["x/held"])
    written = tmp_path / "written.json"
    written.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [CLASS, slice_]}))
    assert main(["plan", "-s", str(written), "--gpus", "2"]) == 2
    assert "items[1]: ResourceSlice n1: unknown field metadata.newField" in capsys.readouterr().err


def test_lists_of_one_kind_are_read(tmp_path: Path, capsys: Capture) -> None:
    items = [{k: v for k, v in gpus("n1", "a").items() if k in ("metadata", "spec")}]
    slices = tmp_path / "slices.json"
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList", "items": items}
    slices.write_text(json.dumps(body))
    classes = _export(tmp_path / "classes.json", CLASS)
    assert plan(capsys, "-s", str(slices), classes, "--gpus", "1")[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"kind": "List", "items": [{"kind":', "neither JSON (Expecting value: line 1 column 36"),
        ('{"kind": "List", "items": [' + '{"kind": "Pod"},' * 70_000, "not JSON: "),
        (
            '{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Node", "apiVersion": "v1"}]}',
            "name is miss",
        ),
        (
            '{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Node", "apiVersion": "v2"}]}',
            "apiVersion 'v2'",
        ),
    ],
    ids=["cut off", "cut off and long", "no name", "another version"],
)
def test_broken_exports_are_refused(tmp_path: Path, capsys: Capture, text: str, said: str) -> None:
    file = tmp_path / "export.json"
    file.write_text(text)
    assert main(["plan", "-s", str(file), "--gpus", "1"]) == 2
    assert said in capsys.readouterr().err


# --- workloads that are written wrongly, or need a guess ----------------------------------------------------


def _without(of: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in of.items() if k not in names}


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        (
            [template("t"), {**pod("p", from_template="t"), "metadata": {}}],
            "document 2: Pod: metadata.name is",
        ),
        (
            [template("t"), {**pod("p", from_template="t"), "metadata": []}],
            "document 2: Pod: metadata is missing",
        ),
        ([template("t"), _without(pod("p", from_template="t"), "spec")], "document 2: Pod: spec is missing"),
        ([claim("c"), claim("c", 2)], "ResourceClaim default/c is given twice, first in"),
        ([template("t"), *[pod("p", from_template="t")] * 2], "document 3: Pod default/p is given twice"),
        ([claim("c", -2)], "asks for -2 devices; 1 or more are allowed"),
        (
            [template("t"), {**_job_set(), "spec": {"replicatedJobs": ["a"]}}],
            "spec.replicatedJobs[0] is not an",
        ),
    ],
)
def test_objects_that_no_server_would_take_are_refused(
    tmp_path: Path, capsys: Capture, objects: list[dict[str, Any]], said: str
) -> None:
    assert main(["plan", "--fleet", "h100x4:1", "-f", write(tmp_path, "asked.yaml", *objects)]) == 2
    assert said in capsys.readouterr().err


def test_a_job_without_pods_asks_for_nothing(tmp_path: Path, capsys: Capture) -> None:
    job = _job()
    job["spec"]["parallelism"] = 0
    asked = write(tmp_path, "asked.yaml", template("t"), job, claim("c"))
    assert main(["plan", "--fleet", "h100x4:1", "-f", asked]) == 0
    printed = capsys.readouterr()
    assert "Job default/j: has no pods" in printed.err
    assert printed.out.startswith("ResourceClaim default/c fits now")
    assert "ResourceClaimTemplate" not in printed.out


@pytest.mark.parametrize(
    "spec", [{"schedulingPolicy": {"gang": {"minCount": 4}}}, {"minMember": 4}], ids=["KEP-4671", "plugins"]
)
def test_a_group_has_its_least_number_of_pods(tmp_path: Path, capsys: Capture, spec: dict[str, Any]) -> None:
    group, *pods = _pod_group()
    asked = write(tmp_path, "asked.yaml", template("t", 4), {**group, "spec": spec}, *pods)
    status, answer = plan(capsys, "--fleet", "h100x4:3", "-f", asked)
    assert (status, answer["pods"], answer["addNodes"][0]["number"]) == (1, 4, 1)


def test_a_cluster_that_cannot_be_read_is_no_answer(tmp_path: Path, capsys: Capture) -> None:
    """Exit status 1 would say that something does not fit."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    }
    kubeconfig = write(tmp_path, "kubeconfig", config)
    assert main(["plan", "--kubeconfig", kubeconfig, "--gpus", "1"]) == 3
    assert "dra-driver plan: " in capsys.readouterr().err


def test_an_interrupt_ends_the_search_and_what_is_known_is_shown() -> None:
    """The first Ctrl-C; a second one ends the command."""
    before = signal.getsignal(signal.SIGINT)
    with until_interrupted() as clock:
        begin = clock()
        signal.raise_signal(signal.SIGINT)
        assert clock() > begin + 3600
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_fields_are_the_same_whatever_the_answer(tmp_path: Path, capsys: Capture) -> None:
    export = write(tmp_path, "export.yaml", CLASS, gpus("n1", "a", "b"), claim("one", 1, ("a",)))
    answers = [plan(capsys, "-s", export, "--gpus", n)[1] for n in ("1", "2", "3")]
    for part in ("free", "move"):
        assert len({frozenset(a[part]) for a in answers}) == 1, part
    assert [a["free"]["helps"] for a in answers] == [None, True, False]
    assert len({frozenset(n) for a in answers for n in a["addNodes"]}) == 1
    assert len({frozenset(a) for a in answers}) == 1


def test_more_nodes_are_like_a_healthy_one(tmp_path: Path, capsys: Capture) -> None:
    """Not like n1, which is cordoned, nor like n2, whose device is sick."""
    sick = gpus("n2", "a")
    sick["spec"]["devices"][0]["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    nodes = [builders.node("n1", unschedulable=True), builders.node("n2"), builders.node("n3")]
    slices = [gpus("n1", "a"), sick, gpus("n3", "a")]
    export = write(tmp_path, "export.yaml", CLASS, *nodes, *slices, claim("held", 1, ("a",), "n3"))
    asked = write(tmp_path, "asked.yaml", template("t"), pod("p", from_template="t"))
    (more,) = plan(capsys, "-s", export, "-f", asked)[1]["addNodes"]
    assert (more["like"], more["helps"], more["number"]) == ("n3", True, 1)


def test_a_pod_that_names_its_node_goes_nowhere_else(tmp_path: Path, capsys: Capture) -> None:
    asked = write(tmp_path, "asked.yaml", template("t"), pod("p", from_template="t", nodeName="h100x4-2"))
    assert plan(capsys, "--fleet", "h100x4:3", "-f", asked)[1]["placement"][0]["node"] == "h100x4-2"
    assert main(["plan", "--fleet", "h100x4:1", "-f", asked]) == 2
    assert "Pod default/p: no node h100x4-2; there are h100x4-1" in capsys.readouterr().err


def test_what_is_withheld_is_told_where_something_does_not_fit(tmp_path: Path, capsys: Capture) -> None:
    inventory = builders.inventory("n1", driver=DRIVER)
    other = {"driver": "gpu.other.example", "pools": ["n1"], "devices": ["gpu-0"]}
    inventory["status"]["publication"] = {"otherDrivers": [other]}
    cluster = write(tmp_path, "cluster.yaml", CLASS, gpus("n1", "gpu-1"), builders.node("n1"), inventory)
    for number, told in ((1, False), (2, True)):
        assert main(["plan", "-s", cluster, "--gpus", str(number)]) == told
        said = "1 device of node n1 is not published: DRA driver gpu.other.example has the same"
        assert (said in capsys.readouterr().err) == told
