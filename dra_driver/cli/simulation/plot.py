"""Draws the replays as SVG: how often shapes fitted over time, and how many claims waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from dra_driver.cli.simulation.replay import Played
from dra_driver.fleet import RequestShape

__all__ = ["drawn"]

_COLORS: Final = ("#d1495b", "#00798c", "#8d6a9f", "#3d5a80")
_WIDTH, _PANEL, _GAP, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 150, 46, 56, 16, 76, 40
_FONT: Final = 'font-family="sans-serif" font-size="12" fill="#333"'
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class _Line:
    values: Sequence[float]
    color: str
    dashed: bool = False


def drawn(replays: Sequence[Played], shapes: Sequence[RequestShape], title: str) -> str:
    """Return the document: a panel for each shape and one for the claims that wait.

    Args:
        replays: of the same arrivals, with samples at the same times.
        shapes: that were counted.
        title: one line above all panels.
    """
    times = [s.at for s in replays[0].samples]
    panels: list[tuple[str, list[_Line]]] = []
    for i, shape in enumerate(shapes):
        lines = []
        for replay, color in zip(replays, _COLORS, strict=False):
            lines.append(_Line([s.counts[i].suggested for s in replay.samples], color, dashed=True))
            lines.append(_Line([s.counts[i].fits for s in replay.samples], color))
        panels.append((f"how often “{shape.text}” fits", lines))
    panels.append(
        (
            "claims that wait",
            [_Line([s.waiting for s in r.samples], c) for r, c in zip(replays, _COLORS, strict=False)],
        )
    )
    height = _TOP + len(panels) * (_PANEL + _GAP) + _BOTTOM - _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        _text(_LEFT, 22, title, size=14),
        *_legend(replays),
    ]
    for number, (name, lines) in enumerate(panels):
        parts += _panel(_TOP + number * (_PANEL + _GAP), name, times, lines)
    parts.append(_text(_LEFT, height - 8, "days"))
    return "\n".join([*parts, "</svg>", ""])


def _legend(replays: Sequence[Played]) -> list[str]:
    parts = []
    x = float(_LEFT)
    for replay, color in zip(replays, _COLORS, strict=False):
        for label, dash in ((replay.strategy.value, ""), ("sum of free suggests", ' stroke-dasharray="4 3"')):
            ends = f'x1="{x:g}" y1="38" x2="{x + 24:g}" y2="38"'
            parts.append(f'<line {ends} stroke="{color}" stroke-width="1.6"{dash}/>')
            parts.append(_text(x + 30, 42, label))
            x += 50 + 7 * len(label)
    return parts


def _panel(top: int, name: str, times: Sequence[float], lines: Sequence[_Line]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, top + _PANEL
    end = max(times[-1], 1.0)
    most = _rounded(max((max(line.values, default=0.0) for line in lines), default=0.0))
    parts = [_text(_LEFT, top - 6, name)]
    for step in range(5):
        y = bottom - step * _PANEL / 4
        parts.append(f'<line x1="{_LEFT}" y1="{y:g}" x2="{right}" y2="{y:g}" stroke="#e4e4e4"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{most * step / 4:g}", anchor="end"))
    for day in range(int(end // _DAY) + 1):
        x = _LEFT + (right - _LEFT) * day * _DAY / end
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#f0f0f0"/>')
        parts.append(_text(x, bottom + 14, str(day), anchor="middle"))
    for line in lines:
        points = " ".join(
            f"{_LEFT + (right - _LEFT) * at / end:.1f},{bottom - _PANEL * value / most:.1f}"
            for at, value in zip(times, line.values, strict=True)
        )
        style = 'stroke-width="1" stroke-dasharray="4 3"' if line.dashed else 'stroke-width="1.6"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.color}" {style}/>')
    return parts


def _rounded(most: float) -> float:
    """Return the top of an axis: a multiple of 4 that is not less."""
    step = 4
    while step * 10 < most:
        step *= 2
    return max(4.0, -(-most // step) * step)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 0) -> str:
    larger = f' font-size="{size}"' if size else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{larger}>{escape(text)}</text>'
