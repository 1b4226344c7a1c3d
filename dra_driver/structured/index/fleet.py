"""Best fit over a whole fleet without examining every node.

Everything here is a cache: it makes answers cheap and changes none. Its size is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from dra_driver.api import codec, names
from dra_driver.api.resource import ResourceClaim
from dra_driver.structured.index.columns import Column, Columns
from dra_driver.structured.index.demand import Solved
from dra_driver.structured.index.equivalence import FleetIndex, NodeClass
from dra_driver.structured.index.request_classes import RequestClass
from dra_driver.structured.matching.plan import ClaimPlan, compile_claims
from dra_driver.structured.matching.problem import Options
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import DEFAULT_POLICY, PoolPolicies, PoolPolicy

__all__ = ["Fleet"]

# How pools are used: all in one way, or by the policies of this origin (a number).
_Use = PoolPolicy | int

# Bounds of the caches; what was used least recently goes first. A request class is small, an index is as
# large as the fleet has different nodes.
_MAX_REQUEST_CLASSES: Final = 2048
_MAX_INDEXES: Final = 16
# Policies that are asked about in turns, such as those of our pools and those of all pools.
_MAX_ORIGINS: Final = 2
# A projection grows to serve further claims while the nodes have at most so many layouts. Few classes are
# what makes answers cheap, few indexes what makes a change of the cluster cheap.
_MAX_LAYOUTS: Final = 256
# An attribute with more values than this (a serial number) splits nodes into classes of one; the results of
# an expression on it do not.
_MAX_VALUES: Final = 64


class Fleet:
    """Indexes and request classes of the snapshots that come from one another."""

    def __init__(self) -> None:
        self._columns = Columns()
        self._indexes: OrderedDict[tuple[frozenset[Column], _Use], FleetIndex] = OrderedDict()
        self._request_classes: OrderedDict[Hashable, RequestClass] = OrderedDict()
        self._shared: dict[Hashable, Solved | None] = {}
        # Attributes whose number of different values in the fleet is known.
        self._counted: set[Column] = set()
        # Numbers of the origins of policies; the most recently used last.
        self._origins: OrderedDict[object, int] = OrderedDict()
        self._classes: object = None
        self._scale: object = None

    def request_class(
        self,
        snapshot: Snapshot,
        claims: Sequence[ResourceClaim],
        options: Options,
        policies: PoolPolicies | None,
        budget: Budget,
    ) -> RequestClass:
        """Return what is known about claims with these requests; its index has followed the snapshot.

        Raises:
            FatalError: the claims ask for something that does not exist.
            BudgetExhausted: the fleet has too many different devices for the selectors of the claims. What
                was evaluated stays cached.
        """
        self._check(snapshot)
        use = options.default if policies is None else self._origin_number(policies)
        key = (
            tuple(None if c.status.allocation is not None else _signature(c) for c in claims),
            options.ignore_taint,
            use,
        )
        request_class = self._request_classes.get(key)
        if request_class is None:
            plans = compile_claims(claims, snapshot.classes, snapshot.features)
            index = self._index(snapshot, plans, use, policies, budget)
            request_class = self._request_classes[key] = RequestClass(plans, index, options, self._shared)
            if len(self._request_classes) > _MAX_REQUEST_CLASSES:
                self._request_classes.popitem(last=False)
        else:
            self._request_classes.move_to_end(key)
        request_class.follow(snapshot, policies, budget)
        return request_class

    def prepare(self, snapshot: Snapshot) -> None:
        """Classify every node now, which the first question would have to do otherwise."""
        self._check(snapshot)
        self._index(snapshot, (), DEFAULT_POLICY, None, Budget())

    def classes(
        self, request_class: RequestClass, allowed: Callable[[str], bool] | None
    ) -> list[tuple[list[str], NodeClass]]:
        """Return the node classes with allowed nodes, and their names, in the order of the first name."""
        found = []
        for nodes in request_class.index.classes:
            names = nodes.nodes if allowed is None else list(filter(allowed, nodes.nodes))
            if names:
                found.append((names, nodes))
        found.sort(key=lambda item: item[0][0])
        return found

    def _origin_number(self, policies: PoolPolicies) -> int:
        """Return a number for the map that these policies come from.

        An index follows one origin: one that followed two in turns would look at every node each time.
        """
        number = self._origins.get(policies.origin)
        if number is None:
            number = len(self._origins)
            if number == _MAX_ORIGINS:
                _, number = self._origins.popitem(last=False)
            self._origins[policies.origin] = number
        self._origins.move_to_end(policies.origin)
        return number

    def _check(self, snapshot: Snapshot) -> None:
        """Drop what other DeviceClasses, or other largest amounts, make wrong."""
        scale = snapshot.index.capacity_scale
        if snapshot.classes is self._classes and (scale is self._scale or scale == self._scale):
            return
        if scale != self._scale:
            # Costs are fractions of the largest amounts, so all of them have changed.
            self._indexes.clear()
            self._shared.clear()
        self._request_classes.clear()
        self._classes, self._scale = snapshot.classes, scale

    def _index(
        self,
        snapshot: Snapshot,
        plans: Sequence[ClaimPlan],
        use: _Use,
        policies: PoolPolicies | None,
        budget: Budget,
    ) -> FleetIndex:
        """Return an index that shows what the claims can see: one that exists, one extended, or a new one."""
        needed = self._needed(snapshot, plans, budget)
        for (columns, of), index in reversed(self._indexes.items()):
            if of == use and needed <= columns:
                self._indexes.move_to_end((columns, of))
                return index
        for (columns, of), index in reversed(self._indexes.items()):
            # Only attributes are merged: claims must not pay for the evaluation of other claims' expressions.
            if any(c[0] == "expression" for c in needed | columns):
                continue
            if of == use and index.layouts <= _MAX_LAYOUTS:
                both = self._make(snapshot, needed | columns, use, policies, budget)
                if both.layouts <= _MAX_LAYOUTS:
                    del self._indexes[columns, of]
                    self._drop_request_classes(index)
                    return both
                del self._indexes[needed | columns, use]
                break
        return self._make(snapshot, needed, use, policies, budget)

    def _make(
        self,
        snapshot: Snapshot,
        columns: frozenset[Column],
        use: _Use,
        policies: PoolPolicies | None,
        budget: Budget,
    ) -> FleetIndex:
        """Build an index, in place of the one that was used least recently if there are too many."""
        default = use if isinstance(use, PoolPolicy) else None
        index = FleetIndex(self._columns, columns, default)
        # Where the budget does not suffice, the columns keep what was evaluated: the next try gets further.
        index.follow(snapshot, budget, policies)
        self._indexes[columns, use] = index
        if len(self._indexes) > _MAX_INDEXES:
            _, old = self._indexes.popitem(last=False)
            self._drop_request_classes(old)
            self._columns.keep({c for of, _ in self._indexes for c in of})
            self._counted &= self._columns.known
        return index

    def _drop_request_classes(self, index: FleetIndex) -> None:
        for key in [k for k, s in self._request_classes.items() if s.index is index]:
            del self._request_classes[key]

    def _needed(self, snapshot: Snapshot, plans: Sequence[ClaimPlan], budget: Budget) -> frozenset[Column]:
        """Return the columns that the constraints and expressions of the claims can see."""
        columns: set[Column] = set()
        for plan in plans:
            for constraint in plan.constraints:
                columns.add(("same", constraint.match_attribute or constraint.distinct_attribute or ""))
            for request in plan.requests:
                for alternative in request.alternatives:
                    for expression in alternative.selectors:
                        columns |= self._of_expression(snapshot, expression, budget)
        return frozenset(columns)

    def _of_expression(self, snapshot: Snapshot, expression: str, budget: Budget) -> set[Column]:
        """Return the columns that stand for an expression: its attributes, or its own results."""
        references = snapshot.selectors.references(expression, budget)
        if references is None:
            return set()
        if references.everything or references.representation:
            return {("expression", expression)}
        columns: set[Column] = {("attribute", domain, name) for domain, name in references.attributes}
        for column in columns - self._counted:
            self._counted.add(column)
            for name in snapshot.nodes:
                self._columns.number(snapshot, self._columns.facts(snapshot.view(name)), column, budget)
        if any(self._columns.distinct(column) > _MAX_VALUES for column in columns):
            return {("expression", expression)}
        return columns


def _signature(claim: ResourceClaim) -> tuple[bytes, str]:
    """Return what decides how a claim is allocated; equal for claims that can share all results."""
    devices = claim.spec.devices
    topology = (claim.metadata.annotations or {}).get(names.TOPOLOGY_ANNOTATION, "")
    return codec.encode((devices.requests, devices.constraints)), topology
