"""How members are spread over nodes at the least cost: a table over numbers of members.

What a node costs with so many members on it is known (``NodeCosts``); nodes add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Choice", "Cost", "Load", "NodeOption", "Option", "cheapest"]

Load = tuple[int, ...]
"""Number of units of each kind."""
Cost = tuple[int, int]
"""Number of holders, and the sum of their priorities."""


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


def cheapest(options: Sequence[Option], counts: Load) -> Choice | None:
    """Return the cheapest way to place so many units of each kind; None if there is none.

    Args:
        options: nodes; those that hold the same at the same costs together.
        counts: number of units of each kind.
    """
    start = tuple(0 for _ in counts)
    table: dict[Load, Cost] = {start: (0, 0)}
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
                    total = (paid[0] + cost[0], paid[1] + cost[1])
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
