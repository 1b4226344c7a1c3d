"""The figures of a comparison: rows, their bars, and the tables that are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compare_audit import Written

__all__ = ["Figure", "Row", "figures_table", "rows_of", "writes_json", "writes_table"]


@dataclass(frozen=True)
class Figure:
    """What is compared.

    Attributes:
        what: in words.
        unit: of the figures.
        ratio: bar for ours divided by kube-scheduler's alone; None: there is none.
        most: bar for ours by itself, in the unit; None: there is none.
        speed: the ratio is of speeds, theirs divided by ours, and the bar the least.
    """

    what: str
    unit: str
    ratio: float | None = None
    most: float | None = None
    speed: bool = False


@dataclass(frozen=True)
class Row:
    """A figure of both.

    Attributes:
        figure: what it is.
        ours: with the controller; None: not measured.
        alone: of kube-scheduler alone; None: not measured, or it means nothing there.
    """

    figure: Figure
    ours: float | None
    alone: float | None

    @property
    def ratio(self) -> float | None:
        """Return the ratio in the sense of the figure; None where there is none."""
        if self.ours is None or self.alone is None:
            return None
        above, below = (self.alone, self.ours) if self.figure.speed else (self.ours, self.alone)
        return above / below if below else None

    @property
    def met(self) -> bool | None:
        """Return whether the bar is met; None where there is none, or a figure is missing."""
        f = self.figure
        if f.most is not None:
            # One write more or less at the edge of the time that is looked at is neither.
            return None if self.ours is None else round(self.ours, 1) <= f.most
        if f.ratio is None or self.ratio is None:
            return None
        return self.ratio >= f.ratio if f.speed else self.ratio <= f.ratio

    def as_json(self) -> dict[str, object]:
        """Return the row as plain data."""
        f = self.figure
        bar = {"most": f.most} if f.most is not None else {"ratio": f.ratio} if f.ratio is not None else None
        values = {"controller": self.ours, "kube_scheduler_alone": self.alone, "ratio": self.ratio}
        return {"what": f.what, "unit": f.unit, **values, "bar": bar, "met": self.met}


def rows_of(
    figures: Mapping[str, Figure], ours: Mapping[str, float], alone: Mapping[str, float]
) -> list[Row]:
    """Return the rows of a scenario, by the names of its figures."""
    return [Row(figure, ours.get(name), alone.get(name)) for name, figure in figures.items()]


def figures_table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    header = ("", "with the controller", "kube-scheduler alone", "ratio", "bar")
    return _table([header, *map(_cells, rows)])


def _cells(row: Row) -> tuple[str, ...]:
    f = row.figure
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else "–"
    if f.speed and row.ratio is not None:
        ratio += " × as fast"
    bar = ""
    if f.most is not None:
        bar = f"at most {f.most:g} {f.unit}".rstrip()
    elif f.ratio is not None:
        bar = f"at least {f.ratio:g}" if f.speed else f"at most {f.ratio:g}"
    if row.met is not None:
        bar += ": met" if row.met else ": **missed**"
    return (f.what, _value(row.ours, f.unit), _value(row.alone, f.unit), ratio, bar or "–")


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}"


def writes_table(ours: Written, alone: Written, number: int, per: str = "pod") -> str:
    """Return who wrote what, divided by the number of pods (or seconds), as a table in Markdown."""
    keys = sorted({*ours, *alone}, key=lambda key: (key[0], -max(ours[key], alone[key])))
    rows = [
        (who, what, _share(ours[who, what], number), _share(alone[who, what], number)) for who, what in keys
    ]
    total = ("all", "", _share(ours.total(), number), _share(alone.total(), number))
    return _table([("who", f"writes a {per}", "with the controller", "kube-scheduler alone"), *rows, total])


def writes_json(ours: Written, alone: Written, number: int) -> list[dict[str, object]]:
    """Return who wrote what, divided by the number of pods (or seconds), as plain data."""
    return [
        {
            "who": who,
            "what": what,
            "controller": ours[who, what] / number,
            "kube_scheduler_alone": alone[who, what] / number,
        }
        for who, what in sorted({*ours, *alone})
    ]


def _share(written: int, number: int) -> str:
    return f"{written / number:.2f}" if written else "–"


def _table(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
