"""ResourceSlices, indexed: which devices of which pools a node can use.

The rules are those of Kubernetes' ``GatherPools``. A pool is seen from a node: only slices that select the
node count, and slices with shared counters count on every node. A pool with fewer slices than its
``resourceSliceCount`` is incomplete, unless the missing slices are those of other nodes; where other nodes
have a newer generation, an incomplete older one is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from dra_driver import cel
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.own.inventory import LARGEST_CAPACITY
from dra_driver.api.resource import CounterSet, Device, NodeSelector, ResourceSlice
from dra_driver.ownership import PoolID, pool_of_slice
from dra_driver.structured.model import nodeselection
from dra_driver.structured.model.compatibility import Groups, common_groups, has_groups
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.state import PoolState
from dra_driver.structured.model.types import (
    DeviceID,
    Features,
)

__all__ = ["DeviceEntry", "LocalPools", "NodeView", "PoolIndex", "PoolView", "SliceEntry"]


@dataclass(frozen=True, slots=True, eq=False)
class SliceEntry:
    """A ResourceSlice with its devices.

    Attributes:
        per_device: whether each device has a node selection of its own (``perDeviceNodeSelection``).
    """

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

    @property
    def only_counters(self) -> bool:
        """Whether it has counters alone, which count on every node. 1.34 has them beside devices."""
        return bool(self.counter_sets) and not self.devices


@dataclass(slots=True, eq=False)
class DeviceEntry:
    """A device; compared by identity.

    Attributes:
        shareable: whether it can be allocated several times, each time a part of its capacity (KEP-5075).
        node_name, node_selector, all_nodes: where it can be used, as its slice or the device itself says.
        content: what selectors see; made when the first selector is evaluated.
        skips: node operations that the kubelet may leave out for it (``skipNodeOperations`` of its slice).
        newer: field of the device or its slice because of which it needs a newer controller; mostly empty.
    """

    id: DeviceID
    device: Device
    shareable: bool
    node_name: str | None
    node_selector: NodeSelector | None
    all_nodes: bool
    content: cel.DeviceView | None = None
    skips: tuple[str, ...] = ()
    newer: str = ""

    @property
    def ambiguous_selector(self) -> bool:
        """Whether its node selector has several terms: an allocation can carry only one."""
        return (
            not self.node_name
            and self.node_selector is not None
            and len(self.node_selector.node_selector_terms) > 1
        )

    def on_node(self, node: Node) -> bool:
        """Return whether the device's own node selection includes the node."""
        return _selects(self.node_name, self.all_nodes, self.node_selector, node)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PoolView:
    """A pool as one node sees it.

    Attributes:
        devices: of the newest generation, in the order of slice names; of slices with node selection per
            device also those of other nodes, which ``off_node`` names.
        elsewhere: devices of the same generation in slices of other nodes; they consume counters, too.
        counter_sets: shared counters by name of the set (KEP-4815).
        incomplete: whether slices of the generation are missing.
        invalid: whether slices contradict each other: equal device names, or counters that do not exist.
        binding_conditions: whether a device has binding conditions; such pools are tried last.
        grouped: whether a device has compatibility groups.
    """

    id: PoolID
    devices: tuple[DeviceEntry, ...]
    off_node: frozenset[str]
    elsewhere: tuple[DeviceEntry, ...]
    counter_sets: Mapping[str, CounterSet]
    incomplete: bool
    invalid: bool
    binding_conditions: bool
    grouped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """The pools that one node sees.

    Attributes:
        pools: in the order in which they are tried.
    """

    node: Node
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LocalPools:
    """The pools with slices of one node. A new object whenever one of them changes."""

    pools: tuple[PoolID, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ClusterWide:
    """What nodes see without a slice of their own in it. A new object whenever it changes.

    Attributes:
        pools: pools with slices that are not of one node.
        broken: pools with counters that are incomplete or invalid; as in Kubernetes, that shows on all nodes.
    """

    pools: frozenset[PoolID]
    broken: Mapping[PoolID, PoolView]


# Shared by all nodes without a slice: views are compared by the identity of this object.
_NO_POOLS = LocalPools(())
# Only slices with counters are seen from it.
_NO_NODE = Node(metadata=ObjectMeta(name=""))
# Number of devices by capacity (last part of its name) and amount in 1e-9 units.
Sizes = Mapping[str, Mapping[int, int]]


@dataclass(slots=True)
class _Caches:
    """Cached results. Each entry is compared with the objects that it was made of before it is used.

    Attributes:
        views: by node.
        counters: by pool the last result of ``counters_left``, with the state of the pool that it is for.
        groups: likewise of ``groups_left``.
        consumers: by pool.
    """

    views: dict[str, tuple[LocalPools, ClusterWide, NodeView]]
    counters: WeakKeyDictionary[PoolView, tuple[PoolState, Mapping[tuple[str, str], int]]]
    groups: WeakKeyDictionary[PoolView, tuple[PoolState, Mapping[str, Groups]]]
    consumers: WeakKeyDictionary[PoolView, dict[str, list[DeviceEntry]]]


class PoolIndex:
    """All slices of a cluster. Immutable but for its caches.

    ``with_slices`` returns the next index, at the cost of the pools and nodes that change.
    """

    def __init__(self, slices: Iterable[ResourceSlice], features: Features) -> None:
        self._features = features
        self._caches = _Caches({}, WeakKeyDictionary(), WeakKeyDictionary(), WeakKeyDictionary())
        self._by_name: PersistentMap[str, tuple[PoolID, ResourceSlice]] = PersistentMap()
        self._pools: PersistentMap[PoolID, tuple[SliceEntry, ...]] = PersistentMap()
        self.local: PersistentMap[str, LocalPools] = PersistentMap()
        self.cluster_wide = ClusterWide(frozenset(), {})
        self._sizes: Sizes = {}
        # Number of slices with each attribute.
        self._counts: Counter[str] = Counter()
        self._named: frozenset[str] = frozenset()
        named: dict[str, ResourceSlice] = {}
        for slice_ in slices:
            # Names are unique in a cluster; in made-up data that have none they need not be.
            name = slice_.metadata.name
            named[name if name not in named else f"{name}\0{len(named):09}"] = slice_
        self._change(named, ())

    def with_slices(self, changed: Iterable[ResourceSlice], removed: Iterable[str] = ()) -> PoolIndex:
        """Return an index with some slices added or replaced, and some removed by name."""
        made = copy(self)
        made._change({s.metadata.name: s for s in changed}, removed)
        return made

    def devices(self, pool: PoolID) -> Iterator[DeviceEntry]:
        """Iterate over the devices of all slices of a pool, of all nodes and generations."""
        for entry in self._pools.get(pool) or ():
            yield from entry.devices

    def nodes_of(self, pool: PoolID) -> Collection[str] | None:
        """Return the nodes that see the pool; None if that may be all of them."""
        if pool in self.cluster_wide.pools:
            return None
        return {s.node_name for s in self._pools.get(pool) or () if s.node_name}

    def _change(self, changed: Mapping[str, ResourceSlice], removed: Iterable[str]) -> None:
        """Replace slices. Called only while the index is being made."""
        partial = self._features.partitionable_devices
        entries = [
            _slice_entry(name, slice_, self._features)
            for name, slice_ in changed.items()
            if slice_.spec.per_device_node_selection is None or partial
        ]
        gone = {*changed, *removed}
        by_pool: dict[PoolID, dict[str, SliceEntry]] = {}

        def slices_of(pool: PoolID) -> dict[str, SliceEntry]:
            if pool not in by_pool:
                by_pool[pool] = {s.name: s for s in self._pools.get(pool) or ()}
            return by_pool[pool]

        # Differences, not new sums: a change of one slice must not cost a look at the whole cluster.
        delta: Counter[tuple[str, int]] = Counter()
        named: Counter[str] = Counter()
        for name in gone:
            known = self._by_name.get(name)
            # A slice that the features exclude has a name but is in no pool.
            old = None if known is None else slices_of(known[0]).pop(name, None)
            if old is not None:
                delta.subtract(_amounts(old))
                named.subtract(_attribute_names(old))
        for entry in entries:
            slices_of(entry.pool)[entry.name] = entry
            delta.update(_amounts(entry))
            named.update(_attribute_names(entry))
        self._by_name = self._by_name.updated({n: (pool_of_slice(s), s) for n, s in changed.items()}, gone)
        self._resize(delta)
        if any(named.values()):
            counts = Counter(self._counts)
            counts.update(named)
            self._counts = +counts
            if self._counts.keys() != self._named:
                self._named = frozenset(self._counts)
        self._replace_pools(
            {pool: tuple(by_name[n] for n in sorted(by_name)) for pool, by_name in by_pool.items()}
        )

    def _replace_pools(self, pools: Mapping[PoolID, tuple[SliceEntry, ...]]) -> None:
        local: dict[str, set[PoolID]] = {}
        wide, broken = set(self.cluster_wide.pools), dict(self.cluster_wide.broken)
        elsewhere = False
        for pool, slices in pools.items():
            old = self._pools.get(pool) or ()
            for entry in (*old, *slices):
                if entry.node_name and entry.node_name not in local:
                    local[entry.node_name] = set((self.local.get(entry.node_name) or _NO_POOLS).pools)
            # Slices of one node change the view of that node alone, so that is all that is replaced. A pool
            # with other slices replaces ``cluster_wide``, which makes every view of the cluster stale.
            for name in {s.node_name for s in old if s.node_name}:
                local[name].discard(pool)
            for name in {s.node_name for s in slices if s.node_name and not s.only_counters}:
                local[name].add(pool)
            if pool in wide or any(_is_cluster_wide(s) for s in slices):
                elsewhere = True
                wide.discard(pool)
                if any(_is_cluster_wide(s) for s in slices):
                    wide.add(pool)
        self._pools = self._pools.updated(
            {p: s for p, s in pools.items() if s}, [p for p, s in pools.items() if not s]
        )
        # After ``_pools``, from which the view is made. The slices with devices are those of other nodes, but
        # incomplete or invalid counters make the pool incomplete or invalid for every node.
        for pool, slices in pools.items():
            view = self._pool_view(pool, _NO_NODE) if any(s.only_counters for s in slices) else None
            if pool in broken or (view is not None and (view.incomplete or view.invalid)):
                elsewhere = True
                broken.pop(pool, None)
                if view is not None and (view.incomplete or view.invalid):
                    broken[pool] = view
        self.local = self.local.updated(
            {n: LocalPools(tuple(sorted(p))) for n, p in local.items() if p},
            [n for n, p in local.items() if not p],
        )
        for name in (n for n, p in local.items() if not p):
            self._caches.views.pop(name, None)
        if elsewhere:
            self.cluster_wide = ClusterWide(frozenset(wide), broken)

    def _resize(self, delta: Counter[tuple[str, int]]) -> None:
        """Add to the number of devices by amount of each capacity, of which ``capacity_scale`` is made."""
        changed: dict[str, dict[int, int]] = {}
        for (bare, nano), number in delta.items():
            if number:
                sizes = changed.setdefault(bare, dict(self._sizes.get(bare, {})))
                sizes[nano] = sizes.get(nano, 0) + number
                if not sizes[nano]:
                    del sizes[nano]
        if changed:
            self._sizes = {**self._sizes, **changed}
            # A cached property, copied with the index that this one comes from.
            self.__dict__.pop("capacity_scale", None)

    def has_attribute(self, name: str) -> bool:
        """Return whether a device may have an attribute of this name, which may lack the domain."""
        if "/" in name:
            return name in self._named
        return any(known.rpartition("/")[2] == name for known in self._named)

    @property
    def attributes(self) -> Collection[str]:
        """Qualified names of the attributes of all devices; the same object while they are the same."""
        return self._named

    def view(self, node: Node) -> NodeView:
        """Return what the node can use; the same object as long as that is the same."""
        name = node.metadata.name
        local = self.local.get(name) or _NO_POOLS
        known = self._caches.views.get(name)
        # By identity: what a view is made of is replaced by a new object whenever it changes.
        if (
            known is not None
            and known[0] is local
            and known[1] is self.cluster_wide
            and known[2].node is node
        ):
            return known[2]
        view = self._node_view(node, local)
        self._caches.views[name] = (local, self.cluster_wide, view)
        return view

    def forget(self, nodes: Iterable[str]) -> None:
        """Drop the cached views of nodes that no longer exist."""
        for name in nodes:
            self._caches.views.pop(name, None)

    def counters_left(self, pool: PoolView, taken: PoolState) -> Mapping[tuple[str, str], int]:
        """Return what allocated devices leave of a pool's counters, by (set, counter), in 1e-9 units."""
        known = self._caches.counters.get(pool)
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
        self._caches.counters[pool] = (taken, left)
        return left

    def groups_left(self, pool: PoolView, taken: PoolState) -> Mapping[str, Groups]:
        """Return the compatibility groups that a device has to be in beside those that are allocated.

        By counter set; one of which nothing is allocated is absent.
        """
        if not pool.grouped:
            return {}
        known = self._caches.groups.get(pool)
        if known is not None and known[0] is taken:
            return known[1]
        left = common_groups(
            e.device
            for e in (*pool.devices, *pool.elsewhere)
            if e.id.device in taken.devices or e.id.device in taken.shares
        )
        self._caches.groups[pool] = (taken, left)
        return left

    @cached_property
    def capacity_scale(self) -> Mapping[str, int]:
        """The largest amount of each capacity in the cluster, by the last part of its name, in 1e-9 units.

        Amounts that no device has do not count: by such a measure all honest devices would be equally small.
        """
        return {
            bare: max((1, *(nano for nano in sizes if nano <= LARGEST_CAPACITY.nano)))
            for bare, sizes in self._sizes.items()
        }

    def consumers(self, pool: PoolView) -> Mapping[str, Sequence[DeviceEntry]]:
        """Return the devices that consume counters of each counter set of a pool."""
        known = self._caches.consumers.get(pool)
        if known is None:
            known = self._caches.consumers[pool] = {}
            for entry in (*pool.devices, *pool.elsewhere):
                for consumed in entry.device.consumes_counters:
                    known.setdefault(consumed.counter_set, []).append(entry)
        return known

    def _node_view(self, node: Node, local: LocalPools) -> NodeView:
        relevant = {*local.pools, *self.cluster_wide.pools}
        views = [v for pool in relevant if (v := self._pool_view(pool, node)) is not None]
        views += [view for pool, view in self.cluster_wide.broken.items() if pool not in relevant]
        views.sort(key=lambda v: (v.binding_conditions, v.id))
        return NodeView(node, tuple(views))

    def _pool_view(self, pool: PoolID, node: Node) -> PoolView | None:
        every = self._pools.get(pool) or ()
        mine = [s for s in every if s.only_counters or _slice_on_node(s, node)]
        if not mine:
            return None
        generation = max(s.generation for s in mine)
        mine = [s for s in mine if s.generation == generation]
        same = [s for s in every if s.generation == generation]
        incomplete = False
        # ``resourceSliceCount`` counts the slices of all nodes, so a pool with slices of several nodes is
        # complete although one node sees fewer. A node with an old generation, incomplete, waits for its new
        # slices.
        if len(mine) != mine[0].slice_count:
            if max(s.generation for s in every) > generation:
                return None
            incomplete = len(same) != mine[0].slice_count
        chosen = set(map(id, mine))
        others = [s for s in same if id(s) not in chosen]
        return _make_view(pool, mine, others, node, incomplete=incomplete)


def _is_cluster_wide(entry: SliceEntry) -> bool:
    return not entry.only_counters and not entry.node_name


def _amounts(entry: SliceEntry) -> Counter[tuple[str, int]]:
    return Counter(
        (name.rpartition("/")[2], capacity.value.nano)
        for device in entry.devices
        for name, capacity in device.device.capacity.items()
    )


def _attribute_names(entry: SliceEntry) -> set[str]:
    """Return the qualified names of the attributes that devices of a slice have."""
    names = {name for device in entry.devices for name in device.device.attributes}
    driver = entry.pool.driver
    return {name if "/" in name else f"{driver}/{name}" for name in names}


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
        # What an incomplete pool lacks may be the missing slices'.
        invalid=not incomplete and (ambiguous or _is_invalid((*devices, *elsewhere), sets)),
        binding_conditions=any(d.device.binding_conditions for d in devices),
        grouped=any(has_groups(d.device) for d in (*devices, *elsewhere)),
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


def _slice_entry(name: str, slice_: ResourceSlice, features: Features) -> SliceEntry:
    spec = slice_.spec
    pool = pool_of_slice(slice_)
    per_device = bool(spec.per_device_node_selection)
    devices = tuple(
        DeviceEntry(
            id=DeviceID(spec.driver, spec.pool.name, device.name),
            device=device,
            shareable=features.consumable_capacity and bool(device.allow_multiple_allocations),
            node_name=device.node_name if per_device else spec.node_name,
            node_selector=device.node_selector if per_device else spec.node_selector,
            all_nodes=bool(device.all_nodes if per_device else spec.all_nodes),
            skips=spec.skip_node_operations,
            newer=spec.newer or device.newer or _not_supported(device),
        )
        for device in spec.devices
        if _supported(device, features)
    )
    return SliceEntry(
        name=name,
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


def _not_supported(device: Device) -> str:
    """Return a field of the device that is known here, and not allocated by; empty if it has none."""
    return "nodeAllocatableResources" if device.node_allocatable_resources else ""


def _supported(device: Device, features: Features) -> bool:
    """Return whether the device can be used without a feature that is disabled."""
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
