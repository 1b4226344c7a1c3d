"""``dra-driver allocate`` and ``explain`` on manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dra_driver.cli.main import main

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {zone: a}}
status: {nodeInfo: {kubeletVersion: v1.36.0}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.dra-driver.dev"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1}
spec:
  driver: gpu.dra-driver.dev
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  nodeName: n1
  devices:
  - {name: big, capacity: {memory: {value: 80Gi}}}
  - {name: small, capacity: {memory: {value: 40Gi}}}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: %s
metadata: {name: %s}
spec: %s
"""
REQUEST = "{name: gpu, exactly: {deviceClassName: gpu, capacity: {requests: {memory: 32Gi}}}}"
SPEC = "{devices: {requests: [" + REQUEST + "]}}"


def write(folder: Path, *documents: str) -> str:
    path = folder / "manifests.yaml"
    path.write_text("\n---\n".join(documents))
    return str(path)


def claim(name: str, spec: str = SPEC) -> str:
    return CLAIM % ("ResourceClaim", name, spec)


def test_claims_are_allocated_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = CLAIM % ("ResourceClaimTemplate", "b", "{spec: " + SPEC + "}")
    file = write(tmp_path, CLUSTER, claim("a"), template, claim("c"))
    assert main(["allocate", "-f", file]) == 1
    lines = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["CLAIM", "REQUEST", "NODE", "DEVICE", "DETAILS"]
    assert [line[:4] for line in lines[1:3]] == [
        ["default/a", "gpu", "n1", "gpu.dra-driver.dev/n1/small"],
        ["default/b", "gpu", "n1", "gpu.dra-driver.dev/n1/big"],
    ]
    assert "2 held by claims default/a, default/b" in lines[3][4]


def test_the_strategy_can_be_that_of_kubernetes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, CLUSTER, claim("a"))
    assert main(["allocate", "-f", file, "--strategy", "first-fit", "--output", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)["claims"][0]
    assert (answer["claim"], answer["outcome"], answer["node"]) == ("default/a", "allocated", "n1")
    assert answer["allocation"]["devices"]["results"][0]["device"] == "big"
    terms = answer["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]


def test_equal_nodes_are_packed_or_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = CLUSTER.replace("n1", "n2").partition("---")[2].partition("---")[2]  # without node and class
    again = SPEC.replace("32Gi", "64Gi")
    third = CLUSTER.replace("n1", "n3").partition("---")[2].partition("---")[2]
    held = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: held}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}
status:
  allocation:
    devices: {results: [{request: gpu, driver: gpu.dra-driver.dev, pool: n2, device: small}]}
"""
    file = write(tmp_path, CLUSTER, other, third, held, claim("a", again))
    for policy, node in (("pack", "n2"), ("spread", "n1")):
        assert main(["allocate", "-f", file, "--claim", "a", "--node-policy", policy]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[2] == node
        assert main(["explain", "-f", file, "--claim", "a", "--node-policy", policy]) == 0
        assert f"fits on node {node}:" in capsys.readouterr().out
    assert main(["allocate", "--stream", "--node-policy", "spread"]) == 2
    assert "--node-policy goes with -f" in capsys.readouterr().err


def test_the_taint_that_keeps_kube_scheduler_away_excludes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slices of a cluster in the default mode carry it on every device; other taints count."""
    ours = "{key: dra-driver.dev/controller, value: allocates, effect: NoSchedule}"
    tainted = CLUSTER.replace("{name: big,", "{name: big, taints: [OURS, {key: sick, effect: NoSchedule}],")
    tainted = tainted.replace("{name: small,", "{name: small, taints: [OURS],").replace("OURS", ours)
    file = write(tmp_path, tainted, claim("a"))
    assert main(["allocate", "-f", file]) == 0
    assert "gpu.dra-driver.dev/n1/small" in capsys.readouterr().out
    assert main(["explain", "-f", file]) == 0
    assert "default/a fits on node n1" in capsys.readouterr().out
    file = write(tmp_path, tainted, claim("a", SPEC.replace("32Gi", "64Gi")))
    assert main(["allocate", "-f", file]) == 1
    assert "1 that fits, tainted sick=:NoSchedule" in capsys.readouterr().out


def test_a_kubeconfig_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "kubeconfig"
    for text in ("{not yaml", "[]", "clusters: 3"):
        bad.write_text(text)
        assert main(["explain", "--kubeconfig", str(bad)]) == 2
        assert str(bad) in capsys.readouterr().err
    assert main(["explain", "--kubeconfig", str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_one_claim_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, CLUSTER, claim("a"), claim("b"))
    assert main(["allocate", "-f", file, "--claim", "default/b", "-o", "yaml"]) == 0
    assert [c["claim"] for c in yaml.safe_load(capsys.readouterr().out)["claims"]] == ["default/b"]
    assert main(["allocate", "-f", file, "--claim", "x/b"]) == 2
    assert "claim x/b: no such claim; there are default/a, default/b" in capsys.readouterr().err


def test_explain_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = SPEC.replace("32Gi", "96Gi")
    file = write(tmp_path, CLUSTER, claim("a", large), claim("b"))
    assert main(["explain", "-f", file]) == 1
    out = capsys.readouterr().out
    assert "default/a does not fit: needs 1 gpu with memory 96Gi\n" in out
    assert "gpu       2 of 2    memory of at most 80Gi   n1" in out
    assert "default/b fits on node n1:" in out


def test_explain_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        tmp_path, CLUSTER, claim("a", SPEC.replace("32Gi", "64Gi").replace("gpu, cap", "gpu, count: 2, cap"))
    )
    assert main(["explain", "-f", file, "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)["claims"][0]
    assert answer["outcome"] == "unschedulable"
    assert [(e["device"], e["rule"]) for e in answer["nodes"][0]["exclusions"]] == [
        ("gpu.dra-driver.dev/n1/big", "constraint"),
        ("gpu.dra-driver.dev/n1/small", "capacity"),
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            claim("a", SPEC.replace("capacity", "capacty")),
            "unknown field spec.devices.requests[0].exactly.capacty",
        ),
        (claim("a", SPEC.replace("32Gi", "32GB")), "'32GB' is not a quantity"),
        (claim("a", "{devices: 7}"), "$.spec.devices"),
        (
            claim("a").replace("/v1", "/v1beta1"),
            "apiVersion 'resource.k8s.io/v1beta1'; resource.k8s.io/v1 is",
        ),
        (
            claim("a").replace("ResourceClaim", "ResourceClam"),
            "unknown kind ResourceClam; known are DeviceClass",
        ),
        (claim("a").replace("name: a", "labels: {}"), "metadata.name is missing"),
        ("- just\n- a list", "not a Kubernetes object"),
        ("a: [", "not YAML"),
    ],
)
def test_bad_manifests_are_refused_with_file_document_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: str, message: str
) -> None:
    file = write(tmp_path, CLUSTER, document)
    assert main(["allocate", "-f", file]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert file in err
    assert "not YAML" in err or "document 4" in err


def test_bad_usage_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allocate", "-f", str(tmp_path / "absent.yaml")]) == 2
    assert "absent.yaml: No such file or directory" in capsys.readouterr().err
    assert main(["allocate", "-f", write(tmp_path, CLUSTER)]) == 2
    assert "no ResourceClaim and no ResourceClaimTemplate" in capsys.readouterr().err
    cases = tmp_path / "cases.json"
    cases.write_text("{}")
    assert main(["allocate", "--cases", str(cases)]) == 2
    assert 'an object with a list "cases" is expected' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["allocate", "--strategy", "worst-fit", "-f", "x"])


def test_lists_and_other_kinds_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [d for d in yaml.safe_load_all(CLUSTER) if d]
    whole = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [*documents, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}],
    }
    file = write(tmp_path, json.dumps(whole), claim("a"))
    assert main(["allocate", "-f", file]) == 0
    assert "gpu.dra-driver.dev/n1/small" in capsys.readouterr().out
