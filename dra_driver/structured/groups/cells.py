"""Nodes that can stand for one another, and how many members one of them holds at the same time.

The claims of all members that are to be on one node are solved together, so what fits does not depend on
which of them comes first. It is worked out once for a node of each cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from dra_driver.api.core import Node
from dra_driver.api.resource import AllocationResult, NodeSelector, ResourceClaim
from dra_driver.structured.groups.kinds import Bundle, Kind
from dra_driver.structured.groups.members import Level
from dra_driver.structured.index.demand import DevicePosition
from dra_driver.structured.index.equivalence import NodeClass
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.index.several_devices import free_positions
from dra_driver.structured.matching.constraints import attribute_of
from dra_driver.structured.matching.plan import FatalError, compile_claims
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Options
from dra_driver.structured.model import nodeselection
from dra_driver.structured.model.budget import Budget, BudgetExhausted
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.search.bestfit import Score, Solution, best_solution, first_solution
from dra_driver.structured.search.results import allocation_results
from dra_driver.structured.search.search import Pick, SearchLimitError

__all__ = ["EMPTY", "Cell", "Cells", "Fit", "Load", "Placed", "Within", "added"]

Load = tuple[tuple[int, int], ...]
"""What is on a node: numbers of kinds with the number of bundles of each, in the order of kinds."""
EMPTY: Final[Load] = ()
Within = tuple[tuple[str, str], ...]
"""Attributes of devices with the values that they must have, if they have one."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a load of a node is worth; less is better.

    Attributes:
        ranks: sum of the alternatives that the requests get.
        cost: the rest of ``Score.between_nodes``, with sums in place of lists.
    """

    ranks: int
    cost: tuple[int, ...]

    @classmethod
    def of(cls, score: Score) -> Fit:
        """Return what a score is worth."""
        cost = (
            score.binding,
            score.preferred,
            score.waste,
            score.destroyed,
            score.busy,
            sum(score.spread),
            score.other_waste,
            score.broken,
            score.remaining,
        )
        return cls(sum(score.ranks), cost)


class _Solved(NamedTuple):
    """The devices for a load, by positions, and the alternative of each request."""

    places: tuple[DevicePosition, ...]
    chosen: tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class Cell:
    """Nodes of one class that the same kinds can go to, with the same devices left out and as much room.

    Attributes:
        node: one of them.
        left_out: positions of devices that are of other domains.
        allowed: by kind, whether it can go there as far as devices do not matter.
        free: what is left besides devices, as far as members can use it.
        devices: number of devices that are free; None if some of them can be shared.
        fits: loads that were tried; None for one that does not fit.
        solved: the devices of loads that fit: the first that were found, or the best.
        best: loads for which the best were looked for.
    """

    number: int
    node: str
    left_out: frozenset[int]
    allowed: tuple[bool, ...]
    free: tuple[int, ...] | None
    devices: int | None
    fits: dict[Load, Fit | None] = field(default_factory=dict)
    solved: dict[Load, _Solved] = field(default_factory=dict)
    best: set[Load] = field(default_factory=set)


class Placed(NamedTuple):
    """A node that is used, and what goes there."""

    node: str
    cell: Cell
    load: Load
    bundles: Sequence[Bundle]


class Cells:
    """The nodes of a group's question, by cell.

    Args:
        snapshot: the cluster.
        kinds: of the group.
        options: as for ``allocate``.
        free: what is left of each node besides devices.
        budget: of the question.

    Attributes:
        cut: whether something was refused before everything had been tried.

    Raises:
        FatalError: the claims ask for something that does not exist.
        BudgetExhausted: the question has no steps or no time left.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        kinds: Sequence[Kind],
        options: Options,
        free: Mapping[str, tuple[int, ...]] | None,
        budget: Budget,
    ) -> None:
        self._snapshot = snapshot
        self._kinds = kinds
        self._options = options
        self._free = free
        self._budget = budget
        self.cut = False
        self._most = [len(kind.bundles) for kind in kinds]
        claims = [claim for kind in kinds for claim in kind.of.claims]
        fleet = snapshot.memory.of(Fleet)
        policies = options.pools
        if policies is not None and not isinstance(policies, PersistentMap):
            policies = PersistentMap(policies)
        try:
            found = fleet.request_class(snapshot, claims, options, policies, budget)
            names = self._names()
            self._class_of: dict[str, NodeClass] = {n: found.index.class_of(n) for n in names}
        finally:
            fleet.settle()
        self._least = [_least(kind, snapshot) for kind in kinds]
        self._allowed = self._by_allowed(names)
        self._cells: dict[object, Cell] = {}
        self._of_node: dict[tuple[str, Within], Cell] = {}
        self._left_out: dict[tuple[str, Within], frozenset[int]] = {}

    @property
    def nodes(self) -> Collection[str]:
        """Nodes that some member can go to."""
        return self._class_of

    def _names(self) -> list[str]:
        every = self._snapshot.nodes
        if any(kind.of.nodes is None for kind in self._kinds):
            return list(every)
        wanted: set[str] = set()
        for nodes in {id(k.of.nodes): k.of.nodes for k in self._kinds}.values():
            wanted.update(nodes or ())
        return sorted(name for name in wanted if name in every)

    def _by_allowed(self, names: Sequence[str]) -> list[Collection[str] | None]:
        """Return for each kind the nodes that it can go to; None for all of them."""
        found: list[Collection[str] | None] = []
        for kind in self._kinds:
            nodes = kind.of.nodes
            allocations = [c.status.allocation for c in kind.of.claims if c.status.allocation is not None]
            selectors = [a.node_selector for a in allocations if a.node_selector is not None]
            if selectors:
                admitted = (n for n in names if nodes is None or n in nodes)
                of = self._snapshot.nodes
                nodes = {n for n in admitted if all(_matches(s, of[n]) for s in selectors)}
            elif nodes is not None and not isinstance(nodes, set | frozenset):
                nodes = frozenset(nodes)
            found.append(nodes)
        return found

    # --- cells ----------------------------------------------------------------------------------------------

    def of(self, names: Iterable[str], within: Within = ()) -> dict[Cell, list[str]]:
        """Return the cells of some nodes, each with its nodes in the order of names.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        found: dict[Cell, list[str]] = {}
        known = self._of_node
        for name in names:
            cell = known.get((name, within))
            if cell is None:
                cell = known[name, within] = self._cell(name, within)
            found.setdefault(cell, []).append(name)
        self._budget.spend(1 + sum(map(len, found.values())) // 16)
        return found

    def _cell(self, name: str, within: Within) -> Cell:
        nodes = self._class_of[name]
        allowed = tuple([a is None or name in a for a in self._allowed])
        free = self._capped(name)
        left_out = self._others(name, within) if within else frozenset()
        key = (nodes, allowed, free, left_out)
        cell = self._cells.get(key)
        if cell is None:
            devices = self._devices(nodes, left_out)
            cell = self._cells[key] = Cell(len(self._cells), name, left_out, allowed, free, devices)
        return cell

    def _devices(self, nodes: NodeClass, left_out: frozenset[int]) -> int | None:
        entries = [e for pool in nodes.view.pools for e in pool.devices]
        free = [entries[i] for i in free_positions(nodes) if i not in left_out]
        return None if any(e.shareable for e in free) else len(free)

    def _capped(self, name: str) -> tuple[int, ...] | None:
        """Return what is left besides devices; not more than the whole group needs."""
        if self._free is None or name not in self._free:
            return None
        return tuple(map(min, self._free[name], self._all_needs))

    @cached_property
    def _all_needs(self) -> tuple[int, ...]:
        """What the whole group needs besides devices."""
        needs = [
            [amount * number for amount in kind.of.needs]
            for kind, number in zip(self._kinds, self._most, strict=True)
        ]
        return tuple(map(sum, zip(*needs, strict=False)))

    def _others(self, name: str, within: Within) -> frozenset[int]:
        """Return the positions of devices on a node that have other values."""
        known = self._left_out.get((name, within))
        if known is None:
            entries = (e for pool in self._snapshot.view(name).pools for e in pool.devices)
            positions = []
            for i, entry in enumerate(entries):
                for attribute, value in within:
                    of = attribute_of(entry.device, entry.id.driver, attribute)
                    if of is not None and of.string_value != value:
                        positions.append(i)
                        break
            known = self._left_out[name, within] = frozenset(positions)
        return known

    def values(self, name: str, level: Level) -> set[str]:
        """Return the domains of a level that a node is in.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        if level.label:
            value = (self._snapshot.nodes[name].metadata.labels or {}).get(level.label)
            return set() if value is None or level.value not in ("", value) else {value}
        found: set[str] = set()
        for pool in self._snapshot.view(name).pools:
            self._budget.spend(1 + len(pool.devices) // 8)
            for entry in pool.devices:
                attribute = attribute_of(entry.device, entry.id.driver, level.attribute)
                if attribute is not None and attribute.string_value is not None:
                    found.add(attribute.string_value)
        return found & {level.value} if level.value else found

    # --- what fits ------------------------------------------------------------------------------------------

    def fit(self, cell: Cell, load: Load) -> Fit | None:
        """Return what a load of a node of the cell is worth; None if it does not fit, or it cannot be told.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        if load in cell.fits:
            return cell.fits[load]
        found = cell.fits[load] = self._try(cell, load)
        return found

    def _try(self, cell: Cell, load: Load) -> Fit | None:
        if not all(cell.allowed[kind] for kind, _ in load):
            return None
        if cell.devices is not None and sum(self._least[k] * n for k, n in load) > cell.devices:
            return None
        if cell.free is not None:
            for i, free in enumerate(cell.free):
                if sum(self._kinds[kind].of.needs[i] * number for kind, number in load) > free:
                    return None
        claims = self._claims(load)
        self._budget.spend(1 + len(claims))
        try:
            problem = self._problem(cell, claims, self._snapshot, cell.node, self._budget)
            solution = first_solution(problem)
        except SearchLimitError as e:
            self.cut = True
            self._budget.cut = self._budget.cut or e.cut
            return None
        except FatalError:
            return None
        if solution is None:
            return None
        cell.solved[load] = self._by_positions(cell, problem, solution)
        return Fit.of(solution.score)

    def most(self, cell: Cell, load: Load, kind: int, limit: int) -> int:
        """Return how many more bundles of a kind a node of the cell holds beside a load, up to a limit.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        number = 0
        while number < limit and self.fit(cell, added(load, kind, number + 1)) is not None:
            number += 1
        return number

    def _claims(self, load: Load) -> list[ResourceClaim]:
        """Return the claims of bundles that are a load."""
        return [c for k, n in load for bundle in self._kinds[k].bundles[:n] for c in bundle.claims]

    def _problem(
        self,
        cell: Cell,
        claims: Sequence[ResourceClaim],
        snapshot: Snapshot,
        node: str,
        budget: Budget,
        *,
        left_out: bool = True,
    ) -> NodeProblem:
        """Return the problem of claims on a node of the cell, with or without devices of other domains."""
        plans = compile_claims(claims, snapshot.classes, snapshot.features)
        options = replace(self._options, left_out=cell.left_out) if left_out else self._options
        return NodeProblem(snapshot, plans, snapshot.view(node), options, budget)

    # --- answers --------------------------------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether nodes may share devices that can be used."""
        used = self._options.pools
        return any(used is None or pool in used for pool in self._snapshot.index.cluster_wide.pools)

    def hold(self, placed: Sequence[Placed]) -> bool:
        """Return whether nodes that share devices hold these loads, one after the other.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        held = self._one_by_one(placed) is not None
        # Other devices on the first nodes might do.
        self.cut = self.cut or not held
        return held

    def answers(self, placed: Sequence[Placed]) -> Sequence[Sequence[tuple[AllocationResult, ...]]]:
        """Return for each node the results of its bundles, one per claim.

        Raises:
            FatalError: a device has a node selector that an allocation cannot carry.
            BudgetExhausted: as for ``hold``.
        """
        if self.shared:
            found = self._one_by_one(placed)
            assert found is not None  # they hold
            return found
        return [self._answer(*of) for of in placed]

    def _one_by_one(self, placed: Sequence[Placed]) -> list[list[tuple[AllocationResult, ...]]] | None:
        snapshot = self._snapshot
        found: list[list[tuple[AllocationResult, ...]]] = []
        for of in placed:
            claims = [claim for bundle in of.bundles for claim in bundle.claims]
            problem = self._problem(of.cell, claims, snapshot, of.node, self._budget)
            try:
                solution = best_solution(problem)
            except (SearchLimitError, FatalError):
                return None
            if solution is None:
                return None
            results = allocation_results(problem, solution.picks, solution.chosen)
            found.append(_by_bundle(of.bundles, results))
            pairs = zip(claims, results, strict=True)
            made = [(str(c.key), r) for c, r in pairs if c.status.allocation is None]
            snapshot = snapshot.with_allocated(snapshot.allocated.with_allocations(made))
        return found

    def _answer(
        self, node: str, cell: Cell, load: Load, on_it: Sequence[Bundle]
    ) -> list[tuple[AllocationResult, ...]]:
        """Return the results of the bundles on a node, from the solution for a node of its cell."""
        if load not in cell.best:
            cell.best.add(load)
            self._improve(cell, load)
        solved = cell.solved[load]
        claims = [claim for bundle in on_it for claim in bundle.claims]
        # With steps of its own: an answer must not be lost because the search for it used up the budget.
        problem = self._problem(cell, claims, self._snapshot, node, Budget(), left_out=False)
        devices = [(entry, pool) for pool in self._snapshot.view(node).pools for entry in pool.devices]
        picks: list[list[Pick]] = [[] for _ in claims]
        for place in solved.places:
            alternative = problem.claims[place.claim].requests[place.request].alternatives[place.alternative]
            entry, pool = devices[place.position]
            candidate = problem.look(alternative, entry, pool)
            assert isinstance(candidate, Candidate), candidate
            picks[place.claim].append(Pick(alternative, candidate, problem.share(alternative, candidate)))
        return _by_bundle(on_it, allocation_results(problem, picks, solved.chosen))

    def _improve(self, cell: Cell, load: Load) -> None:
        """Look for the best devices for a load that fits, as far as the budget goes."""
        try:
            problem = self._problem(cell, self._claims(load), self._snapshot, cell.node, self._budget)
            solution = best_solution(problem)
        except (SearchLimitError, BudgetExhausted):
            return
        assert solution is not None  # it fits
        cell.solved[load] = self._by_positions(cell, problem, solution)

    def _by_positions(self, cell: Cell, problem: NodeProblem, solution: Solution) -> _Solved:
        """Return a solution in a form that holds for all nodes of the cell."""
        number = {
            alternative: (ci, ri, ai)
            for ci, claim in enumerate(problem.claims)
            for ri, request in enumerate(claim.requests)
            for ai, alternative in enumerate(request.alternatives)
        }
        entries = (e for pool in self._snapshot.view(cell.node).pools for e in pool.devices)
        position = {entry: i for i, entry in enumerate(entries)}
        places = tuple(
            DevicePosition(*number[p.alternative], position[p.entry])
            for picks in solution.picks
            for p in picks
        )
        return _Solved(places, solution.chosen)


def _least(kind: Kind, snapshot: Snapshot) -> int:
    """Return the least number of devices that a bundle of a kind takes from others."""
    return sum(
        min(a.count if a.count is not None and a.consumes else 0 for a in request.alternatives)
        for plan in compile_claims(kind.of.claims, snapshot.classes, snapshot.features)
        for request in plan.requests
    )


def _by_bundle(
    on_it: Sequence[Bundle], results: Sequence[AllocationResult]
) -> list[tuple[AllocationResult, ...]]:
    left = iter(results)
    return [tuple(next(left) for _ in bundle.claims) for bundle in on_it]


def added(load: Load, kind: int, number: int) -> Load:
    """Return the load with so many more bundles of a kind."""
    of = dict(load)
    of[kind] = of.get(kind, 0) + number
    return tuple(sorted(of.items()))


def _matches(selector: NodeSelector, node: Node) -> bool:
    return nodeselection.selector_matches(selector, node)
