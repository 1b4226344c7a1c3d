"""The parts of ``core/v1`` and ``storage.k8s.io/v1`` that say where the volumes of a pod can be used.

There are tens of thousands of these objects, and tenants write most of what is in PersistentVolumeClaims. So
what decides nothing is left out as they are decoded, texts are cut where no name can be longer, and of
selectors and topologies that are out of proportion nothing is kept but that they were there (``left_out``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from dra_driver.api.meta import ObjectMeta, OwnerReference, Resource, Uid, Wire, WireObject
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import NodeSelector, NodeSelectorRequirement

__all__ = [
    "BIND_COMPLETED",
    "CSI_NODES",
    "MIGRATED_PLUGINS",
    "MOST_CONDITIONS",
    "PERSISTENT_VOLUMES",
    "PERSISTENT_VOLUME_CLAIMS",
    "SELECTED_NODE",
    "STORAGE_CLASSES",
    "STORAGE_RESOURCES",
    "TOPOLOGY_LABELS",
    "VOLUME_ATTACHMENTS",
    "CSINode",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "TopologyRequirement",
    "TopologyTerm",
    "VolumeAttachment",
]

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
MIGRATED_PLUGINS: Final = "storage.alpha.kubernetes.io/migrated-plugins"
TOPOLOGY_LABELS: Final = (
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
MOST_CONDITIONS: Final = 512
"""Requirements with their values, of one selector or topology, that are looked at."""

# One character more than any name has: a text that was cut equals none.
_LONGEST_NAME: Final = 254
_LONGEST_HANDLE: Final = 1_024
_MOST_LABELS: Final = 128
_MOST_MODES: Final = 8
_MOST_DRIVERS: Final = 256
_MOST_CHARACTERS: Final = 16 * 1024
_STORAGE: Final = "storage"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME]


def _modes(modes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({_cut(mode) for mode in modes})[:_MOST_MODES])


def _of_storage(amounts: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
    return {_STORAGE: amounts[_STORAGE]} if _STORAGE in amounts else {}


def _slim(meta: ObjectMeta, *annotations: str, labels: Mapping[str, str] | None = None) -> ObjectMeta:
    """Return the metadata with these annotations and labels only, and with the owner that is a controller."""
    kept = {key: _cut(value) for key, value in (meta.annotations or {}).items() if key in annotations}
    owners = tuple(
        OwnerReference(api_version="", kind="", name="", uid=Uid(_cut(ref.uid)), controller=True)
        for ref in meta.owner_references or ()
        if ref.controller
    )
    return ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        deletion_timestamp=meta.deletion_timestamp,
        labels=labels,
        annotations=kept or None,
        owner_references=owners[:1] or None,
    )


def _put(struct: Wire, **values: object) -> None:
    for name, value in values.items():
        msgspec.structs.force_setattr(struct, name, value)


# --- PersistentVolumeClaim ----------------------------------------------------------------------------------


class LabelSelector(Wire, frozen=True, kw_only=True):
    """``meta/v1 LabelSelector``."""

    match_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()

    @property
    def requirements(self) -> tuple[NodeSelectorRequirement, ...]:
        """All that must hold, in one form."""
        return (
            *(
                NodeSelectorRequirement(key=key, operator="In", values=(value,))
                for key, value in sorted(self.match_labels.items())
            ),
            *self.match_expressions,
        )


class VolumeRequests(Wire, frozen=True, kw_only=True):
    """``spec.resources`` of a PersistentVolumeClaim."""

    requests: Mapping[str, Quantity] = msgspec.field(default_factory=dict)


class PersistentVolumeClaimSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a PersistentVolumeClaim."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeRequests = VolumeRequests()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(Wire, frozen=True, kw_only=True):
    """``status`` of a PersistentVolumeClaim."""

    phase: str = ""


class PersistentVolumeClaim(WireObject, frozen=True, kw_only=True):
    """A PersistentVolumeClaim, as far as it decides where pods can go.

    Attributes:
        left_out: its selector was too large and is not kept.
    """

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()
    left_out: bool = False

    def __post_init__(self) -> None:
        spec, selector = self.spec, self.spec.selector
        small = selector is None or _is_small(selector.requirements)
        _put(
            self,
            metadata=_slim(self.metadata, BIND_COMPLETED, SELECTED_NODE, BETA_CLASS),
            left_out=self.left_out or not small,
            spec=PersistentVolumeClaimSpec(
                access_modes=_modes(spec.access_modes),
                selector=selector if small else None,
                resources=VolumeRequests(requests=_of_storage(spec.resources.requests)),
                volume_name=_cut(spec.volume_name),
                storage_class_name=None if spec.storage_class_name is None else _cut(spec.storage_class_name),
                volume_mode=None if spec.volume_mode is None else _cut(spec.volume_mode),
                volume_attributes_class_name=_cut(spec.volume_attributes_class_name or "") or None,
            ),
        )

    @property
    def storage_class(self) -> str:
        """Name of its class; empty where it has none."""
        beta = (self.metadata.annotations or {}).get(BETA_CLASS)
        return beta if beta is not None else self.spec.storage_class_name or ""

    @property
    def is_bound(self) -> bool:
        """Whether it is bound to a volume, and both sides know it."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in (self.metadata.annotations or {})

    @property
    def selected_node(self) -> str | None:
        """The node that a volume is being made for; None where none is."""
        return (self.metadata.annotations or {}).get(SELECTED_NODE)

    @property
    def size(self) -> int:
        """Bytes × 1e9 that it asks for."""
        return _size(self.spec.resources.requests)


def _size(amounts: Mapping[str, Quantity]) -> int:
    amount = amounts.get(_STORAGE)
    return 0 if amount is None else amount.nano


def _is_small(requirements: Collection[NodeSelectorRequirement]) -> bool:
    if sum(1 + len(r.values) for r in requirements) > MOST_CONDITIONS:
        return False
    return sum(len(text) for r in requirements for text in (r.key, *r.values)) <= _MOST_CHARACTERS


# --- PersistentVolume ---------------------------------------------------------------------------------------


class ClaimReference(Wire, frozen=True, kw_only=True):
    """``spec.claimRef``: the claim that a volume is bound to, or kept for."""

    namespace: str = ""
    name: str = ""
    uid: Uid = Uid("")


class VolumeNodeAffinity(Wire, frozen=True, kw_only=True):
    """``spec.nodeAffinity`` of a volume."""

    required: NodeSelector | None = None


class CSISource(Wire, frozen=True, kw_only=True):
    """``spec.csi``."""

    driver: str = ""
    volume_handle: str = ""


class InTreeSource(Wire, frozen=True, kw_only=True):
    """A volume of a plugin that once was in Kubernetes itself; nothing of it is kept but that it is one."""


class PersistentVolumeSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a PersistentVolume."""

    access_modes: tuple[str, ...] = ()
    capacity: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    claim_ref: ClaimReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSISource | None = None
    aws_elastic_block_store: InTreeSource | None = None
    azure_disk: InTreeSource | None = None
    cinder: InTreeSource | None = None
    gce_persistent_disk: InTreeSource | None = None
    portworx_volume: InTreeSource | None = None


class PersistentVolumeStatus(Wire, frozen=True, kw_only=True):
    """``status`` of a PersistentVolume."""

    phase: str = ""


class PersistentVolume(WireObject, frozen=True, kw_only=True):
    """A PersistentVolume, as far as it decides where pods can go.

    Labels other than those of zones matter to selectors of claims only, so a volume that has a claim is kept
    without them.

    Attributes:
        left_out: its node affinity, or its labels, were too many and are not kept.
    """

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()
    left_out: bool = False

    def __post_init__(self) -> None:
        spec, labels = self.spec, self.metadata.labels or {}
        affinity = spec.node_affinity
        required = affinity.required if affinity is not None else None
        terms = required.node_selector_terms if required is not None else ()
        small = sum(1 + len(r.values) for t in terms for r in (*t.match_expressions, *t.match_fields)) + len(
            terms
        ) <= (MOST_CONDITIONS)
        many = spec.claim_ref is None and len(labels) > _MOST_LABELS
        if spec.claim_ref is not None or many:
            labels = {key: labels[key] for key in TOPOLOGY_LABELS if key in labels}
        reference, csi = spec.claim_ref, spec.csi
        _put(
            self,
            metadata=_slim(self.metadata, BETA_CLASS, labels=labels or None),
            left_out=self.left_out or many or not small,
            spec=msgspec.structs.replace(
                spec,
                access_modes=_modes(spec.access_modes),
                capacity=_of_storage(spec.capacity),
                claim_ref=reference and _short(reference),
                storage_class_name=_cut(spec.storage_class_name),
                node_affinity=affinity if small else None,
                csi=csi
                and CSISource(driver=_cut(csi.driver), volume_handle=csi.volume_handle[:_LONGEST_HANDLE]),
            ),
        )

    @property
    def storage_class(self) -> str:
        """Name of its class; empty where it has none."""
        beta = (self.metadata.annotations or {}).get(BETA_CLASS)
        return beta if beta is not None else self.spec.storage_class_name

    @property
    def size(self) -> int:
        """Bytes × 1e9 that it has."""
        return _size(self.spec.capacity)

    @property
    def plugin(self) -> str:
        """Name of the plugin of Kubernetes itself that it was made by, if a CSI driver serves it by now."""
        return next((name for field, name in _PLUGINS if getattr(self.spec, field) is not None), "")


_PLUGINS: Final = (
    ("aws_elastic_block_store", "kubernetes.io/aws-ebs"),
    ("azure_disk", "kubernetes.io/azure-disk"),
    ("cinder", "kubernetes.io/cinder"),
    ("gce_persistent_disk", "kubernetes.io/gce-pd"),
    ("portworx_volume", "kubernetes.io/portworx-volume"),
)


def _short(reference: ClaimReference) -> ClaimReference:
    return ClaimReference(
        namespace=_cut(reference.namespace), name=_cut(reference.name), uid=Uid(_cut(reference.uid))
    )


# --- storage.k8s.io -----------------------------------------------------------------------------------------


class TopologyRequirement(Wire, frozen=True, kw_only=True):
    """``matchLabelExpressions[]``: a label of nodes and the values that it may have."""

    key: str
    values: tuple[str, ...] = ()


class TopologyTerm(Wire, frozen=True, kw_only=True):
    """``allowedTopologies[]``: all of its requirements must hold."""

    match_label_expressions: tuple[TopologyRequirement, ...] = ()


class StorageClass(WireObject, frozen=True, kw_only=True):
    """A StorageClass, without its parameters.

    Attributes:
        left_out: its topologies were too many and are not kept.
    """

    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()
    left_out: bool = False

    def __post_init__(self) -> None:
        terms = self.allowed_topologies
        small = sum(1 + len(r.values) for t in terms for r in t.match_label_expressions) <= MOST_CONDITIONS
        _put(
            self,
            metadata=_slim(self.metadata),
            provisioner=_cut(self.provisioner),
            left_out=self.left_out or not small,
            allowed_topologies=terms if small else (),
        )

    @property
    def waits(self) -> bool:
        """Whether volumes are bound when a pod that uses them is placed, not before."""
        return self.volume_binding_mode == "WaitForFirstConsumer"


class DriverLimit(Wire, frozen=True, kw_only=True):
    """``spec.drivers[].allocatable``: how many volumes can be attached; None: no limit is known."""

    count: int | None = None


class NodeDriver(Wire, frozen=True, kw_only=True):
    """``spec.drivers[]`` of a CSINode."""

    name: str
    allocatable: DriverLimit | None = None


class CSINodeSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a CSINode; a kubelet without CSI drivers writes ``drivers: null``."""

    drivers: tuple[NodeDriver, ...] | None = None


class CSINode(WireObject, frozen=True, kw_only=True):
    """A CSINode: of the drivers those that have a limit, and the plugins whose volumes CSI drivers serve."""

    spec: CSINodeSpec = CSINodeSpec()

    def __post_init__(self) -> None:
        plugins = (self.metadata.annotations or {}).get(MIGRATED_PLUGINS, "").split(",")
        known = [name for _, name in _PLUGINS if name in plugins]
        kept = {MIGRATED_PLUGINS: ",".join(known)} if known else None
        limited = tuple(
            d for d in self.spec.drivers or () if d.allocatable and d.allocatable.count is not None
        )
        _put(
            self,
            metadata=msgspec.structs.replace(_slim(self.metadata), annotations=kept),
            spec=CSINodeSpec(drivers=limited[:_MOST_DRIVERS]),
        )

    @property
    def limited(self) -> tuple[str, ...]:
        """Drivers with a limit."""
        return tuple(driver.name for driver in self.spec.drivers or ())

    def limit(self, driver: str) -> int | None:
        """Return how many volumes of a driver can be attached; None: no limit is known."""
        for known in self.spec.drivers or ():
            if known.name == driver and known.allocatable is not None:
                return known.allocatable.count
        return None

    @property
    def migrated(self) -> tuple[str, ...]:
        """Plugins whose volumes CSI drivers serve on the node."""
        return tuple(filter(None, (self.metadata.annotations or {}).get(MIGRATED_PLUGINS, "").split(",")))


class AttachedSource(Wire, frozen=True, kw_only=True):
    """``spec.source`` of a VolumeAttachment."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a VolumeAttachment."""

    attacher: str = ""
    node_name: str = ""
    source: AttachedSource = AttachedSource()


class VolumeAttachment(WireObject, frozen=True, kw_only=True):
    """A VolumeAttachment: a volume is attached to a node, or to be."""

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()

    def __post_init__(self) -> None:
        _put(self, metadata=_slim(self.metadata))


PERSISTENT_VOLUME_CLAIMS = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", PersistentVolumeClaim, namespaced=True
)
PERSISTENT_VOLUMES = Resource(
    "", "v1", "persistentvolumes", "PersistentVolume", PersistentVolume, namespaced=False
)
STORAGE_CLASSES = Resource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", StorageClass, namespaced=False
)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", CSINode, namespaced=False)
VOLUME_ATTACHMENTS = Resource(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", VolumeAttachment, namespaced=False
)

STORAGE_RESOURCES: Final[tuple[Resource[Any], ...]] = (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    VOLUME_ATTACHMENTS,
)
"""All that decides where volumes can be used."""
