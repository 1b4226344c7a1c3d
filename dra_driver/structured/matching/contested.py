"""Devices, and counters of partitions, that several claims hold although only one can have them.

One allocator never does that. Two that decide on the same pool do, because each sees the other's work late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from dra_driver.api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceSlice
from dra_driver.ownership import PoolID, newest_generation
from dra_driver.structured.model.state import PoolState

__all__ = ["contested", "fits_beside"]

H = TypeVar("H")


def contested(
    pool: PoolID, slices: Iterable[ResourceSlice], holders: Mapping[H, AllocationResult]
) -> dict[str, set[H]]:
    """Return which claims together hold what one alone can have.

    Results with admin access allocate nothing. Shares of a device do not conflict; whether its capacity is
    enough for all of them is not checked.

    Args:
        pool: the pool whose devices are checked.
        slices: of the pool, of any generation.
        holders: allocations, by any identity of their claims.

    Returns:
        claims by ``device NAME`` or ``counters SET``, at least two each.
    """
    whole: dict[str, set[H]] = defaultdict(set)
    shared: dict[str, set[H]] = defaultdict(set)
    for holder, allocation in holders.items():
        for r in allocation.devices.results:
            if PoolID(r.driver, r.pool) == pool and not r.admin_access:
                (whole if r.share_id is None else shared)[r.device].add(holder)
    users = {name: whole.get(name, set()) | shared.get(name, set()) for name in (*whole, *shared)}
    found = {f"device {name}": users[name] for name in whole if len(users[name]) > 1}
    return found | {
        f"counters {set_}": claims
        for set_, claims in _overdrawn(newest_generation(slices), users).items()
        if len(claims) > 1
    }


def fits_beside(
    taken: PoolState, slices: Iterable[ResourceSlice], results: Iterable[DeviceRequestAllocationResult]
) -> bool:
    """Return whether results from one pool contest nothing that is taken, and leave no capacity exceeded.

    Args:
        taken: what is held of the pool.
        slices: of the pool, of any generation.
        results: of claims that hold nothing yet; what has admin access takes nothing.
    """
    whole: set[str] = set()
    shared: set[str] = set()
    consumed: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for r in results:
        if r.admin_access:
            continue
        alone = r.share_id is None
        if r.device in whole or r.device in taken.devices:
            return False
        if alone and (r.device in shared or r.device in taken.shares):
            return False
        (whole if alone else shared).add(r.device)
        for kind, amount in r.consumed_capacity.items():
            consumed[r.device][kind] += amount.nano
    current = newest_generation(slices)
    if consumed and not _is_enough_left(current, taken, consumed):
        return False
    if not any(slice_.spec.shared_counters for slice_ in current):
        return True
    users = {name: {"taken"} for name in (*taken.devices, *taken.shares)}
    for name in whole | shared:
        users[name] = users.get(name, set()) | {"more"}
    return not any("more" in takers for takers in _overdrawn(current, users).values())


def _is_enough_left(
    current: Iterable[ResourceSlice], taken: PoolState, consumed: Mapping[str, Mapping[str, int]]
) -> bool:
    """Return whether shared devices have the capacity for some more shares, in billionths.

    Where a device, or a capacity of it, does not exist, nothing is left.
    """
    there = {d.name: d.capacity for s in current for d in s.spec.devices if d.name in consumed}
    for name, amounts in consumed.items():
        capacity, used = there.get(name, {}), taken.capacity.get(name, {})
        for kind, amount in amounts.items():
            before = used[kind].nano if kind in used else 0
            if kind not in capacity or before + amount > capacity[kind].value.nano:
                return False
    return True


def _overdrawn(current: Sequence[ResourceSlice], users: Mapping[str, set[H]]) -> dict[str, set[H]]:
    """Return the counter sets that are over-committed, with all claims whose devices consume them."""
    left: dict[tuple[str, str], int] = {}
    takers: dict[str, set[H]] = defaultdict(set)
    for slice_ in current:
        for set_ in slice_.spec.shared_counters:
            left.update(((set_.name, name), c.value.nano) for name, c in set_.counters.items())
    for slice_ in current:
        for device in slice_.spec.devices:
            # However many shares a device has, it consumes its counters once.
            for consumed in device.consumes_counters if device.name in users else ():
                takers[consumed.counter_set] |= users[device.name]
                for name, counter in consumed.counters.items():
                    key = (consumed.counter_set, name)
                    left[key] = left.get(key, 0) - counter.value.nano
    return {set_: takers[set_] for set_ in {s for (s, _), amount in left.items() if amount < 0}}
