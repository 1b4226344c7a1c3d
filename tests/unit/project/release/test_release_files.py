"""What a tag publishes: notes, metadata of the chart, files that collide with nothing."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from paths import PROJECT

CHANGELOG = """# Changelog

## [Unreleased]

### Added

- Something ([the page](docs/x.md)) that
  takes two lines.
- Another thing.

### Fixed

- A fault.

## [0.2.0] - 2026-01-02

- Old.
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    path = PROJECT / "deploy" / "packaging" / "release.py"
    spec = importlib.util.spec_from_file_location("release", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules["release"] = module
    spec.loader.exec_module(module)
    return module


def test_the_notes_are_the_section_of_the_version(release: ModuleType) -> None:
    assert release.section(CHANGELOG, "0.2.0") == "- Old.\n"
    assert release.section(CHANGELOG, "Unreleased").startswith("### Added\n\n- Something")
    assert "Old" not in release.section(CHANGELOG, "Unreleased")


@pytest.mark.parametrize("changelog", [CHANGELOG, CHANGELOG + "\n## [0.3.0] - 2026-02-03\n\n"])
def test_a_version_without_notes_is_not_released(release: ModuleType, changelog: str) -> None:
    with pytest.raises(release.ReleaseError, match=r"CHANGELOG.md says nothing about 0\.3\.0"):
        release.section(changelog, "0.3.0")


def test_a_tag_of_another_version_is_not_released(release: ModuleType, tmp_path: Path) -> None:
    said = r"the tag is v9\.9\.9, the version in dra_driver/__init__\.py"
    with pytest.raises(release.ReleaseError, match=said):
        list(release.release(tmp_path / "out", "v9.9.9", "", release.Tools("helm", "twine")))
    assert not (tmp_path / "out").exists()


def test_changes_have_the_form_of_artifact_hub(release: ModuleType) -> None:
    assert release.annotated_changes(release.section(CHANGELOG, "Unreleased")) == [
        {"kind": "added", "description": "Something (the page) that takes two lines."},
        {"kind": "added", "description": "Another thing."},
        {"kind": "fixed", "description": "A fault."},
    ]


def test_the_released_chart_installs_the_published_image(release: ModuleType, tmp_path: Path) -> None:
    chart = tmp_path / "dra-driver"
    shutil.copytree(PROJECT / release.CHART, chart)
    before = yaml.safe_load((chart / "values.yaml").read_text())
    source = "https://github.com/someone/somewhere"
    published = release.Published(image="ghcr.io/someone/dra-driver", source=source)
    release.write_metadata(chart, published, "### Added\n\n- It: all.\n")
    values = yaml.safe_load((chart / "values.yaml").read_text())
    assert values.pop("image") == {**before.pop("image"), "repository": "ghcr.io/someone/dra-driver"}
    assert values == before
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (described["home"], described["sources"]) == (source, [source])
    annotations = described["annotations"]
    assert yaml.safe_load(annotations["artifacthub.io/changes"]) == [
        {"kind": "added", "description": "It: all."}
    ]
    image = f"ghcr.io/someone/dra-driver:{described['appVersion']}"
    assert yaml.safe_load(annotations["artifacthub.io/images"]) == [{"name": "dra-driver", "image": image}]
    crds = {entry["name"] for entry in yaml.safe_load(annotations["artifacthub.io/crds"])}
    assert crds == {
        yaml.safe_load(path.read_text())["metadata"]["name"]
        for path in (PROJECT / "deploy" / "manifests" / "crds").glob("*.yaml")
    }


def test_the_chart_has_a_page_of_its_own_without_links_into_the_repository() -> None:
    """Artifact Hub shows the README that is in the package."""
    page = (PROJECT / "deploy" / "helm" / "dra-driver" / "README.md").read_text()
    assert "helm install" in page
    assert re.findall(r"\]\((?!https:)", page) == []


def test_the_bill_of_materials_is_published_as_it_is(release: ModuleType, tmp_path: Path) -> None:
    bill, out = tmp_path / "sbom.cdx.json", tmp_path / "out"
    out.mkdir()
    bill.write_text('{"components": [{"name": "aiohttp"}]}')
    assert release.copied(bill, out).read_bytes() == bill.read_bytes()
    bill.write_text('{"components": []}')
    with pytest.raises(release.ReleaseError, match="names no components"):
        release.copied(bill, out)
    bill.write_text("{")
    with pytest.raises(release.ReleaseError, match=r"sbom\.cdx\.json: "):
        release.copied(bill, out)
    with pytest.raises(release.ReleaseError, match="No such file"):
        release.copied(tmp_path / "none", out)


def test_the_page_on_the_index_has_no_links_into_the_repository() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    page = (PROJECT / project["readme"]).read_text()
    assert re.findall(r"\]\((?!https:)", page) == []
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert f"Python {versions[0]} to {versions[-1]}" in page


def test_names_beside_the_package_are_found(release: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "dra_driver-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("dra_driver/a.py", "dra_driver-1.dist-info/RECORD", "controller/app.py"):
            archive.writestr(name, "")
    assert release.strangers(wheel) == ["controller"]


def test_a_tool_that_fails_is_quoted(release: ModuleType) -> None:
    with pytest.raises(release.ReleaseError, match="ouch"):
        release.run(sys.executable, "-S", "-c", "raise SystemExit('ouch')")
    with pytest.raises(release.ReleaseError, match="no-such-program: No such file"):
        release.run("no-such-program")
