"""How members are spread over nodes at the least cost: a table over numbers of members.

What a node costs with so many members on it is known (``NodeCosts``); nodes add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Choice", "Cost", "Load", "NodeOption", "Option", "TooManyLoads", "cheapest", "loads"]

_MOST_LOADS = 160

Load = tuple[int, ...]
"""Number of units of each kind."""
Cost = tuple[int, ...]
"""What adds up, the most important first: number of holders, and the sum of their priorities."""


class TooManyLoads(Exception):
    """There are more loads than are looked at."""


@dataclass(frozen=True, slots=True)
class NodeOption:
    """What a node can hold, and which holders have to go for that.

    Attributes:
        node: its name.
        holders: by load.
    """

    node: str
    holders: Mapping[Load, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Option:
    """Nodes that can hold the same at the same costs.

    Attributes:
        costs: by load.
        nodes: each with its holders.
    """

    costs: Mapping[Load, Cost]
    nodes: Sequence[NodeOption]


@dataclass(frozen=True, slots=True)
class Choice:
    """Holders that go, and what that costs."""

    cost: Cost
    holders: frozenset[int]


_Step = tuple[NodeOption, Load, Load]


def loads(counts: Load, holds: Callable[[Load], bool]) -> Iterator[Load]:
    """Iterate over the loads that hold, the small ones first; each is one more than another one that holds.

    Args:
        counts: of units of each kind, the most that there can be.
        holds: whether a load does.

    Raises:
        TooManyLoads: more than 160 do.
    """
    seen: set[Load] = set()
    level: list[Load] = [tuple(0 for _ in counts)]
    number = 0
    while level:
        larger: list[Load] = []
        for load in level:
            for kind, count in enumerate(load):
                more = (*load[:kind], count + 1, *load[kind + 1 :])
                if count == counts[kind] or more in seen:
                    continue
                seen.add(more)
                if number == _MOST_LOADS:
                    raise TooManyLoads
                if holds(more):
                    number += 1
                    larger.append(more)
                    yield more
        level = larger


def cheapest(options: Sequence[Option], counts: Load) -> Choice | None:
    """Return the cheapest way to place so many units of each kind; None if there is none.

    Args:
        options: nodes; those that hold the same at the same costs together.
        counts: number of units of each kind.
    """
    start = tuple(0 for _ in counts)
    places = max((len(cost) for option in options for cost in option.costs.values()), default=0)
    table: dict[Load, Cost] = {start: (0,) * places}
    # What led to each entry: the node, its load, and the entry before.
    steps: dict[Load, tuple[_Step, object] | None] = {start: None}
    for option in options:
        for node in option.nodes:
            changed = False
            new_table, new_steps = dict(table), dict(steps)
            for before, paid in table.items():
                for load, cost in option.costs.items():
                    # More than is needed is as good.
                    after = tuple(min(b + n, c) for b, n, c in zip(before, load, counts, strict=True))
                    total = tuple(map(sum, zip(paid, cost, strict=True)))
                    if after != before and (after not in new_table or total < new_table[after]):
                        new_table[after] = total
                        new_steps[after] = ((node, load, before), steps[before])
                        changed = True
            if not changed:
                # One more node of this kind is of no use either.
                break
            table, steps = new_table, new_steps
    if counts not in table:
        return None
    holders: set[int] = set()
    at: object = steps[counts]
    while isinstance(at, tuple):
        (node, load, _), at = at
        holders |= node.holders[load]
    return Choice(table[counts], frozenset(holders))
