"""``dra-driver sim apiserver``: the server as a command, and kubectl against it where there is one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dra_driver.cli.main import main

COMMAND = ("sim", "apiserver")
PROGRAM = (sys.executable, "-m", "dra_driver.cli.main", *COMMAND)
EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"

pytestmark = pytest.mark.sim


@contextlib.contextmanager
def _server(kubeconfig: Path, *more: str) -> Iterator[str]:
    process = subprocess.Popen(
        [*PROGRAM, "--kubeconfig", str(kubeconfig), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with _server(path) as line:
        url = yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"]
        assert url in line
        with urllib.request.urlopen(f"{url}/apis/resource.k8s.io/v1/deviceclasses", timeout=60) as answer:
            assert b"gpu.dra-driver.dev" in answer.read()


@pytest.mark.long
def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        # As a process of its own: asyncio leaves the socket open with which it could not listen.
        arguments = ("--port", port, "--kubeconfig", str(tmp_path / "k"))
        found = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        assert found.returncode == 1
        assert port in found.stderr


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--kubeconfig", str(tmp_path / "no" / "such" / "folder")]) == 2
    assert "no/such/folder" in capsys.readouterr().err


def test_arguments_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, says in (
        ("--port=99999", "99999"),
        ("--service=hook", "NAMESPACE/NAME=HOST:PORT"),
        ("--kubernetes=1.35", "choose from"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*COMMAND, argument])
        assert says in capsys.readouterr().err


def test_a_gate_that_the_release_does_not_have_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--kubeconfig", str(tmp_path / "k"), "--feature-gate=DRADerivedAttributes")
    assert main([*COMMAND, *arguments]) == 2
    found = capsys.readouterr().err
    assert "'DRADerivedAttributes' cannot be turned on for Kubernetes 1.36" in found
    assert "it is one of Kubernetes 1.37" in found
    assert "give one of DRAListTypeAttributes" in found


def test_it_serves_the_api_of_another_release(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with _server(path, "--kubernetes=1.37", "--feature-gate=GenericWorkload"):
        url = yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"]
        with urllib.request.urlopen(f"{url}/version", timeout=60) as answer:
            assert b'"minor":"37"' in answer.read().replace(b" ", b"")
        with urllib.request.urlopen(f"{url}/apis/scheduling.k8s.io/v1beta1", timeout=60) as answer:
            assert b"podgroups" in answer.read()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine")
def test_kubectl_gets_along_with_it(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"

    def kubectl(*arguments: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(path), "HOME": str(tmp_path)}
        command = ["kubectl", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert found.returncode == 0, (arguments, found.stdout, found.stderr)
        return found.stdout

    with _server(path):
        assert "created" in kubectl("apply", "-R", "-f", str(EXAMPLES))
        again = kubectl("apply", "-R", "-f", str(EXAMPLES))
        assert "created" not in again
        kubectl("apply", "--server-side", "--force-conflicts", "-R", "-f", str(EXAMPLES))
        assert "pending" in kubectl("get", "resourceslices,resourceclaims,deviceclasses,pods", "-A")
        kubectl("get", "pods", "-A", "-o", "wide")
        assert "Pending" in kubectl("describe", "pods", "-A")
        namespace = kubectl("get", "resourceclaims", "-A", "-o", "jsonpath={.items[0].metadata.namespace}")
        name = kubectl("get", "resourceclaims", "-A", "-o", "jsonpath={.items[0].metadata.name}")
        claim = ("resourceclaim", name, "-n", namespace)
        kubectl("label", *claim, "a=b")
        kubectl("annotate", *claim, "a=b")
        kubectl("patch", *claim, "--type=merge", "-p", '{"metadata":{"labels":{"c":"d"}}}')
        kubectl("wait", *claim, "--for=jsonpath={.metadata.labels.c}=d", "--timeout=60s")
        kubectl("create", "configmap", "made", "--from-literal=a=b")
        kubectl("patch", *claim, "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/c"}]')
        kubectl("patch", *claim, "--type=strategic", "-p", '{"metadata":{"labels":{"e":"f"}}}')
        assert "e: f" in kubectl("get", *claim, "-o", "yaml")
        assert '"e": "f"' in kubectl("get", *claim, "-o", "json")
        old = kubectl("get", f"resourceclaims.v1beta1.resource.k8s.io/{name}", "-n", namespace, "-o", "yaml")
        assert "apiVersion: resource.k8s.io/v1beta1" in old
        assert "<[]Container>" in kubectl("explain", "pods.spec.containers")
        assert "resourceslices" in kubectl("api-resources")
        kubectl("delete", "-f", str(EXAMPLES / "01-whole-gpu"), "--timeout=60s")
        # It looks for five objects a second at most, so it is not let wait for all of them.
        kubectl("delete", "-R", "-f", str(EXAMPLES), "--ignore-not-found", "--wait=false")
        assert kubectl("get", "-R", "-f", str(EXAMPLES), "--ignore-not-found") == ""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine")
def test_kubectl_watches(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with _server(path):
        command = ["kubectl", "--kubeconfig", str(path), "get", "namespaces", "-w", "--request-timeout=1s"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "default" in found.stdout, found.stderr


@pytest.mark.long
def test_faults_come_from_a_flag_or_a_file(tmp_path: Path) -> None:
    plan = tmp_path / "plan.faults"
    plan.write_text("error 503 on list deviceclasses\n")
    for given in (str(plan), "error 503 on list deviceclasses"):
        path = tmp_path / "kubeconfig"
        with _server(path, "--faults", given):
            url = yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"]
            with pytest.raises(urllib.error.HTTPError, match="503") as caught:
                urllib.request.urlopen(f"{url}/apis/resource.k8s.io/v1/deviceclasses", timeout=60)
            caught.value.close()


def test_faults_that_cannot_be_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = f"--kubeconfig={tmp_path / 'kubeconfig'}"
    for given, says in (
        ("explode", "no such fault 'explode'"),
        ("kill plugin node1 at 1s", "there is only an API server here"),
        ("error 500 on list gpus", "no resource 'gpus'"),
    ):
        assert main([*COMMAND, kubeconfig, "--faults", given]) == 2
        assert says in capsys.readouterr().err
