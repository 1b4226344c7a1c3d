"""The storage objects of a cluster, with what is looked up in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple, TypeVar

from dra_driver.api.meta import ObjectKey
from dra_driver.api.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

__all__ = ["STORAGE_KINDS", "Handle", "StorageObject", "StorageObjects", "is_in_tree"]

StorageObject = PersistentVolumeClaim | PersistentVolume | StorageClass | CSINode | VolumeAttachment

STORAGE_KINDS: Final = (PersistentVolumeClaim, PersistentVolume, StorageClass, CSINode, VolumeAttachment)

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V", bound=Hashable)
# Plugins whose volumes CSI drivers serve (isCSIMigrationOn of kube-scheduler).
_IN_TREE: Final = frozenset(
    f"kubernetes.io/{name}" for name in ("aws-ebs", "azure-disk", "cinder", "gce-pd", "portworx-volume")
)


def is_in_tree(provisioner: str) -> bool:
    """Return whether volumes are made by a plugin that a CSI driver serves by now."""
    return provisioner in _IN_TREE


class Handle(NamedTuple):
    """One volume, as a node counts it.

    Attributes:
        driver: name of the CSI driver.
        volume: handle of the volume; of one that is not there yet, a name of its own.
    """

    driver: str
    volume: str


class StorageObjects:
    """PersistentVolumeClaims and what they lead to.

    Attributes:
        claims: by namespace and name.
        volumes: by name.
        classes: by name.
        nodes: by name.
        version: another number after each change.
    """

    def __init__(self) -> None:
        self.claims: dict[ObjectKey, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.nodes: dict[str, CSINode] = {}
        self.version = 0
        self._attachments: dict[str, VolumeAttachment] = {}
        self._claims_of: dict[str, set[ObjectKey]] = {}
        self._of_class: dict[str, set[str]] = {}
        self._kept_for: dict[ObjectKey, set[str]] = {}
        self._attached_to: dict[str, set[str]] = {}
        self._attachments_of: dict[str, set[str]] = {}
        self._handles: Counter[Handle] = Counter()
        self._limited: Counter[str] = Counter()

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, item: StorageObject) -> set[ObjectKey] | None:
        """Add or replace an object; as for ``remove``."""
        before = self._index(type(item), item.key, -1)
        match item:
            case PersistentVolumeClaim():
                self.claims[item.key] = item
            case PersistentVolume():
                self.volumes[item.metadata.name] = item
            case StorageClass():
                self.classes[item.metadata.name] = item
            case CSINode():
                self.nodes[item.metadata.name] = item
            case VolumeAttachment():
                self._attachments[item.metadata.name] = item
        self.version += 1
        return _joined(before, self._index(type(item), item.key, 1))

    def remove(self, kind: type[object], key: ObjectKey) -> set[ObjectKey] | None:
        """Forget an object.

        Returns:
            The claims whose volumes may be counted in another way now; None: those of all claims.
        """
        found = self._index(kind, key, -1)
        self.version += 1
        if kind is PersistentVolumeClaim:
            self.claims.pop(key, None)
        elif kind is PersistentVolume:
            self.volumes.pop(key.name, None)
        elif kind is StorageClass:
            self.classes.pop(key.name, None)
        elif kind is CSINode:
            self.nodes.pop(key.name, None)
        elif kind is VolumeAttachment:
            self._attachments.pop(key.name, None)
        return found

    def _index(self, kind: type[object], key: ObjectKey, step: int) -> set[ObjectKey] | None:
        """Put what is known under a key into the indices (1), or take it out (-1)."""
        change = _add if step > 0 else _discard
        if kind is PersistentVolumeClaim and (claim := self.claims.get(key)) is not None:
            change(self._claims_of, claim.spec.volume_name, key)
        elif kind is PersistentVolume and (volume := self.volumes.get(key.name)) is not None:
            change(self._of_class, volume.storage_class, key.name)
            if (reference := volume.spec.claim_ref) is not None:
                change(self._kept_for, ObjectKey(reference.namespace, reference.name), key.name)
            if (csi := volume.spec.csi) is not None:
                _count(self._handles, Handle(csi.driver, csi.volume_handle), step)
        elif kind is CSINode and (node := self.nodes.get(key.name)) is not None:
            for driver in node.limited:
                _count(self._limited, driver, step)
        elif kind is VolumeAttachment and (attached := self._attachments.get(key.name)) is not None:
            change(self._attached_to, attached.spec.node_name, key.name)
            if (volume_name := attached.spec.source.persistent_volume_name) is not None:
                change(self._attachments_of, volume_name, key.name)
        if kind is PersistentVolumeClaim:
            return {key}
        if kind is PersistentVolume:
            return set(self._claims_of.get(key.name, ()))
        return None if kind is StorageClass else set()

    # --- questions ------------------------------------------------------------------------------------------

    def is_limited(self, driver: str) -> bool:
        """Return whether any node has a limit for the volumes of a driver."""
        return driver in self._limited

    def volumes_of_class(self, name: str) -> Iterator[PersistentVolume]:
        """Yield the volumes of a class, in the order of their names."""
        return (self.volumes[volume] for volume in sorted(self._of_class.get(name, ())))

    def kept_for(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Return the volumes whose ``claimRef`` names a claim, in the order of their names."""
        found = (self.volumes[name] for name in sorted(self._kept_for.get(claim.key, ())))
        return [v for v in found if v.spec.claim_ref and v.spec.claim_ref.uid in ("", claim.metadata.uid)]

    def attached_to(self, node: str) -> set[Handle]:
        """Return the volumes that VolumeAttachments attach to a node, as far as their drivers are known."""
        found: set[Handle] = set()
        for name in self._attached_to.get(node, ()):
            spec = self._attachments[name].spec
            volume = self.volumes.get(spec.source.persistent_volume_name or "")
            if spec.attacher and volume is not None and volume.spec.csi is not None:
                found.add(Handle(spec.attacher, volume.spec.csi.volume_handle))
        return found

    def is_elsewhere(self, handle: Handle, volume: str) -> bool:
        """Return whether a volume is attached to some node, or is another volume's, too."""
        return self._handles[handle] > 1 or volume in self._attachments_of

    def nodes_attached(self, volume: str) -> set[str]:
        """Return the nodes to which VolumeAttachments attach a volume."""
        return {self._attachments[name].spec.node_name for name in self._attachments_of.get(volume, ())}

    def attachment_node(self, name: str) -> str:
        """Return the node of a VolumeAttachment; empty where there is none."""
        known = self._attachments.get(name)
        return "" if known is None else known.spec.node_name

    def handle(self, key: ObjectKey) -> Handle | None:
        """Return how a node counts the volume of a claim (``getCSIDriverInfo``); None: it does not, here."""
        claim = self.claims.get(key)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            csi = volume.spec.csi
            return Handle(csi.driver, csi.volume_handle) if csi and csi.driver and csi.volume_handle else None
        known = self.classes.get(claim.storage_class)
        if known is None or is_in_tree(known.provisioner):
            return None
        return Handle(known.provisioner, f"{key}\0")


def _joined(first: set[ObjectKey] | None, second: set[ObjectKey] | None) -> set[ObjectKey] | None:
    return None if first is None or second is None else first | second


def _add(index: dict[_K, set[_V]], key: _K, value: _V) -> None:
    index.setdefault(key, set()).add(value)


def _discard(index: dict[_K, set[_V]], key: _K, value: _V) -> None:
    known = index.get(key)
    if known is not None:
        known.discard(value)
        if not known:
            del index[key]


def _count(counter: Counter[_K], key: _K, step: int) -> None:
    counter[key] += step
    if not counter[key]:
        del counter[key]
