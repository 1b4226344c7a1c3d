"""The cluster that the allocator decides on: immutable, indexed by node and pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceClass, ResourceSlice
from dra_driver.structured.model.compatibility import Groups
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.pools import NodeView, PoolIndex, PoolView
from dra_driver.structured.model.selectors import SelectorCache
from dra_driver.structured.model.state import AllocatedState
from dra_driver.structured.model.types import DEFAULT, Features

__all__ = ["Memory", "Snapshot"]

_T = TypeVar("_T")


class Memory:
    """Caches of many snapshots, one object per type. Nothing in them changes an answer."""

    def __init__(self) -> None:
        self._kept: dict[type, object] = {}

    def of(self, kind: type[_T]) -> _T:
        """Return the object of this type; create it on the first call."""
        found = self._kept.get(kind)
        if not isinstance(found, kind):
            found = self._kept[kind] = kind()
        return found

    def put(self, kept: object) -> None:
        """Keep an object in place of the one that ``of`` would create for its type."""
        self._kept[type(kept)] = kept


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Slices, classes, nodes and allocations at one moment. Make it with ``build``.

    Immutable; the ``with_…`` methods return the next one at the cost of what changes, and share the rest.

    Attributes:
        allocated: what is allocated.
        features: which semantics apply.
        nodes: by name, in the order of the names.
        classes: by name.
        index: the slices.
        selectors: results of selectors, shared by all snapshots that come from one another.
        memory: results of earlier questions, shared in the same way.
    """

    allocated: AllocatedState
    features: Features
    nodes: PersistentMap[str, Node]
    classes: Mapping[str, DeviceClass]
    index: PoolIndex
    selectors: SelectorCache
    memory: Memory

    @classmethod
    def build(
        cls,
        *,
        slices: Iterable[ResourceSlice],
        classes: Iterable[DeviceClass],
        nodes: Iterable[Node],
        allocated: AllocatedState,
        features: Features = DEFAULT,
    ) -> Snapshot:
        """Index a cluster. Slices that contradict each other make their pool invalid; nothing is raised."""
        return cls(
            allocated=allocated,
            features=features,
            nodes=PersistentMap((n.metadata.name, n) for n in nodes),
            classes={c.metadata.name: c for c in classes},
            index=PoolIndex(slices, features),
            selectors=SelectorCache(features),
            memory=Memory(),
        )

    def with_allocated(self, allocated: AllocatedState) -> Snapshot:
        """Return a snapshot with other allocations."""
        return replace(self, allocated=allocated)

    def with_slices(self, changed: Iterable[ResourceSlice], removed: Iterable[str] = ()) -> Snapshot:
        """Return a snapshot with some slices added or replaced, and some removed by name."""
        return replace(self, index=self.index.with_slices(changed, removed))

    def with_nodes(self, changed: Iterable[Node], removed: Iterable[str] = ()) -> Snapshot:
        """Return a snapshot with some nodes added or replaced, and some removed by name."""
        gone = tuple(removed)
        self.index.forget(gone)
        return replace(self, nodes=self.nodes.updated({n.metadata.name: n for n in changed}, gone))

    def with_classes(self, changed: Iterable[DeviceClass], removed: Iterable[str] = ()) -> Snapshot:
        """Return a snapshot with some classes added or replaced, and some removed by name."""
        gone = frozenset(removed)
        kept = {name: c for name, c in self.classes.items() if name not in gone}
        return replace(self, classes=kept | {c.metadata.name: c for c in changed})

    def view(self, node: str) -> NodeView:
        """Return what one node can use."""
        return self.index.view(self.nodes[node])

    def counters_left(self, pool: PoolView) -> Mapping[tuple[str, str], int]:
        """Return what is left of a pool's counters, by (set, counter), in 1e-9 units.

        Less than 0 where counters are over-committed.
        """
        return self.index.counters_left(pool, self.allocated.pool(pool.id))

    def groups_left(self, pool: PoolView) -> Mapping[str, Groups]:
        """Return the compatibility groups that are left of a pool's counter sets (``PoolIndex``)."""
        return self.index.groups_left(pool, self.allocated.pool(pool.id))
