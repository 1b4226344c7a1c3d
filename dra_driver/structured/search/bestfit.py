"""Best fit: of all allocations that are possible on a node the best, and a score to compare nodes.

On a node the search runs several times: once over all devices, from the cheapest, and, where a claim gets
several devices, once within each group of devices that are close to each other or that share the value of a
``matchAttribute``. Each run improves on the best answer so far until it has seen everything or used up its
steps, so small nodes are solved exactly and large ones well.

Devices of pools that are to be used first-fit cost nothing here, so that the first of them in Kubernetes'
order is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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

__all__ = ["Score", "Solution", "best_solution", "score_of"]

# Devices that a run tries after it has found an answer, to find a better one.
IMPROVEMENT_STEPS: Final = 2_000
# What working out the score of an answer costs, in steps.
_STEPS_PER_SOLUTION: Final = 10


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """Smaller is better; the fields in the order of their weight.

    Attributes:
        ranks: the alternative of ``firstAvailable`` that each request gets.
        binding: devices with binding conditions.
        preferred: how far the devices of claims with a preference are from what they prefer.
        waste, destroyed, busy, other_waste: sums of ``DeviceCost``.
        spread: how far the devices are from each other, from NVLink to NUMA.
        broken: 1 where a node of which nothing is in use is used in part.
        remaining: devices of the same pools that stay free; where the policy is to spread, less is worse (and
            ``broken`` is 0).
        order: positions of the devices, for a deterministic end.
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
        """What counts between nodes: everything but the positions. Of equal nodes the first by name wins."""
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
    """An allocation on one node."""

    score: Score
    picks: tuple[tuple[Pick, ...], ...]
    chosen: tuple[tuple[int, ...], ...]


def best_solution(problem: NodeProblem) -> Solution | None:
    """The best allocation on the node.

    Raises:
        SearchLimitError: there are too many combinations, and none of those that were tried fits.
        BudgetExhausted: likewise, and the question has nothing left for other nodes either.
        FatalError: ``problem.prepare`` refuses the claims on this node.
    """
    problem.prepare(strict=False)
    if too_few_devices(problem):
        return None
    return _BestFit(problem).run()


def score_of(problem: NodeProblem, picks: Sequence[Sequence[Pick]], ranks: tuple[int, ...]) -> Score:
    """The score of an allocation, however it was found; every device counts."""
    return _BestFit(problem, every=True).score(picks, ranks)


_FREE: Final = DeviceCost(0, 0, 0, 0, 0)


class _BestFit:
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
        self._single = _most_devices(problem) <= 1
        self._position = {
            entry: i for i, entry in enumerate(entry for pool in problem.pools for entry in pool.devices)
        }
        self._ordered: dict[Alternative, list[Candidate]] = {}
        self._best_fit_keys: dict[DeviceEntry, object] = {}

    def run(self) -> Solution | None:
        everywhere = self._run(None, None)
        if not self._single and everywhere:
            try:
                for group in self._groups():
                    self._run(group, IMPROVEMENT_STEPS)
            except BudgetExhausted:
                pass  # there is an answer already; the caller sees that its budget is exhausted
        return self._best

    def _run(self, within: Callable[[DeviceEntry], bool] | None, steps: int | None) -> bool:
        """One search; True where there is an answer by now."""

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
        )
        try:
            search.run()
        except (SearchLimitError, BudgetExhausted):
            if self._best is None:
                raise
        return self._best is not None

    def _by_cost(self, alternative: Alternative) -> list[Candidate]:
        ordered = self._ordered.get(alternative)
        if ordered is None:

            def key(candidate: Candidate) -> tuple[DeviceCost, tuple[int, int], int]:
                cost = self._cost(alternative, candidate)
                # The first of the order is taken where it is about one device, so all of the score counts.
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
        if self._best is None:
            return True
        best = self._best.score
        ranks = search.ranks()
        if ranks != best.ranks[: len(ranks)]:
            return ranks < best.ranks[: len(ranks)]
        binding = waste = 0
        for pick in _flat(search.picks):
            cost = self._cost(pick.alternative, pick.candidate)
            binding += cost.binding
            waste += cost.waste
        return (binding, self._distance(search.picks), waste) <= (best.binding, best.preferred, best.waste)

    def _consider(self, search: Search) -> bool:
        self._problem.budget.spend(_STEPS_PER_SOLUTION)
        score = self.score(search.picks, search.ranks())
        if self._best is None or score < self._best.score:
            self._best = Solution(
                score, tuple(tuple(p) for p in search.picks), tuple(tuple(c) for c in search.chosen)
            )
        # A single device comes from the cheapest: nothing better follows.
        if self._single:
            return True
        search.limit(IMPROVEMENT_STEPS)
        return False

    def score(self, picks_of: Sequence[Sequence[Pick]], ranks: tuple[int, ...]) -> Score:
        """The score of picks, one list per claim."""
        picks = list(_flat(picks_of))
        counting = [p for p in picks if p.candidate.pool.id not in self._in_order]
        costs = [self._costs.of(p.alternative, p.candidate) for p in counting]
        broken, remaining = self._node_use(counting)
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
        """Whether an untouched node is used in part, and how many devices of the pools stay free."""
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
        """Groups beyond the first over which claims are spread on the levels that they prefer."""
        total = 0
        for claim, chosen in zip(self._problem.claims, picks, strict=True):
            if claim.preferred:
                spread = topology_spread([p.entry for p in chosen])
                total += sum(spread[TOPOLOGY.index(level)] for level in claim.preferred)
        return total

    def _pool_use(self, pool: PoolView) -> tuple[int, int]:
        """The same for one device of a pool."""
        if pool.id in self._in_order:
            return 0, 0
        state = self._problem.snapshot.allocated.pool(pool.id)
        used = len(state.devices) + len(state.shares)
        return _by_policy(used, max(0, len(pool.devices) - used - 1), spread=self._spreads(pool))

    def _groups(self) -> Iterator[Callable[[DeviceEntry], bool]]:
        """Restrictions to devices that have something in common, the tightest first."""
        entries: dict[DeviceEntry, Candidate] = {}
        for claim in self._problem.claims:
            for request in claim.requests:
                for alternative in request.alternatives:
                    if alternative.count is not None:
                        entries.update((c.entry, c) for c in self._by_cost(alternative))
        for facts in self._facts(entries):
            drivers = {e.id.driver for e in facts}
            by_value: dict[frozenset[Value], set[DeviceEntry]] = {}
            for entry, values in facts.items():
                by_value.setdefault(values, set()).add(entry)
            if len(by_value) < 2 and len(facts) == len(entries):
                continue
            for members in by_value.values():
                if len(members) > 1 or len(drivers) > 1:
                    yield _within(members, drivers)

    def _facts(self, entries: dict[DeviceEntry, Candidate]) -> Iterator[dict[DeviceEntry, frozenset[Value]]]:
        topology = {entry: topology_of(entry) for entry in entries}
        for level in TOPOLOGY:
            yield {e: t[level] for e, t in topology.items() if level in t}
        for claim in self._problem.claims:
            for i, constraint in enumerate(claim.constraints):
                if constraint.match_attribute is not None:
                    yield {e: values for e in entries if (values := self._problem.values(claim, i, e))}


def _within(members: set[DeviceEntry], drivers: set[DriverName]) -> Callable[[DeviceEntry], bool]:
    return lambda entry: entry in members or entry.id.driver not in drivers


def _by_policy(used: int, remaining: int, *, spread: bool) -> tuple[int, int]:
    return (0, -remaining) if spread else (int(used == 0 and remaining > 0), remaining)


def _flat(picks: Sequence[Sequence[Pick]]) -> Iterator[Pick]:
    for of_claim in picks:
        yield from of_claim


def _most_devices(problem: NodeProblem) -> int:
    """At most so many devices are chosen one by one ("all" leaves no choice, but has company)."""
    return sum(
        max(2 if a.count is None else a.count for a in request.alternatives)
        for claim in problem.claims
        for request in claim.requests
    )
