"""What claims with one signature (equal requests and constraints) ask of devices, on whatever node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple

from dra_driver.structured.index.columns import Column
from dra_driver.structured.index.equivalence import FleetIndex
from dra_driver.structured.matching.plan import MAX_RESULTS, Alternative, ClaimPlan, DerivedAttributeError
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Options
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.pools import NodeView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState
from dra_driver.structured.model.types import PoolPolicy
from dra_driver.structured.search.cost import Costs, is_busy

__all__ = ["Allowed", "Choice", "Demand", "DevicePosition", "Key", "KindCost", "Solved"]

Key = tuple[object, ...]
Allowed = Callable[[str], bool]

# Bytes, measured: of a kind whose cost is known; of a cost, and of each alternative in it.
_PER_KIND, _PER_COST, _PER_ALTERNATIVE = 100, 320, 100


class DevicePosition(NamedTuple):
    """A device for a request, by positions: they hold on every node of a class."""

    claim: int
    request: int
    alternative: int
    position: int


class Choice(NamedTuple):
    """An answer: a node, the devices there, and the alternative that each request gets."""

    node: str
    places: tuple[DevicePosition, ...]
    chosen: tuple[tuple[int, ...], ...]


class Solved(NamedTuple):
    """The best allocation on the nodes of a class.

    Attributes:
        key: its score (``Score.between_nodes``).
    """

    key: Key
    places: tuple[DevicePosition, ...]
    chosen: tuple[tuple[int, ...], ...]


class KindCost(NamedTuple):
    """What a device of a kind costs.

    Attributes:
        costs: for each alternative binding, waste, busy and other waste; None if it is not a candidate.
        failing: whether a selector cannot be evaluated.
        error: why a derived attribute cannot be evaluated, which ends an allocation.
    """

    costs: tuple[tuple[int, int, int, int] | None, ...]
    failing: bool
    error: str = ""


def derived_columns(plan: ClaimPlan, alternative: Alternative) -> set[Column]:
    """Return the columns of the attributes that a request derives, and of those that they stand in for.

    Values of several expressions, and of attributes, are compared with one another, so it counts what they
    are (``attribute``), not only which of them are equal (``same``).
    """
    columns: set[Column] = set()
    for index in alternative.constraints if any(_derives(plan, i) for i in alternative.constraints) else ():
        constraint = plan.constraints[index]
        expression = dict(alternative.derived).get(index)
        domain, _, name = (constraint.match_attribute or constraint.distinct_attribute or "").rpartition("/")
        columns.add(("derived", expression) if expression is not None else ("attribute", domain, name))
    return columns


def _derives(plan: ClaimPlan, constraint: int) -> bool:
    return any(i == constraint for r in plan.requests for a in r.alternatives for i, _ in a.derived)


def _structure(alternative: Alternative) -> Hashable:
    return alternative.count, alternative.constraints, tuple(i for i, _ in alternative.derived)


class Demand:
    """The requests of claims of one signature, and what devices of each kind cost them.

    Args:
        plans: of any of the claims; the names in them are not used.
        index: the classes of the projection.
        options: as for ``allocate``; how pools are used is the index's.

    Attributes:
        alternatives: of all requests, with the indices of claim, request and alternative.
        counted: whether every request has a count, and none has admin access.
        simple: whether, in addition, no request has several alternatives.
        single: whether the claims ask for one device.
        too_many: whether they ask for more devices than a claim can have, or for an unknown number.
        structure: everything about the requests but what they want of a device.
        bound: columns of the attributes that constraints compare.
        budget: of the question that is being answered; whatever is worked out is charged to it.
        strict: whether a derived attribute that cannot be evaluated on a device is an error.
    """

    def __init__(self, plans: tuple[ClaimPlan, ...], index: FleetIndex, options: Options) -> None:
        self.plans = plans
        self.index = index
        self.budget = Budget()
        self.alternatives = [
            (ci, ri, ai, a)
            for ci, claim in enumerate(plans)
            for ri, request in enumerate(claim.requests)
            for ai, a in enumerate(request.alternatives)
        ]
        counts = [[a.count for a in r.alternatives] for c in plans for r in c.requests]
        admin = any(a.admin for *_, a in self.alternatives)
        self.counted = not admin and all(n is not None for request in counts for n in request)
        self.simple = self.counted and all(len(request) == 1 for request in counts)
        self.single = self.counted and sum(max(n or 0 for n in request) for request in counts) == 1
        least = sum(min(n or 0 for n in request) for request in counts)
        self.too_many = least > MAX_RESULTS or not self.counted
        self.structure: Hashable = tuple(
            (
                tuple(tuple(map(_structure, r.alternatives)) for r in claim.requests),
                tuple(c.match_attribute is not None for c in claim.constraints),
                claim.preferred,
            )
            for claim in plans
        )
        self.bound: tuple[Column, ...] = tuple(
            ("same", c.match_attribute or c.distinct_attribute or "") for p in plans for c in p.constraints
        )
        for ci, *_, alternative in self.alternatives:
            self.bound += tuple(sorted(derived_columns(plans[ci], alternative)))
        self.strict = False
        self._options = Options(options.ignore_taint)
        self._kinds: dict[int, KindCost] = {}
        # Equal costs as one object: there are few, for however many kinds.
        self._distinct: dict[KindCost, KindCost] = {}

    @property
    def weight(self) -> int:
        """Estimated bytes of the costs."""
        each = _PER_COST + _PER_ALTERNATIVE * len(self.alternatives)
        return _PER_KIND * len(self._kinds) + each * len(self._distinct)

    def forget_kinds(self) -> None:
        """Forget the costs: the index numbers its kinds anew."""
        self._kinds, self._distinct = {}, {}

    def kind(self, snapshot: Snapshot, kind: int) -> KindCost:
        """Return what a device of a kind costs, worked out on the device that represents it.

        Raises:
            DerivedAttributeError: ``strict``, and a derived attribute cannot be evaluated on it.
        """
        known = self._kinds.get(kind)
        if known is None:
            cost = self._cost(snapshot, kind)
            known = self._kinds[kind] = self._distinct.setdefault(cost, cost)
        if known.error and self.strict:
            raise DerivedAttributeError(known.error)
        return known

    def _cost(self, snapshot: Snapshot, kind: int) -> KindCost:
        view, pool, entry = self.index.kinds[kind]
        # Without any allocation: whether a device is free is a matter of its component, not of its kind.
        problem = self.problem(snapshot, view, AllocatedState())
        costs = Costs(problem)
        found: list[tuple[int, int, int, int] | None] = []
        failing, error = False, ""
        for *_, alternative in self.alternatives:
            looked = problem.look(alternative, entry, pool)
            failing = failing or (isinstance(looked, Candidate) and looked.error is not None)
            if isinstance(looked, Candidate) and looked.fatal and not looked.tainted:
                error = error or looked.error or ""
            candidate = problem.serves(alternative, entry, pool)
            if candidate is None:
                found.append(None)
            else:
                binding = int(bool(entry.device.binding_conditions))
                waste, other = costs.waste(alternative, candidate)
                found.append((binding, waste, int(is_busy(entry)), other))
        return KindCost(tuple(found), failing, error)

    def problem(
        self,
        snapshot: Snapshot,
        view: NodeView,
        state: AllocatedState,
        policies: tuple[PoolPolicy | None, ...] | None = None,
    ) -> NodeProblem:
        """Return the problem of the claims on the node that represents a class.

        Args:
            snapshot: of the question.
            view: of that node.
            state: what is allocated on it in that class; it may be in another class by now.
            policies: of the class, for the same reason; if None, every pool may be used.
        """
        options = self._options
        if policies is not None:
            used = {p.id: r for p, r in zip(view.pools, policies, strict=True) if r is not None}
            options = replace(options, pools=used)
        return NodeProblem(snapshot.with_allocated(state), self.plans, view, options, self.budget)
