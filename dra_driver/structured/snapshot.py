"""The cluster as the allocator sees it: immutable, indexed by node and pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceClass, ResourceSlice
from dra_driver.structured.state import AllocatedState
from dra_driver.structured.types import DEFAULT, Features

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """Slices, classes, nodes and what is allocated, at one moment."""

    allocated: AllocatedState

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
        """Indexes a cluster. Devices that are inconsistent make their pool invalid, never raise."""
        raise NotImplementedError

    def with_allocated(self, allocated: AllocatedState) -> Snapshot:
        """The same cluster with other allocations; costs next to nothing."""
        raise NotImplementedError
