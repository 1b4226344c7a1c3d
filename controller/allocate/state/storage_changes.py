"""Which pods are looked at again when a storage object changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from controller.allocate.state.storage import (
    CLAIMS_OF_VOLUME,
    PODS_OF_CLAIM,
    StorageInformers,
    same_but_version,
)
from dra_driver.api.meta import ObjectKey, WireObject
from dra_driver.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim
from dra_driver.kube import Handler

__all__ = ["StorageChanges"]

T = TypeVar("T", bound=WireObject)


class StorageChanges:
    """Wakes pods.

    Args:
        storage: to be followed from now on.
        look: has one pod looked at.
        look_at_users: has the pods looked at that have a value in an index; ``PODS_OF_CLAIM`` is asked for.
        wake: has the pods looked at soon that could not be served.
        lacking: gives the pods that can be placed nowhere because of their volumes.
    """

    def __init__(
        self,
        storage: StorageInformers,
        *,
        look: Callable[[ObjectKey], None],
        look_at_users: Callable[[str, ObjectKey], None],
        wake: Callable[[], None],
        lacking: Callable[[], Iterable[ObjectKey]],
    ) -> None:
        self._storage = storage
        self._look = look
        self._look_at_users = look_at_users
        self._wake = wake
        self._lacking = lacking
        storage.claims.add_handler(
            Handler(self._claim_changed, _if_changed(self._claim_changed), self._claim_changed)
        )
        storage.volumes.add_handler(
            Handler(self._volume_changed, _if_changed(self._volume_changed), self._volume_changed)
        )
        storage.classes.add_handler(
            Handler(lambda _: self._all(), lambda _old, _new: self._all(), lambda _: self._all())
        )
        # A node without limits suits all; one that goes takes its limits with it.
        storage.nodes.add_handler(Handler(updated=self._node_updated, deleted=lambda _: wake()))
        storage.attachments.add_handler(Handler(deleted=lambda _: wake()))
        storage.changed.listen(lambda _: self._all())

    def _all(self) -> None:
        for key in tuple(self._lacking()):
            self._look(key)
        self._wake()

    def _claim_changed(self, claim: PersistentVolumeClaim) -> None:
        self._users_of(claim.key)

    def _users_of(self, claim: ObjectKey) -> None:
        self._look_at_users(PODS_OF_CLAIM, claim)

    def _volume_changed(self, volume: PersistentVolume) -> None:
        for claim in self._storage.claims.each(CLAIMS_OF_VOLUME, volume.metadata.name):
            self._users_of(claim.key)
        reference = volume.spec.claim_ref
        if reference is None:
            self._wake()
        else:
            self._users_of(ObjectKey(reference.namespace, reference.name))

    def _node_updated(self, old: CSINode, new: CSINode) -> None:
        if old.spec != new.spec or old.migrated != new.migrated:
            self._wake()


def _if_changed(changed: Callable[[T], None]) -> Callable[[T, T], None]:
    """Return a handler of updates for those that change something that is kept."""

    def updated(old: T, new: T) -> None:
        if not same_but_version(old, new):
            changed(new)

    return updated
