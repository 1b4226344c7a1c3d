"""Several devices for claims of one signature: node classes, solved in the order of a lower bound."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from dra_driver.caches import BoundedCache
from dra_driver.structured.index.demand import Allowed, Choice, Demand, DevicePosition, Key, Solved
from dra_driver.structured.index.equivalence import NodeClass, state_of
from dra_driver.structured.matching.plan import DerivedAttributeError, FatalError
from dra_driver.structured.model.budget import BudgetExhausted, IndexUnfinished
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.search import bestfit
from dra_driver.structured.search.search import SearchLimitError

__all__ = ["BestClasses", "SharedSolutions", "free_positions"]

# Bytes, measured: of a class of nodes in the order; of a solution, and of each device that it chooses; of
# what a solution is known by, and of each device and alternative in that.
_PER_ENTRY, _PER_SOLUTION, _PER_CHOICE = 320, 640, 160
_PER_KEY, _PER_COST = 640, 112
# Devices times alternatives that are compared in the time of a step.
_COSTS_PER_STEP: Final = 8

SharedSolutions = BoundedCache[Hashable, tuple[Solved | None]]
"""Solutions of all request classes of a fleet that want the same of equal devices; None: there is none."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A node class, ordered by the score of its best allocation, or by a lower bound of it.

    Attributes:
        solved: the best allocation; None while the key is a lower bound.
    """

    key: Key
    number: int
    nodes: NodeClass
    solved: Solved | None

    def __lt__(self, other: _Entry) -> bool:
        return (self.key, self.number) < (other.key, other.number)


class BestClasses:
    """The best allocation of every node class, worked out as far as questions need it.

    Args:
        demand: the requests.
        shared: solutions of all request classes of a fleet that want the same of equal devices.

    Attributes:
        unsolved: node classes whose answer cannot be worked out (too many combinations, pools being updated).
    """

    def __init__(self, demand: Demand, shared: SharedSolutions) -> None:
        self._demand = demand
        self._shared = shared
        self._seen = 0
        self._entries: list[_Entry] = []
        self._solved = 0
        devices = sum(max(a.count or 0 for a in r.alternatives) for p in demand.plans for r in p.requests)
        self._per_solution = _PER_SOLUTION + _PER_CHOICE * devices
        self.unsolved: set[NodeClass] = set()

    @property
    def weight(self) -> int:
        """Estimated bytes of what is kept."""
        return _PER_ENTRY * self._seen + self._per_solution * self._solved

    def best(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        """Return the answer of the node class with the best allocation.

        Raises:
            BudgetExhausted: no class has an answer so far.
            IndexUnfinished: not all classes are in order; the next call goes on.
        """
        if self._seen < len(self._demand.index.classes):
            with self._demand.budget.keeping_up():
                self._order(snapshot)
        # Classes that this question has too little left for; the next one tries them again.
        again: list[_Entry] = []
        try:
            best = self._best_of_entries(snapshot, allowed, again)
        finally:
            for entry in again:
                insort(self._entries, entry)
        return None if best is None else Choice(best[0], best[1].places, best[1].chosen)

    def _order(self, snapshot: Snapshot) -> None:
        """Put the classes that the index has added into the order."""
        classes, budget = self._demand.index.classes, self._demand.budget
        for number in range(self._seen, len(classes)):
            nodes = classes[number]
            try:
                budget.keep_up(self._comparisons(nodes))
            except IndexUnfinished as e:
                e.nodes = len(snapshot.nodes)
                raise
            bound = self._lower_bound(snapshot, nodes)
            if bound is not None:
                insort(self._entries, _Entry(bound, number, nodes, None))
            self._seen = number + 1

    def _best_of_entries(
        self, snapshot: Snapshot, allowed: Allowed | None, again: list[_Entry]
    ) -> tuple[str, Solved] | None:
        """Return the best allocation and its node.

        Entries are in the order of their keys, and a class is solved when its lower bound comes first: its
            entry
        then moves back to where its score belongs. Once a key is worse than the best answer, no entry behind
        it can be better, so most classes are never solved.
        """
        budget = self._demand.budget
        best: tuple[str, Solved] | None = None
        i = 0
        while i < len(self._entries):
            entry = self._entries[i]
            if best is not None and entry.key > best[1].key:
                break
            try:
                budget.spend()
            except BudgetExhausted:
                if best is None:
                    raise
                return best
            names = entry.nodes.nodes
            name = next(iter(names), None) if allowed is None else next(filter(allowed, names), None)
            if name is None:
                i += 1
                continue
            if entry.solved is not None:
                if best is None or name < best[0]:
                    best = name, entry.solved
                i += 1
                continue
            del self._entries[i]
            try:
                solved = self._solve_entry(snapshot, entry, again)
            except (BudgetExhausted, RecursionError):
                again.append(entry)
                if best is None:
                    raise
                return best
            if solved is not None and budget.exhausted:
                # Perhaps not the best on these nodes, but an answer: good for this question only.
                again.append(entry)
                return min(best, (name, solved), key=_by_key) if best is not None else (name, solved)
            if solved is not None:
                insort(self._entries, _Entry(solved.key, entry.number, entry.nodes, solved))
                self._solved += 1
        return best

    def _comparisons(self, nodes: NodeClass) -> int:
        """Return the steps of looking at what every device of a class costs every alternative."""
        return 1 + len(nodes.layout.kinds) * len(self._demand.alternatives) // _COSTS_PER_STEP

    def _solve_entry(self, snapshot: Snapshot, entry: _Entry, again: list[_Entry]) -> Solved | None:
        """Return the best allocation of a class; None if there is none, or too many combinations."""
        try:
            return self._solve(snapshot, entry.nodes)
        except SearchLimitError as e:
            if e.cut:
                self._demand.budget.cut = True
                again.append(entry)
            else:
                self.unsolved.add(entry.nodes)
            return None

    def _lower_bound(self, snapshot: Snapshot, nodes: NodeClass) -> Key | None:
        """Return a key that no allocation on the nodes is below; None if there are too few devices.

        It takes the cheapest devices of each request by itself, as if requests did not compete, and has only
        the leading fields of the score. The empty key, below all others, is the bound of what cannot be added
        up: alternatives, counters, shares, pools used first-fit.
        """
        demand = self._demand
        if not demand.simple or not nodes.layout.plain or nodes.layout.first_fit:
            return ()
        free = free_positions(nodes)
        binding = waste = 0
        for i, (*_, alternative) in enumerate(demand.alternatives):
            costs = [c for p in free if (c := demand.kind(snapshot, nodes.layout.kinds[p]).costs[i])]
            count = alternative.count or 0
            if len(costs) < count:
                return None
            for cost in sorted(costs)[:count]:
                binding += cost[0]
                waste += cost[1]
        return ((0,) * len(demand.alternatives), binding, 0, waste)

    def _solve(self, snapshot: Snapshot, nodes: NodeClass) -> Solved | None:
        """Return the best allocation on the nodes of a class, solved once for all equal demands.

        Requests for 10Gi and for 20Gi are equal where the same devices serve them and the unused capacity
        differs by a constant: costs are compared relative to the least waste of each alternative, and the
        solution's waste is shifted by it.
        """
        demand = self._demand
        if nodes.layout.first_fit or not (demand.counted and nodes.layout.plain):
            return self._search(snapshot, nodes)[0]
        demand.budget.spend(self._comparisons(nodes))
        kinds = [demand.kind(snapshot, k).costs for k in nodes.layout.kinds]
        least = [
            min((c[i][1] for c in kinds if (c[i]) is not None), default=0)  # type: ignore[index]
            for i in range(len(demand.alternatives))
        ]
        relative = tuple(
            tuple(None if c is None else (c[0], c[1] - least[i], *c[2:]) for i, c in enumerate(costs))
            for costs in kinds
        )
        same = tuple(nodes.layout.columns.get(column) for column in demand.bound)
        key = (demand.structure, nodes.layout.structure, same, relative, nodes.in_use)
        known = self._shared.get(key)
        if known is not None:
            (found,) = known
            return None if found is None else self._shifted(found, least, 1)
        solved, complete = self._search(snapshot, nodes)
        if complete:
            weight = _PER_KEY + _PER_COST * len(relative) * len(demand.alternatives)
            if solved is not None:
                weight += _PER_SOLUTION + _PER_CHOICE * len(solved.places)
            self._shared.put(key, (None if solved is None else self._shifted(solved, least, -1),), weight)
        return solved

    def _shifted(self, solved: Solved, least: list[int], sign: int) -> Solved:
        """Return the solution with waste relative to the least of each alternative (sign -1), or back (1)."""
        ranks, binding, preferred, waste, *rest = solved.key
        assert isinstance(waste, int)
        shift = sum(
            n * (a.count or 0)
            for n, (ci, ri, ai, a) in zip(least, self._demand.alternatives, strict=True)
            if solved.chosen[ci][ri] == ai
        )
        return Solved((ranks, binding, preferred, waste + sign * shift, *rest), solved.places, solved.chosen)

    def _search(self, snapshot: Snapshot, nodes: NodeClass) -> tuple[Solved | None, bool]:
        """Return the answer, and whether other questions may use it.

        Raises:
            SearchLimitError: too many combinations.
            BudgetExhausted: likewise, and the question has nothing left for other classes either.
        """
        demand = self._demand
        problem = demand.problem(
            snapshot, nodes.view, state_of(nodes.view, nodes.states), nodes.layout.policies
        )
        try:
            solution = bestfit.best_solution(problem)
        except DerivedAttributeError:
            raise
        except FatalError:
            self.unsolved.add(nodes)
            return None, False
        if solution is None:
            return None, True
        number = {a: (ci, ri, ai) for ci, ri, ai, a in demand.alternatives}
        position = {e: i for i, e in enumerate(e for p in nodes.view.pools for e in p.devices)}
        places = tuple(
            DevicePosition(*number[p.alternative], position[p.entry])
            for picks in solution.picks
            for p in picks
        )
        return Solved(solution.score.between_nodes, places, solution.chosen), not demand.budget.exhausted


def free_positions(nodes: NodeClass) -> list[int]:
    """Return the positions of free devices in usable pools."""
    found: list[int] = []
    offset = 0
    for number, pool in enumerate(nodes.view.pools):
        if nodes.layout.policies[number] is not None and not (pool.incomplete or pool.invalid):
            taken = nodes.states[number].devices
            found += [offset + i for i, e in enumerate(pool.devices) if e.id.device not in taken]
        offset += len(pool.devices)
    return found


def _by_key(answer: tuple[str, Solved]) -> tuple[Key, str]:
    return answer[1].key, answer[0]
