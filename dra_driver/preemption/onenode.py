"""The cheapest units where all members go to one node: node by node, those that can be cheap first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

from dra_driver.planning import fewest
from dra_driver.preemption.answers import Cost
from dra_driver.preemption.asking import Asking, Load, NodeState
from dra_driver.preemption.sets import cheapest, least_cost
from dra_driver.preemption.units import Costs
from dra_driver.structured import BudgetExhausted, Level

__all__ = ["Found", "NodeQuestion", "NodeSearch", "on_one_node"]

# Combinations of areas that are searched one by one, and units of which the least number is worked out.
_MOST_COMBINATIONS = 200
_MOST_COUNTED = 14


class Found(NamedTuple):
    """Units that are enough.

    Attributes:
        nodes: after which the preemptor fits there; if empty, somewhere.
        proven: whether nothing is cheaper.
    """

    cost: Cost
    units: frozenset[int]
    nodes: tuple[str, ...]
    proven: bool


class _Case(NamedTuple):
    """Units of a node among which there may be enough, the cheap ones first; ``bound`` is what they cost."""

    bound: Cost
    units: Sequence[int]
    least: int


class NodeQuestion(NamedTuple):
    """What is to fit on a node, and what may be removed for that.

    Attributes:
        state: of the node.
        load: what is to fit; it does not without any removal.
        allowed: units that may go; if None, all of them.
        costs: of units.
    """

    state: NodeState
    load: Load
    allowed: Collection[int] | None
    costs: Costs


class NodeSearch:
    """Searches for the units of a node without which a load fits.

    Args:
        asking: questions to the allocator.
        levels: of topology, for these questions.
    """

    def __init__(self, asking: Asking, levels: Sequence[Level]) -> None:
        self._asking = asking
        self._levels = levels
        self._numbers: dict[object, int | None] = {}

    def bound(self, question: NodeQuestion) -> Cost | None:
        """Return what units cost at least; None where they are not enough. No question is asked for that."""
        state, load, allowed, costs = question
        least = self._asking.least(state, load)
        some = self._order(state, allowed)
        return None if least is None or least > len(some) else least_cost(some, least, costs)

    def best(self, question: NodeQuestion, below: Cost | None) -> tuple[Cost, frozenset[int]] | None:
        """Return the cheapest units that are enough, if they cost less than ``below``.

        Raises:
            BudgetExhausted: they are not known.
        """
        found: tuple[Cost, frozenset[int]] | None = None
        for case in sorted(self._cases(question, below), key=lambda case: case.bound):
            if below is not None and case.bound >= below:
                break
            units = self._cheapest(case, question, below)
            if units is not None:
                below = question.costs.of(units)
                found = below, units
        return found

    def _order(self, state: NodeState, allowed: Collection[int] | None) -> list[int]:
        units = self._asking.units.removable
        some = [i for i in state.held if allowed is None or i in allowed]
        return sorted(some, key=lambda i: (units[i].cost, i))

    def _cases(self, question: NodeQuestion, below: Cost | None) -> Iterator[_Case]:
        """Yield the sets of units to search in: a load of few devices concerns few areas of a node."""
        state, load, allowed, costs = question
        known = self._asking.least(state, load)
        for every in self._apart(state, load, self._order(state, None)):
            some = every if allowed is None else [i for i in every if i in allowed]
            if known is None or known > len(some):
                continue
            if below is not None and least_cost(some, known, costs) >= below:
                continue
            least = self._least(state, load, every, known)
            if least is not None and least <= len(some):
                yield _Case(least_cost(some, least, costs), some, least)

    def _apart(self, state: NodeState, load: Load, order: list[int]) -> Iterator[list[int]]:
        _, most = self._asking.needed(load)
        areas = self._asking.areas(state.name)
        if state.free or most is None or len(state.nodes) > 1 or areas.countable:
            yield order
            return
        together = areas.together([[d.place for d in state.held[i]] for i in order])
        if most >= len(together) or comb(len(together), most) > _MOST_COMBINATIONS:
            yield order
            return
        for some in combinations(together, most):
            inside = frozenset().union(*some)
            yield [unit for at, unit in enumerate(order) if at in inside]

    def _least(self, state: NodeState, load: Load, order: Sequence[int], known: int) -> int | None:
        """Return a number of units below which there is no room; None where all of them are not enough.

        ``known`` is one that holds for all units of the node.
        """
        asking = self._asking
        gives = [asking.units.removable[i].gives.get(state.name, ()) if state.free else () for i in order]
        held = sorted((state.held[i], given) for i, given in zip(order, gives, strict=True))
        rest = sorted(d for i, of in state.held.items() if i not in order for d in of)
        alike = (state.key, load, tuple(held), tuple(rest), state.free)
        if alike not in self._numbers:
            self._numbers[alike] = self._number(state, load, order, known)
        return self._numbers[alike]

    def _number(self, state: NodeState, load: Load, order: Sequence[int], known: int) -> int | None:
        asking = self._asking

        def holds(some: frozenset[int]) -> bool:
            return asking.fits(state, load, some, self._levels)

        if not holds(frozenset(order)):
            return None
        if len(order) <= _MOST_COUNTED:
            found = fewest(order, holds, len(order), known)
            return len(order) if found is None else len(found)
        return known

    def _cheapest(self, case: _Case, question: NodeQuestion, below: Cost | None) -> frozenset[int] | None:
        """Return the cheapest units of a case, if there are any that cost less than ``below``."""
        asking, state = self._asking, question.state

        def holds(some: frozenset[int]) -> bool:
            return asking.fits(state, question.load, some, self._levels)

        if len(case.units) < len(state.held) and not holds(frozenset(case.units)):
            return None
        return cheapest(case.units, holds, question.costs, asking.budget, below=below, least=case.least)


def on_one_node(asking: Asking) -> Found | None:
    """Return the cheapest units after which all members fit on one node.

    If the budget is used up before, the best that was found is returned; None if there is nothing.
    """
    search = NodeSearch(asking, asking.levels)
    load = asking.counts
    best: Found | None = None
    complete = True
    questions: list[tuple[Cost, NodeQuestion]] = []
    try:
        for name in asking.cluster.snapshot.nodes:
            state = asking.state(name)
            if state is not None and state.held:
                question = NodeQuestion(state, load, None, asking.costs)
                bound = search.bound(question)
                if bound is not None:
                    questions.append((bound, question))
    except BudgetExhausted:
        complete = False
    questions.sort(key=lambda item: (item[0], item[1].state.name))
    try:
        for bound, question in questions:
            if best is not None and bound >= best.cost:
                break
            found = search.best(question, None if best is None else best.cost)
            if found is not None:
                best = Found(*found, question.state.nodes, proven=False)
    except BudgetExhausted:
        complete = False
    if best is None:
        return None
    return best._replace(proven=complete and not asking.unsure)
