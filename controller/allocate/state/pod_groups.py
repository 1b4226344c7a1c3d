"""PodGroups of ``scheduling.k8s.io``, as far as the API server serves them and lets us read them.

The kind is alpha and the right is optional. A pod of a PodGroup that cannot be read waits: how many pods must
have devices at the same time is not known then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from controller.allocate.decide import GROUP_INDEX, MISSING, GroupKey, pod_group_key
from controller.allocate.signal import Signal
from controller.allocate.state.served import newest_served
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Resource
from dra_driver.api.scheduling import (
    POD_GROUP_VERSIONS,
    POD_GROUPS,
    SCHEDULING_GROUP,
    PodGroup,
    pod_groups,
)
from dra_driver.kube import Handler, Informer
from dra_driver.ports import KubeClient

__all__ = ["PodGroupChanges", "PodGroupInformer", "served_pod_groups"]

log = structlog.get_logger(__name__)

NOT_SERVED = "is not known: the API server serves no PodGroups"
NOT_READ = "is not known: the controller may not list podgroups of scheduling.k8s.io"


async def served_pod_groups(client: KubeClient) -> Resource[PodGroup] | None:
    """Return the newest version of the kind that is served; None where none is.

    Raises:
        ApiError, ApiUnavailable: the API server does not say.
    """
    version = await newest_served(client, SCHEDULING_GROUP, POD_GROUPS, POD_GROUP_VERSIONS)
    return pod_groups(version) if version is not None else None


class PodGroupInformer:
    """A local copy of all PodGroups.

    Args:
        informer: not started.

    Attributes:
        informer: that was given.
        settled: set once it is known whether they may be read, and which there are if so.
        changed: sent with ``unknown`` when that changes.
    """

    def __init__(self, informer: Informer[PodGroup]) -> None:
        self.informer = informer
        self.settled = asyncio.Event()
        self.changed: Signal[[str]] = Signal()
        informer.access_changed.append(self._access_changed)
        if not informer.served:
            self.settled.set()

    @property
    def unknown(self) -> str:
        """Why PodGroups are not known; empty where they are."""
        if not self.informer.served:
            return NOT_SERVED
        return NOT_READ if self.informer.access is False else ""

    def all(self) -> tuple[Informer[PodGroup], ...]:
        """Return the informer."""
        return (self.informer,)

    def find(self, key: ObjectKey) -> PodGroup | str:
        """Return a PodGroup, or why it is not known."""
        return self.unknown or self.informer.get(key) or MISSING

    def _access_changed(self) -> None:
        if self.unknown:
            log.warning("PodGroups cannot be read: pods that belong to one wait", missing=POD_GROUPS)
        self.settled.set()
        self.changed.send(self.unknown)


class PodGroupChanges:
    """Has the pods of a PodGroup looked at when it changes.

    Args:
        groups: to be followed from now on.
        every: gives all pods.
        look: has one pod looked at.
        look_at_users: has the pods looked at that have a value in an index; ``GROUP_INDEX`` is asked for.
    """

    def __init__(
        self,
        groups: PodGroupInformer,
        every: Callable[[], Sequence[Pod]],
        look: Callable[[ObjectKey], None],
        look_at_users: Callable[[str, GroupKey], None],
    ) -> None:
        self._every = every
        self._look = look
        self._look_at_users = look_at_users
        for informer in groups.all():
            informer.add_handler(Handler(self._changed, self._updated, self._changed))
        groups.changed.listen(lambda _: self._all())

    def _updated(self, old: PodGroup, new: PodGroup) -> None:
        # Conditions change with each attempt of kube-scheduler, and decide nothing here.
        if old.spec != new.spec or old.metadata.uid != new.metadata.uid:
            self._changed(new)

    def _changed(self, group: PodGroup) -> None:
        self._look_at_users(GROUP_INDEX, pod_group_key(group.key))

    def _all(self) -> None:
        for pod in self._every():
            if pod.spec.pod_group:
                self._look(pod.key)
