"""Whose devices a claim asks for: ours, those of others, or both.

A pool is ours while every device in it carries our taint: the taint is what keeps kube-scheduler away, so a
pool that it could allocate from is never touched.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dra_driver.api import names
from dra_driver.api.meta import DriverName
from dra_driver.api.resource import (
    DeviceClass,
    DeviceRequest,
    DeviceTaint,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.structured import PoolID, Snapshot

__all__ = ["ClaimInterest", "Interest", "InterestIndex", "is_our_taint", "protected_pools"]


class Interest(enum.Enum):
    """Who serves a claim."""

    OURS = "ours"
    THEIRS = "theirs"
    SIBLING = "sibling"
    """Another controller like this one, for other drivers: its pools carry our taint, the gate is its."""
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ClaimInterest:
    """The answer for one claim; ``reason`` for MIXED (refused) and UNKNOWN (a class is missing)."""

    interest: Interest
    reason: str = ""


def is_our_taint(taint: DeviceTaint) -> bool:
    """Whether the taint is the one that keeps kube-scheduler off our devices."""
    return taint.key == names.CONTROLLER_TAINT and taint.value == "allocates"


def protected_pools(slices: Iterable[ResourceSlice]) -> frozenset[PoolID]:
    """Pools in which every device has the taint. Pools without devices belong to nobody."""
    protected: dict[PoolID, bool] = {}
    for slice_ in slices:
        pool = PoolID(slice_.spec.driver, slice_.spec.pool.name)
        if not slice_.spec.devices:
            continue
        all_tainted = all(any(is_our_taint(t) for t in d.taints) for d in slice_.spec.devices)
        protected[pool] = protected.get(pool, True) and all_tainted
    return frozenset(pool for pool, good in protected.items() if good)


class InterestIndex:
    """Answers for one snapshot. A class is looked at once."""

    def __init__(
        self, snapshot: Snapshot, protected: frozenset[PoolID], drivers: Collection[DriverName]
    ) -> None:
        self._snapshot = snapshot
        self._own = frozenset(p for p in protected if p.driver in drivers)
        self._siblings = protected - self._own
        self._drivers = drivers
        self._of_siblings: set[str] = set()  # classes
        self._classes: dict[str, tuple[bool, bool]] = {}

    def claim(self, claim: ResourceClaim) -> ClaimInterest:
        """Who serves the claim."""
        flags: list[tuple[str, str, bool, bool]] = []
        for request in claim.spec.devices.requests or ():
            for name, class_name in _classes_of(request):
                if class_name not in self._snapshot.classes:
                    return ClaimInterest(
                        Interest.UNKNOWN,
                        f"claim {claim.key}: request {name}: DeviceClass {class_name} does not exist",
                    )
                flags.append((name, class_name, *self._class(self._snapshot.classes[class_name])))
        if flags and all(own for _, _, own, _ in flags):
            return ClaimInterest(Interest.OURS)
        if all(foreign for _, _, _, foreign in flags):
            sibling = any(class_name in self._of_siblings for _, class_name, _, _ in flags)
            return ClaimInterest(Interest.SIBLING if sibling else Interest.THEIRS)
        mine = next(f for f in flags if f[2] and not f[3])
        other = next(f for f in flags if f[3] and not f[2])
        return ClaimInterest(
            Interest.MIXED,
            f"claim {claim.key} mixes devices that this controller allocates (request {mine[0]}, class "
            f"{mine[1]}) with devices that it does not (request {other[0]}, class {other[1]}); "
            "use one claim for each",
        )

    def _class(self, class_: DeviceClass) -> tuple[bool, bool]:
        """Whether devices of ours, and whether devices of others, are in the class."""
        known = self._classes.get(class_.metadata.name)
        if known is None:
            known = self._classes[class_.metadata.name] = self._look(class_)
        return known

    def _look(self, class_: DeviceClass) -> tuple[bool, bool]:
        expressions = [s.cel.expression for s in class_.spec.selectors if s.cel is not None]
        found = {True: False, False: False}
        seen: set[PoolID] = set()
        for node in self._snapshot.nodes:
            for pool in self._snapshot.view(node).pools:
                ours = pool.id in self._own
                if found[ours] or pool.id in seen:
                    continue
                seen.add(pool.id)
                found[ours] = any(
                    all(self._snapshot.selectors.matches(e, entry) is True for e in expressions)
                    for entry in pool.devices
                )
                if found[ours] and pool.id in self._siblings:
                    self._of_siblings.add(class_.metadata.name)
            if all(found.values()):
                break
        if not any(found.values()):
            # No such device anywhere at the moment (a node restarts, say). A class that names one of our
            # drivers is ours all the same; its pods keep waiting behind the gate.
            named = any(
                f'"{driver}"' in e or f"'{driver}'" in e for driver in self._drivers for e in expressions
            )
            return named, not named
        return found[True], found[False]


def _classes_of(request: DeviceRequest) -> Iterable[tuple[str, str]]:
    if request.exactly is not None:
        yield request.name, request.exactly.device_class_name
    for sub in request.first_available:
        yield f"{request.name}/{sub.name}", sub.device_class_name
