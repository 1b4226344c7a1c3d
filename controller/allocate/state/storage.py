"""What decides where the volumes of pods can be used, as far as it may be read.

The rights are optional: clusters that update the controller before its rights, or withhold them, go on as if
volumes were not looked at. That holds for all of these kinds together, for each decides nothing without the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import structlog

from controller.allocate.signal import Signal
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, WireObject
from dra_driver.api.storage import (
    CSI_NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    PersistentVolumeClaim,
)
from dra_driver.kube import Informer
from dra_driver.nodefit.volumes import claim_keys
from dra_driver.ports import KubeClient

__all__ = [
    "CLAIMS_OF_VOLUME",
    "PODS_OF_CLAIM",
    "StorageInformers",
    "claims_to_be_mounted",
    "same_but_version",
]

log = structlog.get_logger(__name__)

CLAIMS_OF_VOLUME: Final = "volume"
PODS_OF_CLAIM: Final = "volume claim"


class StorageInformers:
    """Local copies of storage objects.

    Args:
        client: of the API server.

    Attributes:
        known: whether all of them are filled and may be read.
        settled: set once it is known whether they may be read.
        changed: sent when ``known`` changes.
    """

    def __init__(self, client: KubeClient) -> None:
        self.claims = Informer(client, PERSISTENT_VOLUME_CLAIMS, indices={CLAIMS_OF_VOLUME: _volume_of})
        self.volumes = Informer(client, PERSISTENT_VOLUMES)
        self.classes = Informer(client, STORAGE_CLASSES)
        self.nodes = Informer(client, CSI_NODES)
        self.attachments = Informer(client, VOLUME_ATTACHMENTS)
        self.known = False
        self.settled = asyncio.Event()
        self.changed: Signal[[bool]] = Signal()
        for informer in self.all():
            informer.access_changed.append(self._access_changed)

    def all(self) -> tuple[Informer[Any], ...]:
        """Return all of them."""
        return (self.claims, self.volumes, self.classes, self.nodes, self.attachments)

    def _access_changed(self) -> None:
        refused = [i.resource.plural for i in self.all() if i.access is False]
        known = all(i.access for i in self.all())
        if refused and (self.known or not self.settled.is_set()):
            log.warning(
                "storage objects cannot be read: where pods can go because of their volumes is left to "
                "kube-scheduler, and found out one node at a time",
                missing=refused,
            )
        elif known and not self.known:
            log.info("storage objects are known: volumes are looked at")
        if refused or known:
            self.settled.set()
        if known != self.known:
            self.known = known
            self.changed.send(known)


def claims_to_be_mounted(pod: Pod) -> Iterable[ObjectKey]:
    """Return the volume claims of a pod without a node: the function of ``PODS_OF_CLAIM``."""
    return () if pod.spec.node_name else claim_keys(pod)


def same_but_version(old: WireObject, new: WireObject) -> bool:
    """Return whether nothing has changed that is kept of a storage object: most changes do not matter."""
    replace = msgspec.structs.replace
    version = old.metadata.resource_version
    return replace(new, metadata=replace(new.metadata, resource_version=version)) == old


def _volume_of(claim: PersistentVolumeClaim) -> Iterable[str]:
    """Yield the volume that a claim names: the function of ``CLAIMS_OF_VOLUME``."""
    if claim.spec.volume_name:
        yield claim.spec.volume_name
