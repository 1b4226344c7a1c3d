"""Workflows run actions of others only by full commit, with few rights and within bounds of time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = sorted((Path(__file__).parents[3] / ".github" / "workflows").glob("*.yml"))


def test_there_are_workflows() -> None:
    assert {"test.yml", "lint.yml", "chart.yml", "docs.yml", "e2e.yml"} <= {w.name for w in WORKFLOWS}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.stem)
def test_actions_are_pinned_by_commit_with_their_version(workflow: Path) -> None:
    """A tag can be moved to other code, a commit cannot; the version is for people and for Dependabot."""
    used = re.findall(r"(?m)^.*\buses:(.*)$", workflow.read_text(encoding="utf-8"))
    assert used
    for line in used:
        assert re.fullmatch(r" [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.stem)
def test_workflows_have_bounds(workflow: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert document["permissions"] == {"contents": "read"}
    assert document["concurrency"]["cancel-in-progress"] is True
    for name, job in document["jobs"].items():
        assert job["timeout-minutes"] <= 45, name
        assert "permissions" not in job, name
        for step in job["steps"]:
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False, name
