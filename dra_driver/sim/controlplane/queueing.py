"""When the stand-in for kube-scheduler looks again at a pod that it could not place.

kube-scheduler has *queueing hints*: a pod that was refused waits until something happens that matters to one
of the plugins that refused it. What is allocated to a pod matters to the plugin for claims alone, but the
plugin for resources of nodes looks at the extended resources of device classes, too. Pods that wait for
longer than five minutes are looked at whatever happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.api.core import Node, Pod, PodSpec
from dra_driver.api.resource import DeviceClass
from dra_driver.kube import Handler, Informer

__all__ = ["LONGEST_SECONDS", "QueueingHints"]

LONGEST_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Parked:
    """A pod that was refused, as it was then.

    Attributes:
        events: how many there had been when it was looked at.
        until: time from which it is looked at whatever happens.
    """

    events: int
    until: float
    spec: PodSpec
    labels: object


class QueueingHints:
    """Parks pods that were refused for other reasons than claims, until something changes that may help them.

    That is nodes, other pods, extended resources of device classes, and volumes.

    Args:
        pods: all.
        nodes: all.
        classes: all device classes.
        volumes: of all kinds of storage objects.

    Attributes:
        events: number of changes so far.
    """

    def __init__(
        self,
        pods: Informer[Pod],
        nodes: Informer[Node],
        classes: Informer[DeviceClass],
        volumes: Iterable[Informer[Any]],
    ) -> None:
        self.events = 0
        self._parked: dict[str, _Parked] = {}
        pods.add_handler(Handler(self._pod, self._pod_updated, self._pod))
        nodes.add_handler(Handler(self._count, self._node_updated, self._count))
        # The deletion of a class makes no pod schedulable.
        classes.add_handler(Handler(self._count, self._class_updated, lambda _: None))
        for informer in volumes:
            informer.add_handler(Handler(self._count, lambda _, new: self._count(new), self._count))

    def park(self, pod: Pod, events: int, now: float) -> None:
        """Have a pod wait for what happens after it was looked at.

        Args:
            pod: as it was then.
            events: ``self.events`` as it was then.
            now: the time.
        """
        self._parked[pod.metadata.uid] = _Parked(events, now + LONGEST_SECONDS, pod.spec, pod.metadata.labels)

    def waits(self, pod: Pod, now: float) -> bool:
        """Return whether nothing has happened that may help a pod."""
        parked = self._parked.get(pod.metadata.uid)
        if parked is None:
            return False
        same = parked.spec == pod.spec and parked.labels == pod.metadata.labels
        if same and parked.events == self.events and now < parked.until:
            return True
        del self._parked[pod.metadata.uid]
        return False

    def forget(self, present: Collection[str]) -> None:
        """Forget pods that are gone."""
        for uid in [u for u in self._parked if u not in present]:
            del self._parked[uid]

    def _count(self, _: object) -> None:
        self.events += 1

    def _pod(self, pod: Pod) -> None:
        self.events += bool(pod.spec.node_name)

    def _pod_updated(self, old: Pod, new: Pod) -> None:
        """Count what matters to others: a pod that is bound or ends, or has other labels there."""
        if new.spec.node_name and (
            old.spec != new.spec
            or old.status.phase != new.status.phase
            or old.metadata.labels != new.metadata.labels
        ):
            self.events += 1

    def _node_updated(self, old: Node, new: Node) -> None:
        """Count what matters to pods: nodes report their health all the time."""
        if (
            old.spec != new.spec
            or old.metadata.labels != new.metadata.labels
            or old.status.allocatable != new.status.allocatable
        ):
            self.events += 1

    def _class_updated(self, old: DeviceClass, new: DeviceClass) -> None:
        if old.spec.extended_resource_name != new.spec.extended_resource_name:
            self.events += 1
