"""Devices kept for one pod, or group, that others would always be before: which ones, and what others see.

A request for many devices of a node never fits while small ones take each device that becomes free. So for
the first pod that has waited too long devices are *set aside*: for pods that come after it they count as
taken, whoever has them now. Nothing is allocated, reserved or preempted by that. Pods that come before it see
no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from controller.allocate.decide.messages import DevicesSetAside
from controller.allocate.decide.order import Rank
from dra_driver.api.meta import Uid
from dra_driver.api.resource import AllocationResult
from dra_driver.ownership import PoolID
from dra_driver.structured import AllocatedState
from dra_driver.structured.model.state import PoolState

__all__ = ["SetAsideDevices", "soonest"]

_T = TypeVar("_T")

# Privacy: whoever reads the Events of a pod may not know of pods in other namespaces.
NOTE = "; devices are set aside for a pod that comes first and has waited for long"
_HOLDER = "set aside"


class SetAsideDevices:
    """What is set aside now."""

    def __init__(self) -> None:
        self._now = DevicesSetAside(None, ())
        self._pods: frozenset[Uid] = frozenset()
        self._pools: dict[PoolID, list[AllocationResult]] = {}
        # What is taken of a pool, and with what is set aside: the same object while the first one is.
        self._known: dict[PoolID, tuple[PoolState, PoolState]] = {}

    @property
    def now(self) -> DevicesSetAside:
        """What is set aside."""
        return self._now

    def put(self, change: DevicesSetAside) -> None:
        """Set devices aside in place of others."""
        self._now = change
        self._pods = frozenset(place.pod.uid for place in change.places)
        self._known = {}
        self._pools = {}
        for place in change.places:
            for allocation in place.allocations:
                for pool in {PoolID(r.driver, r.pool) for r in allocation.devices.results}:
                    self._pools.setdefault(pool, []).append(allocation)

    def are_before(self, rank: Rank, pod: Uid) -> bool:
        """Return whether devices are set aside for another pod that comes before this one."""
        return self._now.rank is not None and self._now.rank < rank and pod not in self._pods

    def over(self, taken: AllocatedState) -> AllocatedState:
        """Return what is taken for pods that come after."""
        changed: dict[PoolID, PoolState] = {}
        for pool, allocations in self._pools.items():
            state = taken.pool(pool)
            known = self._known.get(pool)
            if known is None or known[0] is not state:
                alone = AllocatedState().with_pool(pool, state)
                both = alone.with_allocations((_HOLDER, a) for a in allocations).pool(pool)
                known = self._known[pool] = (state, both)
            changed[pool] = known[1]
        return AllocatedState(taken.pools.updated(changed)) if changed else taken


def soonest(times: Sequence[str], fits: Callable[[str], _T | None]) -> _T | None:
    """Return what fits where claims are expected to end first; None where nothing fits.

    How long a claim will be held is not known. The best guess is as long again as it has been held: services
    that never end are old, jobs of a stream are young. So claims are taken to end in the order in which they
    were allocated, the last one first, and no more of them have ended than it takes.

    Args:
        times: at which claims were allocated; RFC 3339, in UTC.
        fits: returns what fits if all claims were gone that were allocated then or later; the earlier the
            time, the more fits.
    """
    ordered = sorted(set(times), reverse=True)
    found: _T | None = None
    least, end = 0, len(ordered)
    # What fits without any claim's end would have been allocated; it is found as well.
    while least < end:
        middle = (least + end) // 2
        answer = fits(ordered[middle])
        if answer is None:
            least = middle + 1
        else:
            found, end = answer, middle
    return found
