"""Best fit over a whole fleet without examining every node.

Everything here is a cache: it makes answers cheap and changes none. Its size is bounded, in bytes.

To build an index takes time for every node, which the question that needs it first does not pay for
(``Budget.keep_up``). Anyone can ask for another index, so one is built at a time for each owner
(``Budget.owner``), and few altogether: a question that needs a further one goes on with that first. What
devices have bounds how many indexes of attributes there can be; attributes that no device has need none.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from dra_driver.api import codec, names
from dra_driver.api.resource import ResourceClaim
from dra_driver.caches import BoundedCache
from dra_driver.structured.index.building import Building, Buildings, Use
from dra_driver.structured.index.columns import Column, Columns
from dra_driver.structured.index.demand import derived_columns
from dra_driver.structured.index.equivalence import FleetIndex, NodeClass
from dra_driver.structured.index.evaluations import EVALUATION_STEPS, SelectorsTooExpensive
from dra_driver.structured.index.request_classes import RequestClass
from dra_driver.structured.index.several_devices import SharedSolutions
from dra_driver.structured.matching.constraints import ANY_DOMAIN
from dra_driver.structured.matching.plan import ClaimPlan, compile_claims
from dra_driver.structured.matching.problem import Options
from dra_driver.structured.model.budget import Budget, IndexUnfinished
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import DEFAULT_POLICY, PoolPolicies, PoolPolicy

__all__ = ["Bounds", "Fleet"]

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
# Names of attributes that no device has are remembered, as many as this. With more, any new one counts.
_MAX_ABSENT: Final = 4096
# Request classes that are not in order yet, which do not make room for others: else those of a large fleet,
# asked for in turns, would begin anew each time.
_MAX_UNFINISHED: Final = 8
# Policies that are asked about in turns, such as those of our pools and those of all pools.
_MAX_ORIGINS: Final = 2
# An attribute with more values than this (a serial number) splits nodes into classes of one; the results of
# an expression on it do not.
_MAX_VALUES: Final = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a fleet may keep, in bytes (what was used least recently goes first), and what an index may cost.

    Attributes:
        request_classes: what is known about claims of equal requests; a class is small, mostly.
        solutions: that request classes share.
        indexes: indexes and columns together, besides what every fleet needs (``Columns.least``); an index is
            as large as the fleet has different nodes. A single one is kept although it is larger.
        evaluation_steps: that the expressions of an index may take (``FleetIndex``).
    """

    request_classes: int = 24 << 20
    solutions: int = 16 << 20
    indexes: int = 64 << 20
    evaluation_steps: int = EVALUATION_STEPS


class Fleet:
    """Indexes and request classes of the snapshots that come from one another.

    ``settle`` is to be called after each question: it makes room for what the question has added.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds = bounds or Bounds()
        self._columns = Columns()
        self._indexes: OrderedDict[tuple[frozenset[Column], Use], FleetIndex] = OrderedDict()
        self._request_classes: BoundedCache[Hashable, _Known] = BoundedCache(bounds.request_classes)
        self._shared: SharedSolutions = BoundedCache(bounds.solutions)
        # Those that are not in order yet; the most recently used last.
        self._unfinished: OrderedDict[Hashable, _Known] = OrderedDict()
        # The request class of the last question, whose weight has grown since it was put into the cache.
        self._grown: Hashable = None
        self._building = Buildings()
        # Attributes whose number of different values in the fleet is known, and the nodes that are left to
        # look at for those of which it is not.
        self._counted: set[Column] = set()
        self._to_count: dict[Column, list[str]] = {}
        # Attributes that claims named and no device had.
        self._absent: set[str] = set()
        self._attributes: Collection[str] = ()
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
            BudgetExhausted: the selectors of the claims take too long to compile, or to evaluate on all
                devices. What was evaluated stays cached.
            IndexUnfinished: the question may do no more upkeep; the next one goes on with it.
        """
        self._check(snapshot)
        use = options.default if policies is None else self._origin_number(policies)
        wanted = [None if c.status.allocation is not None else _requests(c) for c in claims]
        # A digest: claims may have a megabyte of selectors each.
        digests = tuple(w and hashlib.blake2b(w, digest_size=16).digest() for w in wanted)
        key = (digests, options.ignore_taint, use)
        known = self._unfinished.get(key) or self._request_classes.get(key)
        if known is None:
            plans = compile_claims(claims, snapshot.classes, snapshot.features)
            index = self._index(snapshot, plans, use, policies, budget)
            request_class = RequestClass(plans, index, options, self._shared)
            known = _Known(request_class, _PER_BYTE * sum(len(w) for w in wanted if w is not None))
            self._request_classes.put(key, known, known.weight)
        self._grown = key
        index = known.request_class.index
        self._indexes.move_to_end(self._key(index))
        try:
            known.request_class.follow(snapshot, policies, budget)
        except SelectorsTooExpensive:
            # It will never be whole, and others need not wait for that.
            self._is_built(index)
            raise
        return known.request_class

    def settle(self) -> None:
        """Make room: what is known by now may take more bytes than it may keep."""
        key, self._grown = self._grown, None
        known = None if key is None else self._unfinished.pop(key, None) or self._request_classes.get(key)
        if known is not None:
            self._keep(key, known)
        self._make_room()

    def _keep(self, key: Hashable, known: _Known) -> None:
        known.weigh()
        self._request_classes.pop(key)
        if known.request_class.unfinished:
            self._unfinished[key] = known
            if len(self._unfinished) > _MAX_UNFINISHED:
                self._unfinished.popitem(last=False)
            return
        # Only now: an index makes no room for others before there is an answer from it.
        if not known.request_class.index.pending:
            self._is_built(known.request_class.index)
        # One alone may be larger than what all of them may be.
        if known.weight <= self._request_classes.most:
            self._request_classes.put(key, known, known.weight)

    @property
    def weight(self) -> int:
        """Estimated bytes of everything that is kept."""
        classes = self._request_classes.weight + sum(known.weight for known in self._unfinished.values())
        return self._indexed + classes + self._shared.weight

    @property
    def _indexed(self) -> int:
        return self._columns.weight + sum(index.weight for index in self._indexes.values())

    @property
    def _is_full(self) -> bool:
        return self._indexed > self._bounds.indexes + self._columns.least

    def _make_room(self) -> None:
        most = self._bounds.indexes + self._columns.least
        if self._indexed <= most:
            return
        self._keep_columns()
        while self._indexed > most * 3 // 4 and len(self._indexes) > 1 + len(self._building):
            self._drop_oldest(with_expressions=0)
        # One projection alone may be larger than that: it would be built anew for each question, or never be
        # whole. Otherwise the columns are full of what is no longer there.
        if self._indexed > most and all(i.looks > 2 * max(1, i.nodes) for i in self._indexes.values()):
            self._indexes.clear()
            self._forget_request_classes()
            self._counted.clear()
            self._to_count.clear()
            self._building.clear()
            self._columns = Columns()

    def _drop_oldest(self, with_expressions: int) -> None:
        """Drop the index that was used least recently; of those with expressions, if there are more of these.

        Anyone can ask for as many expressions as there is room for indexes.
        """
        finished = [key for key, index in self._indexes.items() if self._building.owner(index) is None]
        of_expressions = [key for key in finished if _has_expressions(key[0])]
        key = of_expressions[0] if len(of_expressions) > with_expressions else finished[0]
        self._drop_request_classes(self._indexes.pop(key))
        self._keep_columns()

    def _keep_columns(self) -> None:
        self._columns.keep({c for of, _ in self._indexes for c in of} | self._to_count.keys())
        self._counted &= self._columns.known

    def prepare(self, snapshot: Snapshot, policies: PoolPolicies | None = None) -> None:
        """Classify every node now, which the first question would have to do otherwise.

        It costs what the nodes are, whatever is asked about them, so no question should pay for it.
        """
        self._check(snapshot)
        use = DEFAULT_POLICY if policies is None else self._origin_number(policies)
        budget = Budget(sys.maxsize)
        index = self._index(snapshot, (), use, policies, budget)
        index.follow(snapshot, budget, policies)
        self._is_built(index)

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
        """Drop what other DeviceClasses, other largest amounts, or new attributes make wrong."""
        attributes = snapshot.index.attributes
        if attributes is not self._attributes:
            self._attributes = attributes
            if len(self._absent) >= _MAX_ABSENT or not self._absent.isdisjoint(attributes):
                # Nothing that rests on it holds any more.
                self._absent.clear()
                self._forget_request_classes()
        scale = snapshot.index.capacity_scale
        if snapshot.classes is self._classes and (scale is self._scale or scale == self._scale):
            return
        if scale != self._scale:
            # Costs are fractions of the largest amounts, so all of them have changed; classes have not.
            for index in self._indexes.values():
                index.forget_counters()
            self._shared.clear()
        self._forget_request_classes()
        self._classes, self._scale = snapshot.classes, scale

    def _index(
        self,
        snapshot: Snapshot,
        plans: Sequence[ClaimPlan],
        use: Use,
        policies: PoolPolicies | None,
        budget: Budget,
    ) -> FleetIndex:
        """Return an index that shows what the claims can see: one that exists, one extended, or a new one.

        It may have to follow the snapshot yet.
        """
        needed = self._needed(snapshot, plans, budget)
        if (known := self._suitable(needed, use)) is not None:
            return known
        while (owner := self._building.in_the_way(budget.owner, full=self._is_full)) is not None:
            # Possibly of others: that there are few at a time bounds what is kept, and each of them ends.
            self._go_on(owner, snapshot, policies, budget)
            if (known := self._suitable(needed, use)) is not None:
                return known
        for (columns, of), index in reversed(self._indexes.items()):
            # Only attributes are merged: claims must not pay for the evaluation of other claims' expressions.
            if _has_expressions(needed | columns) or self._building.owner(index) is not None:
                continue
            if of == use and index.layouts <= _MAX_LAYOUTS and len(needed | columns) <= _MAX_COLUMNS:
                extended = self._begin(budget.owner, needed | columns, use, index, instead=(needed, use))
                # Another owner may have begun the same one.
                self._go_on(self._building.owner(extended), snapshot, policies, budget)
                return self._suitable(needed, use) or self._begin(budget.owner, needed, use)
        return self._begin(budget.owner, needed, use)

    def _suitable(self, needed: frozenset[Column], use: Use) -> FleetIndex | None:
        """Return an index that shows some columns, one that is whole if possible; None if there is none.

        One that may replace another is not known to be good before it is whole.
        """
        found = [
            (key, index)
            for key, index in reversed(self._indexes.items())
            # Claims must not pay for the evaluation of other claims' expressions.
            if key[1] == use and needed <= key[0] and not _has_expressions(key[0] - needed)
        ]
        for key, index in sorted(found, key=lambda item: self._building.owner(item[1]) is not None):
            if not self._building.replacing(index):
                self._indexes.move_to_end(key)
                return index
        return None

    def _begin(
        self,
        owner: Hashable,
        columns: frozenset[Column],
        use: Use,
        replaces: FleetIndex | None = None,
        instead: tuple[frozenset[Column], Use] | None = None,
    ) -> FleetIndex:
        """Begin to build an index, in place of the one used least recently if there are too many; return it.

        One that is there already is not begun anew.

        Args:
            owner: for whom.
            columns: that it shows.
            use: how pools are used.
            replaces: dropped when the new one is whole, unless that has too many layouts.
            instead: columns and use of the index that is begun where the new one has too many layouts.
        """
        if (there := self._indexes.get((columns, use))) is not None:
            return there
        default = use if isinstance(use, PoolPolicy) else None
        index = FleetIndex(self._columns, columns, default, self._bounds.evaluation_steps)
        self._building.begin(owner, Building(index, replaces, instead))
        self._indexes[columns, use] = index
        if len(self._indexes) > _MAX_INDEXES:
            self._drop_oldest(with_expressions=_MAX_INDEXES // 2)
        return index

    def _go_on(
        self, owner: Hashable, snapshot: Snapshot, policies: PoolPolicies | None, budget: Budget
    ) -> None:
        """Go on building for an owner; what was classified stays, so each question gets further."""
        building = self._building.of(owner)
        index = building.index
        key = self._key(index)
        most = _MAX_LAYOUTS if building.replaces is not None else None
        own = policies is None or self._origins.get(policies.origin) == key[1]
        try:
            index.follow(snapshot, budget, policies if own else None, most_layouts=most)
        except SelectorsTooExpensive:
            # It is kept, and refuses all that ask for it; it is not theirs that ask now.
            self._building.end(owner)
            return
        self._building.end(owner)
        if building.replaces is None:
            return
        worse = index if index.layouts > _MAX_LAYOUTS else building.replaces
        for key in [k for k, i in self._indexes.items() if i is worse]:
            del self._indexes[key]
            self._drop_request_classes(worse)
        if worse is index and building.instead is not None:
            # At once: the next question would try to extend the other one again.
            self._begin(owner, *building.instead)

    def _key(self, index: FleetIndex) -> tuple[frozenset[Column], Use]:
        return next(key for key, kept in self._indexes.items() if kept is index)

    def _is_built(self, index: FleetIndex) -> None:
        """Note that an index needs no more work."""
        owner = self._building.owner(index)
        if owner is not None and not self._building.replacing(index):
            self._building.end(owner)

    def _forget_request_classes(self) -> None:
        self._request_classes.clear()
        self._unfinished.clear()

    def _drop_request_classes(self, index: FleetIndex) -> None:
        for key, known in [*self._request_classes.items(), *self._unfinished.items()]:
            if known.request_class.index is index:
                self._request_classes.pop(key)
                self._unfinished.pop(key, None)

    def _needed(self, snapshot: Snapshot, plans: Sequence[ClaimPlan], budget: Budget) -> frozenset[Column]:
        """Return the columns that the constraints and expressions of the claims can see."""
        columns: set[Column] = set()
        for plan in plans:
            for constraint in plan.constraints:
                name = constraint.match_attribute or constraint.distinct_attribute or ""
                if name.startswith(ANY_DOMAIN) or self._exists(snapshot, name):
                    columns.add(("same", name))
            for request in plan.requests:
                for alternative in request.alternatives:
                    for expression in alternative.selectors:
                        columns |= self._of_expression(snapshot, expression, budget)
                    columns |= derived_columns(plan, alternative)
        return frozenset(columns)

    def _of_expression(self, snapshot: Snapshot, expression: str, budget: Budget) -> set[Column]:
        """Return the columns that stand for an expression: its attributes, or its own results."""
        references = snapshot.selectors.references(expression, budget)
        if references is None:
            return set()
        if references.everything or references.representation or references.size > _MAX_ATTRIBUTES:
            return {("expression", expression)}
        columns: set[Column] = {
            ("attribute", domain, name)
            for domain, name in references.attributes
            if self._exists(snapshot, f"{domain}/{name}")
        }
        for column in sorted(columns - self._counted):
            self._count(snapshot, column, budget)
        if any(self._columns.distinct(column) > _MAX_VALUES for column in columns):
            return {("expression", expression)}
        return columns

    def _exists(self, snapshot: Snapshot, name: str) -> bool:
        """Return whether a device has an attribute of this name; note if none has."""
        if snapshot.index.has_attribute(name):
            return True
        if len(self._absent) < _MAX_ABSENT:
            self._absent.add(name)
        return False

    def _count(self, snapshot: Snapshot, column: Column, budget: Budget) -> None:
        """Count the values of an attribute, until there are too many of them to be told apart by it."""
        left = self._to_count.get(column)
        if left is None:
            left = self._to_count[column] = sorted(snapshot.nodes, reverse=True)
        columns = self._columns
        with budget.keeping_up():
            while left and columns.distinct(column) <= _MAX_VALUES:
                if left[-1] in snapshot.nodes:
                    facts = columns.facts(snapshot.view(left[-1]))
                    try:
                        columns.number(snapshot, facts, column, budget, budget)
                    except IndexUnfinished as e:
                        e.nodes, e.left = len(snapshot.nodes), len(left)
                        raise
                left.pop()
        del self._to_count[column]
        self._counted.add(column)


def _has_expressions(columns: Set[Column]) -> bool:
    return any(column[0] in ("expression", "derived") for column in columns)


class _Known:
    """A request class with the bytes that it was last said to take."""

    __slots__ = ("_claims", "request_class", "weight")

    def __init__(self, request_class: RequestClass, claims: int) -> None:
        self.request_class = request_class
        self._claims = claims
        self.weight = claims + request_class.weight

    def weigh(self) -> None:
        """Note the bytes that it takes by now."""
        self.weight = self._claims + self.request_class.weight


def _requests(claim: ResourceClaim) -> bytes:
    """Return what decides how a claim is allocated; equal for claims that can share all results."""
    devices = claim.spec.devices
    topology = (claim.metadata.annotations or {}).get(names.TOPOLOGY_ANNOTATION, "")
    return codec.encode((devices.requests, devices.constraints, topology, claim.newer))
