"""Which pools the controller would use for a pod, as the slices tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceSlice
from dra_driver.cli.overview.rows import named
from dra_driver.ownership import PoolAllocator, PoolID, allocating_pools, pool_of_slice
from dra_driver.publishing.conditions import is_unguarded
from dra_driver.structured import NodePolicy, PersistentMap, PoolPolicies, PoolPolicy

__all__ = ["UsablePools", "unguarded_notes"]

_WHY: Final = "allocated by kube-scheduler"
# Reasons that are given; there is rarely more than one.
_NOTES: Final = 3


@dataclass(frozen=True, slots=True)
class UsablePools:
    """The pools for a pod that waits for the controller.

    Attributes:
        policies: pools that the controller may allocate from.
        withheld: the others, with the reason in the words of the controller.
    """

    policies: PoolPolicies
    withheld: Mapping[PoolID, str]

    @classmethod
    def of(
        cls, slices: Iterable[ResourceSlice], inventories: Iterable[DeviceInventory], policy: NodePolicy
    ) -> UsablePools:
        """Return the pools of a cluster.

        Pools of drivers of which the controller has no pool are left in: only kube-scheduler can allocate a
        claim that needs them, and ``explain`` says so elsewhere.
        """
        slices = tuple(slices)
        allocators = allocating_pools(slices, inventories)
        others = [pool for pool, who in allocators.items() if who is PoolAllocator.SCHEDULER]
        usable = {pool_of_slice(slice_) for slice_ in slices}.difference(others)
        policies = PersistentMap((pool, PoolPolicy(nodes=policy)) for pool in sorted(usable))
        return cls(policies, dict.fromkeys(others, _WHY))

    def mixes(self, pools: Iterable[PoolID]) -> bool:
        """Return whether pools are in part the controller's, in part not."""
        return len({pool in self.withheld for pool in pools}) > 1


def unguarded_notes(inventories: Iterable[DeviceInventory]) -> tuple[str, ...]:
    """Return why pools are not open although they are to be: what is missing of the policy or the gate."""
    nodes: dict[str, list[str]] = {}
    for inventory in inventories:
        for condition in filter(is_unguarded, inventory.status.conditions):
            nodes.setdefault(condition.message, []).append(inventory.spec.node_name)
    notes = [
        f"the pool{'s' * (len(found) > 1)} of {named(sorted(found))} cannot be open: {message}"
        for message, found in sorted(nodes.items())
    ]
    return tuple(notes[:_NOTES])
