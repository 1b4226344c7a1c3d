"""Objects for a plan, from files or from a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.allocate.taint_rules import VERSIONS, served_rules
from dra_driver.api.core import NODES, PODS, Node, Pod
from dra_driver.api.meta import ObjectKey, Resource
from dra_driver.api.policy import DEVICE_POLICIES, DevicePolicy
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    device_taint_rules,
)
from dra_driver.cli.allocator import manifests
from dra_driver.errors import Forbidden, InvalidInput
from dra_driver.kube import KubeApi

__all__ = ["Objects", "RawWorkload", "from_cluster", "from_files"]

WORKLOADS = ("CronJob", "Deployment", "Job", "JobSet", "Pod", "PodGroup", "ReplicaSet", "StatefulSet")
_KINDS: dict[str, Resource[Any]] = {
    r.kind: r
    for r in (
        RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, NODES, PODS,
        DEVICE_POLICIES,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RawWorkload:
    """An object with pods, as it was written.

    Attributes:
        kind: of the object.
        raw: all of it.
        where: file and document, for messages.
    """

    kind: str
    raw: dict[str, Any]
    where: str

    @property
    def metadata(self) -> dict[str, Any]:
        """``metadata``, as far as it is an object."""
        found = self.raw.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def namespace(self) -> str:
        """Its namespace; ``default`` where none is written."""
        return str(self.metadata.get("namespace") or "default")

    @property
    def name(self) -> str:
        """``Kind namespace/name``, for people."""
        return (
            f"{self.kind} {self.namespace}/{self.metadata.get('name') or self.metadata.get('generateName')}"
        )


@dataclass(slots=True)
class Objects:
    """Objects of a cluster, or of files.

    Attributes:
        pods_known: whether pods were looked for: without them, nothing is known about CPU and memory.
        workloads: objects with pods; of a cluster they are not listed.
        where: claim or template → file and document.
    """

    nodes: list[Node] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    claims: list[ResourceClaim] = field(default_factory=list)
    templates: list[ResourceClaimTemplate] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    rules: list[DeviceTaintRule] = field(default_factory=list)
    policies: list[DevicePolicy] = field(default_factory=list)
    workloads: list[RawWorkload] = field(default_factory=list)
    where: dict[ObjectKey, str] = field(default_factory=dict)
    pods_known: bool = False


def from_files(files: Sequence[str], findings: list[str], *, ask: bool) -> Objects:
    """Read files; what is wrong with them is added to ``findings``.

    Args:
        files: names, ``-`` for stdin.
        findings: gets a sentence for each mistake.
        ask: whether pods and workloads are what is asked about, not what runs.
    """
    objects = Objects()
    for name in files:
        try:
            for number, document in enumerate(manifests.documents(name), 1):
                for where, item in manifests.items_of(document, f"{name}, document {number}"):
                    try:
                        _add(objects, item, where, ask=ask)
                    except InvalidInput as e:
                        findings.append(str(e))
        except InvalidInput as e:
            findings.append(str(e))
    return objects


def _add(objects: Objects, raw: dict[str, Any], where: str, *, ask: bool) -> None:
    kind, version = str(raw["kind"]), str(raw.get("apiVersion", ""))
    if ask and kind in WORKLOADS:
        if not isinstance(raw.get("spec"), dict):
            raise InvalidInput(f"{where}: {kind}: spec is missing, or is not an object")
        objects.workloads.append(RawWorkload(kind, raw, where))
        return
    if kind == "DeviceTaintRule":
        served = {f"resource.k8s.io/{v}": device_taint_rules(v) for v in VERSIONS}
        if version not in served:
            raise InvalidInput(f"{where}: {kind} of apiVersion {version!r}; allowed are {', '.join(served)}")
        rule = manifests.decode_object(served[version], raw, where)
        assert isinstance(rule, DeviceTaintRule)
        objects.rules.append(rule)
        return
    resource = _KINDS.get(kind)
    if resource is None:
        if ask:
            known = ", ".join(sorted({*_KINDS, *WORKLOADS, "DeviceTaintRule"}))
            raise InvalidInput(f"{where}: kind {kind} is not understood; allowed are {known}")
        return  # an export has much that is of no interest
    if version != resource.api_version:
        raise InvalidInput(f"{where}: {kind} of apiVersion {version!r}; {resource.api_version} is supported")
    value = manifests.decode_object(resource, raw, where)
    if not value.metadata.name:
        raise InvalidInput(f"{where}: {kind}: metadata.name is missing")
    _put(objects, value, where)


def _put(objects: Objects, value: Any, where: str) -> None:
    match value:
        case Node():
            objects.nodes.append(value)
        case ResourceSlice():
            objects.slices.append(value)
        case DeviceClass():
            objects.classes.append(value)
        case ResourceClaim():
            objects.claims.append(manifests.namespaced(value))
            objects.where[objects.claims[-1].key] = where
        case ResourceClaimTemplate():
            objects.templates.append(value)
        case Pod():
            objects.pods.append(value)
            objects.pods_known = True
        case DevicePolicy():
            objects.policies.append(value)
        case _:
            raise AssertionError(f"{value} is not handled")


async def from_cluster(client: KubeApi, notes: list[str]) -> Objects:
    """Return what the cluster has at this moment; what may not be read is said in ``notes``."""
    objects = Objects(
        nodes=list((await client.list(NODES)).items),
        slices=list((await client.list(RESOURCE_SLICES)).items),
        classes=list((await client.list(DEVICE_CLASSES)).items),
        claims=list((await client.list(RESOURCE_CLAIMS)).items),
    )
    resource = await served_rules(client)
    try:
        objects.rules = list((await client.list(resource)).items) if resource is not None else []
    except Forbidden:
        notes.append("DeviceTaintRules may not be read: their taints are not looked at")
    try:
        objects.pods = list((await client.list(PODS)).items)
        objects.pods_known = True
    except Forbidden:
        notes.append("pods may not be read: priorities and what pods take of nodes are not looked at")
    try:
        objects.templates = list((await client.list(RESOURCE_CLAIM_TEMPLATES)).items)
    except Forbidden:
        notes.append("ResourceClaimTemplates may not be read: give them with -f where pods name them")
    return objects
