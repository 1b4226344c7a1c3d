"""Whose a pool is: who allocates from it, the taint that keeps kube-scheduler away, publication records.

These are rules of safety: each stands here once. Pure, and built on the API types alone.
"""

from __future__ import annotations

from dra_driver.ownership.grants import (
    MAX_GRANT_BYTES,
    MAX_LISTED,
    SHARE,
    VARIABLES,
    Grants,
    admitted,
    chosen,
    chosen_devices,
    grant_key,
    grant_key_of_pod,
)
from dra_driver.ownership.pools import PoolAllocator, PoolID, pool_of_inventory, pool_of_slice
from dra_driver.ownership.records import (
    CREATED_BY_CONTROLLER,
    CREATED_BY_NODE,
    OPEN_POOL,
    AllocatorRecord,
    is_complete,
    is_marked_open,
    is_owned_by,
    is_published_by_node,
    missing_slices,
    newest_devices,
    newest_generation,
    owner_of,
    raw_other_drivers,
    raw_publication,
    recorded_allocator,
    refusal_of,
    slice_name,
    slices_of_node,
)
from dra_driver.ownership.taints import (
    PROTECTION_TAINT,
    allocating_pools,
    bare_devices,
    blocks,
    is_controller_taint,
    protected_pools,
    tolerates,
)
from dra_driver.ownership.units import devices_in, unit_of, units
from dra_driver.ownership.versions import is_newer

__all__ = [
    "CREATED_BY_CONTROLLER",
    "CREATED_BY_NODE",
    "MAX_GRANT_BYTES",
    "MAX_LISTED",
    "OPEN_POOL",
    "PROTECTION_TAINT",
    "SHARE",
    "VARIABLES",
    "AllocatorRecord",
    "Grants",
    "PoolAllocator",
    "PoolID",
    "admitted",
    "allocating_pools",
    "bare_devices",
    "blocks",
    "chosen",
    "chosen_devices",
    "devices_in",
    "grant_key",
    "grant_key_of_pod",
    "is_complete",
    "is_controller_taint",
    "is_marked_open",
    "is_newer",
    "is_owned_by",
    "is_published_by_node",
    "missing_slices",
    "newest_devices",
    "newest_generation",
    "owner_of",
    "pool_of_inventory",
    "pool_of_slice",
    "protected_pools",
    "raw_other_drivers",
    "raw_publication",
    "recorded_allocator",
    "refusal_of",
    "slice_name",
    "slices_of_node",
    "tolerates",
    "unit_of",
    "units",
]
