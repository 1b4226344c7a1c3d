"""The cluster as the allocator sees it: immutable, indexed by node and pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceClass, ResourceSlice
from dra_driver.structured.pools import NodeView, PoolIndex, PoolView
from dra_driver.structured.selectors import SelectorCache
from dra_driver.structured.state import AllocatedState
from dra_driver.structured.types import DEFAULT, Features

__all__ = ["Snapshot"]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Slices, classes, nodes and what is allocated, at one moment. Make it with ``build``.

    Attributes:
        allocated: what is taken.
        features: which semantics apply.
        nodes: by name, in the order of the names.
        classes: by name.
        index: the slices.
        selectors: results of selectors, kept as long as the slices.
    """

    allocated: AllocatedState
    features: Features
    nodes: Mapping[str, Node]
    classes: Mapping[str, DeviceClass]
    index: PoolIndex
    selectors: SelectorCache

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
        """Indexes a cluster. Slices that contradict each other make their pool invalid; nothing is raised."""
        return cls(
            allocated=allocated,
            features=features,
            nodes={n.metadata.name: n for n in sorted(nodes, key=lambda n: n.metadata.name)},
            classes={c.metadata.name: c for c in classes},
            index=PoolIndex(slices, features),
            selectors=SelectorCache(features),
        )

    def with_allocated(self, allocated: AllocatedState) -> Snapshot:
        """The same cluster with other allocations; everything that is indexed is shared."""
        return replace(self, allocated=allocated)

    def view(self, node: str) -> NodeView:
        """What one node can use."""
        return self.index.view(self.nodes[node])

    def counters_left(self, pool: PoolView) -> Mapping[tuple[str, str], int]:
        """What is left of a pool's counters, by (set, counter), in 1e-9; below 0 if over-committed."""
        return self.index.counters_left(pool, self.allocated.pool(pool.id))
