"""``deploy/kind/kind.sh``: what it runs, in which order, and what it says where something is missing.

The programs are stand-ins that write down how they were called: no container engine is needed, or used.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from manifest_files import documents
from paths import PROJECT

SCRIPT = PROJECT / "deploy" / "kind" / "kind.sh"

FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$(basename "$0") $*" in
  "docker info") [ -z "$NO_ENGINE" ] ;;
  "docker image inspect"*) false ;;
  "kind get clusters") [ -z "$CLUSTERS" ] || echo "$CLUSTERS" ;;
  "kind get kubeconfig"*) echo "kind: Config" ;;
  "kubectl get --raw /apis/resource.k8s.io/v1") [ -z "$OLD" ] ;;
  "kubectl get --raw /apis/admissionregistration.k8s.io/v1") echo "{\\"kind\\": \\"$SERVED\\"}" ;;
  "kubectl create --dry-run=server"*) [ -n "$DROPS" ] || grep -o "capacity:" | sed 's/\\(.*\\):/"\\1"/' ;;
  "kubectl get resourceslices --output name") echo slice ;;
esac
"""


class Shell(Protocol):
    """Runs the script with these programs and variables, and returns what all calls were."""

    def __call__(
        self, *arguments: str, programs: tuple[str, ...] = ..., **variables: str
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]: ...


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs the script with stand-ins for the named programs and nothing else of their names."""
    calls = tmp_path / "calls"
    calls.touch()

    def run(
        *arguments: str, programs: tuple[str, ...] = ("docker", "kind", "kubectl"), **variables: str
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        folder = tmp_path / f"bin{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name in programs:
            (folder / name).write_text(FAKE)
            (folder / name).chmod(0o755)
        for name in (
            "bash",
            "dirname",
            "basename",
            "grep",
            "sed",
            "mkdir",
            "mv",
            "cp",
            "cat",
            "seq",
            "sleep",
            "sh",
        ):
            found = next(p for d in ("/usr/bin", "/bin") if (p := Path(d) / name).exists())
            (folder / name).symlink_to(found)
        environment = {"PATH": str(folder), "CALLS": str(calls), "HOME": str(tmp_path)}
        environment |= {"STATE": str(tmp_path / "state"), **variables}
        done = subprocess.run(
            ["/bin/bash", SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=240
        )
        return done, calls.read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("command", "programs", "variables", "said"),
    [
        ("create", (), {}, "kind: docker is not installed; see https://docs.docker.com"),
        ("create", ("docker",), {}, "kind: kind is not installed; see https://kind.sigs.k8s.io"),
        ("create", ("docker", "kind"), {}, "kind: kubectl is not installed; see https://kubernetes.io"),
        ("create", ("docker", "kind", "kubectl"), {"NO_ENGINE": "1"}, "the docker engine does not answer"),
        (
            "create",
            ("docker", "kind", "kubectl"),
            {"CLUSTERS": "dra-driver"},
            "a cluster dra-driver exists already",
        ),
        (
            "create",
            ("docker", "kind", "kubectl"),
            {"NODE_IMAGE": "kindest/node:v1.33.1"},
            "NODE_IMAGE=kindest/node:v1.33.1: Kubernetes 1.34 or later is needed",
        ),
        ("create", ("docker", "kind", "kubectl"), {"OLD": "1"}, "does not serve resource.k8s.io/v1"),
        ("load", ("docker", "kind"), {}, "there is no cluster dra-driver; first: deploy/kind/kind.sh create"),
        ("test", ("kind",), {"CLUSTERS": "other"}, "there is no cluster dra-driver"),
        ("delete", (), {}, "kind: kind is not installed"),
        ("explode", (), {}, "kind: unknown command: explode"),
    ],
)
def test_what_is_missing_is_said(
    shell: Shell, command: str, programs: tuple[str, ...], variables: dict[str, Any], said: str
) -> None:
    done, _ = shell(command, programs=programs, **variables)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_cluster_is_made_of_the_configuration(shell: Shell, tmp_path: Path) -> None:
    done, calls = shell("create", NODE_IMAGE="kindest/node:v1.36.1")
    assert done.returncode == 0, done.stderr
    [create] = [c for c in calls if c.startswith("kind create")]
    assert "--config" in create
    assert create.endswith("--image kindest/node:v1.36.1")
    config = yaml.safe_load((tmp_path / "state" / "cluster.yaml").read_text())
    [mount] = config["nodes"][0]["extraMounts"]
    assert mount["hostPath"] == mount["containerPath"] == str(tmp_path / "state" / "node")


def test_both_images_are_loaded(shell: Shell) -> None:
    done, calls = shell("load", CLUSTERS="dra-driver")
    assert done.returncode == 0, done.stderr
    assert any(c.startswith("docker build --tag dra-driver:kind --file") for c in calls)
    assert "docker pull busybox:1.37" in calls
    assert "kind load docker-image --name dra-driver dra-driver:kind busybox:1.37" in calls
    assert any(c.startswith("docker run --rm --user 0 --volume") for c in calls)


@pytest.mark.parametrize("keeps", [True, False])
def test_the_driver_is_installed_with_simulated_devices(shell: Shell, tmp_path: Path, keeps: bool) -> None:
    programs = ("docker", "kind", "kubectl", "dra-driver")
    done, calls = shell(
        "install",
        programs=programs,
        CLUSTERS="dra-driver",
        DRA_DRIVER="dra-driver",
        DROPS="" if keeps else "1",
    )
    assert done.returncode == 0, done.stderr
    last_applied = calls[calls.index("dra-driver certificates") - 1]
    assert last_applied.endswith("/deploy/optional/refuse-dropped-capacity.yaml") is not keeps
    assert any(c.startswith("kubectl apply --server-side") for c in calls)
    rendered = documents(tmp_path / "state" / "manifests.yaml")
    kinds = {d["kind"] for d in rendered}
    assert "MutatingWebhookConfiguration" in kinds  # sets the gate
    assert "MutatingAdmissionPolicy" not in kinds
    containers = [
        c
        for d in rendered
        if d["kind"] in ("DaemonSet", "Deployment")
        for c in d["spec"]["template"]["spec"]["containers"]
    ]
    assert {(c["image"], c["imagePullPolicy"]) for c in containers} == {("dra-driver:kind", "Never")}
    gpus = f"--backend=simulated={tmp_path / 'state' / 'node' / 'gpus.yaml'}"
    assert any(gpus in c["args"] for c in containers)
    assert any("--backend=rdma" in c["args"] for c in containers)


def test_the_configuration_asks_for_what_the_driver_uses() -> None:
    config = yaml.safe_load((SCRIPT.parent / "cluster.yaml").read_text())
    assert config["featureGates"]["DRADeviceTaints"]
    assert config["runtimeConfig"] == {"resource.k8s.io/v1alpha3": "true"}  # for the scheduler of 1.34
    assert "enable_cdi = true" in config["containerdConfigPatches"][0]


def test_help_and_syntax(shell: Shell) -> None:
    done, _ = shell("help", programs=())
    assert done.returncode == 0
    assert "create    a kind cluster" in done.stdout
    subprocess.run(["/bin/bash", "-n", SCRIPT], check=True, env=os.environ)
