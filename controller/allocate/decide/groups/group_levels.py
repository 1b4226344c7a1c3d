"""The levels of topology that a group shares: domains of nodes as they are, and parts of members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dra_driver.structured import Level

__all__ = ["described", "node_sets", "part_to_fill", "pinned"]


def described(levels: Sequence[Level]) -> str:
    """Return the levels that all members must share, for people; empty if there is none."""
    return " and one ".join(level.name for level in levels if level.required and not level.count)


def node_sets(
    levels: Sequence[Level], labels: Mapping[str, Mapping[str, str]], held: set[str]
) -> list[set[str] | None]:
    """Return sets of nodes of which one must hold a group, as far as labels decide; None for all nodes.

    Args:
        levels: that the group shares.
        labels: of each node.
        held: nodes of members that have devices already, which decide for the others.
    """
    required = [level.label for level in levels if level.required and level.label and not level.count]
    if not required:
        return [None]
    found: dict[tuple[str, ...], set[str]] = {}
    for name, of in labels.items():
        if all(label in of for label in required):
            found.setdefault(tuple(of[label] for label in required), set()).add(name)
    fitting = ((len(nodes), values) for values, nodes in found.items() if held <= nodes)
    return [found[values] for _, values in sorted(fitting)]


def pinned(levels: Iterable[Level], values: Mapping[Level, set[str]]) -> list[Level]:
    """Return the levels, with their domains where members hold something in one domain already: it decides.

    Args:
        levels: that the group shares.
        values: the domains of each level that members hold something in.
    """
    found: list[Level] = []
    for level in levels:
        held = values.get(level, set())
        one = len(held) == 1 and not level.count
        found.append(replace(level, value=next(iter(held))) if one else level)
    return found


def part_to_fill(level: Level, members: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the first domain in which a part of a group is not complete, and how many members it lacks.

    Args:
        level: with a count of members for each domain.
        members: of each domain.
    """
    lacking = ((value, -number % level.count) for value, number in sorted(members.items()))
    return next(((value, number) for value, number in lacking if number), None)
