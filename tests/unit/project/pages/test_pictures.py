"""The pictures of the documentation are what ``docs/pictures.py`` draws."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from nonempty import nonempty

DOCS = Path(__file__).parents[4] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
# Pixels of a character, on average, in a wide font of 12 pixels.
CHARACTER = 6.9


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures_of_docs", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_committed_is_what_is_drawn(pictures: ModuleType) -> None:
    drawn = {f"{p.__name__.replace('_', '-')}.svg": p().svg() for p in pictures.PICTURES}
    there = {p.name: p.read_text(encoding="utf-8") for p in (DOCS / "pictures").iterdir()}
    assert there == drawn, "run python docs/pictures.py"


def test_every_picture_is_on_a_page_and_says_what_it_shows(pictures: ModuleType) -> None:
    pages = "\n".join(p.read_text(encoding="utf-8") for p in DOCS.glob("*.md"))
    shown = {name: alt for alt, name in re.findall(r"!\[([^\]]*)\]\(pictures/([a-z-]+)\.svg\)", pages)}
    assert set(shown) == {p.__name__.replace("_", "-") for p in pictures.PICTURES}
    assert all(len(alt) > 20 for alt in shown.values())


def test_words_stay_within_the_picture() -> None:
    for path in nonempty((DOCS / "pictures").iterdir()):
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for text in nonempty(root.iter(f"{SVG}text")):
            x, y, length = float(text.attrib["x"]), float(text.attrib["y"]), len(text.text or "") * CHARACTER
            left = x - {"start": 0.0, "middle": length / 2, "end": length}[text.attrib["text-anchor"]]
            assert left >= 0, (path.name, text.text)
            assert left + length <= width, (path.name, text.text)
            assert 0 < y < height, (path.name, text.text)
