"""One device for claims of one signature: component classes, ordered by the cost of their cheapest device."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import Final

from dra_driver.structured.index.demand import Allowed, Choice, Demand, DevicePosition, Key
from dra_driver.structured.index.equivalence import ComponentClass, state_of
from dra_driver.structured.model.budget import IndexUnfinished
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.search.cost import Costs

__all__ = ["CheapestDevices"]


# Bytes of a component class in the order, measured.
_PER_PART: Final = 320
# Of a component class that are compared in the time of a step.
_DEVICES_PER_STEP: Final = 4


@dataclass(slots=True, eq=False)
class _Part:
    """A component class, ordered by the cost of its cheapest device.

    Attributes:
        offset: position of that device in the component.
        rank: the alternative that gets it.
    """

    key: Key
    number: int
    component: ComponentClass
    offset: int
    rank: int

    def __lt__(self, other: _Part) -> bool:
        return (self.key, self.number) < (other.key, other.number)


class CheapestDevices:
    """The cheapest device of every component class, kept in order while the index adds classes.

    A component class never changes: what is free in it is part of it. So its cheapest device is worked out
    once, and a question walks along the order until it meets a class that an allowed node has.
    """

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._seen = 0
        self._parts: list[_Part] = []

    @property
    def weight(self) -> int:
        """Estimated bytes of what is kept."""
        return _PER_PART * len(self._parts)

    def best(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        """Return the cheapest device of the fleet, on the best of the nodes that have one.

        Of component classes with equal costs the policy for nodes decides, then the name of the node.

        Raises:
            BudgetExhausted: a selector could not be evaluated for a kind of device.
            IndexUnfinished: not all component classes are in order; the next call goes on.
        """
        if self._seen < len(self._demand.index.components):
            with self._demand.budget.keeping_up():
                self._order(snapshot)
        best: tuple[tuple[int, int], str] | None = None
        key: Key | None = None
        tied: dict[ComponentClass, _Part] = {}
        for part in self._parts:
            if key is not None and part.key != key:
                break
            for where, names in part.component.nodes.items():
                place = _rank(part.component, where)
                if best is not None and place > best[0]:
                    continue
                name = names[0] if allowed is None else next(filter(allowed, names), None)
                if name is not None and (best is None or (place, name) < best):
                    best = (place, name)
            if best is not None:
                key = part.key
                tied[part.component] = part
        if best is None:
            return None
        return self._first_place(best, tied)

    def _order(self, snapshot: Snapshot) -> None:
        """Put the component classes that the index has added into the order."""
        components, budget = self._demand.index.components, self._demand.budget
        for number in range(self._seen, len(components)):
            component = components[number]
            try:
                budget.keep_up(1 + len(component.allocated) // _DEVICES_PER_STEP)
            except IndexUnfinished as e:
                e.nodes = len(snapshot.nodes)
                raise
            found = self._cheapest(snapshot, component)
            if found is not None:
                insort(self._parts, _Part(found[0], number, component, found[1], found[2]))
            self._seen = number + 1

    def _first_place(self, best: tuple[tuple[int, int], str], tied: dict[ComponentClass, _Part]) -> Choice:
        """Return the first of the equally cheap devices of the chosen node, in Kubernetes' order."""
        place, name = best
        position, rank = min(
            (component.positions[tied[c].offset], tied[c].rank)
            for c, key, component in self._demand.index.class_of(name).parts
            if c in tied and _rank(c, key) == place
        )
        claim, request = self._demand.alternatives[0][:2]
        chosen = tuple((rank,) * len(plan.requests) for plan in self._demand.plans)
        return Choice(name, (DevicePosition(claim, request, rank, position),), chosen)

    def _cheapest(self, snapshot: Snapshot, of: ComponentClass) -> tuple[Key, int, int] | None:
        """Return the cost of the cheapest device, its offset in the component, and its alternative."""
        if of.component.shareable:
            return self._cheapest_share(snapshot, of)
        best: tuple[Key, int, int] | None = None
        kinds = of.component.content[0]
        assert isinstance(kinds, tuple)
        for offset, (kind, allocated) in enumerate(zip(kinds, of.allocated, strict=True)):
            if allocated:
                continue
            costs = self._demand.kind(snapshot, kind).costs
            # The first alternative that the device can serve: preference comes before every cost.
            rank = next((i for i, cost in enumerate(costs) if cost is not None), None)
            if rank is None:
                continue
            destroyed = self._destroyed(snapshot, of, offset) if of.component.sets else 0
            if destroyed is None:
                continue
            cost = costs[rank]
            assert cost is not None
            key = (rank, cost[0], cost[1], destroyed, cost[2], cost[3])
            if best is None or key < best[0]:
                best = key, offset, rank
        return best

    def _cheapest_share(self, snapshot: Snapshot, of: ComponentClass) -> tuple[Key, int, int] | None:
        """Return the like for shares, whose cost depends on what other claims leave of each device."""
        problem = self._demand.problem(snapshot, of.view, state_of(of.view, of.states))
        costs = Costs(problem)
        pool = of.view.pools[of.component.pool]
        best: tuple[Key, int, int] | None = None
        for rank, (*_, alternative) in enumerate(self._demand.alternatives):
            for offset, position in enumerate(of.component.positions):
                entry = pool.devices[position - of.component.offset]
                if of.allocated[offset]:
                    continue
                candidate = problem.serves(alternative, entry, pool)
                if candidate is None or candidate.excluded:
                    continue
                cost = costs.of(alternative, candidate)
                key = (rank, cost.binding, cost.waste, cost.destroyed, cost.busy, cost.other_waste)
                if best is None or key < best[0]:
                    best = key, offset, rank
        return best

    def _destroyed(self, snapshot: Snapshot, of: ComponentClass, offset: int) -> int | None:
        """Return the capacity of partitions that become impossible; None if partitions in use exclude it.

        It depends on the component alone, so all request classes share it there.
        """
        if offset in of.counters:
            return of.counters[offset]
        problem = self._demand.problem(snapshot, of.view, state_of(of.view, of.states))
        pool = of.view.pools[of.component.pool]
        entry = pool.devices[of.component.positions[offset] - of.component.offset]
        candidate = problem.bare_candidate(entry, pool)
        destroyed = None
        if not candidate.excluded:
            destroyed = Costs(problem).destroyed(candidate) if candidate.counters else 0
        of.counters[offset] = destroyed
        return destroyed


def _rank(of: ComponentClass, where: tuple[int, int]) -> tuple[int, int]:
    """Return how good a place in ``ComponentClass.nodes`` is under the policy for nodes; less is better."""
    return (0, -where[1]) if of.component.spread else where
