"""How many copies of a claim fit, one beside the other, and how many the sum of what is free suggests.

Equal nodes are counted once, by the classes of ``FleetIndex``. A claim for one device is counted by component
(a device, or all devices that share counters with it), any other claim by node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured.index.demand import Demand
from dra_driver.structured.index.equivalence import ComponentClass, FleetIndex, NodeClass, state_of
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.index.sums import UNLIMITED, Sums, sums_of
from dra_driver.structured.matching.plan import MAX_RESULTS, Alternative, FatalError, compile_claims
from dra_driver.structured.matching.problem import NodeProblem, Options
from dra_driver.structured.model.budget import Budget, BudgetExhausted
from dra_driver.structured.model.compatibility import Groups, groups_of
from dra_driver.structured.model.pools import DeviceEntry, NodeView, PoolView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState, PoolState
from dra_driver.structured.model.types import PoolPolicies, PoolPolicy
from dra_driver.structured.search import bestfit
from dra_driver.structured.search.results import allocation_results
from dra_driver.structured.search.search import SearchLimitError

__all__ = ["Copies", "count_copies"]

# Copies that are solved together, to find out whether one more fits than were found one after the other. A
# larger question would seldom be answered within its steps.
_MOST_TOGETHER: Final = 16
_STEPS_PER_NODE: Final = 20_000


@dataclass(frozen=True, slots=True)
class Copies:
    """The answer.

    Attributes:
        fits: copies of the claim for which there are devices at the same time. So many can be allocated.
        exact: whether no more than ``fits`` can be. False where the limits of the search were met, or where
            devices that several nodes can use serve the claim.
        suggested: copies that what is free would be enough for if all of it stood together, wherever it is.
            No allocation can hold more.
        problem: why the question cannot be answered, such as a DeviceClass that does not exist; then the
            numbers are 0.
    """

    fits: int
    exact: bool
    suggested: int
    problem: str = ""


def count_copies(
    snapshot: Snapshot,
    claim: ResourceClaim,
    *,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    budget: Budget | None = None,
) -> Copies:
    """Count how often a claim can be allocated beside what is allocated.

    Only devices count: whether nodes have processors and memory for pods is not asked.

    Args:
        snapshot: the cluster.
        claim: asks for numbers of devices, without admin access; it is not allocated.
        ignore_taint: as for ``allocate``.
        pools: as for ``allocate``.
        budget: what the count may cost; if None, some ten seconds of work. When it is used up, ``fits`` is
            what was counted until then, or there is a problem if what is free was not added up yet.
    """
    budget = budget or Budget(4_000_000, _STEPS_PER_NODE)
    fleet = snapshot.memory.of(Fleet)
    options = Options(ignore_taint, pools, PoolPolicy())
    try:
        found = fleet.request_class(snapshot, (claim,), options, pools, budget)
        demand = Demand(found.plans, found.index, options)
        demand.budget = budget
        if not demand.counted or demand.too_many:
            return Copies(
                0, True, 0, f"asks for all devices, for admin access or for more than {MAX_RESULTS}"
            )
        return _Count(snapshot, claim, found.index, demand, options, budget).run()
    except FatalError as e:
        return Copies(0, True, 0, str(e))
    except BudgetExhausted:
        return Copies(0, False, 0, "gave up: there are too many different devices for what it may cost")
    finally:
        fleet.settle()


@dataclass(slots=True, eq=False)
class _Part:
    """A component, as far as the claim is concerned.

    Attributes:
        usable: positions of the devices that could be chosen now, on the node that represents its class.
        entangled: whether one of them takes from what another one needs, or can be shared.
        sums: what is free, by request, and at last for all requests together.
    """

    usable: tuple[int, ...]
    entangled: bool
    sums: tuple[Sums, ...]


class _Count:
    """One count.

    Args:
        snapshot: the cluster.
        claim: that is counted.
        index: has followed the snapshot.
        demand: of the claim.
        options: of the question.
        budget: is charged with everything.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        claim: ResourceClaim,
        index: FleetIndex,
        demand: Demand,
        options: Options,
        budget: Budget,
    ) -> None:
        self._snapshot = snapshot
        self._claim = claim
        self._index = index
        self._demand = demand
        self._options = options
        self._budget = budget
        # The least number of devices of each request, and the alternatives of each.
        self._least: list[int] = []
        self._of_request: list[list[int]] = []
        for i, (_, ri, _, alternative) in enumerate(demand.alternatives):
            if ri == len(self._least):
                self._least.append(alternative.count or 0)
                self._of_request.append([])
            self._least[ri] = min(self._least[ri], alternative.count or 0)
            self._of_request[ri].append(i)
        self._parts: dict[ComponentClass, _Part] = {}
        self._solved: dict[Hashable, tuple[int, bool]] = {}
        self._fits, self._exact = 0, True

    def run(self) -> Copies:
        """Return the answer.

        Raises:
            BudgetExhausted: what is free could not be added up.
        """
        total = self._no_sums()
        shared: list[NodeClass] = []
        seen: set[Hashable] = set()
        classes = [c for c in self._index.classes if c.nodes]
        for nodes in classes:
            self._budget.spend(1 + len(nodes.parts))
            self._add_sums(total, nodes, seen)
            if any(self._is_shared(pool) for pool in nodes.view.pools):
                shared.append(nodes)
        try:
            for nodes in classes:
                if nodes not in shared:
                    self._count_class(nodes)
            if shared:
                self._count_shared(shared)
        except BudgetExhausted:
            self._exact = False
        suggested = max(self._fits, self._copies_of(total))
        return Copies(self._fits, self._exact or self._fits == suggested, suggested)

    # --- sums -----------------------------------------------------------------------------------------------

    def _no_sums(self) -> tuple[Sums, ...]:
        return tuple(Sums() for _ in range(len(self._least) + 1))

    def _add_sums(self, total: tuple[Sums, ...], nodes: NodeClass, seen: set[Hashable]) -> None:
        """Add what nodes of a class have; what several nodes can use is added once."""
        for made, _, component in nodes.parts:
            part = self._part(made)
            times = len(nodes.nodes)
            pool = nodes.view.pools[component.pool]
            if self._is_shared(pool):
                first = pool.devices[component.positions[0] - component.offset]
                if first.id in seen:
                    continue
                seen.add(first.id)
                times = 1
            for mine, sums in zip(total, part.sums, strict=True):
                mine.add(sums, times)

    def _copies_of(self, sums: Sequence[Sums]) -> int:
        """Return how many copies what is free would be enough for."""
        counts = (*self._least, sum(self._least))
        return min((s.units // n for s, n in zip(sums, counts, strict=True) if n), default=0)

    def _part(self, made: ComponentClass) -> _Part:
        part = self._parts.get(made)
        if part is None:
            part = self._parts[made] = self._make_part(made)
        return part

    def _make_part(self, made: ComponentClass) -> _Part:
        component = made.component
        pool, state = made.view.pools[component.pool], made.states[component.pool]
        entries = [pool.devices[p - component.offset] for p in component.positions]
        self._budget.spend(1 + len(entries) // 8)
        left = self._snapshot.index.counters_left(pool, state) if component.sets else {}
        groups = self._snapshot.index.groups_left(pool, state)
        kinds = component.content[0]
        assert isinstance(kinds, tuple)
        # By request, the alternatives that each device serves.
        serving: list[dict[int, list[Alternative]]] = [{} for _ in self._least]
        usable: list[int] = []
        for i, kind in enumerate(kinds):
            if made.allocated[i]:
                continue
            costs = self._demand.kind(self._snapshot, kind).costs
            for request, alternatives in enumerate(self._of_request):
                found = [self._demand.alternatives[a][3] for a in alternatives if costs[a] is not None]
                if found:
                    serving[request][i] = found
            if any(i in of for of in serving) and _has_counters(entries[i], left, groups):
                usable.append(i)
        every: dict[int, list[Alternative]] = {}
        for of in serving:
            for i, found in of.items():
                every[i] = every.get(i, []) + found
        sums = tuple(sums_of(entries, of, left, state.capacity) for of in (*serving, every))
        entangled = component.shareable or (bool(component.sets) and len(usable) > 1)
        return _Part(tuple(component.positions[i] for i in usable), entangled, sums)

    # --- copies ---------------------------------------------------------------------------------------------

    def _is_shared(self, pool: PoolView) -> bool:
        """Return whether what is allocated on one node may be missing on another one."""
        index = self._snapshot.index
        return pool.id in index.cluster_wide.pools or any(e.device.consumes_counters for e in pool.elsewhere)

    def _count_class(self, nodes: NodeClass) -> None:
        """Count the copies on all nodes of a class."""
        parts = [(self._part(made), made, component) for made, _, component in nodes.parts]
        parts = [p for p in parts if p[0].usable]
        if self._demand.single:
            for part, made, _ in parts:
                found = (1, True)
                if part.entangled:
                    found = self._of_cell(made, made.view, made.states, part.usable, part.sums)
                self._found(found, len(nodes.nodes))
            return
        sums = self._no_sums()
        usable: list[int] = []
        key: list[Hashable] = []
        for part, made, component in parts:
            # The component that represents the class may stand elsewhere among the devices of its node.
            place = dict(zip(made.component.positions, component.positions, strict=True))
            here = tuple(place[p] for p in part.usable)
            usable += here
            key.append((here, made if part.entangled else None))
            for mine, of in zip(sums, part.sums, strict=True):
                mine.add(of)
        if usable:
            cell = (nodes.layout, tuple(key))
            self._found(self._of_cell(cell, nodes.view, nodes.states, usable, sums), len(nodes.nodes))

    def _found(self, found: tuple[int, bool], times: int) -> None:
        self._fits += found[0] * times
        self._exact = self._exact and found[1]

    def _of_cell(
        self,
        key: Hashable,
        view: NodeView,
        states: tuple[PoolState, ...],
        usable: Iterable[int],
        sums: tuple[Sums, ...],
    ) -> tuple[int, bool]:
        """Return the copies that some devices of a node hold, and whether no more fit; solved once."""
        known = self._solved.get(key)
        if known is None:
            bound = min(self._copies_of(sums), UNLIMITED)
            known = self._solve(_part_of(view, frozenset(usable)), state_of(view, states), bound)
            self._solved[key] = known
        return known

    def _solve(self, view: NodeView, allocated: AllocatedState, bound: int) -> tuple[int, bool]:
        """Return the copies that fit on a node, at most ``bound``, and whether no more do.

        First one is placed after the other. Where that ends too early, because an early copy stands in the
        way of later ones, one more is solved together with all others.
        """
        # Pools that may not be used have no usable devices.
        options = Options(self._options.ignore_taint)
        count, _, complete = self._fill(view, allocated, options, bound)
        while complete and 0 < count < bound:
            if count >= _MOST_TOGETHER:
                return count, False
            plans = compile_claims(
                [self._claim] * (count + 1), self._snapshot.classes, self._snapshot.features
            )
            snapshot = self._snapshot.with_allocated(allocated)
            try:
                more = bestfit.first_solution(NodeProblem(snapshot, plans, view, options, self._budget))
            except (SearchLimitError, FatalError, RecursionError):
                return count, False
            if more is None:
                return count, True
            count += 1
        return count, complete and (bound < UNLIMITED or count < bound)

    def _fill(
        self, view: NodeView, allocated: AllocatedState, options: Options, most: int
    ) -> tuple[int, AllocatedState, bool]:
        """Place one copy after the other on a node.

        Returns:
            How many there are, what is allocated then, and whether the search has ended by itself.
        """
        count = 0
        while count < most:
            snapshot = self._snapshot.with_allocated(allocated)
            problem = NodeProblem(snapshot, self._demand.plans, view, options, self._budget)
            try:
                found = bestfit.first_solution(problem)
                if found is None:
                    break
                results = allocation_results(problem, found.picks, found.chosen)
            except (SearchLimitError, FatalError, RecursionError):
                return count, allocated, False
            allocated = allocated.with_allocations([("", results[0])])
            count += 1
        return count, allocated, True

    def _count_shared(self, classes: Sequence[NodeClass]) -> None:
        """Count the copies on nodes that have devices in common, one node after the other."""
        allocated = self._snapshot.allocated
        for name in sorted(name for nodes in classes for name in nodes.nodes):
            view = self._snapshot.view(name)
            count, allocated, _ = self._fill(view, allocated, self._options, UNLIMITED)
            self._fits += count
        self._exact = False


def _has_counters(
    entry: DeviceEntry, left: Mapping[tuple[str, str], int], groups: Mapping[str, Groups]
) -> bool:
    """Return whether the counters that the device takes are left, beside devices of its groups."""
    return all(
        groups_of(c) & groups[c.counter_set]
        for c in entry.device.consumes_counters
        if c.counter_set in groups
    ) and all(
        left.get((consumed.counter_set, name), 0) >= counter.value.nano
        for consumed in entry.device.consumes_counters
        for name, counter in consumed.counters.items()
    )


def _part_of(view: NodeView, positions: Set[int]) -> NodeView:
    """Return the view of a node with only these of its devices; the others consume counters as before."""
    pools: list[PoolView] = []
    offset = 0
    for pool in view.pools:
        chosen = tuple(e for i, e in enumerate(pool.devices, offset) if i in positions)
        sets = {c.counter_set for e in chosen for c in e.device.consumes_counters}
        rest = tuple(
            e
            for i, e in enumerate(pool.devices, offset)
            if i not in positions and any(c.counter_set in sets for c in e.device.consumes_counters)
        )
        offset += len(pool.devices)
        if chosen:
            left = {name: of for name, of in pool.counter_sets.items() if name in sets}
            pools.append(replace(pool, devices=chosen, elsewhere=rest, counter_sets=left))
    return NodeView(view.node, tuple(pools))
