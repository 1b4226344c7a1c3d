"""Everything that a tag publishes, made and checked without publishing: ``make release-dry-run``.

Into the folder ``--out`` go the source distribution, the wheel that is built from it, the chart with the
metadata of Artifact Hub, the bill of materials, the notes of the release and the checksums. The release
workflow publishes exactly these files, so what fails there on a tag fails here before it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = Path("deploy", "helm", "dra-driver")
_VERSION = "dra_driver/__init__.py"
# Keep a Changelog's heading → the kind of change of Artifact Hub.
KINDS = {
    "Added": "added",
    "Changed": "changed",
    "Deprecated": "deprecated",
    "Removed": "removed",
    "Fixed": "fixed",
    "Security": "security",
}


class ReleaseError(Exception):
    """What keeps the version from being released; the message says where it is."""


@dataclass(frozen=True)
class Tools:
    """Programs that are called."""

    helm: str
    twine: str


@dataclass(frozen=True)
class Published:
    """What is published beside the files, or made elsewhere.

    Attributes:
        image: REGISTRY/NAME of the image that the chart installs; the chart's own default without it.
        source: address of the repository; the chart names none without it.
        sbom: file of the bill of materials; none is published without it.
    """

    image: str = ""
    source: str = ""
    sbom: Path | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Make everything and print what was made; 1 if something keeps the version from being released."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that is made anew")
    parser.add_argument(
        "--tag", default="", help="the tag, vX.Y.Z; without one the changes are those of Unreleased"
    )
    parser.add_argument("--image", default="", help="REGISTRY/NAME of the image that the chart installs")
    parser.add_argument("--source", default="", help="address of the repository, which the chart names")
    parser.add_argument("--sbom", type=Path, help="the bill of materials, which is published as it is")
    parser.add_argument("--helm", default="helm", help="the program helm")
    parser.add_argument("--twine", default="twine", help="the program twine")
    given = parser.parse_args(arguments)
    try:
        tools = Tools(given.helm, given.twine)
        published = Published(given.image, given.source, given.sbom)
        for made in release(given.out, given.tag, published, tools):
            print(made)
    except ReleaseError as e:
        print(f"release: {e}", file=sys.stderr)
        return 1
    return 0


def release(out: Path, tag: str, published: Published, tools: Tools, root: Path = ROOT) -> Iterator[Path]:
    """Make all files below ``out``.

    Raises:
        ReleaseError: a check failed.
    """
    version = project_version(root)
    if tag and tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag}, the version in {_VERSION} {version}")
    changes = section((root / "CHANGELOG.md").read_text(encoding="utf-8"), version if tag else "Unreleased")
    shutil.rmtree(out, ignore_errors=True)
    dist = out / "dist"
    dist.mkdir(parents=True)
    (out / "notes.md").write_text(changes, encoding="utf-8")
    made = [*distributions(root, dist), chart(root, out, published, changes, tools.helm)]
    if published.sbom is not None:
        made.append(copied(published.sbom, out))
    run(tools.twine, "check", "--strict", *map(str, sorted(dist.iterdir())))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    yield from (*made, out / "notes.md", out / "SHA256SUMS")


def project_version(root: Path) -> str:
    """Return the version of the project.

    Raises:
        ReleaseError: the package does not say it.
    """
    found = re.search(r'(?m)^__version__ = "([^"]+)"$', (root / _VERSION).read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError(f"{_VERSION}: __version__ is missing")
    return found[1]


def section(changelog: str, version: str) -> str:
    """Return what the changelog says about a version, without its heading.

    Raises:
        ReleaseError: it has no such section, or nothing in it.
    """
    found = re.search(rf"(?ms)^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog)
    if found is None or not found[1].strip():
        raise ReleaseError(
            f"CHANGELOG.md says nothing about {version}: a section `## [{version}] - DATE` is needed"
        )
    return found[1].strip() + "\n"


def annotated_changes(changes: str) -> list[dict[str, str]]:
    """Return the changes in the form of the annotation ``artifacthub.io/changes``, in plain words."""
    listed = []
    for heading, body in re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^### |\Z)", changes):
        for item in re.findall(r"(?ms)^- (.*?)(?=^- |\Z)", body):
            words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(item.split()))
            listed.append({"kind": KINDS.get(heading, "changed"), "description": words})
    return listed


def distributions(root: Path, dist: Path) -> list[Path]:
    """Build the source distribution, and the wheel of what is in it.

    Raises:
        ReleaseError: the wheel has anything outside of its package.
    """
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(dist.resolve()), cwd=root)
    (source,) = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        run(
            sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist.resolve()), cwd=unpacked
        )
    (wheel,) = dist.glob("*.whl")
    outside = strangers(wheel)
    if outside:
        raise ReleaseError(f"{wheel.name} has top-level names that may collide: {', '.join(outside)}")
    return [source, wheel]


def copied(sbom: Path, out: Path) -> Path:
    """Copy the bill of materials.

    Raises:
        ReleaseError: there is none, or it names nothing.
    """
    try:
        if not json.loads(sbom.read_text(encoding="utf-8")).get("components"):
            raise ReleaseError(f"{sbom} names no components")
        return Path(shutil.copy(sbom, out / sbom.name))
    except (OSError, ValueError) as e:
        raise ReleaseError(f"{sbom}: {e}") from e


def strangers(wheel: Path) -> list[str]:
    """Return the top-level names of a wheel that are neither its package nor its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    package = wheel.name.partition("-")[0]
    return sorted(top for top in tops if top != package and not top.endswith(".dist-info"))


def chart(root: Path, out: Path, published: Published, changes: str, helm: str) -> Path:
    """Package the chart, with the image that it installs and the metadata of Artifact Hub."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, CHART.name)
        shutil.copytree(root / CHART, copy)
        write_metadata(copy, published, changes)
        run(helm, "lint", "--strict", str(copy))
        run(helm, "package", str(copy), "--destination", str(out))
    (package,) = out.glob("*.tgz")
    return package


def write_metadata(chart: Path, published: Published, changes: str) -> None:
    """Put image, source and changes into a copy of the chart.

    Raises:
        ReleaseError: values.yaml does not have the line that names the image.
    """
    description: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    annotations: dict[str, str] = description.setdefault("annotations", {})
    annotations["artifacthub.io/changes"] = yaml.safe_dump(annotated_changes(changes), width=1000)
    if published.source:
        description |= {"home": published.source, "sources": [published.source]}
    if image := published.image:
        name = f"{image}:{description['appVersion']}"
        annotations["artifacthub.io/images"] = yaml.safe_dump([{"name": "dra-driver", "image": name}])
        values = (chart / "values.yaml").read_text(encoding="utf-8")
        line = "  repository: dra-driver\n"
        if values.count(line) != 1:
            raise ReleaseError(f"values.yaml does not have the line {line.strip()!r} once")
        (chart / "values.yaml").write_text(values.replace(line, f"  repository: {image}\n"), encoding="utf-8")
    (chart / "Chart.yaml").write_text(yaml.safe_dump(description, sort_keys=False), encoding="utf-8")


def run(*command: str, cwd: Path | None = None) -> None:
    """Run a program.

    Raises:
        ReleaseError: it failed, with what it printed.
    """
    try:
        done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True)  # noqa: S603
    except OSError as e:
        raise ReleaseError(f"{command[0]}: {e.strerror}") from e
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
