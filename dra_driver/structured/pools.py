"""ResourceSlices, indexed: which devices of which pools a node can use.

The rules are those of Kubernetes' ``GatherPools``. A pool is looked at from a node: only slices that concern
the node count, and slices with shared counters concern every node. A pool with fewer slices than it says is
incomplete, unless the missing ones are those of other nodes; where other nodes have a newer generation, an
incomplete old one is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_driver import cel
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.resource import CounterSet, Device, NodeSelector, ResourceSlice
from dra_driver.structured import nodeselection
from dra_driver.structured.state import PoolState
from dra_driver.structured.types import DeviceID, Features, PoolID

__all__ = ["DeviceEntry", "NodeView", "PoolIndex", "PoolView", "SliceEntry"]


@dataclass(frozen=True, slots=True, eq=False)
class SliceEntry:
    """One slice with its devices."""

    name: str
    pool: PoolID
    generation: int
    slice_count: int
    node_name: str | None
    node_selector: NodeSelector | None
    all_nodes: bool
    per_device: bool
    counter_sets: tuple[CounterSet, ...]
    devices: tuple[DeviceEntry, ...]


@dataclass(slots=True, eq=False)
class DeviceEntry:
    """One device; compared by identity.

    Attributes:
        shareable: allocated several times, each time a part of its capacity.
        node_name, node_selector: where an allocation of it can be used, wherever that is said.
    """

    id: DeviceID
    device: Device
    shareable: bool
    node_name: str | None
    node_selector: NodeSelector | None
    all_nodes: bool
    content: cel.DeviceView | None = None
    """What selectors see; made when the first one looks."""

    @property
    def ambiguous_selector(self) -> bool:
        """Whether its node selector has several terms: an allocation can carry one only."""
        return (
            not self.node_name
            and self.node_selector is not None
            and len(self.node_selector.node_selector_terms) > 1
        )

    def on_node(self, node: Node) -> bool:
        """Whether the device's own node selection includes the node."""
        return _selects(self.node_name, self.all_nodes, self.node_selector, node)


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """A pool as one node sees it.

    Attributes:
        devices: of the newest generation, in the order of slice names; of slices with node selection per
            device also those of other nodes, which ``off_node`` names.
        elsewhere: devices of the same generation in slices of other nodes; they take counters.
        binding_conditions: whether a device has binding conditions; such pools are tried last.
    """

    id: PoolID
    devices: tuple[DeviceEntry, ...]
    off_node: frozenset[str]
    elsewhere: tuple[DeviceEntry, ...]
    counter_sets: Mapping[str, CounterSet]
    incomplete: bool
    invalid: bool
    binding_conditions: bool


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """Everything that one node can use.

    Attributes:
        pools: in the order in which they are tried.
    """

    node: Node
    pools: tuple[PoolView, ...]


class PoolIndex:
    """All slices of a cluster. Immutable but for views that are made on demand and kept."""

    def __init__(self, slices: Iterable[ResourceSlice], features: Features) -> None:
        self._pools: dict[PoolID, list[SliceEntry]] = defaultdict(list)
        self._local: dict[str, set[PoolID]] = defaultdict(set)
        self._roaming: set[PoolID] = set()
        self._counting: set[PoolID] = set()
        self._views: dict[str, NodeView] = {}
        # For each pool the last answer, and the state of the pool that it is for.
        self._counters: dict[PoolView, tuple[PoolState, Mapping[tuple[str, str], int]]] = {}
        self._consumers: dict[PoolView, dict[str, list[DeviceEntry]]] = {}
        for slice_ in sorted(slices, key=lambda s: s.metadata.name):
            if slice_.spec.per_device_node_selection is not None and not features.partitionable_devices:
                continue
            entry = _slice_entry(slice_, features)
            self._pools[entry.pool].append(entry)
            if entry.counter_sets:
                self._counting.add(entry.pool)
            elif entry.node_name:
                self._local[entry.node_name].add(entry.pool)
            else:
                self._roaming.add(entry.pool)
        # A pool whose counters are not complete or not valid shows on nodes that have none of its devices.
        nowhere = Node(metadata=ObjectMeta(name=""))
        seen = ((pool, self._pool_view(pool, nowhere)) for pool in sorted(self._counting))
        self._foreign = {pool: view for pool, view in seen if view and (view.incomplete or view.invalid)}

    def view(self, node: Node) -> NodeView:
        """What the node can use."""
        view = self._views.get(node.metadata.name)
        if view is None or view.node is not node:
            view = self._views[node.metadata.name] = self._node_view(node)
        return view

    def counters_left(self, pool: PoolView, taken: PoolState) -> Mapping[tuple[str, str], int]:
        """What allocated devices leave of a pool's counters, by (set, counter), in 1e-9."""
        known = self._counters.get(pool)
        if known is not None and known[0] is taken:
            return known[1]
        left = {
            (name, counter): amount.value.nano
            for name, set_ in pool.counter_sets.items()
            for counter, amount in set_.counters.items()
        }
        for entry in (*pool.devices, *pool.elsewhere):
            name = entry.id.device
            # The shares of one device take its counters once.
            if not entry.device.consumes_counters or not (name in taken.devices or name in taken.shares):
                continue
            for consumed in entry.device.consumes_counters:
                for counter, amount in consumed.counters.items():
                    key = (consumed.counter_set, counter)
                    left[key] = left.get(key, 0) - amount.value.nano
        self._counters[pool] = (taken, left)
        return left

    @cached_property
    def capacity_scale(self) -> Mapping[str, int]:
        """The largest amount of each capacity in the cluster, by the last part of its name, in 1e-9."""
        scale: dict[str, int] = {}
        for entries in self._pools.values():
            for slice_ in entries:
                for entry in slice_.devices:
                    for name, capacity in entry.device.capacity.items():
                        bare = name.rpartition("/")[2]
                        scale[bare] = max(scale.get(bare, 1), capacity.value.nano)
        return scale

    def consumers(self, pool: PoolView) -> Mapping[str, Sequence[DeviceEntry]]:
        """The devices that take from each counter set of a pool."""
        known = self._consumers.get(pool)
        if known is None:
            known = self._consumers[pool] = {}
            for entry in (*pool.devices, *pool.elsewhere):
                for consumed in entry.device.consumes_counters:
                    known.setdefault(consumed.counter_set, []).append(entry)
        return known

    def _node_view(self, node: Node) -> NodeView:
        # Pools of a device-bearing slice anywhere, plus those that no slice of this node belongs to but that
        # are relevant for every node because of their counters.
        relevant = set(self._local.get(node.metadata.name, ())) | self._roaming
        views = [v for pool in relevant if (v := self._pool_view(pool, node)) is not None]
        views += [view for pool, view in self._foreign.items() if pool not in relevant]
        views.sort(key=lambda v: (v.binding_conditions, v.id))
        return NodeView(node, tuple(views))

    def _pool_view(self, pool: PoolID, node: Node) -> PoolView | None:
        every = self._pools[pool]
        mine = [s for s in every if s.counter_sets or _slice_on_node(s, node)]
        if not mine:
            return None
        generation = max(s.generation for s in mine)
        mine = [s for s in mine if s.generation == generation]
        same = [s for s in every if s.generation == generation]
        incomplete = False
        if len(mine) != mine[0].slice_count:
            if max(s.generation for s in every) > generation:
                return None
            incomplete = len(same) != mine[0].slice_count
        chosen = set(map(id, mine))
        others = [s for s in same if id(s) not in chosen]
        return _make_view(pool, mine, others, node, incomplete=incomplete)


def _make_view(
    pool: PoolID, mine: Sequence[SliceEntry], others: Sequence[SliceEntry], node: Node, *, incomplete: bool
) -> PoolView:
    devices = tuple(d for s in mine for d in s.devices)
    elsewhere = tuple(d for s in others for d in s.devices)
    sets = {c.name: c for s in mine for c in s.counter_sets}
    ambiguous = len(sets) != sum(len(s.counter_sets) for s in mine)
    return PoolView(
        id=pool,
        devices=devices,
        off_node=frozenset(
            d.id.device for s in mine if s.per_device for d in s.devices if not d.on_node(node)
        ),
        elsewhere=elsewhere,
        counter_sets=sets,
        incomplete=incomplete,
        invalid=not incomplete and (ambiguous or _is_invalid((*devices, *elsewhere), sets)),
        binding_conditions=any(d.device.binding_conditions for d in devices),
    )


def _is_invalid(devices: Sequence[DeviceEntry], sets: Mapping[str, CounterSet]) -> bool:
    if len({d.id.device for d in devices}) != len(devices):
        return True
    for entry in devices:
        for consumed in entry.device.consumes_counters:
            available = sets.get(consumed.counter_set)
            if available is None or not consumed.counters.keys() <= available.counters.keys():
                return True
    return False


def _slice_entry(slice_: ResourceSlice, features: Features) -> SliceEntry:
    spec = slice_.spec
    pool = PoolID(spec.driver, spec.pool.name)
    per_device = bool(spec.per_device_node_selection)
    devices = tuple(
        DeviceEntry(
            id=DeviceID(spec.driver, spec.pool.name, device.name),
            device=device,
            shareable=features.consumable_capacity and bool(device.allow_multiple_allocations),
            node_name=device.node_name if per_device else spec.node_name,
            node_selector=device.node_selector if per_device else spec.node_selector,
            all_nodes=bool(device.all_nodes if per_device else spec.all_nodes),
        )
        for device in spec.devices
        if _supported(device, features)
    )
    return SliceEntry(
        name=slice_.metadata.name,
        pool=pool,
        generation=spec.pool.generation,
        slice_count=spec.pool.resource_slice_count,
        node_name=spec.node_name or None,
        node_selector=spec.node_selector,
        all_nodes=bool(spec.all_nodes),
        per_device=per_device,
        counter_sets=spec.shared_counters if features.partitionable_devices else (),
        devices=devices,
    )


def _supported(device: Device, features: Features) -> bool:
    """Whether the device can be used without a feature that is off."""
    if device.binding_conditions and not features.device_binding_and_status:
        return False
    return not device.consumes_counters or features.partitionable_devices


def _slice_on_node(entry: SliceEntry, node: Node) -> bool:
    if entry.per_device:
        return any(d.on_node(node) for d in entry.devices)
    return _selects(entry.node_name, entry.all_nodes, entry.node_selector, node)


def _selects(name: str | None, all_nodes: bool, selector: NodeSelector | None, node: Node) -> bool:
    if name:
        return name == node.metadata.name
    if all_nodes:
        return True
    return selector is not None and nodeselection.selector_matches(selector, node)
