"""Objects for a plan, from files or from a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from controller.allocate.state.taint_rules import VERSIONS, served_rules
from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS, Node, Pod
from dra_driver.api.meta import ObjectKey, Resource, WireObject
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.own.policy import DEVICE_POLICIES, DevicePolicy
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
from dra_driver.errors import DecodeError, Forbidden, InvalidInput, NotFound
from dra_driver.ports import KubeClient

__all__ = ["Objects", "RawWorkload", "from_cluster", "from_files", "inventories_of"]

_T = TypeVar("_T", bound=WireObject)

WORKLOADS = ("CronJob", "Deployment", "Job", "JobSet", "Pod", "PodGroup", "ReplicaSet", "StatefulSet")
_KINDS: dict[str, Resource[Any]] = {
    r.kind: r
    for r in (
        RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, NODES, PODS,
        DEVICE_POLICIES, DEVICE_INVENTORIES,
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
        inventories: of files: say what is not published, and why.
        workloads: objects with pods; of a cluster they are not listed.
        where: claim → file and document.
    """

    nodes: list[Node] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    claims: list[ResourceClaim] = field(default_factory=list)
    templates: list[ResourceClaimTemplate] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    rules: list[DeviceTaintRule] = field(default_factory=list)
    policies: list[DevicePolicy] = field(default_factory=list)
    inventories: list[DeviceInventory] = field(default_factory=list)
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
            text = manifests.read_text(name)
            stored = None if ask else manifests.exported(text)
            if stored is not None:
                _add_exported(objects, stored, name, findings)
                continue
            for number, document in enumerate(manifests.documents_of(text, name), 1):
                for where, item in manifests.items_of(document, f"{name}, document {number}"):
                    try:
                        _add(objects, item, where, ask=ask)
                    except InvalidInput as e:
                        findings.append(str(e))
        except InvalidInput as e:
            findings.append(str(e))
    return objects


def _add_exported(
    objects: Objects, stored: Sequence[manifests.Exported], name: str, findings: list[str]
) -> None:
    """Take in the objects of an export; those of kinds that do not matter are not read."""
    for i, item in enumerate(stored):
        resource = _KINDS.get(item.kind)
        if resource is None and item.kind != "DeviceTaintRule":
            continue
        where = f"{name}, document 1, items[{i}]"
        try:
            if resource is not None and item.stored and item.version == resource.api_version:
                _put(objects, codec.decode(resource.type, item.text), where)
            else:
                raw = {"kind": item.kind, "apiVersion": item.version, **msgspec.json.decode(item.text)}
                _add(objects, raw, where, ask=False)
        except DecodeError as e:
            findings.append(f"{where}: {e}")
        except InvalidInput as e:
            findings.append(str(e))


def _add(objects: Objects, raw: dict[str, Any], where: str, *, ask: bool) -> None:
    kind, version = str(raw["kind"]), str(raw.get("apiVersion", ""))
    if ask and kind in WORKLOADS:
        _add_workload(objects, RawWorkload(kind, raw, where))
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


def _add_workload(objects: Objects, workload: RawWorkload) -> None:
    where, raw = f"{workload.where}: {workload.kind}", workload.raw
    for field_ in ("metadata", "spec"):
        if not isinstance(raw.get(field_), dict):
            raise InvalidInput(f"{where}: {field_} is missing, or is not an object")
    if not (workload.metadata.get("name") or workload.metadata.get("generateName")):
        raise InvalidInput(f"{where}: metadata.name is missing")
    named = bool(workload.metadata.get("name"))
    if named and any(workload.name == other.name for other in objects.workloads):
        raise InvalidInput(f"{workload.where}: {workload.name} is given twice")
    objects.workloads.append(workload)


def _put(objects: Objects, value: Any, where: str) -> None:
    match value:
        case Node():
            objects.nodes.append(value)
        case ResourceSlice():
            objects.slices.append(value)
        case DeviceClass():
            objects.classes.append(value)
        case ResourceClaim():
            claim = manifests.namespaced(value)
            if claim.key in objects.where and not claim.metadata.uid:
                raise InvalidInput(
                    f"{where}: ResourceClaim {claim.key} is given twice, first in {objects.where[claim.key]}"
                )
            objects.claims.append(claim)
            objects.where[claim.key] = where
        case ResourceClaimTemplate():
            objects.templates.append(value)
        case Pod():
            objects.pods.append(value)
            objects.pods_known = True
        case DevicePolicy():
            objects.policies.append(value)
        case DeviceInventory():
            objects.inventories.append(value)
        case _:
            raise AssertionError(f"{value} is not handled")


async def from_cluster(
    client: KubeClient, notes: list[str], progress: Callable[[str], None] = lambda _: None
) -> Objects:
    """Return what the cluster has at this moment.

    Args:
        client: of the cluster.
        notes: gets a sentence for each kind that may not be read and that the answers can do without.
        progress: is given a word about what is being read.

    Raises:
        Forbidden: with every right that is missing and needed.
    """
    denied: list[str] = []

    async def listed(resource: Resource[_T], without: str = "") -> list[_T]:
        progress(f"reading {resource.plural}")
        try:
            return list((await client.list(resource)).items)
        except Forbidden as e:
            right = f"{resource.plural}.{resource.group}".rstrip(".")
            if without:
                notes.append(f"{right} may not be listed: {without}")
            else:
                denied.append(f"the right to list {right} in the whole cluster is needed: {e}")
            return []

    objects = Objects(
        nodes=await listed(NODES),
        slices=await listed(RESOURCE_SLICES),
        classes=await listed(DEVICE_CLASSES),
        claims=await listed(RESOURCE_CLAIMS),
    )
    if denied:
        raise Forbidden("; ".join(denied), code=403, reason="Forbidden")
    if (rules := await served_rules(client)) is not None:
        objects.rules = await listed(rules, "taints of DeviceTaintRules are not looked at")
    before = len(notes)
    objects.pods = await listed(PODS, "priorities and what pods take of nodes are not looked at")
    objects.pods_known = len(notes) == before
    objects.templates = await listed(RESOURCE_CLAIM_TEMPLATES, "give those that pods name with -f")
    return objects


async def inventories_of(client: KubeClient) -> list[DeviceInventory]:
    """Return the DeviceInventories of a cluster; none where they may not be read, or the kind is missing."""
    try:
        return list((await client.list(DEVICE_INVENTORIES)).items)
    except (Forbidden, NotFound):
        return []
