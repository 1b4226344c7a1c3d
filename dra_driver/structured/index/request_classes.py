"""What claims of one class get of a component or a node class: worked out once, and kept in order.

Claims with equal requests and constraints have one ``RequestClass``. For one device, components are compared
by what their cheapest device costs; for several, node classes by the score of their best allocation, which is
worked out only where a lower bound leaves a chance to win.
"""

from __future__ import annotations

import enum
import itertools
from bisect import insort
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dra_driver.structured.index.equivalence import ComponentClass, FleetIndex, Layout, NodeClass, state_of
from dra_driver.structured.matching.plan import MAX_RESULTS, Alternative, ClaimPlan, FatalError
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Options
from dra_driver.structured.model.budget import Budget, BudgetExhausted
from dra_driver.structured.model.pools import NodeView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState
from dra_driver.structured.model.types import PoolPolicies, PoolPolicy, Strategy
from dra_driver.structured.search import bestfit
from dra_driver.structured.search.cost import Costs, is_busy
from dra_driver.structured.search.search import SearchLimitError

__all__ = ["Choice", "DevicePosition", "RequestClass", "Role", "Solved"]

Key = tuple[object, ...]
Allowed = Callable[[str], bool]


class Role(enum.Enum):
    """How claims are served on a node: by the strategies of the pools that have a device for them."""

    BEST = "best fit"
    FIRST = "first fit"
    MIXED = "both"


class DevicePosition(NamedTuple):
    """A device for a request, by numbers: they hold on every node of a class."""

    claim: int
    request: int
    alternative: int
    position: int


class Choice(NamedTuple):
    """The answer: a node, the devices there, and the alternative that each request gets."""

    node: str
    places: tuple[DevicePosition, ...]
    chosen: tuple[tuple[int, ...], ...]


class Solved(NamedTuple):
    """The best allocation on the nodes of a class."""

    key: Key
    places: tuple[DevicePosition, ...]
    chosen: tuple[tuple[int, ...], ...]


class _Kind(NamedTuple):
    """What a device of a kind costs each alternative: binding, waste, busy, other; None: no candidate."""

    costs: tuple[tuple[int, int, int, int] | None, ...]
    failing: bool


@dataclass(slots=True, eq=False)
class _Entry:
    """A node class in the order of its key: that of its best allocation, or a lower bound of it."""

    key: Key
    number: int
    nodes: NodeClass
    solved: Solved | None

    def __lt__(self, other: _Entry) -> bool:
        return (self.key, self.number) < (other.key, other.number)


@dataclass(slots=True, eq=False)
class _Part:
    """A component class in the order of its cheapest device."""

    key: Key
    number: int
    component: ComponentClass
    offset: int
    rank: int

    def __lt__(self, other: _Part) -> bool:
        return (self.key, self.number) < (other.key, other.number)


class RequestClass:
    """Claims of one shape under one projection.

    Args:
        plans: of one of them; names in them are not used.
        index: the classes of the projection.
        options: as for ``allocate``; how pools are used is the index's.
        shared: solutions that request classes share which want the same of equal devices.
    """

    def __init__(
        self,
        plans: tuple[ClaimPlan, ...],
        index: FleetIndex,
        options: Options,
        shared: dict[Hashable, Solved | None],
    ) -> None:
        self.plans = plans
        self.index = index
        self._options = Options(options.ignore_taint)
        self._shared = shared
        self._alternatives = [
            (ci, ri, ai, a)
            for ci, claim in enumerate(plans)
            for ri, request in enumerate(claim.requests)
            for ai, a in enumerate(request.alternatives)
        ]
        counts = [[a.count for a in r.alternatives] for c in plans for r in c.requests]
        admin = any(a.admin for *_, a in self._alternatives)
        self._counted = not admin and all(n is not None for request in counts for n in request)
        self._simple = self._counted and all(len(request) == 1 for request in counts)
        self.single = self._counted and sum(max(n or 0 for n in request) for request in counts) == 1
        least = sum(min(n or 0 for n in request) for request in counts)
        self._too_many = least > MAX_RESULTS or not self._counted
        wanted = tuple(
            (
                tuple(tuple((a.count, a.constraints) for a in r.alternatives) for r in claim.requests),
                tuple(c.match_attribute is not None for c in claim.constraints),
                claim.preferred,
            )
            for claim in plans
        )
        self._structure: Hashable = wanted
        self._budget = Budget()
        self._bound = tuple(
            ("same", c.match_attribute or c.distinct_attribute or "") for p in plans for c in p.constraints
        )
        self._start()

    def _start(self) -> None:
        self._generation = self.index.generation
        self._seen_components = 0
        self._seen_classes = 0
        self._kinds: dict[int, _Kind] = {}
        self._parts: list[_Part] = []
        self._entries: list[_Entry] = []
        self._may_fail: dict[Layout, bool] = {}
        self._roles: dict[Layout, Role] = {}
        # Node classes whose answer cannot be worked out (too many combinations, pools being updated).
        self.unsolved: set[NodeClass] = set()
        # Node classes where Kubernetes' search finds nothing.
        self.infeasible: set[NodeClass] = set()

    def follow(self, snapshot: Snapshot, policies: PoolPolicies | None, budget: Budget) -> None:
        """Bring the index up to the snapshot; forget what was known of one that started anew.

        Args:
            snapshot: of the question.
            policies: as for ``FleetIndex.follow``.
            budget: of the question; everything that is worked out until the next call is charged to it.

        Raises:
            BudgetExhausted: as for ``FleetIndex.follow``.
        """
        self._budget = budget
        self.index.follow(snapshot, budget, policies)
        if self._generation != self.index.generation:
            self._start()

    def best(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        """Return the best answer on the nodes that are allowed (None: all of them).

        Where the budget ends before every node class has been looked at, it is the best of those that were.

        Raises:
            BudgetExhausted: none of those has an answer.
        """
        return self._best_single(snapshot, allowed) if self.single else self._best_class(snapshot, allowed)

    def best_mixed(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        """The best answer on nodes where pools of both strategies serve the claims."""
        return self._best_class(snapshot, allowed)

    def role(self, snapshot: Snapshot, layout: Layout) -> Role:
        """How claims of the shape are served on nodes of a layout."""
        if not layout.first_fit:
            return Role.BEST
        if all(r is None or r.strategy is Strategy.FIRST_FIT for r in layout.policies):
            return Role.FIRST
        known = self._roles.get(layout)
        if known is None:
            found = {
                policy.strategy
                for kind, policy in zip(layout.kinds, self._policies_of(layout), strict=True)
                if policy is not None and any(c is not None for c in self._kind(snapshot, kind).costs)
            }
            known = Role.MIXED
            if len(found) < 2:
                known = Role.FIRST if Strategy.FIRST_FIT in found else Role.BEST
            self._roles[layout] = known
        return known

    def _policies_of(self, layout: Layout) -> Iterator[PoolPolicy | None]:
        """How the pool of each device is used."""
        for policy, number in zip(layout.policies, layout.sizes, strict=True):
            yield from itertools.repeat(policy, number)

    def may_fail(self, snapshot: Snapshot, layout: Layout) -> bool:
        """Whether Kubernetes' search may end in an error on nodes of the layout."""
        known = self._may_fail.get(layout)
        if known is None:
            known = self._may_fail[layout] = (
                layout.may_fail
                or self._too_many
                or any(self._kind(snapshot, k).failing for k in dict.fromkeys(layout.kinds))
            )
        return known

    # --- one device -----------------------------------------------------------------------------------------

    def _best_single(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        for number in range(self._seen_components, len(self.index.components)):
            component = self.index.components[number]
            found = self._cheapest(snapshot, component)
            if found is not None:
                insort(self._parts, _Part(found[0], number, component, found[1], found[2]))
            self._seen_components = number + 1
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

    def _first_place(self, best: tuple[tuple[int, int], str], tied: dict[ComponentClass, _Part]) -> Choice:
        place, name = best
        position, part = min(
            (component.positions[tied[c].offset], tied[c].rank)
            for c, key, component in self.index.class_of(name).parts
            if c in tied and _rank(c, key) == place
        )
        return Choice(name, (DevicePosition(*self._request(), part, position),), self._chosen(part))

    def _request(self) -> tuple[int, int]:
        return self._alternatives[0][:2]

    def _chosen(self, rank: int) -> tuple[tuple[int, ...], ...]:
        return tuple((rank,) * len(claim.requests) for claim in self.plans)

    def _cheapest(self, snapshot: Snapshot, of: ComponentClass) -> tuple[Key, int, int] | None:
        """The key of the cheapest device, its place in the component, and the alternative that gets it."""
        if of.component.shareable:
            return self._cheapest_share(snapshot, of)
        best: tuple[Key, int, int] | None = None
        kinds = of.component.content[0]
        assert isinstance(kinds, tuple)
        for offset, (kind, allocated) in enumerate(zip(kinds, of.allocated, strict=True)):
            if allocated:
                continue
            costs = self._kind(snapshot, kind).costs
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
        problem = self._problem(snapshot, of.view, state_of(of.view, of.states))
        costs = Costs(problem)
        pool = of.view.pools[of.component.pool]
        best: tuple[Key, int, int] | None = None
        for rank, (*_, alternative) in enumerate(self._alternatives):
            for offset, position in enumerate(of.component.positions):
                entry = pool.devices[position - of.component.offset]
                if of.allocated[offset]:
                    continue
                candidate = problem.serves(alternative, entry, pool)
                if candidate is None or any(amount > left for _, amount, left in candidate.counters):
                    continue
                cost = costs.of(alternative, candidate)
                key = (rank, cost.binding, cost.waste, cost.destroyed, cost.busy, cost.other_waste)
                if best is None or key < best[0]:
                    best = key, offset, rank
        return best

    def _destroyed(self, snapshot: Snapshot, of: ComponentClass, offset: int) -> int | None:
        """Capacity of partitions that become impossible; None where counters do not suffice."""
        if offset in of.counters:
            return of.counters[offset]
        problem = self._problem(snapshot, of.view, state_of(of.view, of.states))
        pool = of.view.pools[of.component.pool]
        entry = pool.devices[of.component.positions[offset] - of.component.offset]
        candidate = problem.bare_candidate(entry, pool)
        fits = all(amount <= left for _, amount, left in candidate.counters)
        destroyed = None
        if fits:
            destroyed = Costs(problem).destroyed(candidate) if candidate.counters else 0
        of.counters[offset] = destroyed
        return destroyed

    # --- several devices ------------------------------------------------------------------------------------

    def _best_class(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        for number in range(self._seen_classes, len(self.index.classes)):
            nodes = self.index.classes[number]
            bound = self._lower_bound(snapshot, nodes)
            if bound is not None:
                insort(self._entries, _Entry(bound, number, nodes, None))
            self._seen_classes = number + 1
        best: tuple[str, Solved] | None = None
        # Classes that get another chance with a new question: this one had too little left for them.
        again: list[_Entry] = []
        try:
            best = self._best_of_entries(snapshot, allowed, again)
        finally:
            for entry in again:
                insort(self._entries, entry)
        return None if best is None else Choice(best[0], best[1].places, best[1].chosen)

    def _best_of_entries(
        self, snapshot: Snapshot, allowed: Allowed | None, again: list[_Entry]
    ) -> tuple[str, Solved] | None:
        best: tuple[str, Solved] | None = None
        i = 0
        while i < len(self._entries):
            entry = self._entries[i]
            if best is not None and entry.key > best[1].key:
                break
            try:
                self._budget.spend()
            except BudgetExhausted:
                if best is None:
                    raise
                return best
            names = entry.nodes.nodes
            name = next(iter(names), None) if allowed is None else next(filter(allowed, names), None)
            if name is None:
                i += 1
            elif entry.solved is None:
                del self._entries[i]
                try:
                    solved = self._solve(snapshot, entry.nodes)
                except (BudgetExhausted, RecursionError):
                    again.append(entry)
                    if best is None:
                        raise
                    return best
                except SearchLimitError as e:
                    self._budget.cut = self._budget.cut or e.cut
                    if e.cut:
                        again.append(entry)
                    else:
                        self.unsolved.add(entry.nodes)
                    continue
                if solved is not None and self._budget.exhausted:
                    # Perhaps not the best on these nodes, but an answer: good for this question only.
                    again.append(entry)
                    return min(best, (name, solved), key=_by_key) if best is not None else (name, solved)
                if solved is not None:
                    insort(self._entries, _Entry(solved.key, entry.number, entry.nodes, solved))
            else:
                if best is None or name < best[0]:
                    best = name, entry.solved
                i += 1
        return best

    def _lower_bound(self, snapshot: Snapshot, nodes: NodeClass) -> Key | None:
        """What the best allocation costs at least; None where there are too few devices for any."""
        if not self._simple or not nodes.layout.plain or nodes.layout.first_fit:
            return ()
        free = self._free(nodes)
        binding = waste = 0
        for i, (*_, alternative) in enumerate(self._alternatives):
            costs = [c for p in free if (c := self._kind(snapshot, nodes.layout.kinds[p]).costs[i])]
            count = alternative.count or 0
            if len(costs) < count:
                return None
            for cost in sorted(costs)[:count]:
                binding += cost[0]
                waste += cost[1]
        return ((0,) * len(self._alternatives), binding, 0, waste)

    def _free(self, nodes: NodeClass) -> list[int]:
        found: list[int] = []
        offset = 0
        for number, pool in enumerate(nodes.view.pools):
            if nodes.layout.policies[number] is not None and not (pool.incomplete or pool.invalid):
                taken = nodes.states[number].devices
                found += [offset + i for i, e in enumerate(pool.devices) if e.id.device not in taken]
            offset += len(pool.devices)
        return found

    def _solve(self, snapshot: Snapshot, nodes: NodeClass) -> Solved | None:
        if nodes.layout.first_fit or not (self._counted and nodes.layout.plain):
            return self._search(snapshot, nodes)[0]
        # Relative to the least waste of each alternative, claims that want different amounts are equal.
        kinds = [self._kind(snapshot, k).costs for k in nodes.layout.kinds]
        least = [
            min((c[i][1] for c in kinds if (c[i]) is not None), default=0)  # type: ignore[index]
            for i in range(len(self._alternatives))
        ]
        relative = tuple(
            tuple(None if c is None else (c[0], c[1] - least[i], *c[2:]) for i, c in enumerate(costs))
            for costs in kinds
        )
        same = tuple(nodes.layout.columns[column] for column in self._bound)
        key = (self._structure, nodes.layout.structure, same, relative, nodes.in_use)
        if key in self._shared:
            found = self._shared[key]
            return None if found is None else self._shifted(found, least, 1)
        solved, complete = self._search(snapshot, nodes)
        if complete:
            if len(self._shared) > 20_000:
                self._shared.clear()
            self._shared[key] = None if solved is None else self._shifted(solved, least, -1)
        return solved

    def _shifted(self, solved: Solved, least: list[int], sign: int) -> Solved:
        ranks, binding, preferred, waste, *rest = solved.key
        assert isinstance(waste, int)
        shift = sum(
            n * (a.count or 0)
            for n, (ci, ri, ai, a) in zip(least, self._alternatives, strict=True)
            if solved.chosen[ci][ri] == ai
        )
        return Solved((ranks, binding, preferred, waste + sign * shift, *rest), solved.places, solved.chosen)

    def _search(self, snapshot: Snapshot, nodes: NodeClass) -> tuple[Solved | None, bool]:
        """Return the answer, and whether it is the same whatever the claims were before.

        Raises:
            SearchLimitError: too many combinations.
            BudgetExhausted: likewise, and the question has nothing left for other classes either.
        """
        problem = self._problem(
            snapshot, nodes.view, state_of(nodes.view, nodes.states), nodes.layout.policies
        )
        try:
            solution = bestfit.best_solution(problem)
        except FatalError:
            self.unsolved.add(nodes)
            return None, False
        if solution is None:
            return None, True
        number = {a: (ci, ri, ai) for ci, ri, ai, a in self._alternatives}
        position = {e: i for i, e in enumerate(e for p in nodes.view.pools for e in p.devices)}
        places = tuple(
            DevicePosition(*number[p.alternative], position[p.entry])
            for picks in solution.picks
            for p in picks
        )
        return Solved(solution.score.between_nodes, places, solution.chosen), not self._budget.exhausted

    # --- both -----------------------------------------------------------------------------------------------

    def _kind(self, snapshot: Snapshot, kind: int) -> _Kind:
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = self._look(snapshot, kind)
        return known

    def _look(self, snapshot: Snapshot, kind: int) -> _Kind:
        view, pool, entry = self.index.kinds[kind]
        problem = self._problem(snapshot, view, AllocatedState())
        costs = Costs(problem)
        found: list[tuple[int, int, int, int] | None] = []
        failing = False
        for *_, alternative in self._alternatives:
            looked = problem.look(alternative, entry, pool)
            failing = failing or (isinstance(looked, Candidate) and looked.error is not None)
            candidate = problem.serves(alternative, entry, pool)
            if candidate is None:
                found.append(None)
            else:
                binding = int(bool(entry.device.binding_conditions))
                waste, other = costs.waste(alternative, candidate)
                found.append((binding, waste, int(is_busy(entry)), other))
        return _Kind(tuple(found), failing)

    def _problem(
        self,
        snapshot: Snapshot,
        view: NodeView,
        state: AllocatedState,
        policies: tuple[PoolPolicy | None, ...] | None = None,
    ) -> NodeProblem:
        options = self._options
        if policies is not None:
            # Of the class: the node that stands for it may be one of another class by now.
            used = {p.id: r for p, r in zip(view.pools, policies, strict=True) if r is not None}
            options = replace(options, pools=used)
        return NodeProblem(snapshot.with_allocated(state), self.plans, view, options, self._budget)

    def alternatives(self) -> Iterator[Alternative]:
        """All alternatives of all requests."""
        for *_, alternative in self._alternatives:
            yield alternative


def _by_key(answer: tuple[str, Solved]) -> tuple[Key, str]:
    return answer[1].key, answer[0]


def _rank(of: ComponentClass, where: tuple[int, int]) -> tuple[int, int]:
    """How good a place in ``ComponentClass.nodes`` is under the policy for nodes; less is better."""
    return (0, -where[1]) if of.component.spread else where
