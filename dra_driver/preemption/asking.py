"""Questions to the allocator about the cluster without some units, and what nodes are like for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from dra_driver.api.resource import ResourceClaim
from dra_driver.ownership import is_controller_taint
from dra_driver.planning import (
    Areas,
    HeldDevice,
    HeldDevices,
    Holdings,
    Memory,
    NodeTables,
    Wanted,
    cheapest_of,
    devices_needed,
    want_room,
)
from dra_driver.planning import Unit as Bundle
from dra_driver.planning import units_of as bundles_of
from dra_driver.preemption.question import OccupiedCluster, Preemptor
from dra_driver.preemption.units import Costs, Units, room_of
from dra_driver.structured import (
    Allocated,
    Budget,
    DoesNotFit,
    Failed,
    GroupAllocated,
    GroupMember,
    GroupRefused,
    Level,
    Snapshot,
    allocate,
    allocate_group,
    emptied,
    node_layouts,
    suitable_devices,
)

__all__ = ["Answer", "Asking", "Load", "NodeState"]

Answer = GroupAllocated | GroupRefused | Failed
Load = tuple[int, ...]
"""Number of bundles of each kind."""


class NodeState(NamedTuple):
    """A node as far as it matters for the preemptor, or nodes that units have something of together.

    Attributes:
        nodes: their names.
        key: equal for nodes that are alike but for ``held``.
        kept: what cannot be freed of its devices.
        held: the units that matter, each with what it has of the node's devices.
        free: what is left of the node besides devices; empty if there is enough.
    """

    nodes: tuple[str, ...]
    key: object
    kept: tuple[HeldDevice, ...]
    held: Mapping[int, tuple[HeldDevice, ...]]
    free: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the node, or of the first one."""
        return self.nodes[0]


class Asking:
    """The allocator on a cluster, from which what is being deleted has gone, and some units may.

    Args:
        cluster: as it is.
        preemptor: what is to fit.
        units: what holds devices.
        budget: of the whole question.

    Attributes:
        unsure: whether the allocator has given up on a question.
        trusting: whether single devices and counters are counted, where they are all that matters, in place
            of asking the allocator. What comes of that must be verified by ``solve``.
        kinds: the members that go to one node together, those that ask for the same in one list.
        counts: how many there are of each kind.
    """

    def __init__(self, cluster: OccupiedCluster, preemptor: Preemptor, units: Units, budget: Budget) -> None:
        self.cluster = cluster
        self.units = units
        self.budget = budget
        self.costs = Costs(units.removable, cluster.budgets)
        self.unsure = False
        self.trusting = not cluster.coupled
        self.levels = preemptor.levels
        self.members = preemptor.members[: preemptor.least]
        kinds: dict[object, list[Bundle]] = {}
        for bundle in bundles_of(self.members):
            kinds.setdefault(bundle.kind, []).append(bundle)
        self.kinds = list(kinds.values())
        self.counts: Load = tuple(map(len, self.kinds))
        self._needed = [devices_needed(of[0].claims) for of in self.kinds]
        self._with_room = bool(cluster.free) and want_room(self.members)
        of_units = [u.claims for u in units.removable]
        self.holdings = Holdings(self._settled(), of_units, units.kept)
        self._known: dict[object, bool] = {}
        self._areas: dict[int, Areas] = {}
        self._tables: dict[int, NodeTables | None] = {}
        self._memory = Memory()

    def _settled(self) -> Snapshot:
        """Return the cluster after everything that is being deleted has gone."""
        snapshot = self.cluster.snapshot
        gone = self.units.going[0]
        if not gone:
            return snapshot
        kept = [*self.units.kept, *(c for u in self.units.removable for c in u.claims)]
        return Holdings(snapshot, [gone], kept).without([0])

    @cached_property
    def free(self) -> Mapping[str, tuple[int, ...]]:
        """What is left of nodes besides devices then; no nodes where that does not matter."""
        return self._more_room(self.cluster.free, room_of(self.units.going[1])) if self._with_room else {}

    def free_without(self, freed: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
        """Return what is left of nodes besides devices when some units have gone, too."""
        pods = [pod for i in freed for pod in self.units.removable[i].pods]
        return self._more_room(self.free, room_of(pods))

    @staticmethod
    def _more_room(
        free: Mapping[str, tuple[int, ...]], more: Mapping[str, tuple[int, ...]]
    ) -> Mapping[str, tuple[int, ...]]:
        left = dict(free)
        for node, amounts in more.items():
            if node in left:
                left[node] = tuple(map(sum, zip(left[node], amounts, strict=True)))
        return left

    # --- questions ------------------------------------------------------------------------------------------

    def solve(self, freed: Iterable[int] = (), nodes: frozenset[str] | None = None) -> Answer:
        """Return where the preemptor goes when some units have gone; of all nodes, or of some.

        Raises:
            BudgetExhausted: the budget is used up.
        """
        gone = list(freed)
        members: Sequence[GroupMember] = self.members
        if nodes is not None:
            members = [
                replace(m, nodes=nodes if m.nodes is None else nodes.intersection(m.nodes)) for m in members
            ]
        free = self.free_without(gone) if self._with_room else None
        return self.ask(self.holdings.without(gone), members, free, self.levels)

    def ask(
        self,
        snapshot: Snapshot,
        members: Sequence[GroupMember],
        free: Mapping[str, tuple[int, ...]] | None,
        levels: Sequence[Level],
        *,
        brief: bool = False,
    ) -> Answer:
        """Ask the allocator.

        Raises:
            BudgetExhausted: the budget is used up.
        """
        pools, withheld = self.cluster.pools, self.cluster.withheld
        self.budget.spend()
        self.budget.cut = False
        answer: Answer
        if len(members) == 1 and not levels and free is None:
            outcome = allocate(
                snapshot,
                members[0].claims,
                nodes=members[0].nodes,
                ignore_taint=is_controller_taint,
                pools=pools,
                withheld=withheld,
                budget=self.budget,
            )
            match outcome:
                case Allocated():
                    answer = GroupAllocated((outcome,))
                case DoesNotFit():
                    answer = GroupRefused(1, 0, first=outcome)
                case Failed():
                    answer = outcome
        else:
            if free is not None:
                # What a pod does not ask for does not matter, however little there is of it.
                free = {n: tuple(max(0, a) for a in of) for n, of in free.items()}
            answer = allocate_group(
                snapshot,
                members,
                levels=levels,
                free=free,
                ignore_taint=is_controller_taint,
                pools=pools,
                withheld=withheld,
                budget=self.budget,
                brief=brief,
            )
        if isinstance(answer, Failed) and answer.gave_up:
            self.budget.spend(0)
            self.unsure = True
        return answer

    # --- nodes ----------------------------------------------------------------------------------------------

    @cached_property
    def _claims(self) -> list[ResourceClaim]:
        return [claim for of in self.kinds for claim in of[0].claims]

    @cached_property
    def _kind_of_node(self) -> Mapping[str, int]:
        found = node_layouts(
            self.holdings.snapshot,
            self._claims,
            ignore_taint=is_controller_taint,
            pools=self.cluster.pools,
            budget=self.budget,
        )
        apart = self.cluster.coupled or any(level.attribute for level in self.levels)
        # What is allocated already restricts nodes by their names.
        if apart or any(c.status.allocation is not None for c in self._claims):
            return {name: number for number, name in enumerate(found)}
        return found

    def areas(self, name: str) -> Areas:
        """Return which devices of a node depend on one another, and which of them matter."""
        kind = self._kind_of_node[name]
        if kind not in self._areas:
            # What is used up by its shares is not suitable.
            snapshot = emptied(self.holdings.snapshot)
            suitable = suitable_devices(snapshot, self._claims, name, ignore_taint=is_controller_taint)
            self._areas[kind] = Areas(snapshot.view(name), suitable)
        return self._areas[kind]

    @cached_property
    def _givers(self) -> Mapping[str, list[int]]:
        """The units that give nodes room besides devices."""
        found: dict[str, list[int]] = {}
        for number, unit in enumerate(self.units.removable):
            for node in unit.gives:
                found.setdefault(node, []).append(number)
        return found

    @cached_property
    def _most_needed(self) -> tuple[int, ...]:
        """What all members together take of a node besides devices."""
        needs = [m.needs for m in self.members if m.needs]
        return tuple(map(sum, zip(*needs, strict=True)))

    def state(self, name: str) -> NodeState | None:
        """Return a node as it is for the preemptor; None where it can have nothing of it.

        Raises:
            BudgetExhausted: the budget is used up.
        """
        self.budget.spend()
        areas = self.areas(name)
        allowed = tuple(of[0].nodes is None or name in of[0].nodes for of in self.kinds)
        if not any(allowed) or not (areas.suitable or self._with_room):
            return None
        kept, of_units = self.holdings.on_node(name)
        free = self.free.get(name, ())
        if all(has >= most for has, most in zip(free, self._most_needed, strict=True)) if free else True:
            free = ()
        concerned = areas.concerned
        held: dict[int, tuple[HeldDevice, ...]] = {}
        for number, devices in of_units.items():
            mine = tuple(sorted([d for d in devices if d.place in concerned]))
            if mine:
                held[number] = mine
        for number in self._givers.get(name, ()) if free else ():
            held.setdefault(number, ())
        stays = tuple(sorted([d for d in kept if d.place in concerned]))
        labels = self.cluster.snapshot.nodes[name].metadata.labels or {}
        key = (
            self._kind_of_node[name],
            allowed,
            stays,
            tuple(level.label and labels.get(level.label) for level in self.levels),
        )
        return NodeState((name,), key, stays, held, free)

    def needed(self, load: Load) -> tuple[int, int | None]:
        """Return how many devices a load takes at least and at most."""
        least = sum(n * of for n, (of, _) in zip(load, self._needed, strict=True))
        most: int | None = 0
        for n, (_, of) in zip(load, self._needed, strict=True):
            if n:
                most = None if most is None or of is None else most + n * of
        return least, most

    def fits(
        self, state: NodeState, load: Load, freed: frozenset[int], levels: Sequence[Level] | None = None
    ) -> bool:
        """Return whether a load fits on a node when some of its units have gone.

        Args:
            state: of the node.
            load: what is to fit.
            freed: the units.
            levels: of topology; if None, those of the preemptor.

        Raises:
            BudgetExhausted: the budget is used up.
        """
        at = tuple(self.levels if levels is None else levels)
        key: object
        free: Mapping[str, tuple[int, ...]] | None
        if len(state.nodes) > 1:
            key = (state.key, load, freed.intersection(state.held), at)
            free = self.free_without(freed) if self._with_room else None
        else:
            left = tuple(sorted([d for i, of in state.held.items() if i not in freed for d in of]))
            room = self._room(state, freed)
            key = (state.key, load, left, room, at)
            free = {state.name: room} if room else None
        known = self._known.get(key)
        if known is None and not (at or state.free) and len(state.nodes) == 1:
            known = self._counted(state, load, freed)
        if known is None:
            members = self.load(load, state.nodes)
            answer = self.ask(self.holdings.without(freed), members, free, at, brief=True)
            known = self._known[key] = isinstance(answer, GroupAllocated)
        return known

    def distrust(self) -> None:
        """Ask the allocator about everything from now on."""
        self.trusting = False
        self._known.clear()

    def _counted(self, state: NodeState, load: Load, freed: frozenset[int]) -> bool | None:
        """Return whether there are devices enough for a load; None where counting does not tell."""
        tables = self._tables_of(state.name) if self.trusting else None
        if tables is None:
            return None
        self.budget.spend()
        taken = [d.place for i, of in state.held.items() if i not in freed for d in of]
        taken += [d.place for d in state.kept]
        return tables.tables.have(taken, tables.needs(self._wanted.of(load)))

    def least(self, state: NodeState, load: Load) -> int | None:
        """Return a number of units below which a load does not fit; None where all of them are not enough.

        Only devices are counted for that, nothing is asked.
        """
        if len(state.nodes) > 1:
            return 1
        areas = self.areas(state.name)
        kept = [d.place for d in state.kept]
        of_units = [[d.place for d in of] for of in state.held.values()]
        if areas.countable:
            return areas.least(self.needed(load)[0], of_units, kept, ())
        tables = self._tables_of(state.name)
        if tables is None:
            return 1
        self.budget.spend()
        needs = tables.needs(self._wanted.of(load))
        table = tables.tables.table([HeldDevices(tuple(of), 0) for of in of_units], kept, (), needs)
        entry = None if table is None else cheapest_of(table, needs)
        if entry is None:
            return 1 if table is None else None
        return max(1, entry.least)

    @cached_property
    def _wanted(self) -> Wanted:
        return Wanted([of[0].claims for of in self.kinds])

    def _tables_of(self, name: str) -> NodeTables | None:
        """Return the tables of a node, where they say all that there is to say."""
        kind = self._kind_of_node[name]
        if kind not in self._tables:
            self._tables[kind] = None
            snapshot, pools, wanted = self.holdings.snapshot, self.cluster.pools, self._wanted
            exact = wanted.exact and wanted.countable
            exact = exact and all(c.status.allocation is None for c in self._claims)
            exact = exact and (pools is None or all(p.id in pools for p in snapshot.view(name).pools))
            if exact:
                tables = NodeTables.of(emptied(snapshot), name, wanted, self._memory)
                self._tables[kind] = tables if tables.exact else None
        return self._tables[kind]

    def joined(self, states: Sequence[NodeState]) -> list[NodeState]:
        """Return the nodes, those as one of which a unit has something together."""
        leader = list(range(len(states)))

        def find(i: int) -> int:
            while leader[i] != i:
                i = leader[i]
            return i

        first: dict[int, int] = {}
        for i, state in enumerate(states):
            for unit in state.held:
                a, b = sorted((find(i), find(0 if self.cluster.coupled else first.setdefault(unit, i))))
                leader[b] = a
        together: dict[int, list[NodeState]] = {}
        for i, state in enumerate(states):
            together.setdefault(0 if self.cluster.coupled else find(i), []).append(state)
        return [of[0] if len(of) == 1 else _join(of) for of in together.values()]

    def load(self, load: Load, nodes: Iterable[str]) -> list[GroupMember]:
        """Return the members of a load, on some nodes only."""
        only = frozenset(nodes)
        return [
            replace(m, nodes=only if m.nodes is None else only.intersection(m.nodes))
            for of, count in zip(self.kinds, load, strict=True)
            for bundle in of[:count]
            for m in (self.members[i] for i in bundle.members)
        ]

    def _room(self, state: NodeState, freed: frozenset[int]) -> tuple[int, ...]:
        if not state.free:
            return ()
        free = state.free
        for number in freed:
            given = self.units.removable[number].gives.get(state.name)
            if given:
                free = tuple(map(sum, zip(free, given, strict=True)))
        return tuple(max(0, min(has, most)) for has, most in zip(free, self._most_needed, strict=True))


def _join(states: Sequence[NodeState]) -> NodeState:
    nodes = tuple(state.name for state in states)
    held = dict.fromkeys((unit for state in states for unit in state.held), ())
    return NodeState(nodes, nodes, (), held, ())
