"""Picture and tables of docs/performance.md are what ``make bench`` makes of the figures beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT / "tests" / "benchmarks"))

import page_figures  # noqa: E402
import plots  # noqa: E402

DOCS = ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {"cpu": "a <cpu>", "cores": 2, "load_1m": 0.5, "python": "3.11"}


def widths(*rows: dict[str, Any]) -> list[float]:
    """Return the lengths of the bars, in their order."""
    root = ElementTree.fromstring(plots.drawn({"machine": MACHINE, "rows": rows}))
    return [float(r.attrib["width"]) for r in root.iter(f"{SVG}rect") if r.attrib.get("height") == "12"]


def row(name: str, value: float, **more: Any) -> dict[str, Any]:
    return {"benchmark": "b", "name": name, "value": value, "unit": "s", **more}


def test_what_is_committed_is_what_is_drawn() -> None:
    result = json.loads((DOCS / "performance.json").read_text())
    assert (DOCS / "performance.svg").read_text() == plots.drawn(result), "run make bench ARGS=--docs"


def test_the_tables_of_the_page_are_of_the_figures_of_the_picture() -> None:
    result = json.loads((DOCS / "performance.json").read_text())
    page = (DOCS / "performance.md").read_text()
    assert page_figures.replaced(page, result) == page, "run make bench ARGS='allocator --docs'"
    first = next(r for r in result["rows"] if r.get("baseline"))
    assert f"| {first['value']:,.0f} | " in page
    first["value"] *= 2
    assert page_figures.replaced(page, result) != page


def test_a_page_without_a_place_for_the_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        page_figures.replaced("# Performance", {"machine": MACHINE, "rows": []})


def test_bars_are_as_long_as_their_values_say() -> None:
    one, two = widths(row("one", 1.0), row("two", 2.0))
    assert abs(two / one - 2) < 0.01
    # Each power of ten is as long as the next one where the range is wide.
    small, middle, large = widths(row("a", 10.0), row("b", 100.0), row("c", 1000.0))
    assert small == 1.0
    assert abs(large / middle - 2) < 0.01


def test_a_baseline_has_a_bar_of_its_own_and_a_row_alone_none() -> None:
    assert len(widths(row("one", 1.0, baseline=2.0, baseline_of="another"), row("two", 2.0))) == 3
    assert widths(row("alone", 1.0)) == []
    assert widths(row("nothing", 0.0), row("no number", float("nan")), row("one", 1.0)) == []
