"""Puts the recorded figures of the allocator into docs/performance.md, as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["BEGIN", "END", "replaced", "tables"]

BEGIN: Final = "<!-- made by make bench ARGS='allocator --docs'; do not edit -->"
END: Final = "<!-- end of what is made -->"
# Rows of one kind of claim: with all devices free, and with nearly all of them taken.
_PAIR: Final = re.compile(r"(?P<kind>.+), (?P<nodes>\d+) nodes, (?P<fill>empty|95 % full)")


def replaced(page: str, result: Mapping[str, Any]) -> str:
    """Return the page with the tables of other figures.

    Raises:
        ValueError: the page lacks the comments between which they stand.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN!r} or, after it, {END!r}")
    return f"{before}{begin}\n\n{tables(result)}\n\n{end}{after}"


def tables(result: Mapping[str, Any]) -> str:
    """Return the figures of the allocator as Markdown.

    Args:
        result: ``machine`` and ``rows``, as ``run.py`` writes them.
    """
    machine = result["machine"]
    rows = [row for row in result["rows"] if row["benchmark"] == "allocator"]
    pairs: dict[str, dict[str, Mapping[str, Any]]] = {}
    others = []
    for row in rows:
        found = _PAIR.fullmatch(row["name"])
        if found is not None and row.get("baseline"):
            pairs.setdefault(found["kind"], {})[found["fill"]] = row
        else:
            others.append(row)
    where = f"{machine['cpu']}, {machine['cores']} cores"
    how = f"at a load of {machine['load_1m']}, with Python {machine['python']}"
    first = f"Measured on {where}, {how}:"
    return "\n\n".join((first, "\n".join(_compared(pairs)), "\n".join(_listed(others))))


def _compared(pairs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    free, taken = "all devices free", "95 % taken"
    yield f"| claims per second | {free} | {taken} | kube-scheduler, {free} | kube-scheduler, {taken} |"
    yield "| --- | --- | --- | --- | --- |"
    for kind, by_fill in pairs.items():
        rows = [by_fill["empty"], by_fill["95 % full"]]
        cells = [_number(row[key]) for key in ("value", "baseline") for row in rows]
        yield f"| {kind} | {' | '.join(cells)} |"


def _listed(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| other figures of the same run | |"
    yield "| --- | --- |"
    for row in rows:
        yield f"| {row['name']} | {_number(row['value'])} {row['unit']} |"


def _number(value: float) -> str:
    """Return a figure with the digits that a measurement on a shared machine is good for."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
