"""The kinds that are served, as a table: what differs between kinds is data here, not code.

Rows come from the recorded server: which kinds count generations, which answer a deletion with the object,
which fields can be selected by.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.sim.apiserver.objects.fields import Struct, Type, struct_type
from dra_driver.sim.apiserver.objects.releases import COMPOSITE_GATE, DEFAULT, WORKLOADS_GATE, Served

__all__ = ["Column", "Kind", "Kinds"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a CustomResourceDefinition adds to the Table form.

    Attributes:
        name: heading.
        type: JSON type.
        path: JSONPath.
        priority: 0 if it is always shown, 1 if only with ``-o wide``.
    """

    name: str
    type: str
    path: str
    priority: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind in one version.

    Attributes:
        group: API group, empty for core.
        version: for example ``v1``.
        plural: name in URLs.
        kind: name in objects.
        type: its fields.
        namespaced: whether it lives in namespaces.
        short_names: for kubectl.
        categories: for kubectl (``all``).
        status: has the subresource ``status``.
        status_keeps_metadata: writes to ``status`` may change labels and annotations.
        generation: counts changes of the spec.
        answers_object: DELETE answers with the object, not with a Status.
        put_creates: PUT of an absent object creates it.
        put_needs_version: PUT must carry a resourceVersion.
        selectable: fields for field selectors besides name and namespace → value where absent.
        verbs: allowed on the resource.
        subresources: further ones: (name, kind, group/version, verbs).
        deprecation: sent as a warning with every answer.
        storage: the version in which objects are kept, where a kind is served in several.
        gate: feature gate without which it is not served; empty if it needs none.
        custom: defined by a CustomResourceDefinition.
        columns: of the Table form, for custom kinds.
    """

    group: str
    version: str
    plural: str
    kind: str
    type: Type
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    status_keeps_metadata: bool = False
    generation: bool = False
    answers_object: bool = False
    put_creates: bool = False
    put_needs_version: bool = False
    selectable: Mapping[str, str] = field(default_factory=dict)
    verbs: tuple[str, ...] = (
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    )
    subresources: tuple[tuple[str, str, str, tuple[str, ...]], ...] = ()
    deprecation: str = ""
    storage: str = ""
    gate: str = ""
    custom: bool = False
    columns: tuple[Column, ...] = ()

    @property
    def api_version(self) -> str:
        """``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage_version(self) -> str:
        """``apiVersion`` of objects in the store."""
        version = self.storage or self.version
        return f"{self.group}/{version}" if self.group else version

    @property
    def one(self) -> str:
        """Singular name."""
        return self.singular or self.kind.lower()

    @property
    def list_name(self) -> str:
        """Kind of the list."""
        return self.list_kind or self.kind + "List"

    @property
    def prefix(self) -> bytes:
        """First bytes of an object's JSON; items of lists do not have them."""
        return b'{"kind":"%s","apiVersion":"%s",' % (self.kind.encode(), self.api_version.encode())

    @property
    def storage_hash(self) -> str:
        """``storageVersionHash`` of discovery."""
        text = f"{self.group}/{self.storage or self.version}/{self.kind}"
        return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _row(
    api: str,
    plural: str,
    kind: str,
    type_: str,
    *flags: str,
    short: str = "",
    release: str = DEFAULT,
    **more: object,
) -> Kind:
    group, _, version = api.rpartition("/")
    given: dict[str, object] = dict.fromkeys((f for f in flags if f != "cluster"), True)
    if "cluster" in flags:
        given["namespaced"] = False
    return Kind(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        type=struct_type(type_, release),
        short_names=tuple(short.split()),
        **given,  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


_POD_FIELDS = {
    "spec.nodeName": "",
    "spec.restartPolicy": "",
    "spec.schedulerName": "",
    "spec.serviceAccountName": "",
    "spec.hostNetwork": "false",
    "status.phase": "",
    "status.podIP": "",
    "status.nominatedNodeName": "",
}
_EVENT_FIELDS = dict.fromkeys(
    [
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    "",
)
_POD_SUBRESOURCES = (
    ("binding", "Binding", "", ("create",)),
    ("eviction", "Eviction", "policy/v1", ("create",)),
    ("log", "Pod", "", ("get",)),
)
_RBAC = "rbac.authorization.k8s.io/v1"
_ADMISSION = "admissionregistration.k8s.io/v1"
# Version, prefix of its types in the table, releases that deprecate and remove it.
_DRA_VERSIONS = (
    ("v1", "resource", "", ""),
    ("v1beta2", "resource", "1.36", "1.39"),
    ("v1beta1", "resourcev1beta1", "1.35", "1.38"),
)


_SLICE_FIELDS = {"spec.driver": "", "spec.nodeName": ""}


def _dra_kinds(version: str, types: str, since: str, until: str) -> Iterator[Kind]:
    """Yield the kinds of DRA in one of their versions; objects are stored in v1."""
    for plural, kind, flags, selectable in (
        ("deviceclasses", "DeviceClass", ("cluster", "generation"), {}),
        ("resourceclaims", "ResourceClaim", ("status",), {}),
        ("resourceclaimtemplates", "ResourceClaimTemplate", (), {}),
        (
            "resourceslices",
            "ResourceSlice",
            ("cluster", "generation"),
            {"spec.driver": "", "spec.nodeName": ""},
        ),
    ):
        api = f"resource.k8s.io/{version}"
        deprecation = f"{api} {kind} is deprecated in v{since}+, unavailable in v{until}+" if since else ""
        yield _row(
            api,
            plural,
            kind,
            f"{types}.{kind}",
            *flags,
            "answers_object",
            selectable=selectable,
            storage="v1",
            deprecation=deprecation,
        )


_BUILT_IN: tuple[Kind, ...] = (
    _row("v1", "configmaps", "ConfigMap", "core.ConfigMap", short="cm"),
    _row("v1", "events", "Event", "core.Event", "put_creates", short="ev", selectable=_EVENT_FIELDS),
    _row(
        "v1",
        "namespaces",
        "Namespace",
        "core.Namespace",
        "cluster",
        "status",
        "status_keeps_metadata",
        "answers_object",
        short="ns",
        selectable={"status.phase": ""},
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        subresources=(("finalize", "Namespace", "", ("update",)),),
    ),
    _row(
        "v1",
        "nodes",
        "Node",
        "core.Node",
        "cluster",
        "status",
        "status_keeps_metadata",
        short="no",
        selectable={"spec.unschedulable": "false"},
    ),
    _row(
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        "core.PersistentVolumeClaim",
        "status",
        "answers_object",
        short="pvc",
    ),
    _row(
        "v1",
        "persistentvolumes",
        "PersistentVolume",
        "core.PersistentVolume",
        "cluster",
        "status",
        "answers_object",
        short="pv",
    ),
    _row(
        "v1",
        "pods",
        "Pod",
        "core.Pod",
        "status",
        "status_keeps_metadata",
        "generation",
        "answers_object",
        short="po",
        categories=("all",),
        selectable=_POD_FIELDS,
        subresources=_POD_SUBRESOURCES,
    ),
    _row("v1", "secrets", "Secret", "core.Secret", selectable={"type": ""}),
    _row(
        "v1",
        "serviceaccounts",
        "ServiceAccount",
        "core.ServiceAccount",
        "answers_object",
        short="sa",
        subresources=(("token", "TokenRequest", "authentication.k8s.io/v1", ("create",)),),
    ),
    _row(
        "v1",
        "services",
        "Service",
        "core.Service",
        "status",
        "answers_object",
        short="svc",
        categories=("all",),
    ),
    _row("apps/v1", "daemonsets", "DaemonSet", "apps.DaemonSet", "status", "generation", short="ds",
         categories=("all",)),
    _row("apps/v1", "deployments", "Deployment", "apps.Deployment", "status", "generation", short="deploy",
         categories=("all",)),
    _row("apps/v1", "replicasets", "ReplicaSet", "apps.ReplicaSet", "status", "generation", short="rs",
         categories=("all",)),
    _row("apps/v1", "statefulsets", "StatefulSet", "apps.StatefulSet", "status", "generation", short="sts",
         categories=("all",)),
    _row("batch/v1", "jobs", "Job", "batch.Job", "status", "generation", categories=("all",)),
    _row(
        "coordination.k8s.io/v1",
        "leases",
        "Lease",
        "coordination.Lease",
        "put_creates",
        "put_needs_version",
    ),
    _row("storage.k8s.io/v1", "csinodes", "CSINode", "storage.CSINode", "cluster", "answers_object"),
    _row("storage.k8s.io/v1", "storageclasses", "StorageClass", "storage.StorageClass", "cluster",
         "answers_object", short="sc", singular="storageclass"),
    _row("storage.k8s.io/v1", "volumeattachments", "VolumeAttachment", "storage.VolumeAttachment", "cluster",
         "status", "answers_object"),
    _row("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", "scheduling.PriorityClass", "cluster",
         "generation", short="pc"),
    # Alpha: served with the gate GenericWorkload only, the fields as with all gates that it has.
    _row("scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup", "schedulingv1alpha2.PodGroup", "status",
         "generation", "answers_object"),
    _row("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", "policy.PodDisruptionBudget", "status",
         "generation", "put_needs_version", short="pdb"),
    _row("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", "networking.NetworkPolicy",
         "generation", short="netpol", singular="networkpolicy"),
    _row(_RBAC, "roles", "Role", "rbac.Role", "put_creates"),
    _row(_RBAC, "rolebindings", "RoleBinding", "rbac.RoleBinding", "put_creates"),
    _row(_RBAC, "clusterroles", "ClusterRole", "rbac.ClusterRole", "cluster", "put_creates"),
    _row(_RBAC, "clusterrolebindings", "ClusterRoleBinding", "rbac.ClusterRoleBinding", "cluster",
    "put_creates"), _row(_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy",
         "admissionregistration.ValidatingAdmissionPolicy", "cluster", "status", "generation",
         singular="validatingadmissionpolicy"),
    _row(_ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
         "admissionregistration.ValidatingAdmissionPolicyBinding", "cluster", "generation"),
    _row(_ADMISSION, "mutatingadmissionpolicies", "MutatingAdmissionPolicy",
         "admissionregistration.MutatingAdmissionPolicy", "cluster", "generation",
         singular="mutatingadmissionpolicy"),
    _row(_ADMISSION, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding",
         "admissionregistration.MutatingAdmissionPolicyBinding", "cluster", "generation"),
    _row(_ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
         "admissionregistration.ValidatingWebhookConfiguration", "cluster", "generation",
         "put_needs_version"),
    _row(_ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
         "admissionregistration.MutatingWebhookConfiguration", "cluster", "generation",
         "put_needs_version"),
    *(kind for version in _DRA_VERSIONS for kind in _dra_kinds(*version)),
    _row(
        "resource.k8s.io/v1beta2",
        "devicetaintrules",
        "DeviceTaintRule",
        "resourcev1beta2.DeviceTaintRule",
        "cluster",
        "status",
        "generation",
        "answers_object",
        deprecation="resource.k8s.io/v1beta2 DeviceTaintRule is deprecated in v1.39+, unavailable in v1.42+",
    ),
    _row(
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "crd.CustomResourceDefinition",
        "cluster",
        "status",
        "generation",
        "answers_object",
        short="crd crds",
    ),
)  # fmt: skip


# Kinds of 1.36 that 1.37 has no longer.
_GONE_IN_1_37 = {("scheduling.k8s.io", "v1alpha2", "podgroups")}


def _new_in_1_37() -> Iterator[Kind]:
    """Yield the kinds that 1.37 serves in a version that 1.36 does not have."""
    row = functools.partial(_row, release="1.37")
    flags = ("generation", "answers_object")
    yield row(
        "resource.k8s.io/v1",
        "devicetaintrules",
        "DeviceTaintRule",
        "resourcev1beta2.DeviceTaintRule",
        "cluster",
        "status",
        *flags,
        storage="v1beta2",
    )
    groups = "schedulingv1beta1.PodGroup"
    stored = {"storage": "v1beta1", "gate": WORKLOADS_GATE}
    for version in ("v1beta1", "v1alpha3"):
        api = f"scheduling.k8s.io/{version}"
        yield row(api, "podgroups", "PodGroup", groups, "status", *flags, **stored)
        yield row(api, "workloads", "Workload", "schedulingv1beta1.Workload", *flags, **stored)
    yield row(
        "scheduling.k8s.io/v1alpha3",
        "compositepodgroups",
        "CompositePodGroup",
        "schedulingv1alpha3.CompositePodGroup",
        "status",
        *flags,
        gate=COMPOSITE_GATE,
    )


@functools.cache
def _built_in(release: str) -> tuple[Kind, ...]:
    """Return the kinds of a release, each with the fields that it has there."""
    if release == DEFAULT:
        return _BUILT_IN
    found = []
    for kind in _BUILT_IN:
        if (kind.group, kind.version, kind.plural) not in _GONE_IN_1_37:
            assert isinstance(kind.type, Struct)
            found.append(dataclasses.replace(kind, type=struct_type(kind.type.name, release)))
    return (*found, *_new_in_1_37())


class Kinds:
    """The kinds that are served now: the built-in ones and those of CustomResourceDefinitions."""

    def __init__(self, served: Served) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {
            (k.group, k.version, k.plural): k
            for k in _built_in(served.release)
            if not k.gate or k.gate in served.gates
        }

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind of a URL; None if it is not served."""
        return self._kinds.get((group, version, plural))

    def by_kind(self, api_version: str, kind: str) -> Kind | None:
        """Return the kind of an object's ``apiVersion`` and ``kind``; None if it is not served."""
        return next(
            (k for k in self._kinds.values() if k.kind == kind and k.api_version == api_version), None
        )

    def has_group(self, group: str) -> bool:
        """Return whether any kind of the group is served."""
        return any(k.group == group for k in self._kinds.values())

    def __iter__(self) -> Iterator[Kind]:
        return iter(list(self._kinds.values()))

    def add(self, kind: Kind) -> None:
        """Add a kind to those that are served."""
        self._kinds[kind.group, kind.version, kind.plural] = kind

    def versions(self, group: str, plural: str) -> Sequence[Kind]:
        """Return a kind in all its versions, in the order in which they were added."""
        return [k for k in self._kinds.values() if (k.group, k.plural) == (group, plural)]

    def stored(self, kind: Kind) -> Kind:
        """Return the kind in the version in which its objects are stored."""
        return self._kinds.get((kind.group, kind.storage or kind.version, kind.plural), kind)

    def remove(self, group: str, plural: str) -> None:
        """Remove a kind, in all versions, from those that are served."""
        for key in [k for k in self._kinds if k[0] == group and k[2] == plural]:
            del self._kinds[key]
