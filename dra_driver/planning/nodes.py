"""What it costs to have members on a node: the smallest sets of holders that have to go there.

Equivalent nodes are looked at once: they have the same devices as far as the claims can see them, and
holders on the same of these. Whether members fit on a node is asked of the allocator, once for each state of
the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from dra_driver.ownership import is_controller_taint
from dra_driver.planning.areas import Areas, devices_needed, partitions_at_most
from dra_driver.planning.checks import Checks
from dra_driver.planning.domains import Domain, attribute_values
from dra_driver.planning.question import Unit, Workload, units_of, want_room
from dra_driver.planning.sets import fewest, irreducible
from dra_driver.planning.spreading import Load
from dra_driver.structured import GroupMember, similar_nodes, suitable_devices

__all__ = ["Known", "NodeClass", "NodeCosts"]

# Loads of a node that are looked at, and questions for one exact search; beyond that nothing is proven.
_MOST_LOADS = 160
_MOST_ASKED = 3_000


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
        costs: by load.
    """

    nodes: list[tuple[str, tuple[int, ...]]]
    domain: Domain
    key: _Key
    costs: dict[Load, Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Held:
    """A holder on a node: what of which device it has, by position, and what its pods give back."""

    devices: tuple[tuple[int, object], ...]
    priority: int
    gives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Key:
    """What makes nodes alike.

    Attributes:
        kind: number of the class of equal empty nodes.
        allowed: which kinds of units may go there.
        left_out: devices that the domain excludes.
        free: besides devices; empty if that does not matter.
        kept: what cannot be freed.
        held: the holders.
    """

    kind: int
    allowed: tuple[bool, ...]
    left_out: frozenset[int]
    free: tuple[int, ...]
    kept: tuple[tuple[int, object], ...]
    held: tuple[_Held, ...]


class NodeCosts:
    """Costs of loads on nodes, for one workload.

    Attributes:
        counts: number of units of each kind.
        complete: whether all loads were looked at.
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
                found[key] = NodeClass([], domain, key)
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

    def _key(self, name: str, domain: Domain, allowed: tuple[bool, ...]) -> tuple[_Key, tuple[int, ...]]:
        checks = self._checks
        snapshot = checks.cluster.snapshot
        held: dict[int, list[tuple[int, object]]] = {}
        kept: list[tuple[int, object]] = []
        base = 0
        for pool in snapshot.view(name).pools:
            holding = checks.in_pool(pool.id)
            if holding:
                place = {entry.id.device: base + i for i, entry in enumerate(pool.devices)}
                for _, allocation, holder in holding:
                    for r in allocation.devices.results:
                        if (r.driver, r.pool) != pool.id or r.admin_access or r.device not in place:
                            continue
                        amounts = tuple(sorted((n, q.nano) for n, q in r.consumed_capacity.items()))
                        into = kept if holder < 0 else held.setdefault(holder, [])
                        into.append((place[r.device], (r.share_id is not None, amounts)))
            base += len(pool.devices)
        free: tuple[int, ...] = ()
        if self._with_needs:
            free = checks.cluster.free.get(name, ())
        made = {
            number: _Held(
                tuple(sorted(devices, key=repr)),
                checks.cluster.holders[number].priority,
                checks.cluster.holders[number].gives.get(name, ()) if free else (),
            )
            for number, devices in held.items()
        }
        order = sorted(made, key=lambda n: (repr(made[n]), n))
        key = _Key(
            self._kind_of[name],
            allowed,
            self._left_out(name, domain),
            free,
            tuple(sorted(kept, key=repr)),
            tuple(made[n] for n in order),
        )
        return key, tuple(order)

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
        every = frozenset(range(len(nodes.key.held)))
        seen: set[Load] = set()
        level = [tuple(0 for _ in self.counts)]
        number = 0
        while level:
            larger: list[Load] = []
            for load in level:
                for kind, count in enumerate(load):
                    more = (*load[:kind], count + 1, *load[kind + 1 :])
                    if count == self.counts[kind] or more in seen or not nodes.key.allowed[kind]:
                        continue
                    seen.add(more)
                    if number == _MOST_LOADS:
                        self.complete = False
                        return
                    if self._fits(nodes, more, every):
                        number += 1
                        larger.append(more)
                        yield more
            level = larger

    def _estimate(self, nodes: NodeClass, load: Load) -> Known:
        nothing: frozenset[int] = frozenset()
        if self._fits(nodes, load, nothing):
            return Known(nothing, 0)
        order = self._order(nodes)
        areas = self._areas_of(nodes.nodes[0][0])
        held = [tuple(at for at, _ in h.devices) for h in nodes.key.held]
        kept = [at for at, _ in nodes.key.kept]
        needed = sum(count * least for count, (least, _) in zip(load, self._needed, strict=True))
        least = areas.least(needed, held, kept, nodes.key.left_out)
        if areas.countable:
            # Mostly it is only the number of devices that matters: one question, in place of one per holder.
            likely = areas.likely(needed, held, kept, nodes.key.left_out, order)
            if len(likely) == least and self._fits(nodes, load, likely):
                return Known(likely, least)
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
        held = [tuple(at for at, _ in h.devices) for h in nodes.key.held]
        areas = self._areas_of(nodes.nodes[0][0]).together(held)
        if most >= len(areas) or len(areas) == len(order) or self._with_needs:
            yield order
            return
        for some in combinations(areas, most):
            inside = set[int]().union(*some)
            yield [i for i in order if i in inside]

    def most(self, nodes: NodeClass) -> int:
        """Return how many units of the only kind fit on a node as it is, up to those that there are.

        Raises:
            OutOfTime: the deadline has passed.
        """
        least, _ = self._needed[0]
        bound = self._room_for_devices(nodes) if least else None
        limit = self.counts[0] if bound is None else min(self.counts[0], bound // least)
        low, high = 0, 1
        while high <= limit and self._fits(nodes, (high,), frozenset()):
            low, high = high, high * 2
        if low < limit < high and self._fits(nodes, (limit,), frozenset()):
            return limit
        high = min(high, limit + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(nodes, (middle,), frozenset()) else (low, middle)
        return low

    def _room_for_devices(self, nodes: NodeClass) -> int | None:
        """Return a number of devices that a node has no more of at the same time; None if that is not known.

        That one more does not fit is hard to prove by a search where partitions can be cut in many ways.
        """
        name, snapshot = nodes.nodes[0][0], self._checks.cluster.snapshot
        taken = {at for held in nodes.key.held for at, _ in held.devices} | {at for at, _ in nodes.key.kept}
        usable = self._areas_of(name).suitable - taken - nodes.key.left_out
        bound, at = 0, 0
        for pool in snapshot.view(name).pools:
            mine = [entry for i, entry in enumerate(pool.devices, at) if i in usable]
            at += len(pool.devices)
            if any(entry.shareable for entry in mine):
                return None
            bound += partitions_at_most([entry.device for entry in mine], snapshot.counters_left(pool))
        return bound

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
