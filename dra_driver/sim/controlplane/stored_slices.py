"""ResourceSlices as Kubernetes' own programs see them, without the counters of an annotation."""

from __future__ import annotations

from typing import Final

from dra_driver.api.meta import Resource
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice

__all__ = ["STORED_SLICES"]


class _StoredSlice(ResourceSlice, frozen=True, kw_only=True):
    """A slice as the API server has it."""

    def __post_init__(self) -> None:
        """Leave the counters where they are stored."""


STORED_SLICES: Final[Resource[ResourceSlice]] = Resource(
    RESOURCE_SLICES.group,
    RESOURCE_SLICES.version,
    RESOURCE_SLICES.plural,
    RESOURCE_SLICES.kind,
    _StoredSlice,
    namespaced=False,
)
