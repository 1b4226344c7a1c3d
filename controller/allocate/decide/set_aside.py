"""Devices set aside for a pod or group that smaller ones would always overtake: which, and what others see.

A request for many devices of a node never fits while small ones take each device that becomes free. So for
the first pod that has waited too long devices are *set aside*: for pods that come after it they count as
taken, whoever has them now. Nothing is allocated, reserved or preempted by that. Pods that come before it see
no difference. The same holds for devices that become free because others are preempted for a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from controller.allocate.decide.messages import DevicesSetAside
from controller.allocate.decide.order import Rank
from dra_driver.api.meta import Uid
from dra_driver.api.resource import AllocationResult
from dra_driver.ownership import PoolID
from dra_driver.structured import AllocatedState
from dra_driver.structured.model.state import PoolState

__all__ = ["SetAsideDevices", "SetAsideFor", "over", "soonest"]

_T = TypeVar("_T")

# Privacy: whoever reads the Events of a pod may not know of pods in other namespaces.
NOTE = "; devices are set aside for a pod that comes first and has waited for long"
_HOLDER = "set aside"


class SetAsideFor:
    """What is set aside for one pod, or group.

    Args:
        change: that says so.

    Attributes:
        rank: from which on pods come after it.
        places: of its pods.
    """

    def __init__(self, change: DevicesSetAside) -> None:
        assert change.rank is not None
        self.rank = change.rank
        self.places = change.places
        self._pods = frozenset(place.pod.uid for place in change.places)
        self._pools: dict[PoolID, list[AllocationResult]] = {}
        for allocation in self.allocations:
            for pool in {PoolID(r.driver, r.pool) for r in allocation.devices.results}:
                self._pools.setdefault(pool, []).append(allocation)
        # What is taken of a pool, and with what is set aside: the same object while the first one is.
        self._known: dict[PoolID, tuple[PoolState, PoolState]] = {}

    @property
    def allocations(self) -> Iterator[AllocationResult]:
        """What its pods would get."""
        return (allocation for place in self.places for allocation in place.allocations)

    def is_before(self, rank: Rank, pod: Uid) -> bool:
        """Return whether it is for another pod that comes before this one."""
        return self.rank < rank and pod not in self._pods

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


class SetAsideDevices:
    """What is set aside now: for the pod that starves, and for pods that others are preempted for."""

    def __init__(self) -> None:
        self._now: dict[str, SetAsideFor] = {}

    def put(self, change: DevicesSetAside) -> None:
        """Set devices aside in place of others for the same reason."""
        self._now.pop(change.preemptor, None)
        if change.rank is not None:
            self._now[change.preemptor] = SetAsideFor(change)

    def __bool__(self) -> bool:
        """Return whether anything is set aside."""
        return bool(self._now)

    def before(self, rank: Rank, pod: Uid) -> list[SetAsideFor]:
        """Return what is set aside for other pods that come before this one."""
        return [one for one in self._now.values() if one.is_before(rank, pod)]


def over(taken: AllocatedState, set_aside: Iterable[SetAsideFor]) -> AllocatedState:
    """Return what is taken for a pod that comes after those for which devices are set aside."""
    for one in set_aside:
        taken = one.over(taken)
    return taken


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
