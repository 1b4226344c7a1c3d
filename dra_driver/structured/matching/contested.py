"""Devices, and counters of partitions, that several claims hold although one can have them.

No single allocator does that. Two that decide on one pool do, because each sees the other's work late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from dra_driver.api.resource import AllocationResult, ResourceSlice
from dra_driver.ownership import PoolID, newest_generation

__all__ = ["contested"]

H = TypeVar("H")


def contested(
    pool: PoolID, slices: Iterable[ResourceSlice], holders: Mapping[H, AllocationResult]
) -> dict[str, set[H]]:
    """Return who holds together what one can have.

    Results with admin access take nothing. Shares of a device go together; whether its capacity is enough for
    them is not looked at.

    Args:
        pool: of which devices are looked at.
        slices: of the pool, of any generation.
        holders: allocations, by whatever names their claims.

    Returns:
        ``device NAME`` or ``counters SET``, with at least two holders each.
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
        f"counters {set_}": claims for set_, claims in _overdrawn(slices, users).items() if len(claims) > 1
    }


def _overdrawn(slices: Iterable[ResourceSlice], users: Mapping[str, set[H]]) -> dict[str, set[H]]:
    """Return the counter sets of which more is taken than there is, with all that take from them."""
    left: dict[tuple[str, str], int] = {}
    takers: dict[str, set[H]] = defaultdict(set)
    current = newest_generation(slices)
    for slice_ in current:
        for set_ in slice_.spec.shared_counters:
            left.update(((set_.name, name), c.value.nano) for name, c in set_.counters.items())
    for slice_ in current:
        for device in slice_.spec.devices:
            # The shares of one device take its counters once.
            for consumed in device.consumes_counters if device.name in users else ():
                takers[consumed.counter_set] |= users[device.name]
                for name, counter in consumed.counters.items():
                    key = (consumed.counter_set, name)
                    left[key] = left.get(key, 0) - counter.value.nano
    return {set_: takers[set_] for set_ in {s for (s, _), amount in left.items() if amount < 0}}
