"""Request classes: claims with one signature (equal requests and constraints) are answered from one cache."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator

from dra_driver.structured.index.demand import Allowed, Choice, Demand
from dra_driver.structured.index.equivalence import FleetIndex, Layout, NodeClass
from dra_driver.structured.index.several_devices import BestClasses, SharedSolutions, free_positions
from dra_driver.structured.index.single_device import CheapestDevices
from dra_driver.structured.matching.plan import ClaimPlan
from dra_driver.structured.matching.problem import Options
from dra_driver.structured.model.budget import Budget, IndexUnfinished
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import PoolPolicies, PoolPolicy, Strategy

__all__ = ["RequestClass", "Role"]


# Bytes, measured: of what is noted of a layout; of the plan of an alternative.
_PER_LAYOUT, _PER_ALTERNATIVE = 120, 2048


class Role(enum.Enum):
    """How claims are served on a node: by the strategies of the pools that have a device for them."""

    BEST = "best fit"
    FIRST = "first fit"
    MIXED = "both"


class RequestClass:
    """Claims of one signature under one projection.

    Args:
        plans: of any of them; the names in them are not used.
        index: the classes of the projection.
        options: as for ``allocate``; how pools are used is the index's.
        shared: solutions shared by request classes that want the same of equal devices.

    Attributes:
        infeasible: node classes where Kubernetes' search finds nothing.
        unfinished: whether the last answer waits for upkeep that the next question goes on with.
    """

    def __init__(
        self,
        plans: tuple[ClaimPlan, ...],
        index: FleetIndex,
        options: Options,
        shared: SharedSolutions,
    ) -> None:
        self.plans = plans
        self.index = index
        self._demand = Demand(plans, index, options)
        self._shared = shared
        self.unfinished = False
        self._start()

    def _start(self) -> None:
        self._generation = self.index.generation
        self._demand.forget_kinds()
        self._single = CheapestDevices(self._demand)
        self._several = BestClasses(self._demand, self._shared)
        self._may_fail: dict[Layout, bool] = {}
        self._roles: dict[Layout, Role] = {}
        self.infeasible: set[NodeClass] = set()

    @property
    def weight(self) -> int:
        """Estimated bytes of what is known about the claims, besides the claims themselves."""
        several = self._demand.weight + self._single.weight + self._several.weight
        layouts = len(self._may_fail) + len(self._roles) + len(self.infeasible)
        return several + _PER_LAYOUT * layouts + _PER_ALTERNATIVE * len(self._demand.alternatives)

    @property
    def unsolved(self) -> set[NodeClass]:
        """Node classes whose answer cannot be worked out (too many combinations, pools being updated)."""
        return self._several.unsolved

    def follow(self, snapshot: Snapshot, policies: PoolPolicies | None, budget: Budget) -> None:
        """Bring the index up to the snapshot; if its classes started anew, forget what was known about them.

        Args:
            snapshot: of the question.
            policies: as for ``FleetIndex.follow``.
            budget: of the question; everything until the next call is charged to it.

        Raises:
            IndexUnfinished, SelectorsTooExpensive: as for ``FleetIndex.follow``.
        """
        self._demand.budget = budget
        self.index.follow(snapshot, budget, policies)
        if self._generation != self.index.generation:
            self._start()

    def best(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        """Return the best answer on the allowed nodes (all of them if ``allowed`` is None).

        If the budget ends before every node class has been examined, it is the best of those that were.

        Raises:
            BudgetExhausted: none of those has an answer.
            IndexUnfinished: there are classes that this and earlier questions had not enough upkeep for.
        """
        return self._best_of(self._single if self._demand.single else self._several, snapshot, allowed)

    def best_mixed(self, snapshot: Snapshot, allowed: Allowed | None) -> Choice | None:
        """Return the best answer on nodes where pools of both strategies serve the claims.

        Devices of first-fit pools are taken in their order, not by cost, so the order of single devices does
        not apply there.
        """
        return self._best_of(self._several, snapshot, allowed)

    def _best_of(
        self, way: CheapestDevices | BestClasses, snapshot: Snapshot, allowed: Allowed | None
    ) -> Choice | None:
        self.unfinished = False
        self._demand.strict = True
        try:
            return way.best(snapshot, allowed)
        except IndexUnfinished:
            self.unfinished = True
            raise
        finally:
            self._demand.strict = False

    def role(self, snapshot: Snapshot, layout: Layout) -> Role:
        """Return how claims of the signature are served on nodes of a layout."""
        if not layout.first_fit:
            return Role.BEST
        if all(r is None or r.strategy is Strategy.FIRST_FIT for r in layout.policies):
            return Role.FIRST
        known = self._roles.get(layout)
        if known is None:
            found = {
                policy.strategy
                for kind, policy in zip(layout.kinds, _policies_of(layout), strict=True)
                if policy is not None and any(c is not None for c in self._demand.kind(snapshot, kind).costs)
            }
            known = Role.MIXED
            if len(found) < 2:
                known = Role.FIRST if Strategy.FIRST_FIT in found else Role.BEST
            self._roles[layout] = known
        return known

    def room_on(self, snapshot: Snapshot, nodes: NodeClass) -> tuple[int | None, int]:
        """Return how many such sets of claims a node of a class can hold at most, and the state behind that.

        None: no bound is known, because a request is for all devices or for shares, or a selector fails.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        demand, layout = self._demand, nodes.layout
        demand.budget.spend(1 + len(layout.kinds) * len(demand.alternatives) // 16)
        free = free_positions(nodes)
        costs = [(p, demand.kind(snapshot, layout.kinds[p])) for p in free]
        useful = [(p, c.costs) for p, c in costs if c.failing or any(cost is not None for cost in c.costs)]
        bound = tuple(layout.columns.get(column) for column in demand.bound)
        state = hash((layout.structure, bound, tuple(useful), () if layout.plain else nodes.in_use))
        if not (demand.counted and layout.plain) or any(c.failing for _, c in costs):
            return None, state
        wanted: dict[tuple[int, int], int] = {}
        serving: dict[tuple[int, int], set[int]] = {}
        for i, (ci, ri, _, alternative) in enumerate(demand.alternatives):
            count = alternative.count or 0
            wanted[ci, ri] = min(wanted.get((ci, ri), count), count)
            serving.setdefault((ci, ri), set()).update(p for p, c in useful if c[i] is not None)
        by_request = [len(serving[r]) // count for r, count in wanted.items() if count]
        least = sum(wanted.values())
        return (min(*by_request, len(useful) // least, len(useful)) if least else None), state

    def may_fail(self, snapshot: Snapshot, layout: Layout) -> bool:
        """Return whether Kubernetes' search may end in an error on nodes of the layout."""
        known = self._may_fail.get(layout)
        if known is None:
            known = self._may_fail[layout] = (
                layout.may_fail
                or self._demand.too_many
                or any(self._demand.kind(snapshot, k).failing for k in dict.fromkeys(layout.kinds))
            )
        return known


def _policies_of(layout: Layout) -> Iterator[PoolPolicy | None]:
    """Iterate over the devices of a layout: how the pool of each is used."""
    for policy, number in zip(layout.policies, layout.sizes, strict=True):
        yield from itertools.repeat(policy, number)
