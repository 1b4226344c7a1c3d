"""``status`` and ``explain`` on a live cluster, as ``dra-driver`` and as ``kubectl dra``."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_apiserver_command import _server

from dra_driver.cli.main import kubectl_dra, main

pytestmark = pytest.mark.sim

DRIVER = "gpu.dra-driver.dev"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PLUGIN = Path(sys.executable).parent / "kubectl-dra"


def post(url: str, path: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60):
        pass


def add_node(url: str, name: str, *sizes: int) -> None:
    post(url, "/api/v1/nodes", {"metadata": {"name": name}})
    devices = [
        {
            "name": f"gpu-{i}",
            "attributes": {"model": {"string": "A100"}, "type": {"string": "gpu"}},
            "capacity": {"memory": {"value": f"{size}Gi"}},
        }
        for i, size in enumerate(sizes)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    post(url, SLICES, {"metadata": {"name": name}, "spec": spec})


def add_claim(url: str, namespace: str, name: str, memory: str) -> None:
    exactly = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": memory}}}
    post(
        url,
        f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims",
        {
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        },
    )


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    """Address of an API server with one node and two claims, in two namespaces."""
    with _server(path):
        url = yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"]
        add_node(url, "n1", 40, 40)
        post(url, "/api/v1/namespaces", {"metadata": {"name": "team"}})
        add_claim(url, "default", "fits", "32Gi")
        add_claim(url, "team", "huge", "200Gi")
        yield url


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Kubeconfig of a server for tests that only read."""
    path = tmp_path_factory.mktemp("server") / "kubeconfig"
    with serving(path):
        yield path


@pytest.fixture
def cluster(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kubeconfig in a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return Path(shutil.copy(shared, tmp_path / "kubeconfig"))


def test_the_fleet_and_what_waits(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cluster
    assert main(["status", "--kubeconfig", str(path)]) == 0
    table = capsys.readouterr().out
    assert "2 devices on 1 of 1 nodes: 2 free" in table
    assert "team/huge" in table
    assert kubectl_dra(["status", "--kubeconfig", str(path), "--by", "model", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(r["model"], r["total"], r["free"]) for r in data["devices"]] == [("A100", 2, 2)]


def test_why_a_claim_does_not_fit(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cluster
    assert main(["explain", "--kubeconfig", str(path), "-A"]) == 1
    out = capsys.readouterr().out
    assert "default/fits fits on node n1:" in out
    assert "team/huge does not fit: needs 1 " in out, out
    assert "memory of at most 40Gi" in out
    assert kubectl_dra(["explain", "--kubeconfig", str(path), "-n", "team", "claim/huge"]) == 1
    assert "default/fits" not in capsys.readouterr().out


def test_a_plan_looks_into_the_namespace_of_the_context(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load(cluster.read_text())
    config["contexts"][0]["context"]["namespace"] = "team"
    cluster.write_text(yaml.safe_dump(config))
    assert kubectl_dra(["plan", "--kubeconfig", str(cluster), "--claim", "huge"]) == 1
    assert "ResourceClaim team/huge" in capsys.readouterr().out
    assert kubectl_dra(["plan", "--kubeconfig", str(cluster), "--claim", "fits", "-n", "default"]) == 0


def test_the_kubeconfig_is_found_where_kubectl_finds_it(
    cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cluster
    (path.parent / ".kube").mkdir()
    shutil.copy(path, path.parent / ".kube" / "config")
    assert main(["explain"]) == 0
    assert "default/fits" in capsys.readouterr().out
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert kubectl_dra(["status"]) == 0
    context = yaml.safe_load(path.read_text())["current-context"]
    assert kubectl_dra(["status", "--context", context]) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["status", "--context", "elsewhere"], 2, "no context 'elsewhere'; there are "),
        (
            ["explain", "-n", "nowhere"],
            2,
            "no ResourceClaimTemplate in namespace nowhere; -A looks at all namespaces",
        ),
        (
            ["explain", "claim/gone"],
            2,
            "claim default/gone: no such claim; there are default/fits, team/huge",
        ),
        (["explain", "claim/\x1b[2Jx"], 2, r"claim default/\x1b[2Jx: no such claim"),
        (["explain", "--watch", "-f", "x.yaml"], 2, "--watch is for a live cluster, -f for manifests"),
    ],
)
def test_what_cannot_be_shown_is_said(
    cluster: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster))
    assert kubectl_dra(arguments) == status
    err = capsys.readouterr().err
    assert err.startswith(f"kubectl dra {arguments[0]}: ")
    assert said in err


def test_no_server_and_no_kubeconfig(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["status"]) == 2
    assert "no cluster: give --kubeconfig FILE or set KUBECONFIG" in capsys.readouterr().err
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
        "current-context": "c",
    }
    path = tmp_path / "dead"
    path.write_text(yaml.safe_dump(config))
    assert main(["explain", "--kubeconfig", str(path)]) == 3
    assert "127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.long
def test_watching_shows_what_changes(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    command = [str(PLUGIN), "status", "--kubeconfig", str(path), "--watch", "--interval", "0.1"]
    with serving(path) as url, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            assert next(line for line in lines if " nodes: " in line) == "2 devices on 1 of 1 nodes: 2 free\n"
            add_node(url, "n2", 80)
            # The node may be shown before its slice.
            assert "3 devices on 2 of 2 nodes: 3 free\n" in lines
        finally:
            process.kill()


@pytest.mark.long
def test_what_is_watched_may_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    command = [
        str(PLUGIN),
        "explain",
        "claim/fits",
        "--kubeconfig",
        str(path),
        "--watch",
        "--interval",
        "0.1",
    ]
    with (
        serving(path) as url,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "default/fits fits on node n1:\n"
            claim = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/fits"
            with urllib.request.urlopen(urllib.request.Request(url + claim, method="DELETE"), timeout=60):
                pass
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert err.startswith("kubectl dra explain: the cluster has no ResourceClaim ")
    assert err.count("\n") == 1
    assert process.returncode == 2


@pytest.mark.long
def test_the_reader_of_what_is_watched_may_go(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    command = [str(PLUGIN), "status", "--kubeconfig", str(path), "--watch", "--interval", "0.1"]
    with (
        serving(path) as url,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert any(line.startswith("team/huge ") for line in process.stdout)
            process.stdout.close()
            add_node(url, "n2", 80)
            assert process.stderr.read() == ""
            assert process.wait(60) == 1
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine")
def test_kubectl_runs_it_as_its_plugin(cluster: Path) -> None:
    path = cluster
    environment = {**os.environ, "KUBECONFIG": str(path), "PATH": f"{PLUGIN.parent}:{os.environ['PATH']}"}
    found = subprocess.run(
        ["kubectl", "dra", "explain", "-n", "team"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 1, found.stderr
    assert "team/huge does not fit" in found.stdout


def test_a_check_exits_with_1_while_there_are_problems_and_with_3_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(path) as url:
        check = ["status", "--check", "--kubeconfig", str(path)]
        assert main(check) == 0
        assert capsys.readouterr().out == "no problems\n"
        kind = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "DeviceInventory"}
        spec = {"nodeName": "n1", "driver": DRIVER}
        inventory = {**kind, "metadata": {"name": f"n1.{DRIVER}"}, "spec": spec}
        post(url, "/apis/dra-driver.dev/v1alpha1/deviceinventories", inventory)
        assert main(check) == 1
        assert capsys.readouterr().out.startswith("1 problem\ncontroller: has never run")
        assert main([*check, "-o", "json"]) == 1
        assert [p["kind"] for p in json.loads(capsys.readouterr().out)["problems"]] == ["ControllerMissing"]
        assert main(["status", "--kubeconfig", str(path)]) == 0
    assert main(check) == 3
