"""The fewest holders that have to go so that a workload fits.

For each class of equal nodes and each number of members on one, the smallest set of holders there is found; a
table over the numbers of members then gives the cheapest way to spread all of them over nodes. Where nodes
share devices, that does not hold, and sets of holders of the whole cluster are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_driver.planning.checks import Checks, OutOfTime
from dra_driver.planning.holders.domains import domains_of
from dra_driver.planning.holders.nodes import Known, NodeClass, NodeCosts
from dra_driver.planning.holders.sets import fewest, irreducible
from dra_driver.planning.holders.spreading import Choice, Cost, Load, NodeOption, Option, cheapest
from dra_driver.planning.question import Workload, units_of
from dra_driver.structured import GroupAllocated

__all__ = ["Freed", "Freeing"]


@dataclass(frozen=True, slots=True)
class Freed:
    """Holders that go, and where the workload then is.

    Attributes:
        holders: their numbers.
        answer: of the allocator, without them.
        proven: whether no smaller number is enough.
        at_least: a number below which nothing is enough.
    """

    holders: frozenset[int]
    answer: GroupAllocated
    proven: bool
    at_least: int = 1


class Freeing:
    """The search for one workload, which does not fit as things are.

    Attributes:
        possible: whether it fits without any holder; None if that is not known.
    """

    def __init__(self, checks: Checks, workload: Workload) -> None:
        self._checks = checks
        self._workload = workload
        self.possible: bool | None = None

    def fewest(self) -> Freed | None:
        """Return the smallest set that was found; None if there is none, or none was found in time."""
        checks, workload = self._checks, self._workload
        every = range(len(checks.cluster.holders))
        checks.unsure = False
        if not every:
            self.possible = False
            return None
        try:
            alone = checks.solve(workload, every)
        except OutOfTime:
            return None
        if not isinstance(alone, GroupAllocated):
            self.possible = None if checks.unsure else False
            return None
        self.possible = True
        if checks.cluster.coupled and len(units_of(workload.members)) > 1:
            return self._anywhere(self._used(alone), alone)
        found = self._by_nodes()
        if found is None:
            return self._anywhere(self._used(alone), alone)
        return found

    def _by_nodes(self) -> Freed | None:
        costs = NodeCosts(self._checks, self._workload)
        found, verified = self._search(costs)
        if not verified and costs.trusting:
            costs.trusting = False
            found, _ = self._search(costs)
        return found

    def _search(self, costs: NodeCosts) -> tuple[Freed | None, bool]:
        """Return the smallest set that was found; and False if what seemed to be enough is not."""
        checks = self._checks
        search = _Search(checks, costs)
        try:
            for domain in domains_of(checks.cluster.snapshot, self._workload.levels):
                search.estimate(costs.classes(domain))
            search.improve()
            complete = costs.complete and not checks.unsure
        except OutOfTime:
            complete = False
        best = search.best
        if best is None:
            return None, True
        try:
            answer = checks.solve(self._workload, best.holders)
        except OutOfTime:
            return None, True
        if not isinstance(answer, GroupAllocated):
            return None, False
        least = search.least if complete else 1
        return Freed(best.holders, answer, least == len(best.holders), least), True

    # --- without nodes of their own -------------------------------------------------------------------------

    def _used(self, alone: GroupAllocated) -> list[int]:
        """Return all holders, those of devices that the empty cluster would give to the workload last."""
        used = {
            (r.driver, r.pool)
            for member in alone.members
            if member is not None
            for result in member.results
            for r in result.devices.results
        }
        holders = self._checks.cluster.holders

        def key(i: int) -> tuple[bool, int, str]:
            pools = {
                (r.driver, r.pool)
                for c in holders[i].claims
                if c.status.allocation is not None
                for r in c.status.allocation.devices.results
            }
            return bool(pools & used), -holders[i].priority, holders[i].name

        return sorted(range(len(holders)), key=key)

    def _anywhere(self, order: Sequence[int], alone: GroupAllocated) -> Freed | None:
        """Return a set among all holders of the cluster; the smallest one if there is time for that."""
        checks, workload = self._checks, self._workload
        answers: dict[frozenset[int], GroupAllocated] = {frozenset(order): alone}

        def holds(freed: frozenset[int]) -> bool:
            answer = checks.solve(workload, freed)
            if isinstance(answer, GroupAllocated):
                answers[freed] = answer
            return isinstance(answer, GroupAllocated)

        proven = False
        try:
            enough = irreducible(order, holds)
            better = fewest(list(reversed(order)), holds, len(enough))
            proven = not checks.unsure
        except OutOfTime:
            better = None
        if better is None:
            better = min(answers, key=len)
        return Freed(better, answers[better], proven, len(better) if proven else 1)


class _Search:
    """Bounds from both sides, domain by domain: what is enough, and what is not.

    Attributes:
        best: the cheapest holders so far; None if the workload fits in no domain.
        least: a number below which nothing is enough.
    """

    def __init__(self, checks: Checks, costs: NodeCosts) -> None:
        self._checks = checks
        self._costs = costs
        self._domains: list[list[NodeClass]] = []
        self._bounds: list[int] = []
        self.best: Choice | None = None

    @property
    def least(self) -> int:
        return min(self._bounds, default=0)

    def estimate(self, classes: list[NodeClass]) -> None:
        """Take in the nodes of one more domain.

        Raises:
            OutOfTime: the deadline has passed.
        """
        number = sum(len(nodes.nodes) for of in self._domains for nodes in of)
        self._checks.progress(f"holders on node {number}")
        try:
            for nodes in classes:
                self._costs.estimate(nodes)
        except OutOfTime:
            # What is known by now may be enough for an answer.
            self._note([nodes for nodes in classes if nodes.costs])
            raise
        self._domains.append(classes)
        bound = self._spread(classes, lambda _, known: (known.least, 0))
        if bound is None:
            self._domains.pop()
            return
        self._bounds.append(bound.cost[0])
        self._note(classes)

    def improve(self) -> None:
        """Search where less may be enough, until the bounds meet or no more can be proven."""
        for number, classes in enumerate(self._domains):
            for nodes in classes:
                if self.best is None or self._bounds[number] >= self.best.cost[0]:
                    break
                self._checks.progress(f"fewer holders on {nodes.nodes[0][0]}")
                open_loads = [load for load, known in nodes.costs.items() if not known.exact]
                for load in open_loads:
                    self._costs.settle(nodes, load, self.best.cost[0])
                if open_loads:
                    self._note(classes)
                    bound = self._spread(classes, lambda _, known: (known.least, 0))
                    assert bound is not None
                    self._bounds[number] = bound.cost[0]
        if self.best is not None:
            # No domain is better than the best answer.
            self._bounds.append(self.best.cost[0])

    def _note(self, classes: list[NodeClass]) -> None:
        priorities = [holder.priority for holder in self._checks.cluster.holders]

        def cost(holders: frozenset[int], known: Known) -> Cost:
            return len(known.freed), sum(priorities[i] for i in holders)

        found = self._spread(classes, cost)
        if found is not None and (self.best is None or found.cost < self.best.cost):
            self.best = found

    def _spread(
        self, classes: Sequence[NodeClass], cost: Callable[[frozenset[int], Known], Cost]
    ) -> Choice | None:
        options: dict[object, tuple[dict[Load, Cost], list[NodeOption]]] = {}
        for nodes in classes:
            for name, holders in nodes.nodes:
                freed = {load: frozenset(holders[i] for i in k.freed) for load, k in nodes.costs.items()}
                costs = {load: cost(freed[load], known) for load, known in nodes.costs.items()}
                key = tuple(sorted(costs.items()))
                options.setdefault(key, (costs, []))[1].append(NodeOption(name, freed))
        return cheapest([Option(costs, of) for costs, of in options.values()], self._costs.counts)
