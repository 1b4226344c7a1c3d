"""Reports on a terminal: colours, and tables that fit its width.

The library rich looks at the stream and at ``NO_COLOR``, ``TERM`` and ``COLUMNS``. It is imported only for
terminals: what reads a pipe gets plain text, one row a line.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from dra_driver.cli.display.report import Cell, Line, Report, Style, Table, plain, printable

if TYPE_CHECKING:
    import rich.console
    import rich.table

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
            else:
                console.print(_table(block, console.width))


def _table(block: Table, width: int) -> rich.table.Table:
    """Return a table that fits a width; numbers and other short words are not folded where there is room."""
    import rich.table
    import rich.text

    rows = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in block.rows]
    texts = [[printable(c.text) for c in row] for row in rows]
    widest = [max(map(len, column)) for column in zip(block.header, *texts, strict=True)]
    least = [w if w <= _SHORT else len(h) for w, h in zip(widest, block.header, strict=True)]
    gap = _GAP if sum(widest) + _GAP * len(widest) <= width else 1
    keeps = sum(least) + gap * len(least) <= width
    table = rich.table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name, most, enough in zip(block.header, widest, least, strict=True):
        table.add_column(
            name,
            overflow="fold",
            no_wrap=keeps and most <= _SHORT,
            min_width=enough if keeps else None,
        )
    for row in rows:
        table.add_row(*(rich.text.Text(printable(c.text), style=_STYLES[c.style]) for c in row))
    return table
