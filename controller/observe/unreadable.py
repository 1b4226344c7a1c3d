"""Objects that the controller watches and cannot read: counted, and reported once for each problem."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from controller.observe.metrics import Metrics
from dra_driver.api.meta import ObjectMeta, Resource, WireObject
from dra_driver.api.server.watch import Unreadable
from dra_driver.kube import EventRecorder, Informer

__all__ = ["UnreadableObjects"]

_REASON: Final = "Unreadable"


class UnreadableObjects:
    """Reports them by an Event of the object, and counts them by kind.

    Args:
        informers: all that is watched.
        recorder: for Events.
        metrics: to report to.
    """

    def __init__(self, informers: Iterable[Informer[Any]], recorder: EventRecorder, metrics: Metrics) -> None:
        self._informers = tuple(informers)
        self._recorder = recorder
        for informer in self._informers:
            informer.found_unreadable.append(partial(self._found, informer.resource))
            metrics.watch_unreadable(informer.resource.kind, partial(_count, informer))

    def __str__(self) -> str:
        """How many of each kind there are, for people; the log and the Events name them."""
        counts = {i.resource.kind: len(i.unreadable) for i in self._informers if i.unreadable}
        return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))

    def _found(self, resource: Resource[Any], found: Unreadable) -> None:
        metadata = ObjectMeta(name=found.key.name, namespace=found.key.namespace, uid=found.uid)
        text = f"the DRA driver's controller cannot read this {resource.kind}: {found.problem}"
        self._recorder.event(resource, WireObject(metadata=metadata), "Warning", _REASON, text)


def _count(informer: Informer[Any]) -> float:
    return float(len(informer.unreadable))
