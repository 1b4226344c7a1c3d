"""Best fit over a whole fleet without examining every node.

Everything here is a cache: it makes answers cheap and changes none. Its size is bounded, in bytes.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from dra_driver.api import codec, names
from dra_driver.api.resource import ResourceClaim
from dra_driver.caches import BoundedCache
from dra_driver.structured.index.columns import Column, Columns
from dra_driver.structured.index.equivalence import FleetIndex, NodeClass
from dra_driver.structured.index.request_classes import RequestClass
from dra_driver.structured.index.several_devices import SharedSolutions
from dra_driver.structured.matching.plan import ClaimPlan, compile_claims
from dra_driver.structured.matching.problem import Options
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import DEFAULT_POLICY, PoolPolicies, PoolPolicy

__all__ = ["Bounds", "Fleet"]

# How pools are used: all in one way, or by the policies of this origin (a number).
_Use = PoolPolicy | int

# Besides: each change of the cluster costs work for each index.
_MAX_INDEXES: Final = 16
# A projection grows to serve further claims while the nodes have at most so many layouts. Few classes are
# what makes answers cheap, few indexes what makes a change of the cluster cheap.
_MAX_LAYOUTS: Final = 256
# And while it has at most so many columns: whoever needs one of them has nodes compared by all of them.
_MAX_COLUMNS: Final = 32
# An expression that reads more attributes than this counts by its results.
_MAX_ATTRIBUTES: Final = 16
# Bytes of a claim that is kept for each byte that it is written with.
_PER_BYTE: Final = 6
# Policies that are asked about in turns, such as those of our pools and those of all pools.
_MAX_ORIGINS: Final = 2
# An attribute with more values than this (a serial number) splits nodes into classes of one; the results of
# an expression on it do not.
_MAX_VALUES: Final = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a fleet may keep, in bytes; what was used least recently goes first.

    Attributes:
        request_classes: what is known about claims of equal requests; a class is small, mostly.
        solutions: that request classes share.
        indexes: indexes and columns together, besides what every fleet needs (``Columns.least``); an index is
            as large as the fleet has different nodes.
    """

    request_classes: int = 24 << 20
    solutions: int = 16 << 20
    indexes: int = 64 << 20


class Fleet:
    """Indexes and request classes of the snapshots that come from one another.

    ``settle`` is to be called after each question: it makes room for what the question has added.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds = bounds or Bounds()
        self._columns = Columns()
        self._indexes: OrderedDict[tuple[frozenset[Column], _Use], FleetIndex] = OrderedDict()
        self._request_classes: BoundedCache[Hashable, _Known] = BoundedCache(bounds.request_classes)
        self._shared: SharedSolutions = BoundedCache(bounds.solutions)
        # The request class of the last question, whose weight has grown since it was put into the cache.
        self._grown: Hashable = None
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
        wanted = [None if c.status.allocation is not None else _requests(c) for c in claims]
        # A digest: claims may have a megabyte of selectors each.
        digests = tuple(w and hashlib.blake2b(w, digest_size=16).digest() for w in wanted)
        key = (digests, options.ignore_taint, use)
        known = self._request_classes.get(key)
        if known is None:
            plans = compile_claims(claims, snapshot.classes, snapshot.features)
            index = self._index(snapshot, plans, use, policies, budget)
            request_class = RequestClass(plans, index, options, self._shared)
            known = _Known(request_class, _PER_BYTE * sum(len(w) for w in wanted if w is not None))
            self._request_classes.put(key, known, known.weight)
        self._grown = key
        known.request_class.follow(snapshot, policies, budget)
        return known.request_class

    def settle(self) -> None:
        """Make room: what is known by now may take more bytes than it may keep."""
        key, self._grown = self._grown, None
        known = None if key is None else self._request_classes.get(key)
        if known is not None:
            self._request_classes.grow(key, known.grown())
            if known.weight > self._request_classes.most:
                # It alone is larger than what all of them may be.
                self._request_classes.pop(key)
        self._make_room()

    @property
    def weight(self) -> int:
        """Estimated bytes of everything that is kept."""
        return self._indexed + self._request_classes.weight + self._shared.weight

    @property
    def _indexed(self) -> int:
        return self._columns.weight + sum(index.weight for index in self._indexes.values())

    def _make_room(self) -> None:
        most = self._bounds.indexes + self._columns.least
        if self._indexed <= most:
            return
        self._keep_columns()
        while self._indexed > most * 3 // 4 and len(self._indexes) > 1:
            self._drop_oldest(with_expressions=0)
        if self._indexed > most:
            # One projection alone is too large, or the columns are full of what is no longer there.
            self._indexes.clear()
            self._request_classes.clear()
            self._counted.clear()
            self._columns = Columns()

    def _drop_oldest(self, with_expressions: int) -> None:
        """Drop the index that was used least recently; of those with expressions, if there are more of these.

        Anyone can ask for as many expressions as there is room for indexes.
        """
        of_expressions = [key for key in self._indexes if _has_expressions(key[0])]
        key = of_expressions[0] if len(of_expressions) > with_expressions else next(iter(self._indexes))
        self._drop_request_classes(self._indexes.pop(key))
        self._keep_columns()

    def _keep_columns(self) -> None:
        self._columns.keep({c for of, _ in self._indexes for c in of})
        self._counted &= self._columns.known

    def prepare(self, snapshot: Snapshot, policies: PoolPolicies | None = None) -> None:
        """Classify every node now, which the first question would have to do otherwise.

        It costs what the nodes are, whatever is asked about them, so no question should pay for it.
        """
        self._check(snapshot)
        use = DEFAULT_POLICY if policies is None else self._origin_number(policies)
        budget = Budget(sys.maxsize)
        self._index(snapshot, (), use, policies, budget).follow(snapshot, budget, policies)

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
            # Claims must not pay for the evaluation of other claims' expressions.
            if of == use and needed <= columns and not _has_expressions(columns - needed):
                self._indexes.move_to_end((columns, of))
                return index
        for (columns, of), index in reversed(self._indexes.items()):
            # Only attributes are merged, for the same reason.
            if _has_expressions(needed | columns):
                continue
            if of == use and index.layouts <= _MAX_LAYOUTS and len(needed | columns) <= _MAX_COLUMNS:
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
        # Where the budget does not suffice, the index keeps what was classified: the next try gets further.
        self._indexes[columns, use] = index
        if len(self._indexes) > _MAX_INDEXES:
            self._drop_oldest(with_expressions=_MAX_INDEXES // 2)
        index.follow(snapshot, budget, policies)
        return index

    def _drop_request_classes(self, index: FleetIndex) -> None:
        for key, known in self._request_classes.items():
            if known.request_class.index is index:
                self._request_classes.pop(key)

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
        if references.everything or references.representation or references.size > _MAX_ATTRIBUTES:
            return {("expression", expression)}
        columns: set[Column] = {("attribute", domain, name) for domain, name in references.attributes}
        for column in columns - self._counted:
            self._counted.add(column)
            for name in snapshot.nodes:
                self._columns.number(snapshot, self._columns.facts(snapshot.view(name)), column, budget)
        if any(self._columns.distinct(column) > _MAX_VALUES for column in columns):
            return {("expression", expression)}
        return columns


def _has_expressions(columns: Set[Column]) -> bool:
    return any(column[0] == "expression" for column in columns)


class _Known:
    """A request class with the bytes that it was last said to take."""

    __slots__ = ("_claims", "request_class", "weight")

    def __init__(self, request_class: RequestClass, claims: int) -> None:
        self.request_class = request_class
        self._claims = claims
        self.weight = claims + request_class.weight

    def grown(self) -> int:
        """Return the bytes that it takes more than when it was asked last."""
        before, self.weight = self.weight, self._claims + self.request_class.weight
        return self.weight - before


def _requests(claim: ResourceClaim) -> bytes:
    """Return what decides how a claim is allocated; equal for claims that can share all results."""
    devices = claim.spec.devices
    topology = (claim.metadata.annotations or {}).get(names.TOPOLOGY_ANNOTATION, "")
    return codec.encode((devices.requests, devices.constraints, topology))
