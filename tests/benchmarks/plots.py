"""Draws the rows of a benchmark as SVG: a panel of bars for each benchmark and unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

__all__ = ["drawn"]

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD, _FOOT = 860, 390, 80, 34, 40, 26
_OURS, _OTHER = "#00798c", "#b9b9b9"
# From this range on a linear axis would hide the small ones.
_LOGARITHMIC: Final = 50.0


def drawn(result: Mapping[str, Any]) -> str:
    """Return the document.

    Args:
        result: what ``run.py`` writes: ``machine``, and ``rows`` with ``benchmark``, ``name``, ``value``,
            ``unit`` and, where there is one, ``baseline`` and ``baseline_of``.
    """
    panels: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        if math.isfinite(row["value"]) and row["value"] > 0:
            panels.setdefault((row["benchmark"], row["unit"]), []).append(row)
    # A bar alone shows nothing.
    several = {key: rows for key, rows in panels.items() if len(rows) > 1}
    machine = result["machine"]
    parts = [
        _text(20, 22, f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_1m']}, "
              f"Python {machine['python']}"),
    ]  # fmt: skip
    top = 34.0
    for (benchmark, unit), rows in several.items():
        parts += _panel(top, f"{benchmark}: {unit}", rows)
        top += _HEAD + _ROW * len(rows) + _FOOT
    size = f'viewBox="0 0 {_WIDTH} {top:g}"'
    font = 'font-family="sans-serif" font-size="12" fill="#222"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
            f'<rect width="{_WIDTH}" height="{top:g}" fill="#fff"/>',
            *parts,
            "</svg>",
            "",
        )
    )


def _panel(top: float, title: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    values = [v for row in rows for v in (row["value"], row.get("baseline")) if v]
    logarithmic = max(values) / min(values) > _LOGARITHMIC
    least = 10.0 ** math.floor(math.log10(min(values))) if logarithmic else 0.0
    most = max(values)

    def length(value: float) -> float:
        part = math.log(value / least) / math.log(most / least) if logarithmic else value / most
        return max(1.0, (_WIDTH - _LEFT - _RIGHT) * part)

    yield _text(
        20, top + 20, f"{title}{' (logarithmic)' if logarithmic else ''}", weight=' font-weight="bold"'
    )
    baselines = dict.fromkeys(str(row["baseline_of"]) for row in rows if row.get("baseline"))
    if baselines:
        yield f'<rect x="{_LEFT}" y="{top + 11:g}" width="10" height="10" fill="{_OTHER}"/>'
        yield _text(_LEFT + 16, top + 20, "; ".join(baselines))
    for number, row in enumerate(rows):
        y = top + _HEAD + number * _ROW
        yield _text(_LEFT - 8, y + 12, row["name"], anchor="end")
        bars = [(row["value"], _OURS), *([(row["baseline"], _OTHER)] if row.get("baseline") else [])]
        for place, (value, color) in enumerate(bars):
            long = length(value)
            yield f'<rect x="{_LEFT}" y="{y + 14 * place:g}" width="{long:.1f}" height="12" fill="{color}"/>'
            yield _text(
                _LEFT + long + 5, y + 10 + 14 * place, f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
            )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
