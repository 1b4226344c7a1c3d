"""The map of ARCHITECTURE.md names files and folders that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
SUFFIXES = (".js", ".json", ".md", ".py", ".yaml")
PACKAGES = ("controller", "deploy", "docs", "dra_driver", "kubelet_plugin", "proto", "tests")


def places(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what a row of the map is about, and the paths in its second cell, in their order."""
    table = page.partition("## Where to look")[2].partition("\n## ")[0]
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            subject, place = line.strip("| ").split(" | ", 1)
            found = re.findall(r"`([\w./-]+)`", place)
            yield subject, [p for p in found if p.endswith("/") or p.endswith(SUFFIXES)]


def missing(paths: list[str]) -> Iterator[str]:
    """Yield the paths that are not there; a short one is below a folder of its row, or anywhere."""
    folders = [ROOT]
    for path in paths:
        found = next((f / path for f in reversed(folders) if (f / path).exists()), None)
        if found is not None:
            folder = found if found.is_dir() else found.parent
            folders += [folder.parent, folder]
        elif not any(True for package in PACKAGES for _ in (ROOT / package).rglob(path.rstrip("/"))):
            yield path


def test_every_path_of_the_map_is_there() -> None:
    rows = dict(places((ROOT / "ARCHITECTURE.md").read_text()))
    assert len(rows) > 50
    lacking = {subject: gone for subject, paths in rows.items() if (gone := list(missing(paths)))}
    assert not lacking


def test_every_path_of_the_page_about_one_pod_is_there() -> None:
    page = (ROOT / "docs/contributing/one-pod.md").read_text()
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", page)
    assert len(named) > 30
    at = (ROOT, ROOT / "controller/allocate")
    assert [name for name in named if not any((folder / name).exists() for folder in at)] == []


def test_a_path_that_is_gone_is_found() -> None:
    assert list(missing(["dra_driver/api/quantity.py", "version.py", "no_such_module.py"])) == [
        "no_such_module.py"
    ]
    page = "## Where to look\n\n| what | where |\n| --- | --- |\n| a | `api/gone.py`; `x.y` |\n\n## Next"
    assert list(places(page)) == [("what", []), ("a", ["api/gone.py"])]
