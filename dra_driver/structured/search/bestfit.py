"""Best fit: the best of all allocations that are possible on a node, and a score to compare nodes.

On a node the search runs several times: once over all devices, from the cheapest, and, if claims get several
devices, once within each group of devices that are close to each other or that share the value of a
``matchAttribute``. Each run improves on the best answer so far until it has tried everything or used up its
steps, so small nodes are solved exactly and large ones well.

Before all of them comes what the user prefers: of the alternatives of ``firstAvailable`` the earliest that
are possible are chosen, request by request in the order of the claims (``Score.ranks``). Only then costs are
compared: until the alternatives are chosen, an allocation that leaves much unused may still be part of the
best answer.

Devices of pools that are used first-fit cost nothing here, so that the first of them in Kubernetes' order is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dra_driver.api.meta import DriverName
from dra_driver.structured.matching.constraints import TOPOLOGY, Value
from dra_driver.structured.matching.plan import Alternative
from dra_driver.structured.matching.problem import Candidate, NodeProblem
from dra_driver.structured.model.budget import BudgetExhausted
from dra_driver.structured.model.pools import DeviceEntry, PoolView
from dra_driver.structured.model.types import NodePolicy, Strategy
from dra_driver.structured.search.bounds import too_few_devices
from dra_driver.structured.search.cost import Costs, DeviceCost, topology_of, topology_spread
from dra_driver.structured.search.search import Pick, Search, SearchLimitError

__all__ = ["Score", "Solution", "best_solution", "first_solution", "score_of"]

# Steps of a run after its first solution, in search of better ones.
IMPROVEMENT_STEPS: Final = 2_000
# Steps, after the first solution, in search of earlier alternatives.
RANK_STEPS: Final = 10_000
# Groups of devices with a value in common that are searched, if there are more of them than devices.
_MOST_GROUPS: Final = 16
# Steps that a score costs.
_STEPS_PER_SOLUTION: Final = 10


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """The quality of an allocation. Less is better; the fields are compared in their order.

    Attributes:
        ranks: the alternative of ``firstAvailable`` that each request gets, in the order of claims and
            requests. An earlier request's alternative is never given up for a later one's.
        binding: number of devices with binding conditions.
        preferred: topology groups beyond the first, on the levels that claims prefer.
        waste, destroyed, busy, other_waste: sums of ``DeviceCost``.
        spread: topology groups beyond the first, by level of ``TOPOLOGY``.
        broken: 1 if a node of which nothing is in use would be used in part.
        remaining: devices of the same pools that stay free; negative if the policy is to spread (``broken``
            is 0 then).
        order: positions of the devices, so that equal answers are decided in one way.
    """

    ranks: tuple[int, ...]
    binding: int
    preferred: int
    waste: int
    destroyed: int
    busy: int
    spread: tuple[int, ...]
    other_waste: int
    broken: int
    remaining: int
    order: tuple[int, ...]

    @property
    def between_nodes(self) -> tuple[object, ...]:
        """The score without positions, which differ between nodes; of equal nodes the first by name wins."""
        return (
            self.ranks,
            self.binding,
            self.preferred,
            self.waste,
            self.destroyed,
            self.busy,
            self.spread,
            self.other_waste,
            self.broken,
            self.remaining,
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """An allocation on one node: the devices and the alternatives of each claim."""

    score: Score
    picks: tuple[tuple[Pick, ...], ...]
    chosen: tuple[tuple[int, ...], ...]


def best_solution(problem: NodeProblem) -> Solution | None:
    """Return the best allocation on the node, or None if nothing fits.

    Raises:
        SearchLimitError: there are too many combinations, and none of those that were tried fits.
        BudgetExhausted: likewise, and nothing is left for other nodes either.
        FatalError: ``problem.prepare`` refuses the claims on this node.
    """
    problem.prepare(strict=False)
    if too_few_devices(problem):
        return None
    return _BestFit(problem).run()


def first_solution(problem: NodeProblem) -> Solution | None:
    """Return the first allocation that the search of best fit meets, or None if nothing fits.

    Raises:
        SearchLimitError, BudgetExhausted, FatalError: as for ``best_solution``.
    """
    problem.prepare(strict=False)
    if too_few_devices(problem):
        return None
    return _BestFit(problem).first()


def score_of(problem: NodeProblem, picks: Sequence[Sequence[Pick]], ranks: tuple[int, ...]) -> Score:
    """Return the score of an allocation that some search found; devices of first-fit pools count as well."""
    return _BestFit(problem, every=True).score(picks, ranks)


_FREE: Final = DeviceCost(0, 0, 0, 0, 0)


class _BestFit:
    """The searches on one node, and the best solution so far.

    Args:
        problem: the claims on the node.
        every: whether devices of first-fit pools are scored like all others.
    """

    def __init__(self, problem: NodeProblem, *, every: bool = False) -> None:
        self._problem = problem
        self._costs = Costs(problem)
        self._in_order = frozenset(
            pool.id
            for pool in problem.pools
            if not every
            and (policy := problem.options.policy(pool.id)) is not None
            and policy.strategy is Strategy.FIRST_FIT
        )
        self._best: Solution | None = None
        # Whether the best solution has the earliest alternatives that are possible.
        self._ranked = False
        self._single = _most_devices(problem) <= 1
        self._position = {
            entry: i for i, entry in enumerate(entry for pool in problem.pools for entry in pool.devices)
        }
        self._ordered: dict[Alternative, list[Candidate]] = {}
        self._best_fit_keys: dict[DeviceEntry, object] = {}

    def first(self) -> Solution | None:
        """Return the first solution."""
        search = Search(
            self._problem,
            on_solution=self._keep,
            order=self._by_cost,
            interchange_key=self._problem.interchange_key,
            strict=False,
        )
        search.run()
        return self._best

    def run(self) -> Solution | None:
        """Return the best solution."""
        self._run(None, None)
        if self._best is not None and not self._single:
            try:
                if not self._ranked:
                    self._improve_ranks(self._best)
                    self._run(None, IMPROVEMENT_STEPS)
                for group in self._groups():
                    self._run(group, IMPROVEMENT_STEPS)
            except BudgetExhausted:
                pass  # there is an answer; ``Budget.exhausted`` says that it may not be the best
        return self._best

    def _improve_ranks(self, best: Solution) -> None:
        """Find the earliest alternatives that are possible, request by request.

        The first request has its earliest already: the search tries all devices for one of its alternatives
        before the next one.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        steps = RANK_STEPS
        for i in range(1, len(best.score.ranks)):
            for rank in range(best.score.ranks[i]):
                ranks = (*best.score.ranks[:i], rank)
                if too_few_devices(self._problem, ranks):
                    continue
                # Costs do not matter here, so devices are interchangeable that have different ones.
                search = Search(
                    self._problem,
                    on_solution=self._keep,
                    order=self._by_cost,
                    interchange_key=self._problem.interchange_key,
                    strict=False,
                    max_steps=steps,
                    ranks=ranks,
                )
                try:
                    found = search.run()
                except SearchLimitError:
                    found = False
                steps = search.steps_left
                if found:
                    assert self._best is not None
                    best = self._best
                    break
        self._ranked = True

    def _run(self, within: Callable[[DeviceEntry], bool] | None, steps: int | None) -> None:
        """Run one search.

        Args:
            within: restricts the devices.
            steps: limit; if None, that of the budget.

        Raises:
            SearchLimitError: there are too many combinations, and none of those that were tried fits.
            BudgetExhausted: likewise, and nothing is left for other nodes either.
        """

        def order(alternative: Alternative) -> Sequence[Candidate]:
            candidates = self._by_cost(alternative)
            return candidates if within is None else [c for c in candidates if within(c.entry)]

        search = Search(
            self._problem,
            on_solution=self._consider,
            order=order,
            interchange_key=self._interchange_key,
            can_improve=self._can_improve,
            strict=False,
            max_steps=steps,
            ranks=self._best.score.ranks if self._best is not None else (),
        )
        try:
            search.run()
        except (SearchLimitError, BudgetExhausted):
            if self._best is None:
                raise

    def _by_cost(self, alternative: Alternative) -> list[Candidate]:
        """Return the candidates, cheapest first; without those that an allocation cannot carry."""
        ordered = self._ordered.get(alternative)
        if ordered is None:

            def key(candidate: Candidate) -> tuple[DeviceCost, tuple[int, int], int]:
                cost = self._cost(alternative, candidate)
                # For a single device the first solution is taken, so the order has to be that of the whole
                # score.
                place = self._pool_use(candidate.pool) if self._single else (0, 0)
                return cost, place, self._position[candidate.entry]

            usable = [
                c
                for c in self._problem.candidates(alternative)
                if c.error is None and not c.entry.ambiguous_selector
            ]
            ordered = self._ordered[alternative] = sorted(usable, key=key)
        return ordered

    def _cost(self, alternative: Alternative, candidate: Candidate) -> DeviceCost:
        if candidate.pool.id in self._in_order:
            return _FREE
        return self._costs.of(alternative, candidate)

    def _interchange_key(self, candidate: Candidate) -> object:
        """Return a key of devices that are interchangeable for the score, too."""
        base = self._problem.interchange_key(candidate)
        if base is None:
            return None
        entry = candidate.entry
        if entry not in self._best_fit_keys:
            device = entry.device
            self._best_fit_keys[entry] = (
                tuple(sorted((n, c.value.nano) for n, c in device.capacity.items())),
                bool(device.binding_conditions),
                tuple(sorted(topology_of(entry).items(), key=lambda item: item[0])),
                candidate.pool.id if candidate.counters else None,
            )
        return base, self._best_fit_keys[entry]

    def _can_improve(self, search: Search) -> bool:
        """Return whether what is chosen so far can still become better than the best solution.

        Compared are the fields of ``Score`` that never decrease as devices are added, in their order: cutting
        off where they exceed the best solution's loses nothing.
        """
        if self._best is None:
            return True
        best = self._best.score
        ranks = search.ranks()
        # The best solution has the earliest alternatives, so only equal ones leave the decision to costs.
        if ranks != best.ranks[: len(ranks)]:
            return False
        binding = waste = 0
        for pick in _flat(search.picks):
            cost = self._cost(pick.alternative, pick.candidate)
            binding += cost.binding
            waste += cost.waste
        return (binding, self._distance(search.picks), waste) <= (best.binding, best.preferred, best.waste)

    def _consider(self, search: Search) -> bool:
        """Keep the solution of the search if it is the best; return whether the search may stop."""
        self._keep(search)
        # Candidates are tried from the cheapest, so no better single device follows.
        if self._single:
            return True
        if not self._ranked:
            # Of no request but the first, for which every device has been tried with earlier alternatives.
            self._ranked = not any(search.ranks()[1:])
            if not self._ranked:
                return True
        search.limit(IMPROVEMENT_STEPS)
        return False

    def _keep(self, search: Search) -> bool:
        """Keep the solution of the search if it is the best; return True."""
        self._problem.budget.spend(_STEPS_PER_SOLUTION)
        score = self.score(search.picks, search.ranks())
        if self._best is None or score < self._best.score:
            self._best = Solution(
                score, tuple(tuple(p) for p in search.picks), tuple(tuple(c) for c in search.chosen)
            )
        return True

    def score(self, picks_of: Sequence[Sequence[Pick]], ranks: tuple[int, ...]) -> Score:
        """Return the score of picks, one list per claim."""
        picks = list(_flat(picks_of))
        counting = [p for p in picks if p.candidate.pool.id not in self._in_order]
        costs = [self._costs.of(p.alternative, p.candidate) for p in counting]
        broken, remaining = self._node_use([p for p in counting if p.alternative.consumes])
        return Score(
            ranks=ranks,
            binding=sum(c.binding for c in costs),
            preferred=self._distance(picks_of),
            waste=sum(c.waste for c in costs),
            destroyed=sum(c.destroyed for c in costs),
            busy=sum(c.busy for c in costs),
            spread=topology_spread([p.entry for p in counting]),
            other_waste=sum(c.other_waste for c in costs),
            broken=broken,
            remaining=remaining,
            order=tuple(self._position[p.entry] for p in picks),
        )

    def _node_use(self, picks: Sequence[Pick]) -> tuple[int, int]:
        """Return ``broken`` and ``remaining`` of ``Score``."""
        pools = {id(p.candidate.pool): p.candidate.pool for p in picks}
        total = used = 0
        for pool in pools.values():
            state = self._problem.snapshot.allocated.pool(pool.id)
            total += len(pool.devices)
            used += len(state.devices) + len(state.shares)
        remaining = max(0, total - used - len({p.entry for p in picks}))
        spread = bool(pools) and all(map(self._spreads, pools.values()))
        return _by_policy(used, remaining, spread=spread)

    def _spreads(self, pool: PoolView) -> bool:
        policy = self._problem.options.policy(pool.id)
        return policy is not None and policy.nodes is NodePolicy.SPREAD

    def _distance(self, picks: Sequence[Sequence[Pick]]) -> int:
        """Return ``preferred`` of ``Score``."""
        total = 0
        for claim, chosen in zip(self._problem.claims, picks, strict=True):
            if claim.preferred:
                spread = topology_spread([p.entry for p in chosen])
                total += sum(spread[TOPOLOGY.index(level)] for level in claim.preferred)
        return total

    def _pool_use(self, pool: PoolView) -> tuple[int, int]:
        """Return ``broken`` and ``remaining`` of ``Score`` for one device of a pool."""
        if pool.id in self._in_order:
            return 0, 0
        state = self._problem.snapshot.allocated.pool(pool.id)
        used = len(state.devices) + len(state.shares)
        return _by_policy(used, max(0, len(pool.devices) - used - 1), spread=self._spreads(pool))

    def _groups(self) -> Iterator[Callable[[DeviceEntry], bool]]:
        """Iterate over restrictions to devices that have something in common, the tightest first."""
        entries: dict[DeviceEntry, Candidate] = {}
        for claim in self._problem.claims:
            for request in claim.requests:
                for alternative in request.alternatives:
                    if alternative.count is not None:
                        entries.update((c.entry, c) for c in self._by_cost(alternative))
        for facts in self._facts(entries):
            drivers = {e.id.driver for e in facts}
            # A device with a list of values is in the group of each of them.
            by_value: dict[Value, set[DeviceEntry]] = {}
            for entry, values in facts.items():
                for value in values if len(values) == 1 else sorted(values, key=repr):
                    by_value.setdefault(value, set()).add(entry)
            # Lists overlap: groups may be equal, and there may be more of them than devices.
            groups = dict.fromkeys(map(frozenset, by_value.values()))
            for members in islice(groups, max(len(facts), _MOST_GROUPS)):
                # One group of all devices is what the first run searched.
                if len(members) < len(entries) and (len(members) > 1 or len(drivers) > 1):
                    yield _within(members, drivers)

    def _facts(self, entries: dict[DeviceEntry, Candidate]) -> Iterator[dict[DeviceEntry, frozenset[Value]]]:
        """Iterate over topology levels, then constraints: the values of the devices that have one."""
        topology = {entry: topology_of(entry) for entry in entries}
        for level in TOPOLOGY:
            yield {e: t[level] for e, t in topology.items() if level in t}
        for claim in self._problem.claims:
            for i, constraint in enumerate(claim.constraints):
                if constraint.match_attribute is not None:
                    yield {e: values for e in entries if (values := self._problem.values(claim, i, e))}


def _within(members: frozenset[DeviceEntry], drivers: set[DriverName]) -> Callable[[DeviceEntry], bool]:
    """Return the restriction to a group; devices of drivers that lack the attribute are not restricted."""
    return lambda entry: entry in members or entry.id.driver not in drivers


def _by_policy(used: int, remaining: int, *, spread: bool) -> tuple[int, int]:
    """Return ``broken`` and ``remaining`` of ``Score`` from the number of devices in use and left."""
    return (0, -remaining) if spread else (int(used == 0 and remaining > 0), remaining)


def _flat(picks: Sequence[Sequence[Pick]]) -> Iterator[Pick]:
    for of_claim in picks:
        yield from of_claim


def _most_devices(problem: NodeProblem) -> int:
    """Return the largest number of devices that may be chosen one by one.

    "All devices" leave no choice, but count as 2: what is chosen beside them depends on them.
    """
    return sum(
        max(2 if a.count is None else a.count for a in request.alternatives)
        for claim in problem.claims
        for request in claim.requests
    )
