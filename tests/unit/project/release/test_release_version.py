"""The version of the project stands in the package; every other place that names it says the same."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import dra_driver

ROOT = Path(__file__).parents[4]
# How the image is named in prose, manifests and commands.
IMAGE = re.compile(r"\bdra-driver:(\d+\.\d+\.\d+[^\s`\"'&|;]*)")


VERSION = dra_driver.__version__


def images() -> Iterator[tuple[str, str]]:
    """Each mention of the image with a version in the pages, the manifests and the chart: file, version."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    files += [p for p in sorted((ROOT / "deploy").rglob("*")) if p.suffix in (".yaml", ".md", ".sh", ".tpl")]
    for file in files:
        if "node_modules" not in file.parts:
            for found in IMAGE.findall(file.read_text(encoding="utf-8")):
                yield file.relative_to(ROOT).as_posix(), found


def test_the_package_is_built_with_the_version_that_it_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "dra_driver/__init__.py"}


@pytest.mark.parametrize("key", ["version", "appVersion"])
def test_the_chart_has_the_version_of_the_project(key: str) -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/dra-driver/Chart.yaml").read_text(encoding="utf-8"))
    assert chart[key] == VERSION, f"{key} of deploy/helm/dra-driver/Chart.yaml"


def test_every_image_that_is_named_has_the_version_of_the_project() -> None:
    named = list(images())
    expected = {"README.md", "docs/installation.md", "deploy/manifests/30-controller.yaml"}
    assert expected <= {file for file, _ in named}
    others = [f"{file}: dra-driver:{found}" for file, found in named if found != VERSION]
    assert others == [], f"not {VERSION}"


def test_the_changelog_has_no_section_beyond_the_version_of_the_project() -> None:
    """A release changes the version and the page together."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"(?m)^## \[([^\]]+)\]", text)
    assert sections[0] == "Unreleased"
    assert sections[1:2] in ([], [VERSION])
