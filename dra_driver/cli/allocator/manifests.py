"""The allocator on manifests: reads them, and shows the outcomes.

The taint that keeps kube-scheduler off our devices excludes nothing here: slices that are exported from a
cluster carry it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from dra_driver.api import codec
from dra_driver.api.core import NODES, Node, Pod
from dra_driver.api.meta import ObjectKey, ObjectMeta, Resource, WireObject
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_driver.cli import common
from dra_driver.cli.allocator.own_classes import missing_classes
from dra_driver.cli.display.progress import shown_if_long
from dra_driver.errors import DecodeError, InvalidInput
from dra_driver.ownership import is_controller_taint
from dra_driver.resourceclaim import gone_allocations, pod_claims
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DoesNotFit,
    Failed,
    NodePolicy,
    Outcome,
    Snapshot,
    Strategy,
    allocate,
)
from dra_driver.suggestions import did_you_mean

__all__ = [
    "Exported",
    "Manifests",
    "add_claim_argument",
    "add_file_argument",
    "add_node_policy_argument",
    "decode_object",
    "documents",
    "documents_of",
    "exported",
    "items_of",
    "namespaced",
    "plain_outcome",
    "read",
    "read_text",
    "run_allocate",
]

_KINDS: dict[str, Resource[Any]] = {
    r.kind: r
    for r in (
        RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, NODES, DEVICE_INVENTORIES
    )
}  # fmt: skip
# Nodes and pods have many fields that we do not model, DeviceInventories may be a newer driver's; all others
# are written by people, who mistype.
_LENIENT = frozenset({"Node", "Pod", "DeviceInventory"})
# Characters of a text that begins with a brace and may be YAML all the same: it is read slowly.
_LONGEST_FLOW = 1_000_000
# Claims that a message lists.
_MOST_NAMED = 10


def add_file_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``-f FILE…``."""
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="manifests (YAML or JSON, several documents a file; - for stdin): ResourceSlices, "
        "DeviceClasses, ResourceClaims, ResourceClaimTemplates, Nodes, DeviceInventories; other kinds are "
        "ignored",
    )


def add_claim_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--claim NS/NAME``."""
    parser.add_argument(
        "--claim",
        metavar="NS/NAME",
        action="append",
        default=[],
        help="only this claim or template (repeatable); default: all",
    )


def add_node_policy_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--node-policy``."""
    parser.add_argument(
        "--node-policy",
        choices=[p.value for p in NodePolicy],
        default=NodePolicy.PACK.value,
        help="among equally good nodes, prefer the fullest (pack, the default) or the emptiest (spread)",
    )


@dataclass(slots=True)
class Manifests:
    """The objects of manifests. A ResourceClaimTemplate stands for one claim made from it.

    Attributes:
        pods: of a live cluster; files are not searched for them.
        inventories: say what is not published, and why.
        templates: of the pods' namespace; None if they were not looked for.
        source: where the objects come from, as the beginning of an error message.
    """

    nodes: list[Node] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    claims: list[ResourceClaim] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    inventories: list[DeviceInventory] = field(default_factory=list)
    templates: frozenset[ObjectKey] | None = None
    source: str = "the manifests have"

    def snapshot(self) -> Snapshot:
        """Return the cluster that they describe, with the nodes that only slices name."""
        names = {n.metadata.name for n in self.nodes}
        named = {s.spec.node_name for s in self.slices if s.spec.node_name}
        named |= {d.node_name for s in self.slices for d in s.spec.devices if d.node_name}
        present = {c.metadata.uid for c in self.claims}
        allocated = AllocatedState.from_claims(self.claims)
        allocated = allocated.with_allocations(gone_allocations(self.inventories, present))
        implied = [Node(metadata=ObjectMeta(name=name)) for name in sorted(named - names)]
        return Snapshot.build(
            slices=self.slices,
            classes=self.classes,
            nodes=[*self.nodes, *implied],
            allocated=allocated,
        )

    def with_own_classes(self) -> Manifests:
        """Return the same manifests with the driver's own DeviceClasses where they have none of the name."""
        self.classes += missing_classes(self.classes)
        return self

    def users(self) -> dict[ObjectKey, list[Pod]]:
        """Return the pods that use each claim."""
        users: dict[ObjectKey, list[Pod]] = {}
        for pod in self.pods:
            for used in pod_claims(pod):
                if used.key is not None:
                    users.setdefault(used.key, []).append(pod)
        return users

    def namespaces(self) -> set[str]:
        """Return the namespaces that have claims or pods."""
        return {o.metadata.namespace for o in (*self.claims, *self.pods)}

    def select(self, wanted: Sequence[str], namespace: str = "") -> list[ResourceClaim]:
        """Return the claims with these ``namespace/name`` (or ``name`` in the namespace).

        Args:
            wanted: names of claims; all if there are none.
            namespace: only claims of this one; if empty, of all, and ``default`` for names without one.

        Raises:
            InvalidInput: there is no such claim, or there are no claims at all.
        """
        where = f" in namespace {namespace}" if namespace else ""
        claims = [c for c in self.claims if c.metadata.namespace == namespace or not namespace]
        if not claims:
            hint = "; -A looks at all namespaces" if namespace and self.claims else ""
            hint += did_you_mean(namespace, self.namespaces()) if namespace else ""
            raise InvalidInput(f"{self.source} no ResourceClaim and no ResourceClaimTemplate{where}{hint}")
        if not wanted:
            return claims
        by_name = {str(c.key): c for c in self.claims}
        chosen = []
        for name in wanted:
            full = name if "/" in name else f"{namespace or 'default'}/{name}"
            if full not in by_name:
                there = f"there are {_some(sorted(by_name))}"
                raise InvalidInput(f"claim {full}: no such claim; {there}{did_you_mean(full, by_name)}")
            chosen.append(by_name[full])
        return chosen


def _some(names: Sequence[str]) -> str:
    """Return names, of which a cluster may have thousands, as a short list."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def read(files: Sequence[str]) -> Manifests:
    """Read manifests.

    Raises:
        InvalidInput: a file cannot be read, or a document is wrong, with file, document and field.
    """
    manifests = Manifests()
    for name in files:
        with shown_if_long(f"reading {name}") if name != "-" else contextlib.nullcontext():
            for number, document in enumerate(documents(name), 1):
                for where, item in items_of(document, f"{name}, document {number}"):
                    _add(manifests, item, where)
    return manifests


def documents(name: str) -> Iterator[Any]:
    """Yield the documents of a file, or of stdin for ``-``.

    Raises:
        InvalidInput: the file cannot be read, or is neither YAML nor JSON.
    """
    yield from documents_of(read_text(name), name)


def read_text(name: str) -> str:
    """Return the text of a file, or of stdin for ``-``.

    Raises:
        InvalidInput: the file cannot be read, or is not UTF-8.
    """
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidInput(f"{name}: {getattr(e, 'strerror', None) or e}") from e


def documents_of(text: str, name: str) -> Iterator[Any]:
    """Yield the documents of a text; ``name`` is for messages.

    Raises:
        InvalidInput: it is neither YAML nor JSON.
    """
    not_json = ""
    if text.lstrip().startswith("{"):
        try:
            # What kubectl writes with -o json: YAML as well, but read a hundred times as fast.
            yield json.loads(text)
        except ValueError as e:
            not_json = str(e)
            if len(text) > _LONGEST_FLOW:
                raise InvalidInput(f"{name}: not JSON: {e}") from e
        else:
            return
    try:
        yield from (d for d in yaml.load_all(text, Loader=_Loader) if d is not None)
    except yaml.YAMLError as e:
        why = f"neither JSON ({not_json}) nor YAML" if not_json else "not YAML"
        raise InvalidInput(f"{name}: {why}: {' '.join(str(e).split())}") from e


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader that leaves times as text, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def items_of(document: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a document, which may be a list of them, each with its place for messages.

    Raises:
        InvalidInput: something is not an object of Kubernetes.
    """
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise InvalidInput(f"{where}: not a Kubernetes object (apiVersion, kind, …)")
    kind = document["kind"]
    if isinstance(document.get("items"), list) and kind.endswith("List"):
        inner = {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion")}
        for i, item in enumerate(document["items"]):
            if not isinstance(item, dict):
                raise InvalidInput(f"{where}: items[{i}] is not an object")
            yield from items_of(item if kind == "List" else {**inner, **item}, f"{where}, items[{i}]")
    else:
        yield where, document


class _HeadMeta(msgspec.Struct):
    uid: str = ""


class _Head(msgspec.Struct, rename="camel"):
    """What tells how to read an object."""

    kind: str = ""
    api_version: str = ""
    metadata: _HeadMeta = msgspec.field(default_factory=_HeadMeta)
    items: tuple[msgspec.Raw, ...] | None = None


class Exported(NamedTuple):
    """An object of an export, not read yet.

    Attributes:
        kind, version: of the object.
        stored: whether an API server has had it, so that it has no fields which a person mistyped.
        text: its JSON.
    """

    kind: str
    version: str
    stored: bool
    text: msgspec.Raw


_HEADS = msgspec.json.Decoder(_Head)


def exported(text: str) -> list[Exported] | None:
    """Return the objects of a list as kubectl exports it with ``-o json``; None if the text is no such list.

    They are not taken apart, which for the objects of thousands of nodes takes long.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        whole = _HEADS.decode(text)
        if whole.items is None or not whole.kind.endswith("List"):
            return None
        found: list[Exported] = []
        for item in whole.items:
            head = _HEADS.decode(item)
            kind = head.kind or whole.kind.removesuffix("List")
            if not kind or head.items is not None:
                return None
            version = head.api_version or whole.api_version
            found.append(Exported(kind, version, bool(head.metadata.uid), item))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def _add(manifests: Manifests, raw: dict[str, Any], where: str) -> None:
    kind, version = raw["kind"], str(raw.get("apiVersion", ""))
    resource = _KINDS.get(kind)
    if resource is None:
        if version.startswith("resource.k8s.io/"):
            raise InvalidInput(f"{where}: unknown kind {kind}; known are {', '.join(sorted(_KINDS))}")
        return
    if version != resource.api_version:
        raise InvalidInput(f"{where}: {kind} of apiVersion {version!r}; {resource.api_version} is supported")
    value = decode_object(resource, raw, where)
    if not value.metadata.name:
        raise InvalidInput(f"{where}: {kind}: metadata.name is missing")
    match value:
        case Node():
            manifests.nodes.append(value)
        case ResourceSlice():
            manifests.slices.append(value)
        case DeviceInventory():
            manifests.inventories.append(value)
        case DeviceClass():
            manifests.classes.append(value)
        case ResourceClaim():
            manifests.claims.append(namespaced(value))
        case ResourceClaimTemplate():
            manifests.claims.append(namespaced(ResourceClaim(metadata=value.metadata, spec=value.spec.spec)))
        case _:
            raise AssertionError(f"{kind} is not handled")


def decode_object(resource: Resource[Any], raw: dict[str, Any], where: str) -> WireObject:
    """Return the object in its typed form; fields that a person may have mistyped are refused.

    Raises:
        InvalidInput: with the place.
    """
    try:
        value: WireObject = codec.convert(resource.type, raw)
    except DecodeError as e:
        raise InvalidInput(f"{where}: {e}") from e
    unknown = [] if resource.kind in _LENIENT else sorted(codec.unknown_fields(resource.type, raw))
    if unknown:
        plural = "s" * (len(unknown) > 1)
        raise InvalidInput(
            f"{where}: {resource.kind} {value.metadata.name}: unknown field{plural} {', '.join(unknown)}"
        )
    return value


def namespaced(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim in the namespace ``default`` where it names none."""
    meta = claim.metadata
    full = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace or "default",
        uid=meta.uid,
        labels=meta.labels,
        annotations=meta.annotations,
    )
    return ResourceClaim(metadata=full, spec=claim.spec, status=claim.status)


# --- allocate -----------------------------------------------------------------------------------------------


def run_allocate(
    files: Sequence[str], wanted: Sequence[str], strategy: Strategy, policy: NodePolicy, output: str
) -> int:
    """Allocate claims one after the other, in the order of the files, and print the result.

    Returns:
        0: all fit; 1: one does not.
    """
    manifests = read(files).with_own_classes()
    snapshot = manifests.snapshot()
    outcomes: list[tuple[ResourceClaim, Outcome]] = []
    for claim in manifests.select(wanted):
        outcome = allocate(
            snapshot, [claim], strategy=strategy, policy=policy, ignore_taint=is_controller_taint
        )
        outcomes.append((claim, outcome))
        if isinstance(outcome, Allocated) and claim.status.allocation is None:
            made = [(str(claim.key), outcome.results[0])]
            snapshot = snapshot.with_allocated(snapshot.allocated.with_allocations(made))
    if output == "table":
        rows = [row for claim, outcome in outcomes for row in _rows(claim, outcome)]
        common.print_table(("CLAIM", "REQUEST", "NODE", "DEVICE", "DETAILS"), rows)
    else:
        common.print_data({"claims": [plain_outcome(claim, outcome) for claim, outcome in outcomes]}, output)
    return 0 if all(isinstance(outcome, Allocated) for _, outcome in outcomes) else 1


def _reason(outcome: DoesNotFit | Failed) -> str:
    return outcome.summary(holders=True) if isinstance(outcome, DoesNotFit) else outcome.message


def _rows(claim: ResourceClaim, outcome: Outcome) -> Iterator[tuple[str, ...]]:
    if not isinstance(outcome, Allocated):
        yield str(claim.key), "-", "-", "-", _reason(outcome)
        return
    for result in outcome.results[0].devices.results:
        details = [f"{name} {amount}" for name, amount in sorted(result.consumed_capacity.items())]
        if result.admin_access:
            details.append("admin access")
        if claim.status.allocation is not None:
            details.append("allocated before")
        device = f"{result.driver}/{result.pool}/{result.device}"
        yield str(claim.key), result.request, outcome.node, device, ", ".join(details)


def plain_outcome(claim: ResourceClaim, outcome: Outcome) -> dict[str, Any]:
    """Return what the allocator decided about a claim, as plain data."""
    plain: dict[str, Any] = {"claim": str(claim.key)}
    match outcome:
        case Allocated(node, results):
            allocation = yaml.safe_load(codec.encode(results[0]))
            return plain | {"outcome": "allocated", "node": node, "allocation": allocation}
        case DoesNotFit():
            return plain | {"outcome": "unschedulable", "reason": outcome.summary(holders=True)}
        case Failed(message):
            return plain | {"outcome": "error", "reason": message}
