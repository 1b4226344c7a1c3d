"""Whose devices a claim asks for: ours, those of others, or both.

A pool is ours while every device in it carries our taint: the taint is what keeps kube-scheduler away, so a
pool that it could allocate from is never touched.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.allocate.decide.state.pool_owners import Owner
from dra_driver.api.meta import DriverName
from dra_driver.api.resource import (
    DeviceClass,
    DeviceRequest,
    ResourceClaim,
)
from dra_driver.ownership import PoolID
from dra_driver.structured import AllocatedState, Snapshot

__all__ = ["ClaimOwnership", "OwnedClaim", "OwnershipIndex"]


class ClaimOwnership(enum.Enum):
    """The allocator that serves a claim."""

    OURS = "ours"
    KUBE_SCHEDULER = "theirs"
    OTHER_CONTROLLER = "sibling"
    """Another controller like this one, for other drivers: its pools carry our taint, it lifts the gate."""
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OwnedClaim:
    """The answer for one claim.

    Attributes:
        ownership: the allocator that serves it.
        reason: for MIXED (refused) and UNKNOWN (a class is missing).
        elsewhere: OURS, and kube-scheduler has pools with devices of every class that is asked for as well.
    """

    ownership: ClaimOwnership
    reason: str = ""
    elsewhere: bool = False


@dataclass(slots=True)
class _Known:
    """A class, and the pools that have a device of it."""

    class_: DeviceClass
    pools: set[PoolID]
    owners: Counter[Owner]

    def sides(self) -> frozenset[Owner]:
        """Return the allocators that have a device of the class."""
        return frozenset(owner for owner, count in self.owners.items() if count > 0)


class OwnershipIndex:
    """Which pools have devices of a class, by allocator, kept from snapshot to snapshot.

    A changed pool is looked at once for every class that was asked about.

    Attributes:
        version: another one whenever answers may be others than before.
    """

    def __init__(self, drivers: Collection[DriverName]) -> None:
        self.version = 0
        self._drivers = drivers
        self._owners: dict[PoolID, Owner] = {}
        self._known: dict[str, _Known] = {}
        self._snapshot = Snapshot.build(slices=(), classes=(), nodes=(), allocated=AllocatedState())

    def follow(self, snapshot: Snapshot, pools: Mapping[PoolID, Owner | None]) -> None:
        """Go on to another snapshot.

        Args:
            snapshot: that questions are about from now on.
            pools: those whose slices have changed, with their owners; None where no devices are left.
        """
        classes = snapshot.classes
        before_all = {name: known.sides() for name, known in self._known.items()}
        for name in [n for n, k in self._known.items() if classes.get(n) is not k.class_]:
            del self._known[name]
        self._snapshot = snapshot
        for pool, owner in pools.items():
            before = self._owners.pop(pool, None)
            if owner is not None:
                self._owners[pool] = owner
            for known in self._known.values():
                if pool in known.pools:
                    assert before is not None
                    known.pools.discard(pool)
                    known.owners[before] -= 1
                self._add(known, pool)
        if before_all != {name: known.sides() for name, known in self._known.items()}:
            self.version += 1

    def _add(self, known: _Known, pool: PoolID) -> None:
        owner = self._owners.get(pool)
        expressions = _expressions(known.class_)
        matches = self._snapshot.selectors.matches
        if owner is not None and any(
            all(matches(e, entry) is True for e in expressions)
            for entry in self._snapshot.index.devices(pool)
        ):
            known.pools.add(pool)
            known.owners[owner] += 1

    def claim(self, claim: ResourceClaim) -> OwnedClaim:
        """Return which allocator serves a claim."""
        flags: list[tuple[str, str, bool, bool]] = []
        for request in claim.spec.devices.requests or ():
            for name, class_name in _classes_of(request):
                if class_name not in self._snapshot.classes:
                    return OwnedClaim(
                        ClaimOwnership.UNKNOWN,
                        f"claim {claim.key}: request {name}: DeviceClass {class_name} does not exist",
                    )
                flags.append((name, class_name, *self._class(self._snapshot.classes[class_name])))
        if claim.left_out and any(own for _, _, own, _ in flags):
            return OwnedClaim(ClaimOwnership.UNKNOWN, f"claim {claim.key}: {claim.left_out}")
        if flags and all(own for _, _, own, _ in flags):
            elsewhere = all(self._by_scheduler(class_name) for _, class_name, _, _ in flags)
            return OwnedClaim(ClaimOwnership.OURS, elsewhere=elsewhere)
        if all(foreign for _, _, _, foreign in flags):
            sibling = any(self._of_siblings(class_name) for _, class_name, _, _ in flags)
            return OwnedClaim(ClaimOwnership.OTHER_CONTROLLER if sibling else ClaimOwnership.KUBE_SCHEDULER)
        mine = next(f for f in flags if f[2] and not f[3])
        other = next(f for f in flags if f[3] and not f[2])
        return OwnedClaim(
            ClaimOwnership.MIXED,
            f"claim {claim.key} mixes devices that this controller allocates (request {mine[0]}, class "
            f"{mine[1]}) with devices that it does not (request {other[0]}, class {other[1]}); "
            "use one claim for each",
        )

    def _class(self, class_: DeviceClass) -> tuple[bool, bool]:
        """Return whether devices of ours, and whether devices of others, are in the class."""
        owners = self._look(class_).owners
        ours = owners[Owner.OURS] > 0
        others = owners[Owner.OTHER_CONTROLLER] > 0 or owners[Owner.OTHERS] > 0
        if ours or others:
            return ours, others
        # No such device anywhere at the moment (a node restarts, say). A class that names one of our
        # drivers is ours all the same; its pods keep waiting behind the gate.
        named = any(
            f'"{driver}"' in e or f"'{driver}'" in e for driver in self._drivers for e in _expressions(class_)
        )
        return named, not named

    def _look(self, class_: DeviceClass) -> _Known:
        known = self._known.get(class_.metadata.name)
        if known is None:
            known = self._known[class_.metadata.name] = _Known(class_, set(), Counter())
            for pool in self._owners:
                self._add(known, pool)
        return known

    def _by_scheduler(self, class_name: str) -> bool:
        return self._look(self._snapshot.classes[class_name]).owners[Owner.OTHERS] > 0

    def _of_siblings(self, class_name: str) -> bool:
        return self._look(self._snapshot.classes[class_name]).owners[Owner.OTHER_CONTROLLER] > 0


def _expressions(class_: DeviceClass) -> list[str]:
    return [s.cel.expression for s in class_.spec.selectors if s.cel is not None]


def _classes_of(request: DeviceRequest) -> Iterable[tuple[str, str]]:
    if request.exactly is not None:
        yield request.name, request.exactly.device_class_name
    for sub in request.first_available:
        yield f"{request.name}/{sub.name}", sub.device_class_name
