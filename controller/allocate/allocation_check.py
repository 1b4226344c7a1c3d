"""Whether allocations can be put into effect, by what the controller itself knows right then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.pool_owners import CurrentOwners
from dra_driver.api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import fits_beside

__all__ = ["AllocationCheck"]


class AllocationCheck:
    """Compares an answer with what is taken, whoever gave it and whatever that knew.

    The rules are those by which double allocations are found afterwards, one device in two claims, partitions
    over each other, and that shares fit into what their devices have left.

    Args:
        assume_cache: what is taken.
        owners: whose pools are.
        slices_of: the slices of a pool.
    """

    def __init__(
        self,
        assume_cache: AssumeCache,
        owners: CurrentOwners,
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
    ) -> None:
        self._assume_cache = assume_cache
        self._owners = owners
        self._slices_of = slices_of

    def allows(self, allocations: Iterable[AllocationResult]) -> bool:
        """Return whether all of them together can be assumed, for claims that hold nothing yet."""
        by_pool: dict[PoolID, list[DeviceRequestAllocationResult]] = defaultdict(list)
        for allocation in allocations:
            if not self._owners.are_ours(allocation):
                return False
            for result in allocation.devices.results:
                by_pool[PoolID(result.driver, result.pool)].append(result)
        return all(
            fits_beside(self._assume_cache.taken(pool), self._slices_of(pool), results)
            for pool, results in by_pool.items()
        )
