"""The Table form that kubectl prints: columns by kind, cells from objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dra_driver.sim.apiserver.objects.kinds import Column, Kind
from dra_driver.sim.apiserver.objects.status import Raw

__all__ = ["table", "table_event"]


class _Column(NamedTuple):
    name: str
    cell: Callable[[Raw, float], Any]
    type: str = "string"
    wide: bool = False


def _age(raw: Raw, now: float) -> str:
    return _since(raw["metadata"].get("creationTimestamp"), now)


def _since(moment: object, now: float) -> str:
    if not isinstance(moment, str) or not moment:
        return "<unknown>"
    return _duration(now - datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp())


def _duration(seconds: float) -> str:
    """Return a duration as kubectl writes ages, in two units while the smaller one matters."""
    s = max(0, int(seconds))
    m, h, d = s // 60, s // 3600, s // 86400
    if s < 120:
        return f"{s}s"
    if m < 10:
        return f"{m}m{s % 60}s" if s % 60 else f"{m}m"
    if m < 180:
        return f"{m}m"
    if h < 8:
        return f"{h}h{m % 60}m" if m % 60 else f"{h}h"
    if h < 48:
        return f"{h}h"
    if d < 8:
        return f"{d}d{h % 24}h" if h % 24 else f"{d}d"
    if d < 730:
        return f"{d}d"
    return f"{d // 365}y{d % 365}d"


def _get(path: str, default: object = "") -> Callable[[Raw, float], Any]:
    steps = path.split(".")

    def cell(raw: Raw, now: float) -> Any:
        value: Any = raw
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else None
        return default if value is None else value

    return cell


def _claim_state(raw: Raw, now: float) -> str:
    status = raw.get("status") or {}
    states = ["deleted"] if raw["metadata"].get("deletionTimestamp") else []
    if status.get("allocation") is None:
        states += [] if states else ["pending"]
    else:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return ",".join(states)


def _pod_ready(raw: Raw, now: float) -> str:
    statuses = (raw.get("status") or {}).get("containerStatuses") or []
    return f"{sum(1 for s in statuses if s.get('ready'))}/{len(raw['spec'].get('containers') or [])}"


def _pod_status(raw: Raw, now: float) -> str:
    status = raw.get("status") or {}
    text = status.get("reason") or status.get("phase") or "Unknown"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            text = "SchedulingGated"
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        reason = (state.get("waiting") or {}).get("reason") or (state.get("terminated") or {}).get("reason")
        text = reason or text
    return "Terminating" if raw["metadata"].get("deletionTimestamp") else str(text)


def _pod_restarts(raw: Raw, now: float) -> str:
    statuses = (raw.get("status") or {}).get("containerStatuses") or []
    return str(sum(s.get("restartCount", 0) for s in statuses))


def _node_status(raw: Raw, now: float) -> str:
    conditions = {c.get("type"): c.get("status") for c in (raw.get("status") or {}).get("conditions") or []}
    text = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return text + (",SchedulingDisabled" if (raw.get("spec") or {}).get("unschedulable") else "")


def _node_roles(raw: Raw, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = raw["metadata"].get("labels") or {}
    return ",".join(sorted(k[len(prefix) :] for k in labels if k.startswith(prefix))) or "<none>"


def _node_address(type_: str) -> Callable[[Raw, float], str]:
    def cell(raw: Raw, now: float) -> str:
        addresses = (raw.get("status") or {}).get("addresses") or []
        return next((a["address"] for a in addresses if a.get("type") == type_), "<none>")

    return cell


def _data(raw: Raw, now: float) -> str:
    return str(len(raw.get("data") or {}) + len(raw.get("binaryData") or {}))


def _event_object(raw: Raw, now: float) -> str:
    about = raw.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_seen(raw: Raw, now: float) -> str:
    return _since(
        raw.get("lastTimestamp") or raw.get("eventTime") or raw["metadata"]["creationTimestamp"], now
    )


def _ready_of(ready: str, wanted: str) -> Callable[[Raw, float], str]:
    def cell(raw: Raw, now: float) -> str:
        return f"{_get(ready, 0)(raw, now)}/{_get(wanted, 0)(raw, now)}"

    return cell


def _selector(path: str) -> Callable[[Raw, float], str]:
    def cell(raw: Raw, now: float) -> str:
        labels = _get(path, {})(raw, now)
        return ",".join(f"{k}={v}" for k, v in sorted(labels.items())) or "<none>"

    return cell


def _containers(field: str) -> Callable[[Raw, float], str]:
    def cell(raw: Raw, now: float) -> str:
        items = _get("spec.template.spec.containers", [])(raw, now)
        return ",".join(c.get(field, "") for c in items)

    return cell


_NAME = _Column("Name", _get("metadata.name"))
_AGE = _Column("Age", _age)
_WORKLOAD = (
    _Column("Containers", _containers("name"), wide=True),
    _Column("Images", _containers("image"), wide=True),
    _Column("Selector", _selector("spec.selector.matchLabels"), wide=True),
)


def _count(name: str, path: str) -> _Column:
    return _Column(name, _get(path, 0), "integer")


_COLUMNS: Mapping[str, Sequence[_Column]] = {
    "Pod": (
        _NAME,
        _Column("Ready", _pod_ready),
        _Column("Status", _pod_status),
        _Column("Restarts", _pod_restarts),
        _AGE,
        _Column("IP", _get("status.podIP", "<none>"), wide=True),
        _Column("Node", _get("spec.nodeName", "<none>"), wide=True),
        _Column("Nominated Node", _get("status.nominatedNodeName", "<none>"), wide=True),
        _Column("Readiness Gates", lambda raw, now: "<none>", wide=True),
    ),
    "Node": (
        _NAME,
        _Column("Status", _node_status),
        _Column("Roles", _node_roles),
        _AGE,
        _Column("Version", _get("status.nodeInfo.kubeletVersion")),
        _Column("Internal-IP", _node_address("InternalIP"), wide=True),
        _Column("External-IP", _node_address("ExternalIP"), wide=True),
        _Column("OS-Image", _get("status.nodeInfo.osImage", "<unknown>"), wide=True),
        _Column("Kernel-Version", _get("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        _Column("Container-Runtime", _get("status.nodeInfo.containerRuntimeVersion", "<unknown>"), wide=True),
    ),
    "Namespace": (_NAME, _Column("Status", _get("status.phase")), _AGE),
    "ConfigMap": (_NAME, _Column("Data", _data), _AGE),
    "Secret": (_NAME, _Column("Type", _get("type")), _Column("Data", _data), _AGE),
    "Service": (
        _NAME,
        _Column("Type", _get("spec.type")),
        _Column("Cluster-IP", _get("spec.clusterIP", "<none>")),
        _Column("External-IP", lambda raw, now: "<none>"),
        _Column("Port(s)", lambda raw, now: _ports(raw)),
        _AGE,
        _Column("Selector", _selector("spec.selector"), wide=True),
    ),
    "Event": (
        _Column("Last Seen", _event_seen),
        _Column("Type", _get("type")),
        _Column("Reason", _get("reason")),
        _Column("Object", _event_object),
        _Column("Subobject", _get("involvedObject.fieldPath"), wide=True),
        _Column("Source", _get("source.component"), wide=True),
        _Column("Message", _get("message")),
        _Column("Count", _get("count", 1), "integer", wide=True),
        _Column("Name", _get("metadata.name"), wide=True),
    ),
    "Lease": (_NAME, _Column("Holder", _get("spec.holderIdentity")), _AGE),
    "DaemonSet": (
        _NAME,
        _count("Desired", "status.desiredNumberScheduled"),
        _count("Current", "status.currentNumberScheduled"),
        _count("Ready", "status.numberReady"),
        _count("Up-to-date", "status.updatedNumberScheduled"),
        _count("Available", "status.numberAvailable"),
        _Column("Node Selector", _selector("spec.template.spec.nodeSelector")),
        _AGE,
        *_WORKLOAD,
    ),
    "Deployment": (
        _NAME,
        _Column("Ready", _ready_of("status.readyReplicas", "spec.replicas")),
        _count("Up-to-date", "status.updatedReplicas"),
        _count("Available", "status.availableReplicas"),
        _AGE,
        *_WORKLOAD,
    ),
    "ResourceClaim": (_NAME, _Column("State", _claim_state), _AGE),
    "ResourceSlice": (
        _NAME,
        _Column("Node", _get("spec.nodeName")),
        _Column("Driver", _get("spec.driver")),
        _Column("Pool", _get("spec.pool.name")),
        _AGE,
    ),
    "CustomResourceDefinition": (_NAME, _Column("Created At", _get("metadata.creationTimestamp"), "date")),
    "ClusterRole": (_NAME, _Column("Created At", _get("metadata.creationTimestamp"))),
    "Role": (_NAME, _Column("Created At", _get("metadata.creationTimestamp"))),
    "ClusterRoleBinding": (_NAME, _Column("Role", lambda raw, now: _role(raw)), _AGE),
    "RoleBinding": (_NAME, _Column("Role", lambda raw, now: _role(raw)), _AGE),
}


def _role(raw: Raw) -> str:
    reference = raw.get("roleRef") or {}
    return f"{reference.get('kind', '')}/{reference.get('name', '')}"


def _ports(raw: Raw) -> str:
    ports = (raw.get("spec") or {}).get("ports") or []
    return ",".join(f"{p.get('port')}/{p.get('protocol', 'TCP')}" for p in ports) or "<none>"


# --- custom columns ---


_STEP = re.compile(r"\.([\w-]+)|\['([^']+)'\]|\[(\d+|\*)\]|\[\?\(@\.([\w.]+)\s*==\s*[\"']([^\"']*)[\"']\)\]")


def _json_path(path: str, raw: Any) -> list[Any]:
    """Evaluate the part of JSONPath that columns use: fields, indexes, ``[*]`` and filters by equality."""
    values = [raw]
    for m in _STEP.finditer(path.replace("\\.", "\x00")):
        name, quoted, index, key, wanted = m.groups()
        found: list[Any] = []
        for value in values:
            if name or quoted:
                step = (name or quoted).replace("\x00", ".")
                if isinstance(value, dict) and value.get(step) is not None:
                    found.append(value[step])
            elif isinstance(value, list) and index:
                found += value if index == "*" else value[int(index) : int(index) + 1]
            elif isinstance(value, list) and key:
                found += [v for v in value if isinstance(v, dict) and str(v.get(key)) == wanted]
        values = found
    return values


def _custom(column: Column) -> _Column:
    def cell(raw: Raw, now: float) -> Any:
        found = _json_path(column.path, raw)
        if not found:
            return None
        if column.type == "date":
            return _since(found[0], now)
        if column.type in ("integer", "number", "boolean"):
            return found[0]
        return ",".join(str(f) for f in found)

    return _Column(column.name, cell, column.type, bool(column.priority))


def _columns(kind: Kind) -> Sequence[_Column]:
    if kind.custom:
        return (_NAME, *(_custom(c) for c in kind.columns))
    return _COLUMNS.get(kind.kind, (_NAME, _AGE))


def _definitions(columns: Sequence[_Column]) -> list[Raw]:
    return [
        {
            "name": c.name,
            "type": c.type,
            "format": "name" if c.name == "Name" else "",
            "description": f"{c.name} of the object.",
            "priority": 1 if c.wide else 0,
        }
        for c in columns
    ]


def _row(columns: Sequence[_Column], raw: Raw, include: str, now: float) -> Raw:
    row: Raw = {"cells": [c.cell(raw, now) for c in columns]}
    if include == "Object":
        row["object"] = raw
    elif include != "None":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": raw["metadata"],
        }
    else:
        row["object"] = None
    return row


def table(kind: Kind, objects: Sequence[Raw], metadata: Raw, include: str, now: float) -> Raw:
    """Return objects as a Table; ``include`` is ``None``, ``Metadata`` or ``Object``."""
    columns = _columns(kind)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": _definitions(columns),
        "rows": [_row(columns, raw, include, now) for raw in objects],
    }


def table_event(kind: Kind, raw: Raw, include: str, now: float, *, first: bool) -> Raw:
    """Return an object as a Table of one row, as watches send it; only the first one has columns."""
    made = table(kind, [raw], {"resourceVersion": raw["metadata"].get("resourceVersion", "")}, include, now)
    if not first:
        made["columnDefinitions"] = None
    return made
