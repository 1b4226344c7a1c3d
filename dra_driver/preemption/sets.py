"""The cheapest set of units after which something fits: a search that asks a yes-or-no question about sets.

As ``planning.holders.sets``, with costs in the place of numbers: the answer may only grow with the set, and
so does the cost. The search knows sets of which every solution must contain some members. It takes a cheapest
set that has them; if the answer is no, it makes the set as large as it can be with the answer still no: every
solution contains one of the units that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dra_driver.preemption.answers import Cost
from dra_driver.preemption.units import Costs
from dra_driver.structured import Budget

__all__ = ["cheapest", "least_cost"]

_NOTHING = Cost(0, -(2**63), 0, 0, 0, 0)


class _Part(NamedTuple):
    """Units of which every solution contains at least a number.

    Attributes:
        units: in the order of their costs.
    """

    units: Sequence[int]
    least: int


def cheapest(
    units: Sequence[int],
    holds: Callable[[frozenset[int]], bool],
    costs: Costs,
    budget: Budget,
    *,
    below: Cost | None = None,
    least: int = 1,
) -> frozenset[int] | None:
    """Return a cheapest set for which the answer is yes; None if each costs ``below`` or more.

    Args:
        units: of which sets are made, the cheap ones first; the answer for all of them must be yes.
        holds: the question.
        costs: of sets.
        budget: is charged.
        below: what is too much; if None, nothing is.
        least: no smaller number of units is a solution.

    Raises:
        BudgetExhausted: the cheapest set is not known.
    """
    parts = [_Part(units, least)]
    while True:
        chosen = _Covering(parts, costs, budget, below).cheapest()
        if chosen is None or holds(chosen):
            return chosen
        largest = set(chosen)
        for unit in units:
            if unit not in largest and not holds(frozenset((*largest, unit))):
                largest.add(unit)
        parts.append(_Part([u for u in units if u not in largest], 1))


def least_cost(units: Sequence[int], number: int, costs: Costs) -> Cost:
    """Return what so many of some units cost at least."""
    return _at_least((), units, number, costs)


class _Covering:
    """The search for the cheapest set that has enough of each part, by branch and bound."""

    def __init__(self, parts: Sequence[_Part], costs: Costs, budget: Budget, below: Cost | None) -> None:
        self._parts = parts
        self._costs = costs
        self._budget = budget
        self._below = below
        self._best: frozenset[int] | None = None

    def cheapest(self) -> frozenset[int] | None:
        self._search((), frozenset())
        return self._best

    def _search(self, chosen: tuple[int, ...], out: frozenset[int]) -> None:
        self._budget.spend()
        open_parts: list[_Part] = []
        for units, least in self._parts:
            missing = least - sum(u in chosen for u in units)
            if missing > 0:
                left = [u for u in units if u not in out and u not in chosen]
                if len(left) < missing:
                    return
                open_parts.append(_Part(left, missing))
        if not open_parts:
            cost = self._costs.of(chosen)
            if self._below is None or cost < self._below:
                self._below, self._best = cost, frozenset(chosen)
            return
        if self._below is not None and any(
            _at_least(chosen, left, missing, self._costs) >= self._below for left, missing in open_parts
        ):
            return
        part = min(open_parts, key=lambda p: len(p.units) - p.least)
        for at, unit in enumerate(part.units[: len(part.units) - part.least + 1]):
            self._search((*chosen, unit), out.union(part.units[:at]))


def _at_least(chosen: Sequence[int], left: Sequence[int], missing: int, costs: Costs) -> Cost:
    """Return what some units cost at least, together with a number of others.

    Place by place: a set with more units than that has more pods, so that it need not be bounded in what is
    compared after these. Budgets are exceeded by no less than each unit adds alone.
    """
    before = costs.of(chosen) if chosen else _NOTHING
    if not missing:
        return before
    of = [costs.alone(i) for i in left]
    violations = [0] * missing
    if any(costs.units[i].disruptions for i in left):
        violations = _smallest(missing, [costs.of((*chosen, i)).violations - before.violations for i in left])
    return Cost(
        before.violations + sum(violations),
        max(before.highest, *_smallest(missing, [c.highest for c in of])),
        before.pods + sum(_smallest(missing, [c.pods for c in of])),
        before.priorities + sum(_smallest(missing, [c.priorities for c in of])),
        before.work + sum(_smallest(missing, [c.work for c in of])),
        before.devices + sum(_smallest(missing, [c.devices for c in of])),
    )


def _smallest(number: int, of: list[int]) -> list[int]:
    return of if number >= len(of) else sorted(of)[:number]
