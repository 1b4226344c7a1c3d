"""What it costs to have members on a node: the smallest sets of holders that have to go there.

Equivalent nodes are looked at once: they have the same devices as far as the claims can see them, and
holders on the same of these. Where single devices and counters are all that matters, a table says what they
cost. Elsewhere the table is a bound, and whether members fit on a node is asked of the allocator, once for
each state of the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from dra_driver.ownership import is_controller_taint
from dra_driver.planning.checks import Checks
from dra_driver.planning.holders.areas import Areas, devices_needed
from dra_driver.planning.holders.domains import Domain, attribute_values
from dra_driver.planning.holders.sets import fewest, irreducible
from dra_driver.planning.holders.spreading import Load, TooManyLoads, loads
from dra_driver.planning.holders.tables import Entry, HeldDevices, Memory, Table, cheapest_of
from dra_driver.planning.holders.wanted import NodeTables, Wanted
from dra_driver.planning.holdings import HeldDevice
from dra_driver.planning.question import Unit, Workload, units_of, want_room
from dra_driver.structured import GroupMember, similar_nodes, suitable_devices

__all__ = ["Known", "NodeClass", "NodeCosts"]

# Questions for one exact search; beyond that nothing is proven.
_MOST_ASKED = 3_000
# Units on a node, of those that do not use devices up.
_MOST_UNCOUNTED = 16


class _TooMany(Exception):
    """An exact search takes more questions than it may ask."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a load of a node.

    Attributes:
        freed: holders that are enough, by their place on the node.
        least: no smaller number is enough.
    """

    freed: frozenset[int]
    least: int

    @property
    def exact(self) -> bool:
        """Whether it is the smallest number."""
        return len(self.freed) == self.least


@dataclass(slots=True, eq=False)
class NodeClass:
    """Nodes that are alike, with their holders.

    Attributes:
        nodes: names, each with the numbers of its holders, by place.
        key: what they have in common.
        table: what single devices cost; None if that is not known.
        costs: by load.
    """

    nodes: list[tuple[str, tuple[int, ...]]]
    domain: Domain
    key: _Key
    table: Table | None = None
    costs: dict[Load, Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Held:
    """A holder on a node: what of which device it has, by position, and what its pods give back."""

    devices: tuple[HeldDevice, ...]
    priority: int
    gives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Key:
    """What makes nodes alike.

    Attributes:
        kind: number of the class of equal empty nodes.
        allowed: which kinds of units may go there.
        left_out: devices that the domain excludes.
        free: besides devices, as far as units can use it; empty if there is enough.
        kept: what cannot be freed.
        held: the holders.
    """

    kind: int
    allowed: tuple[bool, ...]
    left_out: frozenset[int]
    free: tuple[int, ...]
    kept: tuple[HeldDevice, ...]
    held: tuple[_Held, ...]


class NodeCosts:
    """Costs of loads on nodes, for one workload.

    Attributes:
        counts: number of units of each kind.
        complete: whether all loads were looked at.
        trusting: whether tables are taken for granted where they leave nothing out. What comes of them must
            be verified in the end; without that, the allocator is asked about each load.
    """

    def __init__(self, checks: Checks, workload: Workload) -> None:
        self._checks = checks
        kinds: dict[object, list[Unit]] = {}
        for unit in units_of(workload.members):
            kinds.setdefault(unit.kind, []).append(unit)
        self._members = workload.members
        self._kinds = list(kinds.values())
        self.counts: Load = tuple(map(len, self._kinds))
        self.complete = True
        self._claims = [claim for units in self._kinds for claim in units[0].claims]
        self._needed = [devices_needed(units[0].claims) for units in self._kinds]
        self._allowed = [None if u[0].nodes is None else frozenset(u[0].nodes) for u in self._kinds]
        self._with_needs = bool(checks.cluster.free) and want_room(workload.members)
        self._kind_of: dict[str, int] = {}
        similar = similar_nodes(checks.empty, self._claims, ignore_taint=is_controller_taint)
        for number, names in enumerate(similar):
            for name in names:
                # Where nodes share devices, what one of them has depends on others.
                self._kind_of[name] = len(self._kind_of) if checks.cluster.coupled else number
        self._areas: dict[int, Areas] = {}
        self._wanted = Wanted([units[0].claims for units in self._kinds])
        self._memory = Memory()
        self._tables: dict[int, NodeTables] = {}
        self.trusting = not checks.cluster.coupled
        self._answers: dict[object, bool] = {}

    # --- classes of nodes -----------------------------------------------------------------------------------

    def classes(self, domain: Domain) -> list[NodeClass]:
        """Return the nodes of a domain by what they are like, without those that cannot hold anything."""
        found: dict[_Key, NodeClass] = {}
        for name in domain.nodes:
            allowed = tuple(nodes is None or name in nodes for nodes in self._allowed)
            if not any(allowed) or not self._areas_of(name).suitable:
                continue
            key, holders = self._key(name, domain, allowed)
            if key not in found:
                found[key] = NodeClass([], domain, key, self._table(name, key))
            found[key].nodes.append((name, holders))
        return list(found.values())

    def _areas_of(self, name: str) -> Areas:
        kind = self._kind_of[name]
        if kind not in self._areas:
            snapshot = self._checks.cluster.snapshot
            suitable = suitable_devices(
                self._checks.empty, self._claims, name, ignore_taint=is_controller_taint
            )
            self._areas[kind] = Areas(snapshot.view(name), suitable)
        return self._areas[kind]

    def _tables_of(self, kind: int, name: str) -> NodeTables:
        if kind not in self._tables:
            self._tables[kind] = NodeTables.of(self._checks.empty, name, self._wanted, self._memory)
        return self._tables[kind]

    def _table(self, name: str, key: _Key) -> Table | None:
        """Return what single devices cost on nodes; None where counting them says as much."""
        if not self._wanted.countable or self._areas_of(name).countable:
            return None
        of_kind = self._tables_of(key.kind, name)
        held = [HeldDevices(tuple(d.place for d in h.devices), h.priority) for h in key.held]
        most = of_kind.needs(self._wanted.of(self.counts))
        return of_kind.tables.table(held, [d.place for d in key.kept], key.left_out, most)

    def _entry(self, nodes: NodeClass, load: Load) -> Entry | None:
        """Return what the devices of a load cost at least on nodes with a table; None if it never fits."""
        assert nodes.table is not None
        needs = self._tables_of(nodes.key.kind, nodes.nodes[0][0]).needs(self._wanted.of(load))
        return cheapest_of(nodes.table, needs)

    def _trusts(self, nodes: NodeClass) -> bool:
        """Return whether the table of nodes says all that there is to say."""
        exact = nodes.table is not None and self._tables_of(nodes.key.kind, nodes.nodes[0][0]).exact
        return self.trusting and exact and not nodes.key.free

    def _key(self, name: str, domain: Domain, allowed: tuple[bool, ...]) -> tuple[_Key, tuple[int, ...]]:
        checks = self._checks
        kept, held = checks.on_node(name)
        free, enough = self._room(name)
        made = {
            number: _Held(
                tuple(sorted(devices)),
                checks.cluster.holders[number].priority,
                tuple(
                    0 if has >= most else given
                    for has, most, given in zip(
                        free, enough, checks.cluster.holders[number].gives.get(name, ()), strict=False
                    )
                ),
            )
            for number, devices in held.items()
        }
        order = sorted(made, key=lambda n: (repr(made[n]), n))
        key = _Key(
            self._kind_of[name],
            allowed,
            self._left_out(name, domain),
            free,
            tuple(sorted(kept)),
            tuple(made[n] for n in order),
        )
        return key, tuple(order)

    def _room(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what a node has besides devices, and how much units can use; nothing if there is enough."""
        free = self._checks.cluster.free.get(name, ()) if self._with_needs else ()
        if not free:
            return (), ()
        areas = self._areas_of(name)
        enough = [0] * len(free)
        for units, (least, _) in zip(self._kinds, self._needed, strict=True):
            most = min(len(units), len(areas.suitable) // least) if least and areas.exclusive else len(units)
            for i, amount in enumerate(units[0].needs):
                enough[i] += amount * most
        if all(has >= wanted for has, wanted in zip(free, enough, strict=True)):
            return (), ()
        return tuple(map(min, free, enough)), tuple(enough)

    def _left_out(self, name: str, domain: Domain) -> frozenset[int]:
        out: set[int] = set()
        for level in domain.levels:
            values = attribute_values(self._checks.cluster.snapshot, name, level.attribute)
            out.update(i for i, v in enumerate(values) if v is not None and v != level.value)
        return frozenset(out)

    # --- costs ----------------------------------------------------------------------------------------------

    def estimate(self, nodes: NodeClass) -> None:
        """Find, for each load that the nodes can hold, holders that are enough and a number that is not.

        Raises:
            OutOfTime: the deadline has passed.
        """
        for load in self._loads(nodes):
            nodes.costs[load] = self._estimate(nodes, load)

    def _loads(self, nodes: NodeClass) -> Iterator[Load]:
        """Iterate over the loads that fit without any holder, the small ones first."""

        def holds(load: Load) -> bool:
            allowed = all(may for may, count in zip(nodes.key.allowed, load, strict=True) if count)
            return allowed and self._may_hold(nodes, load)

        try:
            yield from loads(self.counts, holds)
        except TooManyLoads:
            self.complete = False

    def _may_hold(self, nodes: NodeClass, load: Load) -> bool:
        """Return whether nodes hold a load without any holder."""
        if nodes.table is not None and self._entry(nodes, load) is None:
            return False
        return self._trusts(nodes) or self._fits(nodes, load, frozenset(range(len(nodes.key.held))))

    def _estimate(self, nodes: NodeClass, load: Load) -> Known:
        entry = None if nodes.table is None else self._entry(nodes, load)
        if entry is not None and (self._trusts(nodes) or self._fits(nodes, load, entry.holders)):
            return Known(entry.holders, entry.least)
        nothing: frozenset[int] = frozenset()
        if self._fits(nodes, load, nothing):
            return Known(nothing, 0)
        order = self._order(nodes)
        areas = self._areas_of(nodes.nodes[0][0])
        held = [tuple(d.place for d in h.devices) for h in nodes.key.held]
        kept = [d.place for d in nodes.key.kept]
        needed = sum(count * least for count, (least, _) in zip(load, self._needed, strict=True))
        least = areas.least(needed, held, kept, nodes.key.left_out)
        if areas.countable:
            # Mostly it is only the number of devices that matters: one question, in place of one per holder.
            likely = areas.likely(needed, held, kept, nodes.key.left_out, order)
            if len(likely) == least and self._fits(nodes, load, likely):
                return Known(likely, least)
        if entry is not None:
            least = max(least, entry.least)
        return Known(irreducible(order, lambda freed: self._fits(nodes, load, freed)), least)

    def _order(self, nodes: NodeClass) -> list[int]:
        """Return the holders, those that should rather stay first: high priority, then few devices."""
        held = nodes.key.held
        return sorted(range(len(held)), key=lambda i: (-held[i].priority, len(held[i].devices), i))

    def settle(self, nodes: NodeClass, load: Load, below: int) -> None:
        """Find the smallest number of holders for a load, if it is less than ``below``.

        Raises:
            OutOfTime: the deadline has passed.
        """
        known = nodes.costs[load]
        most = min(below, len(known.freed))
        if known.exact or known.least >= most:
            return
        asked = 0

        def holds(freed: frozenset[int]) -> bool:
            nonlocal asked
            asked += 1
            if asked > _MOST_ASKED:
                raise _TooMany
            return self._fits(nodes, load, freed)

        best = known.freed
        try:
            for things in self._parts(nodes, load):
                if not holds(frozenset(things)):
                    continue
                better = fewest(things, holds, min(most, len(best)), known.least)
                if better is not None:
                    best = better
        except _TooMany:
            nodes.costs[load] = Known(best, known.least)
            return
        nodes.costs[load] = Known(best, min(most, len(best)))

    def _parts(self, nodes: NodeClass, load: Load) -> Iterator[list[int]]:
        """Iterate over sets of holders of which one contains a smallest solution.

        A device needs holders of its own area only, so no solution needs holders of more areas than devices.
        """
        order = list(reversed(self._order(nodes)))
        most = 0
        for count, (_, needed) in zip(load, self._needed, strict=True):
            if needed is None and count:
                most = len(order)
            elif needed is not None:
                most += count * needed
        held = [tuple(d.place for d in h.devices) for h in nodes.key.held]
        areas = self._areas_of(nodes.nodes[0][0]).together(held)
        if most >= len(areas) or len(areas) == len(order) or self._with_needs:
            yield order
            return
        for some in combinations(areas, most):
            inside = set[int]().union(*some)
            yield [i for i in order if i in inside]

    def most(self, nodes: NodeClass) -> tuple[int, bool]:
        """Return how many units of the only kind fit on a node as it is, and whether no more do.

        Raises:
            OutOfTime: the deadline has passed.
        """
        bound = self._room_for_devices(nodes)
        limit = min(self.counts[0], _MOST_UNCOUNTED if bound is None else bound)
        if bound is not None and (not limit or self._fits(nodes, (limit,), frozenset())):
            return limit, limit == bound
        low, high = 0, 1
        while high <= limit and self._fits(nodes, (high,), frozenset()):
            low, high = high, high * 2
        high = min(high, limit + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(nodes, (middle,), frozenset()) else (low, middle)
        return low, low < limit

    def _room_for_devices(self, nodes: NodeClass) -> int | None:
        """Return a number of units for which a node has devices at most; None if that is not known.

        That one more does not fit is hard to prove by a search where partitions can be cut in many ways.
        """
        areas, (least, _) = self._areas_of(nodes.nodes[0][0]), self._needed[0]
        if nodes.table is not None:
            needs = self._tables_of(nodes.key.kind, nodes.nodes[0][0]).needs(self._wanted.numbers[0])
            free = [vector for vector, entry in nodes.table.items() if not entry.amount]
            if any(needs):
                return max(min(v // n for v, n in zip(of, needs, strict=True) if n) for of in free)
        if not areas.exclusive or not least:
            return None
        taken = {d.place for held in nodes.key.held for d in held.devices}
        taken |= {d.place for d in nodes.key.kept}
        return len(areas.suitable - taken - nodes.key.left_out) // least

    # --- the allocator --------------------------------------------------------------------------------------

    def _fits(self, nodes: NodeClass, load: Load, freed: frozenset[int]) -> bool:
        key = nodes.key
        left = tuple(h.devices for i, h in enumerate(key.held) if i not in freed)
        free = key.free
        for i in freed:
            if free and key.held[i].gives:
                free = tuple(map(sum, zip(free, key.held[i].gives, strict=True)))
        state = (key.kind, key.allowed, key.left_out, key.kept, load, free, left)
        known = self._answers.get(state)
        if known is None:
            known = self._answers[state] = self._ask(nodes, load, freed)
        return known

    def _ask(self, nodes: NodeClass, load: Load, freed: frozenset[int]) -> bool:
        name, holders = nodes.nodes[0]
        checks = self._checks
        gone = [holders[i] for i in freed]
        members: list[GroupMember] = []
        for units, count in zip(self._kinds, load, strict=True):
            for unit in units[:count]:
                members += [replace(self._members[i], nodes=(name,)) for i in unit.members]
        room = None
        if nodes.key.free:
            mine = nodes.key.free
            for i in freed:
                if nodes.key.held[i].gives:
                    mine = tuple(map(sum, zip(mine, nodes.key.held[i].gives, strict=True)))
            room = {name: mine}
        return checks.fits(checks.without(gone), members, nodes.domain.levels, room)
