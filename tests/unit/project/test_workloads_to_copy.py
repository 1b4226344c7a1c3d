"""The workloads that people copy are written as somebody would who runs them for others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nonempty import nonempty
from paths import PROJECT

FOLDER = PROJECT / "deploy" / "workloads"
FILES = sorted(FOLDER.glob("*/*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return nonempty(d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d)


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping that has containers, wherever it stands."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)


def containers(path: Path) -> list[dict[str, Any]]:
    return nonempty(c for d in documents(path) for spec in pod_specs(d) for c in spec["containers"])


def test_there_are_workloads() -> None:
    assert len(FILES) == 8


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_a_workload_says_what_to_expect(path: Path) -> None:
    comment = re.match(r"(?:#.*\n)+", path.read_text(encoding="utf-8"))
    assert comment is not None
    assert "Expect" in comment[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_images_have_a_version(path: Path) -> None:
    """What is called latest is another program tomorrow."""
    for container in containers(path):
        name, _, tag = container["image"].partition(":")
        assert name
        assert re.search(r"\d", tag), container["image"]
        assert "latest" not in tag, container["image"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_containers_ask_for_memory_within_a_limit(path: Path) -> None:
    """Without a request the scheduler fills the node; without a limit one pod takes what others need."""
    for container in containers(path):
        resources = container["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"]), container["name"]
        assert "memory" in resources["limits"], container["name"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_nobody_gets_more_rights_than_he_needs(path: Path) -> None:
    """Those of Ray run as its operator and its image say."""
    for document in documents(path):
        for spec in pod_specs(document):
            assert not spec.get("hostPID")
            if document["kind"] == "RayCluster":
                continue
            for container in spec["containers"]:
                context = container["securityContext"]
                assert context["allowPrivilegeEscalation"] is False, container["name"]
                assert "privileged" not in context
                assert set(context["capabilities"].get("add", ())) <= {"IPC_LOCK", "NET_RAW"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_an_update_does_not_wait_for_one_more_device(path: Path) -> None:
    for document in documents(path):
        if document["kind"] == "Deployment":
            strategy = document["spec"]["strategy"]
            assert strategy.get("type") == "Recreate" or strategy["rollingUpdate"]["maxSurge"] == 0


def test_no_service_makes_variables_that_its_program_takes_for_its_own() -> None:
    """A Service "vllm" would give the pods VLLM_PORT=tcp://…, with which vLLM does not start."""
    for path in FILES:
        commands = " ".join(str(c.get("command", "")) + str(c.get("args", "")) for c in containers(path))
        for document in documents(path):
            if document["kind"] == "Service" and document["spec"].get("clusterIP") != "None":
                assert document["metadata"]["name"] not in re.findall(r"\w+", commands)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_scripts_can_be_read_by_their_interpreters(path: Path) -> None:
    for container in containers(path):
        command = [*container.get("command", ()), *container.get("args", ())]
        if command[1:2] != ["-c"]:
            continue
        done = subprocess.run([command[0], "-n"], input=command[2], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        for script in re.findall(r"<<'EOF'\n(.*?)\nEOF\n", command[2], re.DOTALL):
            compile(script, path.name, "exec")
