"""Which nodes get which members: a search over numbers, for nodes that are known by their cells.

Kinds are placed one after the other, the scarcest first. For each, all ways to distribute its bundles over
the nodes are tried, in an order in which the first is mostly the best: earliest alternatives, nodes that the
group uses already, few nodes, least waste. Nodes that hold the same are not told apart, so one step places as
many bundles as such nodes hold. After the first solution the search goes on for some steps, for better ones.

That no solution is found means that there is none, if nodes share no devices and nothing was cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.structured.groups.cells import EMPTY, Cell, Cells, Load, added
from dra_driver.structured.model.budget import Budget, BudgetExhausted

__all__ = ["Improvement", "Packed", "Searching", "pack", "room_for"]

# Steps after a solution, in search of better ones.
_IMPROVEMENT_STEPS: Final = 2_000
# On each set of nodes, so that the first solution there is compared with that of others.
_LEAST_STEPS: Final = 50
# Of so many kinds the first choices are not varied any more.
_FEW_KINDS: Final = 100
# What is known to lead to no better solution; beyond that the search does without.
_MOST_KNOWN: Final = 20_000

_Group = tuple[Cell, Load]


@dataclass(frozen=True, slots=True)
class Packed:
    """A way to place the members.

    Attributes:
        score: the alternatives, the number of nodes, then sums of costs; less is better.
        loads: number of nodes of each cell with each load.
    """

    score: tuple[int, ...]
    loads: Mapping[_Group, int]


@dataclass(slots=True)
class Improvement:
    """Steps that are left in search of better solutions, for all sets of nodes together."""

    steps: int = _IMPROVEMENT_STEPS


@dataclass(frozen=True, slots=True)
class Searching:
    """Limits of a search, and what its solutions must be like.

    Attributes:
        budget: of the question.
        improvement: shared by all searches of the question.
        accept: asked about each solution that is better than those before.
        no_worse_than: a score; solutions that are worse are left out.
    """

    budget: Budget
    improvement: Improvement
    accept: Callable[[Packed], bool] = lambda _: True
    no_worse_than: tuple[int, ...] | None = None


def room_for(cells: Cells, nodes: Mapping[Cell, Sequence[str]], kind: int, wanted: int) -> int:
    """Return how many bundles of a kind fit on the nodes if there are no others, up to ``wanted``.

    Raises:
        BudgetExhausted: the question has no steps or no time left.
    """
    found = 0
    for cell, names in nodes.items():
        found += len(names) * cells.most(cell, EMPTY, kind, wanted)
        if found >= wanted:
            return wanted
    return found


def pack(
    cells: Cells,
    nodes: Mapping[Cell, Sequence[str]],
    counts: Sequence[int],
    search: Searching,
) -> Packed | None:
    """Place so many bundles of each kind on the nodes; return the best way that was found.

    Args:
        cells: what fits.
        nodes: by cell.
        counts: number of bundles of each kind.
        search: limits, and what solutions must be like.

    Raises:
        BudgetExhausted: the question has no steps or no time left, and there is no solution so far.
        RecursionError: there are too many kinds to try them all.
    """
    scarcity: list[tuple[float, int]] = []
    for kind, wanted in enumerate(counts):
        if wanted:
            room = sum(len(names) * cells.most(cell, EMPTY, kind, wanted) for cell, names in nodes.items())
            if room < wanted:
                return None
            scarcity.append((room / wanted, kind))
    order = [(kind, counts[kind]) for _, kind in sorted(scarcity)]
    return _Search(cells, nodes, order, search).run()


class _Search:
    """The search for one set of nodes."""

    def __init__(
        self,
        cells: Cells,
        nodes: Mapping[Cell, Sequence[str]],
        order: Sequence[tuple[int, int]],
        search: Searching,
    ) -> None:
        self._cells = cells
        self._order = order
        self._budget = search.budget
        self._accept = search.accept
        self._limit = search.no_worse_than
        self._steps = 0
        self._improvement = search.improvement
        self._groups: dict[_Group, int] = {(cell, EMPTY): len(names) for cell, names in nodes.items()}
        self._best: Packed | None = None
        self._known: set[object] = set()

    def run(self) -> Packed | None:
        """Return the best solution that is found."""
        try:
            self._first_choices()
            if self._best is None or len(self._order) <= _FEW_KINDS:
                self._kind(0)
        except (BudgetExhausted, RecursionError):
            if self._best is None:
                raise
        return self._best

    def _first_choices(self) -> None:
        """Place all kinds by the first options that there are; keep the solution if there is one."""
        start = dict(self._groups)
        for kind, wanted in self._order:
            left = wanted
            for (cell, load), number in self._options(kind, wanted):
                nodes = min(self._groups.get((cell, load), 0), left // number)
                if nodes:
                    self._budget.spend()
                    self._move((cell, load), (cell, added(load, kind, number)), nodes)
                    left -= nodes * number
            if left:
                break
        else:
            self._keep()
        self._groups = start

    def _kind(self, at: int) -> bool:
        """Place kinds from this one on; return whether the search may end."""
        if at == len(self._order):
            return self._keep()
        known = (at, frozenset(self._groups.items()))
        if known in self._known:
            return False
        kind, wanted = self._order[at]
        if not all(self._has_room(*later) for later in self._order[at + 1 :]):
            return False
        options = self._options(kind, wanted)
        if self._spread(at, wanted, options, _capacities(options, self._groups), 0):
            return True
        if len(self._known) < _MOST_KNOWN:
            self._known.add(known)
        return False

    def _has_room(self, kind: int, wanted: int) -> bool:
        """Return whether the nodes have room for the bundles of a kind beside what is on them."""
        self._budget.spend(1 + len(self._groups) // 8)
        for (cell, load), number in self._groups.items():
            if number:
                wanted -= number * self._cells.most(cell, load, kind, wanted)
            if wanted <= 0:
                return True
        return False

    def _options(self, kind: int, wanted: int) -> list[tuple[_Group, int]]:
        """Return the nodes and numbers of bundles that one of them can get, the best first."""
        found: list[tuple[tuple[object, ...], _Group, int]] = []
        for (cell, load), nodes in self._groups.items():
            if not nodes:
                continue
            before = self._cells.fit(cell, load) if load else None
            for number in range(1, self._cells.most(cell, load, kind, wanted) + 1):
                fit = self._cells.fit(cell, added(load, kind, number))
                assert fit is not None
                ranks = (fit.ranks - (before.ranks if before is not None else 0)) / number
                key = (ranks, not load, -number, fit.cost, cell.number, load)
                found.append((key, (cell, load), number))
        found.sort(key=lambda option: option[0])
        self._budget.spend(1 + (len(found) + len(self._groups)) // 4)
        return [(group, number) for _, group, number in found]

    def _spread(
        self,
        at: int,
        wanted: int,
        options: Sequence[tuple[_Group, int]],
        capacities: Sequence[int],
        start: int,
    ) -> bool:
        """Place what is left of a kind, by options from ``start`` on."""
        if not wanted:
            return self._kind(at + 1)
        kind = self._order[at][0]
        for i in range(start, len(options)):
            if wanted > capacities[i]:
                return False
            (cell, load), number = options[i]
            new = cell, added(load, kind, number)
            for nodes in range(min(self._groups.get((cell, load), 0), wanted // number), 0, -1):
                self._step()
                self._move((cell, load), new, nodes)
                if self._can_improve() and self._spread(
                    at, wanted - nodes * number, options, capacities, i + 1
                ):
                    return True
                self._move(new, (cell, load), nodes)
                if self._tired():
                    return True
        return False

    def _move(self, from_: _Group, to: _Group, nodes: int) -> None:
        self._groups[from_] -= nodes
        total = self._groups.get(to, 0) + nodes
        self._groups[to] = total
        if not self._groups[from_] and from_[1]:
            del self._groups[from_]

    def _step(self) -> None:
        self._budget.spend()
        self._steps += 1
        if self._best is not None or self._limit is not None:
            self._improvement.steps -= 1

    def _tired(self) -> bool:
        """Return whether enough was tried in search of a solution that is better than one that is known."""
        if self._improvement.steps > 0:
            return False
        return self._best is not None or (self._limit is not None and self._steps > _LEAST_STEPS)

    def _can_improve(self) -> bool:
        """Return whether what is placed so far can still become better than the best solution."""
        limit = self._best.score if self._best is not None else self._limit
        return limit is None or self._worth() <= limit[:2]

    def _worth(self) -> tuple[int, int]:
        """Return the alternatives, and the number of nodes."""
        ranks = nodes = 0
        for (cell, load), number in self._groups.items():
            if load and number:
                fit = self._cells.fit(cell, load)
                assert fit is not None
                ranks += fit.ranks * number
                nodes += number
        return ranks, nodes

    def _keep(self) -> bool:
        """Keep the solution if it is the best; return whether the search may end."""
        costs = [
            [c * number for c in fit.cost]
            for (cell, load), number in self._groups.items()
            if load and number and (fit := self._cells.fit(cell, load)) is not None
        ]
        score = (*self._worth(), *map(sum, zip(*costs, strict=True)))
        if self._limit is not None and score > self._limit:
            return False
        if self._best is None or score < self._best.score:
            packed = Packed(score, {g: n for g, n in self._groups.items() if g[1] and n})
            if not self._accept(packed):
                return False
            self._best = packed
        return self._tired()


def _capacities(options: Sequence[tuple[_Group, int]], groups: Mapping[_Group, int]) -> list[int]:
    """Return for each option how many bundles it and those behind it can take at most."""
    most: dict[_Group, int] = {}
    total = 0
    found = [0] * len(options)
    for i in range(len(options) - 1, -1, -1):
        group, number = options[i]
        more = number - most.get(group, 0)
        if more > 0:
            most[group] = number
            total += more * groups[group]
        found[i] = total
    return found
