"""Checks of ``metadata``, and small checks that several kinds share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dra_driver.api.names import LISTS_GATE
from dra_driver.cel import NEW, NEW_WITH_LISTS, Environment
from dra_driver.sim.apiserver.objects import formats
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.releases import Served
from dra_driver.sim.apiserver.objects.status import Causes, Raw

__all__ = [
    "Surroundings",
    "check_conditions",
    "check_create",
    "check_formats",
    "check_label_name",
    "check_node_selector",
    "check_update",
    "checks_of_identity",
]

_LABEL_KINDS = frozenset({("", "Namespace"), ("", "Service")})
_FREE_NAMES = frozenset({"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
_FINALIZERS = frozenset({"foregroundDeletion", "orphan", "kubernetes"})
_ANNOTATIONS_LIMIT = 256 * 1024


class Surroundings(NamedTuple):
    """What a check may read beside the object.

    Attributes:
        namespace_labels: labels of the object's namespace.
        warnings: texts for the ``Warning`` header; checks add to it.
        served: the release, and its feature gates that are on.
    """

    namespace_labels: Mapping[str, str]
    warnings: list[str]
    served: Served

    @property
    def environment(self) -> Environment:
        """What CEL expressions of new objects may use."""
        return NEW_WITH_LISTS if LISTS_GATE in self.served.gates else NEW


def check_formats(errors: Callable[[str], list[str]], value: str, path: str, causes: Causes) -> None:
    """Report an Invalid cause for every error."""
    for error in errors(value):
        causes.invalid(path, value, error)


def check_label_name(value: str, path: str, causes: Causes) -> None:
    """Check a qualified name."""
    check_formats(formats.qualified_name_errors, value, path, causes)


def check_create(kind: Kind, metadata: Raw, causes: Causes) -> None:
    """Check ``metadata`` of a new object."""
    name = metadata.get("name", "")
    prefix = metadata.get("generateName", "")
    if kind.kind == "Event" and not kind.group:
        _check_common(kind, metadata, causes)  # any name is valid
        return
    errors = (
        formats.dns_label_errors if (kind.group, kind.kind) in _LABEL_KINDS else formats.dns_subdomain_errors
    )
    if prefix and kind.kind not in _FREE_NAMES:
        # A prefix may end in a dash: more characters follow it.
        check_formats(errors, prefix.removesuffix("-") or prefix, "metadata.generateName", causes)
    if not name:
        causes.required("metadata.name", "name or generateName is required")
    elif kind.kind in _FREE_NAMES:
        if name in (".", "..") or "/" in name or "%" in name:
            causes.invalid("metadata.name", name, "may not be '.' or '..' nor contain '/' or '%'")
    else:
        check_formats(errors, name, "metadata.name", causes)
    _check_common(kind, metadata, causes)


def _check_common(kind: Kind, metadata: Raw, causes: Causes) -> None:
    if metadata.get("generation", 0) < 0:
        causes.invalid("metadata.generation", metadata["generation"], "must be greater than or equal to 0")
    _check_labels(metadata, causes)
    _check_finalizers(kind, metadata, causes)


def _check_labels(metadata: Raw, causes: Causes) -> None:
    for key, value in (metadata.get("labels") or {}).items():
        check_label_name(key, "metadata.labels", causes)
        check_formats(formats.label_value_errors, value, "metadata.labels", causes)
    total = 0
    for key, value in (metadata.get("annotations") or {}).items():
        check_formats(formats.qualified_name_errors, key.lower(), "metadata.annotations", causes)
        total += len(key.encode()) + len(value.encode())
    if total > _ANNOTATIONS_LIMIT:
        causes.too_long("metadata.annotations", _ANNOTATIONS_LIMIT)
    _check_owners(metadata.get("ownerReferences") or [], causes)


def _check_finalizers(kind: Kind, metadata: Raw, causes: Causes) -> None:
    for i, finalizer in enumerate(metadata.get("finalizers") or []):
        check_label_name(finalizer, "metadata.finalizers", causes)
        if "/" not in finalizer and finalizer not in _FINALIZERS and not _any_finalizer(kind):
            causes.invalid(
                f"metadata.finalizers[{i}]",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            )


def _check_owners(owners: list[Raw], causes: Causes) -> None:
    for owner in owners:
        for name, key in (("apiVersion", "apiVersion"), ("kind", "kind"), ("name", "name"), ("uid", "uid")):
            if not owner.get(key):
                causes.invalid(f"metadata.ownerReferences.{name}", owner.get(key, ""), "must not be empty")
        _, slash, version = (owner.get("apiVersion") or "").partition("/")
        if "/" in version or (slash and not version):
            causes.invalid(
                "metadata.ownerReferences.apiVersion", owner["apiVersion"], "version must not be empty"
            )
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            causes.invalid(
                "metadata.ownerReferences", owner, "/v1, Kind=Event is disallowed from being an owner"
            )
    if sum(1 for o in owners if o.get("controller")) > 1:
        causes.invalid(
            "metadata.ownerReferences", owners, "Only one reference can have Controller set to true"
        )


# Kinds whose check of an update includes the whole check of ``metadata``.
_FULL = frozenset(
    {
        "ResourceClaim",
        "ResourceClaimTemplate",
        "DeviceClass",
        "ConfigMap",
        "Secret",
        "ServiceAccount",
        "Pod",
        "Node",
        "Namespace",
        "Job",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
    }
)
# Kinds that have no check of their own for ``metadata``.
_GENERIC = frozenset({"PodDisruptionBudget", "Event"})
_ADMISSION = "admissionregistration.k8s.io"


def _any_finalizer(kind: Kind) -> bool:
    """Return whether finalizers need be neither standard nor qualified."""
    return kind.custom or kind.group == _ADMISSION or kind.kind == "Lease" or kind.kind in _GENERIC


def checks_of_identity(kind: Kind) -> int:
    """Return how many checks report a changed UID."""
    return 1 if kind.kind in _GENERIC or kind.group == _ADMISSION else 2


def check_update(kind: Kind, old: Raw, new: Raw, causes: Causes) -> None:
    """Check ``metadata`` of a changed object.

    The real server checks it generically (as a whole, and the change), then for the kind; each check adds
    causes of its own.
    """
    added = [f for f in new.get("finalizers") or [] if f not in (old.get("finalizers") or [])]
    for _ in range(2):
        if old.get("deletionTimestamp") and added:
            causes.forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers {added}",
            )
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            if name in new and new.get(name) != old.get(name):
                causes.invalid(f"metadata.{name}", new[name], "field is immutable")
        _check_labels(new, causes)
    if kind.kind in _GENERIC:
        _check_finalizers(kind, new, causes)
        return
    for _ in range(2 if kind.kind in _FULL else 1):
        _check_common(kind, new, causes)


def check_conditions(conditions: list[Raw], path: str, causes: Causes) -> None:
    """Check a list of ``metav1.Condition``."""
    seen = set()
    for i, condition in enumerate(conditions):
        here = f"{path}[{i}]"
        if condition["type"] in seen:
            causes.duplicate(f"{here}.type", condition["type"])
        seen.add(condition["type"])
        check_label_name(condition["type"], f"{here}.type", causes)
        if condition["status"] not in ("True", "False", "Unknown"):
            causes.not_supported(f"{here}.status", condition["status"], ("True", "False", "Unknown"))
        if condition.get("observedGeneration", 0) < 0:
            causes.invalid(
                f"{here}.observedGeneration",
                condition["observedGeneration"],
                "must be greater than or equal to zero",
            )
        if not condition.get("lastTransitionTime"):
            causes.required(f"{here}.lastTransitionTime")
        reason = condition["reason"]
        if not reason:
            causes.required(f"{here}.reason")
        elif not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason):
            causes.invalid(
                f"{here}.reason", reason, "a condition reason must start with an alphabetic character"
            )
        if len(reason) > 1024:
            causes.too_long(f"{here}.reason", 1024)
        if len(condition["message"]) > 32768:
            causes.too_long(f"{here}.message", 32768)


_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def check_node_selector(selector: Raw, path: str, causes: Causes) -> None:
    """Check a ``NodeSelector``."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        causes.required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    for i, term in enumerate(terms):
        here = f"{path}.nodeSelectorTerms[{i}]"
        for j, requirement in enumerate(term.get("matchExpressions") or []):
            _check_expression(requirement, f"{here}.matchExpressions[{j}]", causes)
        for j, requirement in enumerate(term.get("matchFields") or []):
            _check_field(requirement, f"{here}.matchFields[{j}]", causes)


def _check_expression(requirement: Raw, path: str, causes: Causes) -> None:
    values = requirement.get("values") or []
    match requirement["operator"]:
        case "In" | "NotIn":
            if not values:
                causes.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                causes.forbidden(
                    f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        case "Gt" | "Lt":
            if len(values) != 1:
                causes.required(
                    f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
                )
        case other:
            causes.invalid(f"{path}.operator", other, "not a valid selector operator")
    check_label_name(requirement["key"], f"{path}.key", causes)
    for k, value in enumerate(values):
        check_formats(formats.label_value_errors, value, f"{path}.values[{k}]", causes)


def _check_field(requirement: Raw, path: str, causes: Causes) -> None:
    values: list[Any] = requirement.get("values") or []
    if requirement["operator"] in ("In", "NotIn"):
        if len(values) != 1:
            causes.required(
                f"{path}.values",
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )
    else:
        causes.invalid(f"{path}.operator", requirement["operator"], "not a valid selector operator")
    if requirement["key"] != "metadata.name":
        causes.invalid(f"{path}.key", requirement["key"], "not a valid field selector key")
        return
    for k, value in enumerate(values):
        check_formats(formats.dns_subdomain_errors, value, f"{path}.values[{k}]", causes)
