"""Domains: sets of nodes that share a value of one or more levels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from dra_driver.structured.groups.cells import Cells, Within
from dra_driver.structured.groups.members import Level

__all__ = ["Domain", "choices", "domains"]


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes that share the values of some levels.

    Attributes:
        values: of the levels, in their order.
        nodes: names in order.
        within: values of attributes that devices must have, if they have one.
    """

    values: tuple[str, ...]
    nodes: tuple[str, ...]
    within: Within = ()


def choices(levels: Sequence[Level]) -> Iterator[list[Level]]:
    """Iterate over the levels that are insisted on: all of them, then fewer of those that are preferred.

    The last one, which is the tightest as users write them, is given up first.
    """
    preferred = [level for level in levels if not level.required]
    for number in range(len(preferred), -1, -1):
        kept = preferred[:number]
        yield [level for level in levels if level.required or level in kept]


def domains(
    cells: Cells, levels: Sequence[Level], nodes: Collection[str], within: Within = ()
) -> list[Domain]:
    """Return the domains of these levels together, by their values; without levels, one of all nodes."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(nodes):
        for values in product(*(sorted(cells.values(name, level)) for level in levels)):
            found.setdefault(values, []).append(name)
    made = []
    for values, names in sorted(found.items()):
        more = [(at.attribute, v) for at, v in zip(levels, values, strict=True) if at.attribute]
        made.append(Domain(values, tuple(names), (*within, *more)))
    return made
