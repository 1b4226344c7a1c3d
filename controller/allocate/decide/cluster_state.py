"""The cluster without allocations, as decisions see it. A changed object costs work for its pool and node."""

from __future__ import annotations

from collections.abc import Collection, Set

from controller.allocate.decide.activity import BusyDevices
from controller.allocate.decide.objects import Collected, Objects
from controller.allocate.decide.ownership import Owner, OwnershipIndex
from dra_driver.api.core import Node
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.meta import DriverName, ObjectKey
from dra_driver.api.resource import DeviceClass, DeviceTaintRule, ResourceSlice
from dra_driver.ownership import PoolID, is_protected
from dra_driver.structured import AllocatedState, Snapshot, concerns, with_rules

__all__ = ["ClusterState"]


class ClusterState:
    """Slices, classes, nodes, utilisation and taint rules; ``refresh`` takes in what was put or removed.

    Attributes:
        nodes: all nodes, at once.
        snapshot: of the last ``refresh``.
        ownership: answers for it.
        own: pools of ours: every device carries our taint, so that kube-scheduler keeps away.
    """

    def __init__(self, drivers: Collection[DriverName]) -> None:
        self._drivers = drivers
        self.nodes: Objects[Node] = Objects()
        self._all_slices: Objects[ResourceSlice] = Objects()
        self._busy = BusyDevices()
        self._slices: Collected[ResourceSlice] = Collected()
        self._classes: Collected[DeviceClass] = Collected()
        self._nodes: Collected[Node] = Collected()
        # Rules add taints to what the slices say. Decisions see them; whose a pool is, they do not change.
        self._rule_changes: Collected[DeviceTaintRule] = Collected()
        self._rules: dict[str, DeviceTaintRule] = {}
        # Slice → pool; pool → slice → whether all its devices are protected (slices with devices only).
        self._pool_of: dict[str, PoolID] = {}
        self._protected: dict[PoolID, dict[str, bool]] = {}
        self.snapshot = Snapshot.build(slices=(), classes=(), nodes=(), allocated=AllocatedState())
        self.ownership = OwnershipIndex(drivers)
        self.own: set[PoolID] = set()

    @property
    def pools(self) -> Set[PoolID]:
        """All pools with devices."""
        return self._protected.keys()

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, item: Node | DeviceClass | ResourceSlice | DeviceInventory | DeviceTaintRule) -> None:
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
            case DeviceInventory():
                self._busy.put(item)

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
        elif kind is DeviceInventory:
            self._busy.remove(name)

    def refresh(self) -> set[PoolID]:
        """Take in what has changed.

        Returns:
            pools whose slices have changed.
        """
        if not (self._slices or self._classes or self._nodes or self._busy or self._rule_changes):
            return set()
        slices, gone = self._slices.take()
        slices += self._of_pools(self._busy.take(), gone | {s.metadata.name for s in slices})
        slices += self._of_rules(gone | {s.metadata.name for s in slices})
        slices = list(map(self._busy.marked, slices))
        touched = {pool for name in gone if (pool := self._drop(name)) is not None}
        for slice_ in slices:
            old = self._drop(slice_.metadata.name)
            touched |= {self._note(slice_)} if old is None else {old, self._note(slice_)}
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
        names = (name for pool in pools for name in self._protected.get(pool, ()) if name not in known)
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

    def _note(self, slice_: ResourceSlice) -> PoolID:
        pool = self._pool_of[slice_.metadata.name] = PoolID(slice_.spec.driver, slice_.spec.pool.name)
        if slice_.spec.devices:
            self._protected.setdefault(pool, {})[slice_.metadata.name] = is_protected(slice_)
        return pool

    def _drop(self, name: str) -> PoolID | None:
        pool = self._pool_of.pop(name, None)
        if pool is not None and pool in self._protected:
            self._protected[pool].pop(name, None)
            if not self._protected[pool]:
                del self._protected[pool]
        return pool

    def owner(self, pool: PoolID) -> Owner | None:
        """Return who allocates from the pool; None if it has no devices."""
        slices = self._protected.get(pool)
        if slices is None:
            return None
        if not all(slices.values()):
            return Owner.OTHERS
        return Owner.OURS if pool.driver in self._drivers else Owner.OTHER_CONTROLLER
