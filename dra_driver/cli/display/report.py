"""Reports: paragraphs of lines and tables, independent of where they are shown. Pure.

What is shown comes from objects of the cluster, which others write, so ``printable`` makes control characters
visible: an expression could otherwise move the cursor of the terminal that it is shown on, and hide what it
says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Block", "Cell", "Line", "Report", "Style", "Table", "plain", "printable"]

Style: TypeAlias = Literal["", "good", "bad", "warning", "quiet", "strong"]


class Cell(NamedTuple):
    """A cell of a table that is not in the ordinary style."""

    text: object
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or several."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a header; each row has as many cells as that."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]


Block: TypeAlias = Line | Table
Report: TypeAlias = Sequence[Sequence[Block]]
"""Paragraphs, which a blank line parts."""


def printable(text: object) -> str:
    """Return a text in which every control character but the newline is written as its escape sequence."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in str(text)
    )


def plain(report: Report) -> str:
    """Return the report as text of any width, without colours, and no newline at the end."""
    return "\n\n".join("\n".join(map(_plain, paragraph)) for paragraph in report if paragraph)


def _plain(block: Block) -> str:
    if isinstance(block, Line):
        return printable(block.text)
    rows = [[_one_line(c) for c in row] for row in (block.header, *block.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _one_line(cell: object) -> str:
    return printable(cell.text if isinstance(cell, Cell) else cell).replace("\n", " ")
