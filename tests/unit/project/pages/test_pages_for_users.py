"""What holds for every page that users read: its length, its expressions, no names of tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from nonempty import nonempty
from paths import PROJECT

DOCS = PROJECT / "docs"
# Pages for contributors, which may name tests, as sections of others that say so may.
FOR_CONTRIBUTORS = (
    "adr/",
    "contributing/",
    "embedded-cluster.md",
    "paths/contributor.md",
    "safety-proofs.md",
)
# Words of all pages but the decisions and the contributors' handbook: a reader finishes what is short.
MOST_WORDS = 45_000
_SECTION = re.compile(r"^## For contributors.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
README_LINES = 90
MOST_BYTES_TO_CONTRIBUTE = 8192


def pages() -> list[Path]:
    return [PROJECT / "README.md", *nonempty(sorted(DOCS.rglob("*.md")))]


def unguarded(text: str) -> Iterator[str]:
    """Yield what expressions read of devices without asking first whether the device has it."""
    for read in re.finditer(r"""device\.(?:attributes|capacity)\[["'][^"']+["']\]\.\w+""", text):
        if text[read.start() - 1 : read.end() + 1] == f"`{read[0]}`":
            continue  # only a name
        asked = f"has({read[0]})"
        start = text.rfind("\n\n", 0, read.start()) + 1
        if asked not in text[start : read.end() + 1]:
            yield read[0]


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.relative_to(PROJECT).as_posix())
def test_expressions_ask_whether_a_device_has_what_they_read(page: Path) -> None:
    """One that does not fails on every device that lacks it, and with it the claim."""
    found = list(unguarded(page.read_text(encoding="utf-8")))
    # The page about the library shows what such an expression does.
    shown = ['device.attributes["gpu.example.com"].color'] if page.name == "library.md" else []
    assert found == shown


def test_an_expression_that_does_not_ask_is_found() -> None:
    read = 'device.attributes["a"].model'
    assert list(unguarded(f'x\n\n{read} == "T4"')) == [read]
    assert list(unguarded(f'{read.replace("].", "].?")}.orValue("") == "T4"')) == []
    assert list(unguarded(f'has({read}) &&\n  {read} == "T4"')) == []
    assert list(unguarded(f"the name `{read}`")) == []
    # What another block asks does not count.
    assert list(unguarded(f"has({read})\n\n{read}")) == [read]


def test_names_of_tests_stand_on_pages_for_contributors() -> None:
    named = {}
    for page in pages():
        place = page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name
        visible = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        found = re.findall(r"\btest_\w+", _SECTION.sub("", visible))
        if found and not place.startswith(FOR_CONTRIBUTORS):
            named[place] = found
    assert named == {}, "docs/safety-proofs.md is the page for statements and their tests"


def test_the_pages_stay_short() -> None:
    of_users = (p for p in DOCS.rglob("*.md") if not {"adr", "contributing"} & set(p.parts))
    words = sum(len(p.read_text(encoding="utf-8").split()) for p in nonempty(of_users))
    assert words <= MOST_WORDS
    assert len((PROJECT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES
    assert (PROJECT / "CONTRIBUTING.md").stat().st_size <= MOST_BYTES_TO_CONTRIBUTE


def test_the_readme_leads_to_every_path() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    paths = nonempty(p.name for p in (DOCS / "paths").glob("*.md") if p.name != "index.md")
    assert [name for name in paths if f"(docs/paths/{name})" not in text] == []
