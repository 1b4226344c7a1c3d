"""Pools that change hands between kube-scheduler and this controller.

Two allocators on one pool would give a device away twice, and each sees the other's work late. So there is a
time in which neither allocates, long enough for decisions that are under way to be written and seen:

* to the controller: ``draining`` is noted, then the devices are tainted, so that kube-scheduler decides
  nothing more here; after ``Timings.drain`` seconds the claims are read again, and ``controller`` is noted.
* to kube-scheduler: the controller stops deciding at once; after ``Timings.drain`` seconds, when none of
  its writes is under way, ``scheduler`` is noted and then the taint goes.

What is noted is in ``status.publication.allocator``. A controller that is killed in between starts the time
anew; no clocks of different machines are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from controller.allocate.assume_cache import AssumeCache
from controller.config import Timings
from dra_driver import cel
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.meta import DriverName, ObjectKey
from dra_driver.api.resource import (
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    DeviceClass,
    DeviceToleration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_driver.kube import EventRecorder, Handler, Informer
from dra_driver.ownership import (
    PROTECTION_TAINT,
    PoolAllocator,
    PoolID,
    pool_of_inventory,
    protected_pools,
    tolerates,
)
from dra_driver.ports import Clock, KubeClient

__all__ = ["DRAINING", "Handover", "Step", "Tolerators"]

log = structlog.get_logger(__name__)

DRAINING: Final = "draining"
# How long until it is asked again whether the last write or event has arrived.
_POLL_SECONDS: Final = 0.5
# Claims and templates that a refusal names.
_NAMED: Final = 5
_TOLERATES: Final = "ToleratesControllerTaint"


@dataclass(frozen=True, slots=True)
class Step:
    """What to publish now.

    Attributes:
        allocator: for which the slices are made.
        noted: to be in ``status.publication.allocator`` before the slices are written.
        after: seconds after which to look again; 0: not.
        refused: why the controller does not get the pool; empty: it may.
    """

    allocator: PoolAllocator
    noted: str
    after: float = 0.0
    refused: str = ""


class Handover:
    """Knows of each pool whether this controller may decide on it."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        inventories: Informer[DeviceInventory],
        tolerators: Tolerators,
        assume_cache: AssumeCache,
        changed: Callable[[PoolID, bool], None],
        *,
        timings: Timings,
    ) -> None:
        """Connects it.

        Args:
            client: claims are read again with it.
            clock: for the time that draining takes.
            inventories: what is noted.
            tolerators: claims and templates that tolerate our taint.
            assume_cache: what is taken.
            changed: called at once with a pool, and whether it is blocked, when that changes.
            timings: how long draining takes.
        """
        self._drain = timings.drain
        self._client = client
        self._clock = clock
        self._tolerators = tolerators
        self._assume_cache = assume_cache
        self._changed = changed
        self._since: dict[PoolID, float] = {}
        self._stopped: set[PoolID] = set()
        self._noted: dict[PoolID, str] = {}
        inventories.add_handler(
            Handler(added=self._seen, updated=lambda _, i: self._seen(i), deleted=self._gone)
        )

    def blocked(self, pool: PoolID) -> bool:
        """Whether this controller must not allocate from the pool, nor take anything back."""
        return pool in self._stopped or self._noted.get(pool, "") in (
            DRAINING,
            PoolAllocator.SCHEDULER.value,
        )

    def _seen(self, inventory: DeviceInventory) -> None:
        pool = pool_of_inventory(inventory)
        before = self.blocked(pool)
        self._noted[pool] = inventory.status.publication.allocator
        if self.blocked(pool) is not before:
            self._changed(pool, not before)

    def _gone(self, inventory: DeviceInventory) -> None:
        pool = pool_of_inventory(inventory)
        self._since.pop(pool, None)
        if self._noted.pop(pool, "") == DRAINING:
            # What kube-scheduler has decided may still be on its way, whoever deletes the note of it.
            self._stop(pool)
        else:
            self._resume(pool)
        self._changed(pool, self.blocked(pool))

    def _stop(self, pool: PoolID) -> None:
        if pool not in self._stopped:
            self._stopped.add(pool)
            self._changed(pool, True)

    async def step(
        self, inventory: DeviceInventory, wanted: PoolAllocator, slices: Iterable[ResourceSlice]
    ) -> Step:
        """What to do about one pool now.

        Args:
            inventory: of the pool.
            wanted: by policy, and possible on this server.
            slices: of the pool, as they are.
        """
        pool = pool_of_inventory(inventory)
        there = [s for s in slices if s.spec.devices]
        protected = not there or bool(protected_pools(there))
        noted = inventory.status.publication.allocator
        if not noted:
            # The first publication, or an older controller's work.
            noted = (PoolAllocator.CONTROLLER if protected else PoolAllocator.SCHEDULER).value
            if there and protected and pool in self._stopped:
                noted = DRAINING  # its inventory was deleted meanwhile
            if not there and (wanted is PoolAllocator.SCHEDULER or self._tolerators.found()):
                noted = PoolAllocator.SCHEDULER.value
        if wanted is PoolAllocator.CONTROLLER:
            return await self._to_controller(pool, noted, protected=protected)
        if noted != PoolAllocator.CONTROLLER.value:
            self._stop(pool)
            self._since.pop(pool, None)
            return Step(PoolAllocator.SCHEDULER, PoolAllocator.SCHEDULER.value)
        return self._to_scheduler(pool)

    async def _to_controller(self, pool: PoolID, noted: str, *, protected: bool) -> Step:
        controller = PoolAllocator.CONTROLLER
        tolerating = self._tolerators.found()
        refused = _refusal(tolerating) if tolerating else ""
        if noted == controller.value:
            # It stays: to hand it over for each such claim would let any user switch allocators.
            self._resume(pool)
            return Step(controller, noted, refused=refused)
        if refused:
            self._stop(pool)
            self._since.pop(pool, None)
            return Step(PoolAllocator.SCHEDULER, PoolAllocator.SCHEDULER.value, refused=refused)
        self._stop(pool)
        if noted != DRAINING or not protected:
            self._since.pop(pool, None)
            return Step(controller, DRAINING)  # to be noted and tainted first; then it comes here again
        left = self._left(pool)
        if left > 0:
            return Step(controller, DRAINING, after=left)
        if not await self._read_again(pool):
            return Step(controller, DRAINING, after=_POLL_SECONDS)
        log.info("pool is drained; the controller allocates from now on", pool=str(pool))
        return Step(controller, controller.value)

    def _to_scheduler(self, pool: PoolID) -> Step:
        controller = PoolAllocator.CONTROLLER
        self._stop(pool)
        left = self._left(pool)
        if left <= 0 and self._assume_cache.assumed_in(pool):
            left = _POLL_SECONDS
        if left > 0:
            return Step(controller, controller.value, after=left)
        self._since.pop(pool, None)
        log.info("pool is drained; kube-scheduler allocates from now on", pool=str(pool))
        return Step(PoolAllocator.SCHEDULER, PoolAllocator.SCHEDULER.value)

    def _resume(self, pool: PoolID) -> None:
        self._since.pop(pool, None)
        if pool in self._stopped:
            self._stopped.discard(pool)
            self._changed(pool, self.blocked(pool))

    def _left(self, pool: PoolID) -> float:
        since = self._since.setdefault(pool, self._clock.monotonic())
        return since + self._drain - self._clock.monotonic()

    async def _read_again(self, pool: PoolID) -> bool:
        """Whether every allocation from the pool that the API server has is known here, too."""
        found = await self._client.list(RESOURCE_CLAIMS)
        for claim in found.items:
            if claim.status.allocation is None:
                continue
            ours = any(PoolID(r.driver, r.pool) == pool for r in claim.status.allocation.devices.results)
            if ours and not self._assume_cache.knows(claim):
                log.info("waiting for a claim to be seen", pool=str(pool), claim=str(claim.key))
                return False
        return True


def _refusal(found: tuple[str, ...]) -> str:
    shown = ", ".join(found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"claims or templates tolerate the taint {PROTECTION_TAINT.key}, so kube-scheduler could allocate "
        f"the same devices: {shown}{more}; delete them or give them tolerations that name other keys"
    )


class Tolerators:
    """Claims that kube-scheduler could give devices of ours, and templates that such claims would be made of.

    Those are claims with a request whose tolerations cover our taint, by the verdict of the allocator (which
    is kube-scheduler's), and whose DeviceClass may select devices of our drivers. Requests with admin access
    do not count: they take no device away.
    """

    def __init__(
        self,
        drivers: Iterable[DriverName],
        claims: Informer[ResourceClaim],
        classes: Informer[DeviceClass],
        changed: Callable[[], None],
        templates: Informer[ResourceClaimTemplate] | None = None,
        recorder: EventRecorder | None = None,
    ) -> None:
        """Follow the informers.

        Args:
            drivers: ours.
            claims: all namespaces.
            classes: all.
            changed: called when another refusal is due.
            templates: all namespaces.
            recorder: for Events on those that are found; if None, there are none.
        """
        self._drivers = frozenset(drivers)
        self._recorder = recorder
        self._classes = classes
        self._changed = changed
        # "claim" or "template", and which one.
        self._suspects: dict[tuple[str, ObjectKey], ResourceClaim | ResourceClaimTemplate] = {}
        # Those of them that do tolerate our taint, by the classes as they are.
        self._tolerating: set[tuple[str, ObjectKey]] = set()
        classes.add_handler(
            Handler(
                added=lambda _: self._classes_changed(),
                updated=lambda old, new: self._classes_changed() if old.spec != new.spec else None,
                deleted=lambda _: self._classes_changed(),
            )
        )
        # Specs are immutable, of claims and of templates.
        claims.add_handler(
            Handler(
                added=lambda c: self._seen("claim", c),
                deleted=lambda c: self._gone("claim", c.key),
            )
        )
        if templates is not None:
            templates.add_handler(
                Handler(
                    added=lambda t: self._seen("template", t),
                    deleted=lambda t: self._gone("template", t.key),
                )
            )

    def found(self) -> tuple[str, ...]:
        """Those that are there now, in order: ``claim ns/a``, ``template ns/b``."""
        return tuple(f"{kind} {key}" for kind, key in sorted(self._tolerating))

    def count(self) -> int:
        """Return how many there are."""
        return len(self._tolerating)

    def _seen(self, kind: str, object_: ResourceClaim | ResourceClaimTemplate) -> None:
        spec, key = _spec(object_), object_.key
        if any(tolerates(tolerations, PROTECTION_TAINT) for _, tolerations in _requests(spec)):
            self._suspects[kind, key] = object_
            # Every pool is looked at after a change: not for claims of other drivers, nor for each of many.
            if self._tolerates(spec):
                self._tolerating.add((kind, key))
                self._tell(object_)
                if len(self._tolerating) == 1:
                    self._changed()

    def _tell(self, object_: ResourceClaim | ResourceClaimTemplate) -> None:
        text = (
            f"a request tolerates the device taint {PROTECTION_TAINT.key}, so that kube-scheduler could "
            "allocate a device that the controller allocates as well; give the toleration the key of another "
            "taint"
        )
        if self._recorder is None:
            return
        if isinstance(object_, ResourceClaim):
            self._recorder.event(RESOURCE_CLAIMS, object_, "Warning", _TOLERATES, text)
        else:
            self._recorder.event(RESOURCE_CLAIM_TEMPLATES, object_, "Warning", _TOLERATES, text)

    def _gone(self, kind: str, key: ObjectKey) -> None:
        self._suspects.pop((kind, key), None)
        if (kind, key) in self._tolerating:
            told = (kind, key) in sorted(self._tolerating)[:_NAMED]
            self._tolerating.discard((kind, key))
            if told:
                self._changed()

    def _classes_changed(self) -> None:
        now = {which for which, object_ in self._suspects.items() if self._tolerates(_spec(object_))}
        for which in sorted(now - self._tolerating):
            self._tell(self._suspects[which])
        if now != self._tolerating:
            self._tolerating = now
            self._changed()

    def _tolerates(self, spec: ResourceClaimSpec) -> bool:
        return any(
            tolerates(tolerations, PROTECTION_TAINT) and self._may_be_ours(class_name)
            for class_name, tolerations in _requests(spec)
        )

    def _may_be_ours(self, class_name: str) -> bool:
        """Whether the class can select devices of our drivers; without a class nothing is allocated."""
        class_ = self._classes.get_by_name(class_name)
        return class_ is not None and all(
            drivers is None or bool(drivers & self._drivers)
            for s in class_.spec.selectors
            if s.cel is not None
            for drivers in (_drivers_of(s.cel.expression),)
        )


def _spec(object_: ResourceClaim | ResourceClaimTemplate) -> ResourceClaimSpec:
    return object_.spec if isinstance(object_, ResourceClaim) else object_.spec.spec


def _requests(spec: ResourceClaimSpec) -> Iterable[tuple[str, tuple[DeviceToleration, ...]]]:
    for request in spec.devices.requests or ():
        if request.exactly is not None and not request.exactly.admin_access:
            yield request.exactly.device_class_name, request.exactly.tolerations
        for sub in request.first_available:
            yield sub.device_class_name, sub.tolerations


def _drivers_of(expression: str) -> frozenset[str] | None:
    """Return the only drivers that the selector can match; None: any, as far as we can tell."""
    try:
        return cel.compile_selector(expression).drivers
    except cel.CelCompileError:
        return None  # an API server newer than we are may understand it
