"""Whose a pool is: who allocates from it, and the taint that keeps kube-scheduler away.

These are rules of safety: each stands here once. Pure, and built on the API types alone.
"""

from __future__ import annotations

from dra_driver.ownership.pools import PoolAllocator, PoolID, pool_of_inventory, pool_of_slice
from dra_driver.ownership.taints import (
    PROTECTION_TAINT,
    blocks,
    is_controller_taint,
    is_protected,
    protected_pools,
    tolerates,
)
from dra_driver.ownership.versions import is_newer

__all__ = [
    "PROTECTION_TAINT",
    "PoolAllocator",
    "PoolID",
    "blocks",
    "is_controller_taint",
    "is_newer",
    "is_protected",
    "pool_of_inventory",
    "pool_of_slice",
    "protected_pools",
    "tolerates",
]
