"""Equivalence classes of nodes: nodes with the same visible devices and free state are solved once.

A *projection* names what the expressions and constraints of some claims can see. Under it devices of equal
content are of one *kind*; nodes with the same kinds in the same places have one *layout*; nodes of one layout
with the same devices in use are one *node class*. Devices that share counters (the partitions of a GPU) form
a *component*, every other device is one by itself; components of equal kinds and state are one *component
class*, on whatever nodes they are.

The invariant is that no claim of the projection can distinguish two nodes of a class: an answer for one of
them, as positions of devices, holds for all. Names of devices and pools are left out for that reason.

``FleetIndex`` holds the classes of one projection. It follows snapshots: going from one to another costs work
for the nodes that differ. That is upkeep: it can end after any node, and goes on there the next time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.api.core import Node
from dra_driver.ownership import PoolID
from dra_driver.structured.index.columns import BASE, TOPOLOGY_COLUMN, Column, Columns, Facts
from dra_driver.structured.index.components import Component, components_of
from dra_driver.structured.index.evaluations import EVALUATION_STEPS, Evaluations, SelectorsTooExpensive
from dra_driver.structured.model.budget import Budget, BudgetExhausted, IndexUnfinished
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.pools import DeviceEntry, LocalPools, NodeView, PoolView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState, PoolState
from dra_driver.structured.model.types import (
    PoolPolicies,
    PoolPolicy,
    Strategy,
)

__all__ = [
    "ComponentClass",
    "FleetIndex",
    "Layout",
    "NodeClass",
    "state_of",
]


# Classes are never removed, because request classes refer to them by position. With more than this, and more
# than four per node, most are of states that are gone: the index starts anew.
_MAX_CLASSES = 10_000
# Bytes, measured: of a node; of a class of nodes, and of a component that has a free device; of a layout, of
# each of its columns and devices; of a kind of device; of a class of components.
_PER_NODE, _PER_CLASS, _PER_PART = 256, 512, 240
_PER_LAYOUT, _PER_COLUMN, _PER_DEVICE, _PER_KIND, _PER_COMPONENT = 1024, 128, 640, 512, 1024
# Columns and devices of a node that are looked at in the time of a step.
_ITEMS_PER_STEP = 8


@dataclass(slots=True, eq=False)
class Layout:
    """What nodes of equal content have in common.

    Attributes:
        kinds: of the devices.
        columns: values of the projection's columns, one entry per device.
        structure: everything else that a search over plain devices can see.
        plain: whether there are neither counters nor shares.
        sizes: number of devices of each pool.
        policies: how each pool is used; None if it may not be used.
        first_fit: whether a pool is used first-fit.
        may_fail: whether Kubernetes' search may end in an error here.
    """

    kinds: tuple[int, ...]
    columns: Mapping[Column, tuple[Hashable, ...]]
    structure: Hashable
    components: tuple[Component, ...]
    plain: bool
    sizes: tuple[int, ...]
    policies: tuple[PoolPolicy | None, ...]
    first_fit: bool
    may_fail: bool


@dataclass(slots=True, eq=False)
class ComponentClass:
    """Components that are equal, and the nodes that have them.

    Attributes:
        view, states: of a node that has one, or had one.
        component: on that node.
        allocated: by device, whether it is allocated as a whole.
        nodes: names in order, by (1 if a node of which nothing is in use would be used in part, devices of
            the pool that would stay free).
        counters: by device, the capacity of partitions that choosing it makes impossible; None if it lacks
            counters.
    """

    view: NodeView
    states: tuple[PoolState, ...]
    component: Component
    allocated: tuple[bool, ...]
    nodes: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    counters: dict[int, int | None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class NodeClass:
    """Nodes of one layout with the same devices in use.

    Attributes:
        view, states: of one of them; names of devices differ on the others.
        in_use: what is in use, by positions.
        nodes: names in order.
        parts: the components with a free device, with the key of their node in ``ComponentClass.nodes``.
        distinct: component classes and keys of the parts, each once.
    """

    layout: Layout
    view: NodeView
    states: tuple[PoolState, ...]
    in_use: Hashable
    parts: tuple[tuple[ComponentClass, tuple[int, int], Component], ...] = ()
    distinct: tuple[tuple[ComponentClass, tuple[int, int]], ...] = ()
    nodes: list[str] = field(default_factory=list)


class FleetIndex:
    """The classes of one projection, for the snapshot that it followed last.

    Args:
        columns: values, shared by all projections.
        projection: what claims can see.
        default: how every pool is used; if None, as the policies say that ``follow`` gets.
        evaluation_steps: that evaluating expressions on all nodes may take, besides a few for each device.

    Attributes:
        kinds: a device of each kind, with its view and pool.
        components, classes: in the order in which they were found; positions in them stay valid while
            ``generation`` is the same.
        looks: number of times that a node was classified since the index started anew.
        first_fit: whether a layout so far has a pool that is used first-fit.
    """

    def __init__(
        self,
        columns: Columns,
        projection: Iterable[Column],
        default: PoolPolicy | None,
        evaluation_steps: int = EVALUATION_STEPS,
    ) -> None:
        self.projection = tuple(sorted(projection))
        self._expressions = sum(column[0] in ("expression", "derived") for column in self.projection)
        self._evaluation_steps = evaluation_steps
        self.generation = 0
        self._columns = columns
        self._default = default
        self._all = (BASE, TOPOLOGY_COLUMN, *self.projection)
        self._reset()

    def _reset(self) -> None:
        self.generation += 1
        self._nodes: PersistentMap[str, Node] = PersistentMap()
        self._local: PersistentMap[str, LocalPools] = PersistentMap()
        self._cluster_wide: object = None
        self._policies: PoolPolicies = PersistentMap()
        self._allocated: PersistentMap[PoolID, PoolState] = PersistentMap()
        # Nodes that differ in the snapshot and are not in their new classes yet: a question whose upkeep ends
        # here leaves the rest to the next one. The queue has the same nodes; the last one is the next.
        self._pending: set[str] = set()
        self._queue: list[str] = []
        self._evaluations = Evaluations(self._evaluation_steps)
        self.looks = 0
        self._where: dict[str, NodeClass] = {}
        self._layouts: dict[Hashable, Layout] = {}
        self._node_classes: dict[tuple[int, Hashable], NodeClass] = {}
        self._component_classes: dict[Hashable, ComponentClass] = {}
        self._kind_ids: dict[Hashable, int] = {}
        self.kinds: list[tuple[NodeView, PoolView, DeviceEntry]] = []
        self.components: list[ComponentClass] = []
        self.classes: list[NodeClass] = []
        self.first_fit = False
        self._weight = 0

    @property
    def weight(self) -> int:
        """Estimated bytes of all classes."""
        nodes = _PER_NODE * len(self._where)
        return self._weight + nodes + _PER_KIND * len(self.kinds) + _PER_COMPONENT * len(self.components)

    def forget_counters(self) -> None:
        """Forget what partitions make impossible: it is measured against the largest amounts of the fleet."""
        for component in self.components:
            component.counters.clear()

    def follow(
        self,
        snapshot: Snapshot,
        budget: Budget,
        policies: PoolPolicies | None = None,
        *,
        most_layouts: int | None = None,
    ) -> None:
        """Bring the classes up to the snapshot, and to the policies of pools if there is no default.

        Args:
            snapshot: to be followed.
            budget: of the question, whose upkeep this is.
            policies: of pools.
            most_layouts: ends the work as soon as there are more.

        Raises:
            IndexUnfinished: the question may do no more upkeep; the next call goes on with the other nodes.
            SelectorsTooExpensive: expressions that had to be evaluated take too much work.
        """
        policies = self._policies if policies is None else policies
        # Only a whole one starts anew: else a fleet that changes all the time would never have a whole one.
        if not self._pending and len(self.classes) > max(_MAX_CLASSES, 4 * len(self._where)):
            self._reset()
        if self.shows(snapshot, policies):
            return
        with budget.keeping_up():
            self._evaluations.question = budget
            self._follow(snapshot, budget, policies, most_layouts)

    def _follow(
        self, snapshot: Snapshot, budget: Budget, policies: PoolPolicies, most_layouts: int | None
    ) -> None:
        index, taken = snapshot.index, snapshot.allocated.pools
        # Compared with the snapshot before by identity, so it has to be noted together with what differs.
        dirty = self._dirty(snapshot, policies) - self._pending
        self._pending |= dirty
        self._queue[:0] = sorted(dirty, reverse=True)
        self._policies = policies
        self._nodes, self._local = snapshot.nodes, index.local
        self._cluster_wide, self._allocated = index.cluster_wide, taken
        while self._queue:
            name = self._queue[-1]
            try:
                self._place(snapshot, name, budget)
            except IndexUnfinished as e:
                e.nodes, e.left = len(snapshot.nodes), len(self._queue)
                raise
            except BudgetExhausted:
                raise SelectorsTooExpensive(self._evaluations.devices) from None
            self.looks += 1
            self._queue.pop()
            self._pending.discard(name)
            if most_layouts is not None and len(self._layouts) > most_layouts:
                return
        self._evaluations = Evaluations(self._evaluation_steps)

    def shows(self, snapshot: Snapshot, policies: PoolPolicies | None = None) -> bool:
        """Return whether the classes are those of the snapshot under these policies."""
        return (
            not self._pending
            and snapshot.nodes is self._nodes
            and snapshot.index.local is self._local
            and snapshot.index.cluster_wide is self._cluster_wide
            and snapshot.allocated.pools is self._allocated
            and (policies is None or policies is self._policies)
        )

    @property
    def pending(self) -> bool:
        """Whether nodes are not in their classes yet."""
        return bool(self._pending)

    @property
    def nodes(self) -> int:
        """Number of nodes that are in their classes."""
        return len(self._where)

    @property
    def layouts(self) -> int:
        """Number of layouts so far."""
        return len(self._layouts)

    def class_of(self, node: str) -> NodeClass:
        """Return the class of a node of the snapshot that was followed last."""
        return self._where[node]

    def _dirty(self, snapshot: Snapshot, policies: PoolPolicies) -> set[str]:
        """Return the nodes that may be in other classes than before."""
        index = snapshot.index
        if index.cluster_wide is not self._cluster_wide:
            return set(snapshot.nodes) | set(self._where)
        dirty = snapshot.nodes.differences(self._nodes) if snapshot.nodes is not self._nodes else set()
        if index.local is not self._local:
            dirty |= index.local.differences(self._local)
        pools = snapshot.allocated.pools.differences(self._allocated)
        if policies is not self._policies:
            pools |= policies.differences(self._policies)
        for pool in pools:
            nodes = index.nodes_of(pool)
            if nodes is None:
                return set(snapshot.nodes) | set(self._where)
            dirty.update(nodes)
        return dirty

    def _place(self, snapshot: Snapshot, name: str, budget: Budget) -> None:
        """Move a node from its class to the one that it belongs to now."""
        node = snapshot.nodes.get(name)
        now = None if node is None else self._class(snapshot, snapshot.index.view(node), budget)
        before = self._where.get(name)
        if now is before:
            return
        if before is not None:
            # By bisection in sorted lists: O(log n) to find, and copying names is cheap.
            _remove(before.nodes, name)
            for component, key in before.distinct:
                names = component.nodes[key]
                if len(names) == 1:
                    del component.nodes[key]
                else:
                    _remove(names, name)
        if now is None:
            self._where.pop(name, None)
            self._columns.forget(name)
            return
        self._where[name] = now
        _insert(now.nodes, name)
        for component, key in now.distinct:
            _insert(component.nodes.setdefault(key, []), name)

    def _class(self, snapshot: Snapshot, view: NodeView, budget: Budget) -> NodeClass:
        """Return the class of a node, a new one if there is no equal node."""
        facts = self._columns.facts(view)
        numbers = self._numbers(snapshot, facts, budget)
        # After what is kept of it even if the question ends here: each question gets further.
        budget.keep_up(1 + (len(self._all) + len(facts.entries)) // _ITEMS_PER_STEP)
        layout = self._layout(facts, numbers)
        states = tuple(snapshot.allocated.pool(p.id) for p in view.pools)
        in_use = tuple(
            _in_use(snapshot, facts, i, p, s) for i, (p, s) in enumerate(zip(view.pools, states, strict=True))
        )
        key = (id(layout), in_use)
        known = self._node_classes.get(key)
        if known is None:
            known = self._node_classes[key] = NodeClass(layout, view, states, in_use)
            self._add_parts(snapshot, known, view, states)
            self.classes.append(known)
            self._weight += _PER_CLASS + _PER_PART * len(known.parts)
        return known

    def _layout(self, facts: Facts, numbers: Sequence[int]) -> Layout:
        """Return the layout of a node with these values of columns; a new one if no node is equal."""
        pools = facts.view.pools
        default = self._default
        policies = () if default is not None else tuple([self._policies.get(p.id) for p in pools])
        key = (*numbers, policies)
        layout = self._layouts.get(key)
        if layout is None:
            used = policies if default is None else (default,) * len(pools)
            layout = self._layouts[key] = self._make_layout(facts, numbers, used)
            self._weight += _PER_LAYOUT + _PER_COLUMN * len(self._all) + _PER_DEVICE * len(layout.kinds)
            self.first_fit = self.first_fit or layout.first_fit
        return layout

    def _numbers(self, snapshot: Snapshot, facts: Facts, budget: Budget) -> list[int]:
        """Return the numbers of a node's values of all columns."""
        self._evaluations.allow(facts, self._expressions)
        number, pays = self._columns.number, self._evaluations
        return [number(snapshot, facts, column, budget, pays) for column in self._all]

    def _make_layout(
        self, facts: Facts, numbers: Sequence[int], policies: tuple[PoolPolicy | None, ...]
    ) -> Layout:
        values = {c: self._columns.value(c, n) for c, n in zip(self._all, numbers, strict=True)}
        base = values.pop(BASE)
        topology = values[TOPOLOGY_COLUMN]
        entries = facts.entries
        shown = [values[c] for c in self.projection if c[0] != "same"]
        bound = [values[c] for c in self.projection if c[0] == "same"]
        kinds: list[int] = []
        position = 0
        for pool in facts.view.pools:
            for entry in pool.devices:
                # A constraint compares devices; of a single one it decides only whether there is a value.
                content = (
                    base[position + 1],
                    tuple(column[position] for column in shown),
                    tuple(bool(column[position]) for column in bound),
                )
                kind = self._kind_ids.setdefault(content, len(self.kinds))
                if kind == len(self.kinds):
                    self.kinds.append((facts.view, pool, entry))
                kinds.append(kind)
                position += 1
        pools = facts.view.pools
        return Layout(
            kinds=tuple(kinds),
            columns=values,
            structure=(base[0], topology, policies),
            components=tuple(components_of(pools, kinds, policies)),
            plain=not any(e.shareable or e.device.consumes_counters for e in entries),
            sizes=tuple(len(p.devices) for p in pools),
            policies=policies,
            first_fit=any(r is not None and r.strategy is Strategy.FIRST_FIT for r in policies),
            may_fail=any(p.incomplete or p.invalid for p in pools)
            or any(e.ambiguous_selector for e in entries),
        )

    def _add_parts(
        self, snapshot: Snapshot, of: NodeClass, view: NodeView, states: tuple[PoolState, ...]
    ) -> None:
        """Fill in the components of a new class that have a free device in a usable pool."""
        layout = of.layout
        parts = []
        for component in layout.components:
            pool, state = view.pools[component.pool], states[component.pool]
            if pool.incomplete or pool.invalid or layout.policies[component.pool] is None:
                continue
            names = [pool.devices[p - component.offset].id.device for p in component.positions]
            # A component with nothing to give is in no list, so that full nodes cost nothing.
            allocated = tuple(name in state.devices for name in names)
            if all(allocated):
                continue
            made = self._component(snapshot, view, states, component, names, allocated)
            used = len(state.devices) + len(state.shares)
            remaining = max(0, len(pool.devices) - used - 1)
            parts.append((made, (int(used == 0 and remaining > 0), remaining), component))
        of.parts = tuple(parts)
        of.distinct = tuple(dict.fromkeys((c, key) for c, key, _ in parts))

    def _component(
        self,
        snapshot: Snapshot,
        view: NodeView,
        states: tuple[PoolState, ...],
        component: Component,
        names: Sequence[str],
        allocated: tuple[bool, ...],
    ) -> ComponentClass:
        """Return the class of a component, a new one if there is no equal component."""
        pool, state = view.pools[component.pool], states[component.pool]
        left: Hashable = ()
        if component.sets:
            counters = snapshot.index.counters_left(pool, state)
            left = tuple(
                (key, amount) for key, amount in sorted(counters.items()) if key[0] in component.sets
            )
            groups = snapshot.index.groups_left(pool, state)
            left = (left, tuple((name, groups.get(name)) for name in component.sets)) if groups else left
        shares: Hashable = ()
        if component.shareable:
            shares = tuple(
                (
                    name in state.shares,
                    tuple(sorted((n, q.nano) for n, q in state.capacity.get(name, {}).items())),
                )
                for name in names
            )
        key = (component.content, allocated, left, shares)
        known = self._component_classes.get(key)
        if known is None:
            known = self._component_classes[key] = ComponentClass(view, states, component, allocated)
            self.components.append(known)
        return known


def state_of(view: NodeView, states: Sequence[PoolState]) -> AllocatedState:
    """Return what is allocated on one node, without all others."""
    return AllocatedState(
        PersistentMap(
            (p.id, s) for p, s in zip(view.pools, states, strict=True) if s.devices or s.shares or s.capacity
        )
    )


def _in_use(snapshot: Snapshot, facts: Facts, number: int, pool: PoolView, state: PoolState) -> Hashable:
    """Return what is in use of a pool, by positions, so that nodes with other names are comparable."""
    plain = not (state.shares or state.capacity)
    # Devices of other nodes consume counters, too; those of this node are covered by what is in use here.
    counted: Hashable = (
        (
            *sorted(snapshot.index.counters_left(pool, state).items()),
            *sorted(snapshot.index.groups_left(pool, state).items()),
        )
        if any(e.device.consumes_counters for e in pool.elsewhere)
        else ()
    )
    if plain and not state.devices:
        return counted
    if not facts.bits:
        facts.bits = tuple(_bits(p) for p in facts.view.pools)
    bits = facts.bits[number]
    mask = unknown = 0
    for name in state.devices:
        bit = bits.get(name, 0)
        mask |= bit
        unknown += not bit
    if plain:
        return mask, unknown, counted
    shares = tuple(sorted((bits.get(name, 0), len(holders)) for name, holders in state.shares.items()))
    capacity = tuple(
        sorted(
            (bits.get(name, 0), tuple(sorted((n, q.nano) for n, q in amounts.items())))
            for name, amounts in state.capacity.items()
        )
    )
    return mask, unknown, counted, shares, capacity


def _bits(pool: PoolView) -> dict[str, int]:
    """Return a bit per device; equal names, which an invalid pool may have, share their bits."""
    bits: dict[str, int] = {}
    for i, entry in enumerate(pool.devices):
        bits[entry.id.device] = bits.get(entry.id.device, 0) | 1 << i
    return bits


def _insert(names: list[str], name: str) -> None:
    # Nodes arrive in order when an index is built.
    if not names or names[-1] < name:
        names.append(name)
    else:
        insort(names, name)


def _remove(names: list[str], name: str) -> None:
    i = bisect_left(names, name)
    if i < len(names) and names[i] == name:
        del names[i]
