"""Which pools a plan is about: those of the one who allocates for the pods that are asked about. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dra_driver.api.core import Pod
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import PoolAllocator, allocating_pools, pool_of_slice
from dra_driver.planning import LeftOut
from dra_driver.resourceclaim import is_gated, pod_claims
from dra_driver.structured import PersistentMap, PoolPolicy

__all__ = ["ANYBODY", "allocator_for", "slices_for"]

ANYBODY: Final = "any"
_NAMES: Final = {PoolAllocator.CONTROLLER: "the controller", PoolAllocator.SCHEDULER: "kube-scheduler"}
_SHOWN: Final = 3


def allocator_for(pods: Iterable[Pod], pod: str, claim: str) -> str:
    """Return who allocates for a pod or a claim of a cluster, or for what is not there yet.

    The gate of a pod says that the controller does. Of pods that are not there yet it is expected. Without
    it, the pod may be kube-scheduler's, or one for which the controller has allocated: any pool counts, as
    for ``explain``.

    Args:
        pods: of the cluster.
        pod: ``namespace/name`` of the one that is asked about; empty if it is none.
        claim: likewise.
    """
    waiting = [p for p in pods if not p.spec.node_name]
    asked = [p for p in waiting if pod == str(p.key) or claim in {str(used.key) for used in pod_claims(p)}]
    if asked and not any(map(is_gated, asked)):
        return ANYBODY
    return PoolAllocator.CONTROLLER.value


def slices_for(
    slices: Sequence[ResourceSlice], allocator: str
) -> tuple[list[ResourceSlice], LeftOut | None, str]:
    """Return the slices of the pools that one allocates from, those that are left out, and a note about them.

    Args:
        slices: of the cluster.
        allocator: a value of ``PoolAllocator``, or ``ANYBODY``.

    Returns:
        All slices, None and an empty note, where no pool of any driver is the controller's.
    """
    if allocator == ANYBODY:
        return list(slices), None, ""
    wanted = PoolAllocator(allocator)
    allocators = allocating_pools(slices)
    others = [pool for pool, who in allocators.items() if who is not wanted]
    if not others:
        return list(slices), None, ""
    left = frozenset(others)
    kept = [s for s in slices if pool_of_slice(s) not in left]
    pools = PersistentMap((pool, PoolPolicy()) for pool in sorted(set(map(pool_of_slice, kept))))
    why = {pool: f"allocated by {_NAMES[allocators[pool]]}" for pool in others}
    left_out = LeftOut(tuple(s for s in slices if pool_of_slice(s) in left), why, pools)
    who = _NAMES[allocators[others[0]]]
    names = ", ".join(str(pool.pool) for pool in others[:_SHOWN]) + (" …" if len(others) > _SHOWN else "")
    count = "1 pool" if len(others) == 1 else f"{len(others)} pools"
    note = f"{count} from which {who} allocates left out ({names}); --allocator chooses"
    return kept, left_out, note
