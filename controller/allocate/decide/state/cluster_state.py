"""The cluster without allocations, as decisions see it. A changed object costs work for its pool and node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from controller.allocate.decide.state.activity import BusyDevices
from controller.allocate.decide.state.objects import Collected, Objects
from controller.allocate.decide.state.ownership import OwnershipIndex
from controller.allocate.decide.state.pool_owners import Owner, PoolOwners
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, ObjectKey
from dra_driver.api.resource import DeviceClass, DeviceTaintRule, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import AllocatedState, Snapshot, concerns, with_rules

__all__ = ["ClusterState"]


class ClusterState:
    """Slices, classes, nodes, utilisation and taint rules; ``refresh`` takes in what was put or removed.

    Attributes:
        nodes: all nodes, at once.
        snapshot: of the last ``refresh``.
        ownership: answers for it.
        own: pools of ours: all devices carry our taint, so that kube-scheduler keeps away, or they are open.
    """

    def __init__(self, drivers: Collection[DriverName]) -> None:
        self.nodes: Objects[Node] = Objects()
        self._all_slices: Objects[ResourceSlice] = Objects()
        self._busy = BusyDevices()
        self._slices: Collected[ResourceSlice] = Collected()
        self._classes: Collected[DeviceClass] = Collected()
        self._nodes: Collected[Node] = Collected()
        # Rules add taints to what the slices say. Decisions see them; whose a pool is, they do not change.
        self._rule_changes: Collected[DeviceTaintRule] = Collected()
        self._rules: dict[str, DeviceTaintRule] = {}
        self._owners = PoolOwners(drivers)
        # Devices that are granted, by pool; pools of ours without our taint; pools of which either is another
        # answer than at the last ``refresh``.
        self._granted: dict[PoolID, frozenset[str]] = {}
        self._open: set[PoolID] = set()
        self._stale: set[PoolID] = set()
        self.snapshot = Snapshot.build(slices=(), classes=(), nodes=(), allocated=AllocatedState())
        self.ownership = OwnershipIndex(drivers)
        self.own: set[PoolID] = set()

    @property
    def pools(self) -> Set[PoolID]:
        """All pools with devices."""
        return self._owners.pools

    @property
    def node_names(self) -> Iterable[str]:
        """Names of all nodes."""
        return (node.metadata.name for node in self.nodes)

    @property
    def slices(self) -> Iterable[ResourceSlice]:
        """All slices as they are published, at once."""
        return self._all_slices

    @property
    def rules(self) -> Iterable[DeviceTaintRule]:
        """Taint rules of the last ``refresh``."""
        return self._rules.values()

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, item: Node | DeviceClass | ResourceSlice | DeviceTaintRule) -> None:
        """Note an object that was added or changed."""
        match item:
            case Node():
                old = self.nodes.put(item)
                # Nodes report their health all the time; only their labels matter to devices.
                if old is None or old.metadata.labels != item.metadata.labels:
                    self._nodes.put(item)
            case ResourceSlice():
                self._all_slices.put(item)
                self._slices.put(item)
            case DeviceClass():
                self._classes.put(item)
            case DeviceTaintRule():
                self._rule_changes.put(item)

    def remove(self, kind: type[object], name: str) -> None:
        """Note that an object is gone."""
        if kind is Node:
            self.nodes.remove(ObjectKey("", name))
            self._nodes.remove(name)
        elif kind is ResourceSlice:
            self._all_slices.remove(ObjectKey("", name))
            self._slices.remove(name)
        elif kind is DeviceClass:
            self._classes.remove(name)
        elif kind is DeviceTaintRule:
            self._rule_changes.remove(name)

    def set_busy(self, pool: PoolID, devices: Iterable[str]) -> None:
        """Note on which devices of a pool something runs."""
        self._busy.put(pool, frozenset(devices))

    def set_granted(self, pool: PoolID, devices: frozenset[str]) -> None:
        """Note which devices of a pool are granted."""
        if devices != self.granted(pool):
            self._stale.add(pool)
            if devices:
                self._granted[pool] = devices
            else:
                del self._granted[pool]

    def set_open(self, pool: PoolID, is_open: bool) -> None:
        """Note whether a pool is ours without our taint."""
        if is_open is not (pool in self._open):
            self._stale.add(pool)
            if is_open:
                self._open.add(pool)
            else:
                self._open.discard(pool)

    def is_open(self, pool: PoolID) -> bool:
        """Return whether a pool is ours without our taint."""
        return pool in self._open

    @property
    def granted_devices(self) -> Mapping[PoolID, frozenset[str]]:
        """Devices that are granted, by pool."""
        return self._granted

    def granted(self, pool: PoolID) -> frozenset[str]:
        """Return which devices of a pool are granted."""
        return self._granted.get(pool, frozenset())

    def refresh(self) -> set[PoolID]:
        """Take in what has changed.

        Returns:
            pools whose slices, or whose grants, have changed.
        """
        changed = self._slices or self._classes or self._nodes or self._busy or self._rule_changes
        if not (changed or self._stale):
            return set()
        slices, gone = self._slices.take()
        slices += self._of_pools(self._busy.take(), gone | {s.metadata.name for s in slices})
        slices += self._of_rules(gone | {s.metadata.name for s in slices})
        slices = list(map(self._busy.marked, slices))
        touched = {pool for name in gone if (pool := self._owners.remove(name)) is not None}
        touched |= self._stale
        self._stale = set()
        for slice_ in slices:
            touched |= self._owners.put(slice_)
        snapshot = self.snapshot
        if slices or gone:
            rules = self._rules.values()
            snapshot = snapshot.with_slices([with_rules(s, rules) for s in slices] if rules else slices, gone)
        if self._classes:
            snapshot = snapshot.with_classes(*self._classes.take())
        if self._nodes:
            snapshot = snapshot.with_nodes(*self._nodes.take())
        self.snapshot = snapshot
        owners = {pool: self.owner(pool) for pool in touched}
        for pool, owner in owners.items():
            if owner is Owner.OURS:
                self.own.add(pool)
            else:
                self.own.discard(pool)
        self.ownership.follow(snapshot, owners)
        return touched

    def _of_pools(self, pools: Collection[PoolID], known: Collection[str]) -> list[ResourceSlice]:
        """Return the slices with devices of some pools, without those that are known already."""
        names = (name for pool in pools for name in self._owners.slices(pool) if name not in known)
        found = map(self._all_slices.by_name, names)
        return [slice_ for slice_ in found if slice_ is not None]

    def _of_rules(self, known: Collection[str]) -> list[ResourceSlice]:
        """Return the slices that changed rules concern, without those that are known already."""
        if not self._rule_changes:
            return []
        changed, removed = self._rule_changes.take()
        names = (*removed, *(r.metadata.name for r in changed))
        touched = [*(self._rules.pop(n) for n in names if n in self._rules), *changed]
        self._rules.update((r.metadata.name, r) for r in changed)
        return [
            s
            for s in self._all_slices
            if s.metadata.name not in known and any(concerns(r, s) for r in touched)
        ]

    def owner(self, pool: PoolID) -> Owner | None:
        """Return who allocates from the pool; None if it has no devices."""
        return self._owners.of(pool, is_open=self.is_open(pool))
