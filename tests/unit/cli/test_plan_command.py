"""``dra-driver plan``: on described fleets, exported objects and files, with bad input too."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest
import yaml

from dra_driver.cli.main import kubectl_dra, main

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


CLASS = {
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
    assert "memory below 200Gi" in answer["never"]
    assert main(["plan", "--fleet", "l4x4:2", "--gpus", "9", "--memory", "200Gi"]) == 1
    assert "Never: no change of these kinds makes it fit." in capsys.readouterr().out


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
    assert "too little CPU, memory or ephemeral storage left" in answer["reason"]
    assert any(
        r["part"] == "CPU, memory and ephemeral storage of the pods" and r["fits"] for r in answer["relax"]
    )
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


# --- workloads of files -------------------------------------------------------------------------------------


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
    assert "(default: 30)" in shown
    assert "(default: )" not in shown
    assert "(default: False)" not in shown
