"""Reports on a terminal: colours, and tables that fit its width.

The library rich looks at the stream and at ``NO_COLOR``, ``TERM`` and ``COLUMNS``. It is imported only for
terminals: what reads a pipe gets plain text, one row a line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dra_driver.cli.display.report import Cell, Line, Report, Style, Table, plain, printable

if TYPE_CHECKING:
    import rich.console
    import rich.padding
    import rich.table
    import rich.text

__all__ = ["is_terminal", "print_report", "rendered"]

_STYLES: Final[dict[Style, str]] = {
    "": "",
    "good": "green",
    "bad": "red",
    "warning": "yellow",
    "quiet": "dim",
    "strong": "bold",
}


_GAP: Final = 2
# Characters of a column that is read at one look: a number, a state, a type.
_SHORT: Final = 12
# A column with more characters than this holds sentences. It gets lines of its own below each row where it
# would otherwise be narrower than ``_READABLE``.
_SENTENCE: Final = 60
_READABLE: Final = 60
_INDENT: Final = 4
# Where a long word may be broken: behind these characters.
_PIECES: Final = re.compile(r"\s+|[^\s/,-]*[/,-]|[^\s/,-]+")


def is_terminal() -> bool:
    """Return whether what is printed appears on a terminal."""
    return sys.stdout.isatty()


def print_report(report: Report, *, clear: bool = False) -> None:
    """Print a report to stdout.

    Args:
        report: what is printed.
        clear: whether a terminal is cleared before.
    """
    if not is_terminal():
        print(plain(report))
        return
    import rich.console

    console = rich.console.Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if clear:
        console.clear()
    rendered(report, console)


def rendered(report: Report, console: rich.console.Console) -> None:
    """Print a report on a console, in its width and with its colours."""
    import rich.text

    for number, paragraph in enumerate(p for p in report if p):
        if number:
            console.print()
        for block in paragraph:
            if isinstance(block, Line):
                console.print(rich.text.Text(printable(block.text), style=_STYLES[block.style]))
            elif (long := _sentences(block, console.width)) is not None:
                for line in _with_sentences_below(block, long):
                    console.print(line)
            elif (table := _table(block, console.width)) is not None:
                console.print(table)
            else:
                for line in _records(block):
                    console.print(line)


def _texts(block: Table) -> list[list[rich.text.Text]]:
    """Return the cells of all rows with their styles."""
    import rich.text

    cells = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in block.rows]
    return [[rich.text.Text(printable(c.text), style=_STYLES[c.style]) for c in row] for row in cells]


def _widest(header: Sequence[str], rows: Sequence[Sequence[rich.text.Text]]) -> list[int]:
    """Return the width of each column, in characters."""
    return [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(header)]


def _sentences(block: Table, width: int) -> int | None:
    """Return the column of sentences that is to be shown below each row; None if a table shows all well."""
    if not block.rows:
        return None
    widest = _widest(block.header, _texts(block))
    longest = max(range(len(widest)), key=widest.__getitem__)
    others = sum(widest) - widest[longest] + _GAP * (len(widest) - 1)
    room = width - others
    if widest[longest] <= max(_SENTENCE, room) or room >= _READABLE or others > width:
        return None
    return longest


def _with_sentences_below(block: Table, long: int) -> Iterator[rich.text.Text | rich.padding.Padding]:
    """Yield the lines of a table, with one column below each row, indented and in the full width."""
    import rich.padding
    import rich.text

    rows = _texts(block)
    widths = _widest(block.header, rows)
    rest = [i for i in range(len(widths)) if i != long]

    def line(cells: Sequence[rich.text.Text]) -> rich.text.Text:
        padded = []
        for i in rest:
            cell = cells[i].copy()
            cell.pad_right(widths[i] - len(cell))
            padded.append(cell)
        joined = rich.text.Text(" " * _GAP).join(padded)
        joined.rstrip()
        return joined

    yield line([rich.text.Text(name, style="bold") for name in block.header])
    for cells in rows:
        yield line(cells)
        yield rich.padding.Padding(cells[long], (0, 0, 0, _INDENT))


def _records(block: Table) -> Iterator[rich.text.Text | rich.padding.Padding]:
    """Yield each row as its first cell and, indented below it, every header with its cell."""
    import rich.padding
    import rich.text

    for first, *cells in _texts(block):
        first.stylize("bold")
        yield first
        named = [rich.text.Text(f"{h} ").append_text(c) for h, c in zip(block.header[1:], cells, strict=True)]
        if named:
            yield rich.padding.Padding(rich.text.Text("  ").join(named), (0, 0, 0, _INDENT))


def _table(block: Table, width: int) -> rich.table.Table | None:
    """Return a table that fits a width, in which headers and numbers are whole; None if there is no room."""
    import rich.table

    rows = _texts(block)
    widest = _widest(block.header, rows)
    least = [w if w <= _SHORT else len(h) for w, h in zip(widest, block.header, strict=True)]
    gap = _GAP if sum(widest) + _GAP * len(widest) <= width else 1
    if sum(least) + gap * len(least) > width:
        return None
    widths = _widths(widest, least, width - gap * len(widest))
    table = rich.table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name, wide in zip(block.header, widths, strict=True):
        table.add_column(name, overflow="fold", width=wide)
    for row in rows:
        table.add_row(*(_broken(cell, wide) for cell, wide in zip(row, widths, strict=True)))
    return table


def _widths(widest: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns, of which the widest get narrower until all fit."""
    widths = list(widest)
    while sum(widths) > room and any(w > enough for w, enough in zip(widths, least, strict=True)):
        wide = max((i for i, w in enumerate(widths) if w > least[i]), key=widths.__getitem__)
        widths[wide] -= 1
    return widths


def _broken(cell: rich.text.Text, width: int) -> rich.text.Text:
    """Return a cell whose words are broken behind hyphens, slashes and commas where they have to be."""
    import rich.text

    if len(cell) <= width or max(map(len, cell.plain.split()), default=0) <= width:
        return cell
    lines = [""]
    for piece in _PIECES.findall(cell.plain):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return rich.text.Text("\n".join(line.rstrip() for line in lines), style=cell.style)
