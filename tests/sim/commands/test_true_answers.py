"""What ``plan``, ``explain`` and ``status`` say of a live cluster is true, and one figure has one value."""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import builders
import pytest
import yaml
from test_live_tools import DRIVER, post, serving

from dra_driver.cli import explain, offering
from dra_driver.cli.main import main

pytestmark = pytest.mark.sim

Capture = pytest.CaptureFixture[str]
CORE = "/api/v1/namespaces/default/"
RESOURCE = "/apis/resource.k8s.io/v1/namespaces/default/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Kubeconfig of an API server with one node, whose devices are free."""
    path = tmp_path_factory.mktemp("server") / "kubeconfig"
    with serving(path):
        yield path


@pytest.fixture
def cluster(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its kubeconfig, in a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = Path(shutil.copy(server, tmp_path / "kubeconfig"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def add(cluster: Path, path: str, body: dict[str, Any]) -> None:
    """Create an object."""
    post(yaml.safe_load(cluster.read_text())["clusters"][0]["cluster"]["server"], path, body)


def template(name: str, **exactly: Any) -> dict[str, Any]:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER, **exactly}}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


def pod(name: str, **entry: str) -> dict[str, Any]:
    """Return a pod with one entry of ``spec.resourceClaims``."""
    containers = [builders.container()]
    return {
        "metadata": {"name": name},
        "spec": {"containers": containers, "resourceClaims": [{"name": "gpu", **entry}]},
    }


@pytest.mark.parametrize(
    ("name", "expression", "said"),
    [
        ("absent", f'device.attributes["{DRIVER}"].modle == "A100"', "no such key: modle"),
        ("wrong", f'device.attributes["{DRIVER}"].model ==', "does not compile"),
    ],
)
def test_a_plan_names_the_selector_that_fails(
    cluster: Path, tmp_path: Path, capsys: Capture, name: str, expression: str, said: str
) -> None:
    # A pod is known: how much of the nodes is left counts.
    add(cluster, CORE + "pods", pod(f"plan-{name}", resourceClaimTemplateName="any"))
    draft = tmp_path / "draft.yaml"
    asked = template("t", selectors=[{"cel": {"expression": expression}}])
    kinds = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", **asked},
        {"apiVersion": "v1", "kind": "Pod", **pod("p", resourceClaimTemplateName="t")},
    ]
    draft.write_text(yaml.safe_dump_all(kinds))
    assert main(["plan", "-f", str(draft), "-o", "json"]) == 2
    answer = json.loads(capsys.readouterr().out)["plans"][0]
    assert answer["error"]
    assert said in answer["reason"]


def test_a_pod_whose_template_does_not_exist_does_not_fit(cluster: Path, capsys: Capture) -> None:
    add(cluster, CORE + "pods", pod("lost", resourceClaimTemplateName="mistyped"))
    add(cluster, CORE + "pods", pod("astray", resourceClaimName="mistyped"))
    for name, said in (("lost", "template"), ("astray", "ResourceClaim")):
        assert main(["explain", f"pod/{name}"]) == 1
        assert f"Claim gpu does not exist: {said} default/mistyped was not found" in capsys.readouterr().out
    add(cluster, RESOURCE + "resourceclaimtemplates", template("mistyped"))
    assert main(["explain", "pod/lost"]) == 1
    assert "Claim gpu does not exist yet" in capsys.readouterr().out


def test_the_nodes_of_the_pod_are_those_of_its_claims(cluster: Path, capsys: Capture) -> None:
    add(cluster, "/api/v1/nodes", {"metadata": {"name": "n2", "labels": {"zone": "b"}}})
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    claim = {"metadata": {"name": "elsewhere"}, "spec": {"devices": {"requests": [request]}}}
    add(cluster, RESOURCE + "resourceclaims", claim)
    asked = pod("elsewhere", resourceClaimName="elsewhere")
    asked["spec"]["nodeSelector"] = {"zone": "b"}
    add(cluster, CORE + "pods", asked)
    assert main(["explain", "pod/elsewhere"]) == 1
    out = capsys.readouterr().out
    assert f"default/elsewhere does not fit: needs 1 {DRIVER}; 1/2 nodes can take the pod" in out


def test_an_attribute_that_no_device_has_is_the_reason(cluster: Path, capsys: Capture) -> None:
    typo = f"{DRIVER}/modle"
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": 2}}
    devices = {"requests": [request], "constraints": [{"matchAttribute": typo}]}
    add(cluster, RESOURCE + "resourceclaims", {"metadata": {"name": "typo"}, "spec": {"devices": devices}})
    assert main(["explain", "claim/typo"]) == 1
    said = f"2 of 2    without the attribute {typo}, which a constraint requires"
    assert said in capsys.readouterr().out


def test_what_becomes_free_does_not_help_a_request_that_no_device_can_serve(
    cluster: Path, capsys: Capture
) -> None:
    asked = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": "1000Gi"}}}
    devices = {"requests": [{"name": "gpu", "exactly": asked}]}
    add(cluster, RESOURCE + "resourceclaims", {"metadata": {"name": "vast"}, "spec": {"devices": devices}})
    assert main(["explain", "claim/vast"]) == 1
    said = "Devices that become free do not help: no device can serve request gpu"
    assert said in capsys.readouterr().out


def test_a_claim_for_a_few_bytes_of_memory_is_warned_about(cluster: Path, capsys: Capture) -> None:
    asked = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": 32}}}
    devices = {"requests": [{"name": "gpu", "exactly": asked}]}
    add(cluster, RESOURCE + "resourceclaims", {"metadata": {"name": "bytes"}, "spec": {"devices": devices}})
    said = "ResourceClaim default/bytes: memory of request gpu: 32 means 32 bytes"
    main(["explain"])
    assert said in capsys.readouterr().err
    main(["status"])
    assert said in capsys.readouterr().out


def test_names_of_the_cluster_are_offered_and_no_cluster_offers_none(cluster: Path) -> None:
    add(cluster, CORE + "pods", pod("offered", resourceClaimTemplateName="any"))
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    offering.offer(parser)
    offered = {a.dest: a.completer for a in parser._actions if hasattr(a, "completer")}
    for kubeconfig, there in ((cluster, True), (cluster.with_name("none"), False)):
        asked = argparse.Namespace(kubeconfig=kubeconfig, context="", namespace="default")
        assert ("pod/offered" in offered["target"](parsed_args=asked)) == there
        assert ("default" in offered["namespace"](parsed_args=asked)) == there
