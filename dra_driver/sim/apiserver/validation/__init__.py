"""Validation of every kind: causes with the field paths and reasons of the real server.

``create`` and ``update`` dispatch on the kind. Kinds without an entry get the checks of ``metadata`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_driver.sim.apiserver.objects import crds
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import claims, meta, scheduling, slices, workloads
from dra_driver.sim.apiserver.validation.meta import Surroundings

__all__ = ["Surroundings", "create", "identity", "update"]

Check = Callable[[Raw, Raw | None, Causes, Surroundings], None]

# (group, kind) → check of the whole object; the second argument is the old object of an update.
_SPEC: Mapping[tuple[str, str], Check] = {
    ("resource.k8s.io", "ResourceSlice"): slices.check_slice,
    ("resource.k8s.io", "DeviceTaintRule"): slices.check_taint_rule,
    ("resource.k8s.io", "ResourceClaim"): claims.check_claim,
    ("resource.k8s.io", "ResourceClaimTemplate"): claims.check_template,
    ("resource.k8s.io", "DeviceClass"): claims.check_class,
    ("", "ConfigMap"): workloads.check_config_map,
    ("", "Secret"): workloads.check_secret,
    ("", "Pod"): workloads.check_pod,
    ("coordination.k8s.io", "Lease"): workloads.check_lease,
    ("scheduling.k8s.io", "PodGroup"): scheduling.check_pod_group,
    ("scheduling.k8s.io", "CompositePodGroup"): scheduling.check_composite,
    ("scheduling.k8s.io", "Workload"): scheduling.check_workload_object,
    ("apps", "DaemonSet"): workloads.check_workload,
    ("apps", "Deployment"): workloads.check_workload,
    ("apps", "ReplicaSet"): workloads.check_workload,
    ("apps", "StatefulSet"): workloads.check_workload,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): crds.check_definition,
}
_STATUS: Mapping[tuple[str, str], Check] = {
    ("resource.k8s.io", "ResourceClaim"): claims.check_claim_status,
    ("resource.k8s.io", "DeviceTaintRule"): slices.check_taint_rule_status,
    ("", "Pod"): workloads.check_pod_status,
}


def identity(kind: Kind, old: Raw, new: Raw) -> Causes:
    """Return the causes of a changed UID, before the server restores the stored one."""
    causes = Causes()
    if new.get("uid") and new["uid"] != old["uid"]:
        for _ in range(meta.checks_of_identity(kind)):
            causes.invalid("metadata.uid", new["uid"], "field is immutable")
    return causes


def create(kind: Kind, raw: Raw, surroundings: Surroundings) -> Causes:
    """Return the causes why a new object is invalid."""
    causes = Causes()
    meta.check_create(kind, raw["metadata"], causes)
    if kind.custom:
        crds.check_object(kind, raw, None, causes)
    elif check := _SPEC.get((kind.group, kind.kind)):
        check(raw, None, causes, surroundings)
    return causes


def update(kind: Kind, old: Raw, new: Raw, subresource: str, surroundings: Surroundings) -> Causes:
    """Return the causes why a change is invalid."""
    causes = Causes()
    meta.check_update(kind, old["metadata"], new["metadata"], causes)
    if kind.custom:
        crds.check_object(kind, new, old, causes)
        return causes
    table = _STATUS if subresource == "status" else _SPEC
    if check := table.get((kind.group, kind.kind)):
        check(new, old, causes, surroundings)
    return causes
