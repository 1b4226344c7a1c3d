"""What the server changes in an object before it is validated.

Fields that the endpoint may not change get their old values back, and admission adds its own. A kind that
needs it has a hook here; everything that is only data is in ``kinds`` and ``defaults``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw

__all__ = ["grace_period", "prepare_create", "prepare_update", "spec_changed"]

_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


def _gated(now: str) -> Raw:
    return {
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": now,
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }


def _qos(spec: Raw) -> str:
    containers = (spec.get("containers") or []) + (spec.get("initContainers") or [])
    resources = [c.get("resources") or {} for c in containers]
    if not any(r.get("requests") or r.get("limits") for r in resources):
        return "BestEffort"
    for r in resources:
        limits, requests = r.get("limits") or {}, r.get("requests") or {}
        if any(
            name not in limits or requests.get(name, limits[name]) != limits[name]
            for name in ("cpu", "memory")
        ):
            return "Burstable"
    return "Guaranteed"


def _admit_pod(spec: Raw) -> None:
    """Add what admission adds to every pod."""
    tolerations = spec.setdefault("tolerations", [])
    for key in _TOLERATIONS:
        if not any(
            t.get("key") in (key, None) and t.get("effect", "NoExecute") in ("NoExecute", "")
            for t in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )
    spec.setdefault("priority", 0)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _pod(raw: Raw, now: str) -> None:
    spec = raw.setdefault("spec", {})
    _admit_pod(spec)
    status: Raw = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        status["conditions"] = [_gated(now)]
    status["qosClass"] = _qos(spec)
    raw["status"] = status


def _namespace(raw: Raw, now: str) -> None:
    raw["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = raw["metadata"].get("name", "")
    spec = raw.setdefault("spec", {})
    if "kubernetes" not in spec.setdefault("finalizers", []):
        spec["finalizers"].append("kubernetes")
    raw["status"] = {"phase": "Active"}


def _secret(raw: Raw, now: str) -> None:
    text = raw.pop("stringData", None)
    if text:
        data = raw.setdefault("data", {})
        data.update({k: base64.b64encode(v.encode()).decode() for k, v in text.items()})


def _service_account(raw: Raw, now: str) -> None:
    if raw.get("secrets"):
        raw["secrets"] = [{"name": s.get("name", "")} for s in raw["secrets"]]


def _node(raw: Raw, now: str) -> None:
    status = raw.setdefault("status", {})
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    info = status.setdefault("nodeInfo", {})
    for name in _NODE_INFO:
        info.setdefault(name, "")


def _no_status(raw: Raw, now: str) -> None:
    raw["status"] = {}


_CREATE: Mapping[str, Callable[[Raw, str], None]] = {
    "Pod": _pod,
    "Namespace": _namespace,
    "Secret": _secret,
    "ServiceAccount": _service_account,
    "Node": _node,
    "ResourceClaim": _no_status,
    "DeviceTaintRule": _no_status,
    "DaemonSet": _no_status,
    "Deployment": _no_status,
    "ReplicaSet": _no_status,
    "StatefulSet": _no_status,
    "Job": _no_status,
    "Service": lambda raw, now: raw.__setitem__("status", {"loadBalancer": {}}),
    "PersistentVolumeClaim": lambda raw, now: raw.__setitem__("status", {"phase": "Pending"}),
    "PersistentVolume": lambda raw, now: raw.__setitem__("status", {"phase": "Pending"}),
    "VolumeAttachment": _no_status,
    "CustomResourceDefinition": lambda raw, now: None,
    "ValidatingAdmissionPolicy": _no_status,
    "PodDisruptionBudget": _no_status,
    "PodGroup": _no_status,
    "CompositePodGroup": _no_status,
}


def prepare_create(kind: Kind, raw: Raw, now: str) -> None:
    """Set the initial values of a new object."""
    if kind.generation or kind.custom:
        raw["metadata"]["generation"] = 1
    if kind.custom:
        if kind.status:
            raw.pop("status", None)
        return
    hook = _CREATE.get(kind.kind)
    if hook is not None:
        hook(raw, now)


def prepare_update(kind: Kind, old: Raw, new: Raw, subresource: str, now: str) -> None:
    """Restore the fields that this endpoint may not change, and count the generation."""
    if subresource == "status":
        for name in set(old) | set(new):
            if name not in ("status", "metadata", "kind", "apiVersion"):
                _take(old, new, name)
        metadata = new["metadata"]
        kept = {k: v for k, v in old["metadata"].items() if k != "managedFields"}
        if kind.status_keeps_metadata:
            for name in ("labels", "annotations"):
                if name in metadata:
                    kept[name] = metadata[name]
                else:
                    kept.pop(name, None)
            if "finalizers" in metadata or "finalizers" in kept:
                kept["finalizers"] = metadata.get("finalizers") or []
        if "managedFields" in metadata:
            kept["managedFields"] = metadata["managedFields"]
        if "resourceVersion" in metadata:
            kept["resourceVersion"] = metadata["resourceVersion"]
        new["metadata"] = kept
        if kind.kind == "ResourceClaim":
            _claim_status(old, new)
        return
    if kind.status:
        _take(old, new, "status")
    if kind.kind in ("Secret", "ServiceAccount"):
        _CREATE[kind.kind](new, now)
    if kind.kind == "Pod":
        _update_pod(old, new)
    if kind.kind == "DeviceTaintRule":
        _renew_taint(old, new, now)
    before = old["metadata"].get("generation", 0)
    if kind.generation or kind.custom:
        new["metadata"]["generation"] = before + 1 if spec_changed(kind, old, new) else before or 1
    elif "generation" in old["metadata"]:
        new["metadata"]["generation"] = before
    else:
        new["metadata"].pop("generation", None)


def spec_changed(kind: Kind, old: Raw, new: Raw) -> bool:
    """Return whether the part of the object that the generation counts has changed."""
    skipped = ("metadata", "status") if kind.status else ("metadata",)
    before = {k: v for k, v in old.items() if k not in skipped}
    after = {k: v for k, v in new.items() if k not in skipped}
    return before != after and (kind.custom or _without_empties(before) != _without_empties(after))


def _without_empties(value: Any) -> Any:
    """Return a built-in object as Go compares it: an empty list or map equals an absent one."""
    if isinstance(value, dict):
        inner = {k: _without_empties(v) for k, v in value.items()}
        return {k: v for k, v in inner.items() if v not in ({}, [], None)}
    if isinstance(value, list):
        return [_without_empties(v) for v in value]
    return value


def _take(old: Raw, new: Raw, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def _claim_status(old: Raw, new: Raw) -> None:
    """Remove the statuses of devices that are no longer allocated."""
    status = new.get("status") or {}
    gone = _allocated(old) - _allocated(new)
    if gone and status.get("devices"):
        left = [d for d in status["devices"] if _device(d) not in gone]
        if left:
            status["devices"] = left
        else:
            del status["devices"]


def _device(raw: Raw) -> tuple[str, ...]:
    return tuple(str(raw.get(k) or "") for k in ("driver", "pool", "device", "shareID"))


def _allocated(raw: Raw) -> set[tuple[str, ...]]:
    allocation = (raw.get("status") or {}).get("allocation") or {}
    return {_device(r) for r in (allocation.get("devices") or {}).get("results") or []}


def _update_pod(old: Raw, new: Raw) -> None:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    for name in ("nodeName", "priority"):
        if name in before and name not in after:
            after[name] = before[name]
    _admit_pod(after)


def _renew_taint(old: Raw, new: Raw, now: str) -> None:
    before = (old.get("spec") or {}).get("taint") or {}
    after = (new.get("spec") or {}).get("taint") or {}
    if before.get("effect") != after.get("effect") and before.get("timeAdded") == after.get("timeAdded"):
        after["timeAdded"] = now


def grace_period(kind: Kind, raw: Raw, wanted: int | None) -> int | None:
    """Return the grace period in seconds; None if the kind has no graceful deletion."""
    if kind.kind != "Pod" or kind.group:
        return None
    spec: Mapping[str, Any] = raw.get("spec") or {}
    if not spec.get("nodeName") or (raw.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        return 0
    period = spec.get("terminationGracePeriodSeconds", 30) if wanted is None else wanted
    return int(period) if period >= 0 else 1
