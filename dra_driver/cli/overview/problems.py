"""The problems of a fleet as ``status`` shows them: those that are alike share a paragraph. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dra_driver.cli.display.report import Block, Line
from dra_driver.fleet import Problem, duration, seconds_since

__all__ = ["problem_blocks", "problem_data"]

# Paragraphs, and names in one of them; -o json has all of them.
_MOST: Final = 20
_NAMED: Final = 3


def problem_blocks(problems: Sequence[Problem], now: float) -> Iterator[Block]:
    """Yield lines about the problems, and what to do about each.

    Args:
        problems: in order.
        now: seconds since the epoch.
    """
    if not problems:
        return
    yield Line(f"{len(problems)} problem{'s' * (len(problems) > 1)}", "bad")
    folded = _folded(problems)
    for alike in folded[:_MOST]:
        first = alike[0]
        where = _listed(_place(p) for p in alike)
        claims = sorted({claim for p in alike for claim in p.claims})
        held = f"; held by {_listed(claims)}" if claims and first.kind != "LongWait" else ""
        ago = [s for p in alike if (s := seconds_since(p.since, now)) is not None]
        since = f" (for {duration(max(ago))})" if ago else ""
        yield Line(f"{where}: {first.message}{held}{since}", "warning")
        if first.action:
            yield Line(f"  {first.action}", "quiet")
    if len(folded) > _MOST:
        more = sum(map(len, folded[_MOST:]))
        yield Line(f"{more} more; -o json has all of them", "quiet")


def problem_data(problems: Iterable[Problem]) -> list[Any]:
    """Return problems as plain data."""
    return [msgspec.to_builtins(p) for p in problems]


def _place(problem: Problem) -> str:
    kind, _, name = problem.subject.partition("/")
    return name if kind in ("node", "device") else f"{kind} {name}".rstrip()


def _folded(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Return the problems, those together that differ in the device or the pod alone."""
    alike: dict[tuple[str, str, str, str], list[Problem]] = {}
    for problem in problems:
        per_pod = problem.kind == "LongWait"
        key = (problem.kind, problem.node, problem.message, "" if per_pod else problem.action)
        alike.setdefault(key, []).append(problem)
    return list(alike.values())


def _listed(names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + more
