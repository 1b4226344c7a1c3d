"""Claims and templates that tolerate the taint which keeps kube-scheduler off our devices.

Where there is one, kube-scheduler could allocate a device that the controller allocates as well. So a pool
that is not the controller's yet is not given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from dra_driver import cel
from dra_driver.api.meta import DriverName, ObjectKey
from dra_driver.api.resource import (
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    DeviceClass,
    DeviceToleration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
)
from dra_driver.kube import EventRecorder, Handler, Informer
from dra_driver.ownership import PROTECTION_TAINT, tolerates

__all__ = ["Tolerators"]

log = structlog.get_logger(__name__)

_TOLERATES: Final = "ToleratesControllerTaint"


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
        """Return those that are there now, in order: ``claim ns/a``, ``template ns/b``."""
        return tuple(f"{kind} {key}" for kind, key in sorted(self._tolerating))

    def refusal(self) -> str:
        """Return why the controller is given no further pool; empty if it may be given one.

        Everybody may see it who sees an inventory, so it names no claim of any namespace.
        """
        if not self._tolerating:
            return ""
        return (
            f"claims or templates tolerate the taint {PROTECTION_TAINT.key}, so kube-scheduler could "
            f"allocate the same devices: those with an Event {_TOLERATES} (kubectl get events -A "
            f"--field-selector reason={_TOLERATES}); delete them or give them tolerations that name other "
            "keys"
        )

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
                self._report(object_)
                if len(self._tolerating) == 1:
                    self._changed()

    def _report(self, object_: ResourceClaim | ResourceClaimTemplate) -> None:
        text = (
            f"a request tolerates the device taint {PROTECTION_TAINT.key}, so that kube-scheduler could "
            "allocate a device that the controller allocates as well; give the toleration the key of another "
            "taint"
        )
        log.warning("a request tolerates the controller's taint", object=str(object_.key))
        if self._recorder is None:
            return
        if isinstance(object_, ResourceClaim):
            self._recorder.event(RESOURCE_CLAIMS, object_, "Warning", _TOLERATES, text)
        else:
            self._recorder.event(RESOURCE_CLAIM_TEMPLATES, object_, "Warning", _TOLERATES, text)

    def _gone(self, kind: str, key: ObjectKey) -> None:
        self._suspects.pop((kind, key), None)
        if (kind, key) in self._tolerating:
            self._tolerating.discard((kind, key))
            if not self._tolerating:
                self._changed()

    def _classes_changed(self) -> None:
        now = {which for which, object_ in self._suspects.items() if self._tolerates(_spec(object_))}
        for which in sorted(now - self._tolerating):
            self._report(self._suspects[which])
        before, self._tolerating = self._tolerating, now
        if bool(now) != bool(before):
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
    """Return the only drivers that the selector can match; None if it does not say which."""
    try:
        return cel.compile_selector(expression).drivers
    except cel.CelCompileError:
        return None  # an API server newer than we are may understand it
