"""Workflows run actions of others only by full commit, with few rights and within bounds of time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from nonempty import nonempty

WORKFLOWS = sorted((Path(__file__).parents[3] / ".github" / "workflows").glob("*.yml"))


def test_there_are_workflows() -> None:
    names = ("test", "lint", "chart", "docs", "e2e", "e2e-kind", "nightly", "release")
    assert {w.stem for w in WORKFLOWS} == set(names)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.stem)
def test_actions_are_pinned_by_commit_with_their_version(workflow: Path) -> None:
    """A tag can be moved to other code, a commit cannot; the version is for people and for Dependabot."""
    used = re.findall(r"(?m)^.*\buses:(.*)$", workflow.read_text(encoding="utf-8"))
    assert used
    for line in used:
        assert re.fullmatch(r" [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


# What a job may do beyond reading the repository, and why only it.
RIGHTS: dict[tuple[str, str], dict[str, str]] = {
    ("release", "image"): {"contents": "read", "packages": "write"},
    # Pushes the list of images and the chart, and signs them.
    ("release", "registry"): {
        "contents": "read",
        "packages": "write",
        "id-token": "write",
        "attestations": "write",
    },
    # The package index knows the workflow by its token; there is no password.
    ("release", "index"): {"id-token": "write"},
    ("release", "page"): {"contents": "write", "id-token": "write", "attestations": "write"},
}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.stem)
def test_workflows_have_bounds(workflow: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert document["permissions"] == {"contents": "read"}
    assert document["concurrency"]["cancel-in-progress"] is (workflow.stem != "release")
    for name, job in document["jobs"].items():
        assert job["timeout-minutes"] <= (180 if workflow.stem == "nightly" else 45), name
        assert job.get("permissions") == RIGHTS.get((workflow.stem, name)), name
        for step in job["steps"]:
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False, name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.stem)
def test_scripts_get_values_by_their_environment(workflow: Path) -> None:
    """What stands in a script between ``${{`` and ``}}`` is code of whoever chose the value."""
    document: dict[str, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    for name, job in nonempty(document["jobs"].items()):
        for step in nonempty(job["steps"]):
            assert "${{" not in step.get("run", ""), name


def test_only_a_tag_releases() -> None:
    """The name ``on`` is a boolean of YAML 1.1."""
    documents = {w.stem: yaml.safe_load(w.read_text(encoding="utf-8")) for w in WORKFLOWS}
    assert documents["release"][True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    others = [name for name, document in documents.items() if "tags" in (document[True].get("push") or {})]
    assert others == ["release"]


def test_the_image_is_built_on_one_base_that_is_named_by_its_digest() -> None:
    release = yaml.safe_load((WORKFLOWS[0].parent / "release.yml").read_text(encoding="utf-8"))
    jobs: dict[str, Any] = release["jobs"]
    assert jobs["files"]["outputs"] == {"base": "${{ steps.base.outputs.base }}"}
    (build,) = [s for s in jobs["image"]["steps"] if "buildx build" in s.get("run", "")]
    assert build["env"]["BASE"] == "${{ needs.files.outputs.base }}"
    assert '--build-arg "PYTHON_IMAGE=$BASE"' in build["run"]
    dockerfile = (WORKFLOWS[0].parents[2] / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert len(re.findall(r"(?m)^ARG PYTHON_IMAGE=docker\.io/library/python:\S+$", dockerfile)) == 1


def test_a_step_that_fails_before_a_pipe_ends_the_release() -> None:
    release = yaml.safe_load((WORKFLOWS[0].parent / "release.yml").read_text(encoding="utf-8"))
    assert release["defaults"]["run"]["shell"] == "bash"


def test_nothing_that_another_workflow_has_cached_is_released() -> None:
    release = yaml.safe_load((WORKFLOWS[0].parent / "release.yml").read_text(encoding="utf-8"))
    for job in nonempty(release["jobs"].values()):
        for step in nonempty(job["steps"]):
            assert "cache" not in step.get("with", {})
            if "actions/setup-node@" in step.get("uses", ""):
                assert step["with"]["package-manager-cache"] is False


def test_the_release_runs_after_the_dry_run_of_its_files() -> None:
    release = yaml.safe_load((WORKFLOWS[0].parent / "release.yml").read_text(encoding="utf-8"))
    jobs: dict[str, Any] = release["jobs"]
    assert any("make release-dry-run" in step.get("run", "") for step in jobs["files"]["steps"])
    order = ["files"]
    while len(order) < len(jobs):
        (following,) = [name for name, job in jobs.items() if job.get("needs") == order[-1]]
        order.append(following)
    assert order == ["files", "image", "registry", "index", "page"]


def test_what_is_too_long_for_every_change_runs_every_night_and_leaves_its_logs() -> None:
    nightly = yaml.safe_load((WORKFLOWS[0].parent / "nightly.yml").read_text(encoding="utf-8"))
    assert set(nightly[True]) == {"schedule", "workflow_dispatch"}
    tests: dict[str, Any] = nightly["jobs"]["tests"]
    assert tests["strategy"]["matrix"]["include"] == [
        {"target": "test-nightly"},
        {"target": "crash-test"},
        {"target": "fault-test"},
        {"target": "fault-test", "pools": "tainted"},
        {"target": "fault-test", "preemption": "on"},
        {"target": "attack"},
    ]
    (made,) = [s for s in tests["steps"] if s.get("run", "").startswith("make ")]
    names = {"TARGET": "target", "POOLS": "pools", "PREEMPTION": "preemption"}
    assert made["env"] == {name: f"${{{{ matrix.{key} }}}}" for name, key in names.items()}
    # A step that fails before a pipe fails the job.
    assert nightly["defaults"]["run"]["shell"] == "bash"
    for job in nonempty(nightly["jobs"].values()):
        last = job["steps"][-1]
        assert last["uses"].startswith("actions/upload-artifact@")
        assert last["if"] == "failure()"


def test_ci_begins_with_what_is_quickest_and_runs_everything_that_a_change_must_pass() -> None:
    script = (WORKFLOWS[0].parents[2] / ".ci" / "run").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^make (?:--\S+ (?:\d+ )?)*(.+)$", script)
    targets = [target for line in lines for target in line.split()]
    assert targets[:3] == ["lint", "lint-workflows", "test"]
    others = {"test-long", "page-test", "e2e", "docs", "chart-test", "release-dry-run"}
    assert sorted(targets[3:]) == sorted(others)
    makefile = (WORKFLOWS[0].parents[2] / "Makefile").read_text(encoding="utf-8")
    assert set(targets) <= set(re.findall(r"(?m)^([\w-]+):", makefile))
