"""The cheapest units where members are spread over nodes.

A place is a node, or nodes with units that have something of several of them. What each load costs there is
searched place by place, and a table over loads adds that up. First the lowest priority is found up to which
units have to go; of these the fewest pods are then taken. That is exact as long as no budget is exceeded only
by what several places take together; few units are searched as a whole then, of more the answer is not called
proven.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_driver.planning import Domain, domains_of, irreducible
from dra_driver.planning.holders.spreading import NodeOption, Option, TooManyLoads, loads
from dra_driver.planning.holders.spreading import cheapest as cheapest_spread
from dra_driver.preemption.answers import Cost
from dra_driver.preemption.asking import Asking, Load, NodeState
from dra_driver.preemption.onenode import Found, NodeQuestion, NodeSearch
from dra_driver.preemption.sets import cheapest
from dra_driver.preemption.units import Costs
from dra_driver.structured import BudgetExhausted, GroupAllocated

__all__ = ["on_several_nodes"]

# Units that are searched as a whole where places cannot be added up.
_FEW_UNITS = 12
# How often budgets are avoided that places exceed together.
_MOST_ROUNDS = 4


def on_several_nodes(asking: Asking) -> Found | None:
    """Return the cheapest units after which the members fit.

    If the budget is used up before, the best that was found is returned; None if there is nothing.
    """
    best: Found | None = None
    try:
        for domain in domains_of(asking.cluster.snapshot, [at for at in asking.levels if not at.count]):
            found = _in_domain(asking, domain)
            if found is not None and (best is None or found.cost < best.cost):
                best = found._replace(proven=found.proven and (best is None or best.proven))
            elif found is not None and best is not None:
                best = best._replace(proven=best.proven and found.proven)
        if best is None or not best.proven:
            best = _as_a_whole(asking, best)
    except BudgetExhausted:
        return None if best is None else best._replace(proven=False)
    return None if best is None else best._replace(proven=best.proven and not asking.unsure)


def _order(asking: Asking, units: Iterable[int]) -> list[int]:
    of = asking.units.removable
    return sorted(units, key=lambda i: (of[i].cost, i))


def _as_a_whole(asking: Asking, best: Found | None) -> Found | None:
    """Return the cheapest of all units where they are few, otherwise what was found, or what is enough."""
    order = _order(asking, range(len(asking.units.removable)))

    def holds(some: frozenset[int]) -> bool:
        return isinstance(asking.solve(some), GroupAllocated)

    few = len(order) <= _FEW_UNITS
    if not (few or best is None) or not holds(frozenset(order)):
        return best
    if not few:
        enough = irreducible(list(reversed(order)), holds)
        return Found(asking.costs.of(enough), enough, (), proven=False)
    asking.unsure = False
    found = cheapest(order, holds, asking.costs, asking.budget)
    return None if found is None else Found(asking.costs.of(found), found, (), proven=True)


def _in_domain(asking: Asking, domain: Domain) -> Found | None:
    """Return the cheapest units after which the members fit in a domain; None if none are known.

    Where places together exceed a budget, as many of the units that they take keep to it stay in the search,
    and no other one of that budget does.
    """
    search = _Spread(asking, domain)
    units = asking.units.removable
    within: dict[str, frozenset[int]] = {}
    best: Found | None = None
    for _ in range(_MOST_ROUNDS):
        allowed = frozenset(
            i for i, u in enumerate(units) if all(b not in within or i in within[b] for b in u.disruptions)
        )
        chosen = search.cheapest(allowed)
        if chosen is None:
            break
        if not isinstance(asking.solve(chosen, frozenset(domain.nodes)), GroupAllocated):
            if not asking.trusting:
                break
            asking.distrust()
            return _in_domain(asking, domain)
        cost = asking.costs.of(chosen)
        if best is None or cost < best.cost:
            best = Found(cost, chosen, domain.nodes, search.exact and not within and not cost.violations)
        exceeded = _kept_to(asking, chosen)
        if not exceeded:
            break
        within |= exceeded
    return best


def _kept_to(asking: Asking, chosen: Iterable[int]) -> dict[str, frozenset[int]]:
    """Return the budgets that units exceed, each with the cheap ones of them that do not."""
    units = asking.units.removable
    order = _order(asking, chosen)
    used = Counter[str]()
    for i in order:
        used.update(units[i].disruptions)
    found: dict[str, frozenset[int]] = {}
    for budget, beyond in asking.costs.violated(used).items():
        left = used[budget] - beyond
        kept: list[int] = []
        for i in order:
            number = units[i].disruptions.get(budget, 0)
            if 0 < number <= left:
                left -= number
                kept.append(i)
        found[budget] = frozenset(kept)
    return found


class _Priced(NamedTuple):
    """Units after which a place holds a load."""

    cost: Cost
    place: int
    units: frozenset[int]


class _UpTo(Costs):
    """Costs that do not distinguish the priorities of victims."""

    def alone(self, unit: int) -> Cost:
        return super().alone(unit)._replace(highest=0)


@dataclass
class _Spread:
    """The search in one domain.

    Attributes:
        exact: whether all that matters was looked at.
    """

    asking: Asking
    domain: Domain
    exact: bool = True
    places: list[NodeState] = field(default_factory=list)
    loads: dict[Load, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._search = NodeSearch(self.asking, self.domain.levels)
        states = [s for name in self.domain.nodes if (s := self.asking.state(name)) is not None]
        self.places = self.asking.joined(states)
        for number, place in enumerate(self.places):
            for load in self._loads_of(place):
                self.loads.setdefault(load, []).append(number)

    def _loads_of(self, place: NodeState) -> Iterator[Load]:
        """Iterate over the loads that a place holds without any unit, the small ones first."""
        every = frozenset(place.held)
        asking, levels = self.asking, self.domain.levels
        try:
            yield from loads(asking.counts, lambda load: asking.fits(place, load, every, levels))
        except TooManyLoads:
            self.exact = False

    def cheapest(self, allowed: Collection[int]) -> frozenset[int] | None:
        """Return the cheapest units of those that are allowed; None if they are not enough.

        Raises:
            BudgetExhausted: the budget is used up.
        """
        costs = self.asking.costs
        priced = self._price(allowed, costs)
        kept = {load: [p for p in of if not p.cost.violations] for load, of in priced.items()}
        if self._spread(kept) is None:
            kept = priced
        bounds = sorted({p.cost.highest for of in kept.values() for p in of if p.units})
        low, high = 0, len(bounds)
        while low < high:
            middle = (low + high) // 2
            if self._spread(kept, bounds[middle]) is None:
                low = middle + 1
            else:
                high = middle
        if low == len(bounds):
            return self._spread(kept)
        removable = self.asking.units.removable
        below = frozenset(i for i in allowed if removable[i].cost.highest <= bounds[low])
        return self._spread(self._price(below, _UpTo(costs.units, self.asking.cluster.budgets)))

    def _spread(
        self, priced: Mapping[Load, Sequence[_Priced]], highest: int | None = None
    ) -> frozenset[int] | None:
        """Return the cheapest units over all places, of priorities up to ``highest``."""
        by_place: dict[int, dict[Load, _Priced]] = {}
        for load, of in priced.items():
            for one in of:
                if highest is None or one.cost.highest <= highest or not one.units:
                    by_place.setdefault(one.place, {})[load] = one
        options = [
            Option(
                {load: _sums(p.cost) for load, p in of.items()},
                [NodeOption(self.places[place].name, {load: p.units for load, p in of.items()})],
            )
            for place, of in sorted(by_place.items())
        ]
        found = cheapest_spread(options, self.asking.counts)
        return None if found is None else found.holders

    def _price(self, allowed: Collection[int], costs: Costs) -> dict[Load, list[_Priced]]:
        """Return, for each load, the places where it is cheapest: as many as there are members.

        In place of any other one, one of these is free, and costs no more.
        """
        return {load: self._cheapest_places(load, of, allowed, costs) for load, of in self.loads.items()}

    def _cheapest_places(
        self, load: Load, places: Sequence[int], allowed: Collection[int], costs: Costs
    ) -> list[_Priced]:
        most = sum(self.asking.counts)
        found: list[_Priced] = []
        open_places: list[tuple[Cost, int]] = []
        nothing = frozenset[int]()
        for place in places:
            if len(found) == most:
                return found
            if self.asking.fits(self.places[place], load, nothing, self.domain.levels):
                found.append(_Priced(_FREE, place, nothing))
                continue
            bound = self._search.bound(NodeQuestion(self.places[place], load, allowed, costs))
            if bound is not None:
                open_places.append((bound, place))
        for bound, place in sorted(open_places):
            below = found[most - 1].cost if len(found) >= most else None
            if below is not None and bound >= below:
                break
            one = self._search.best(NodeQuestion(self.places[place], load, allowed, costs), below)
            if one is not None:
                insort(found, _Priced(one[0], place, one[1]), key=lambda p: (p.cost, p.place))
        return found[:most]


_FREE = Cost(0, -(2**63), 0, 0, 0, 0)


def _sums(cost: Cost) -> tuple[int, ...]:
    return (cost.violations, cost.pods, cost.priorities, cost.work, cost.devices)
