"""Binding and eviction of pods."""

from __future__ import annotations

from typing import Any

from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw, StatusError, success
from dra_driver.sim.apiserver.writing.registry import DeleteOptions, Options, Registry

__all__ = ["bind", "evict"]


def bind(registry: Registry, kind: Kind, namespace: str, name: str, body: Any, options: Options) -> Raw:
    """Assign a pod to a node.

    Raises:
        StatusError: 404, 409 (already assigned, gated), 500 (bad target).
    """
    target: Raw = (body.get("target") if isinstance(body, dict) else None) or {}
    if target.get("kind", "Node") not in ("", "Node"):
        raise StatusError.internal(
            f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        )
    if not target.get("name"):
        raise StatusError.internal("target.name: Required value")
    stored = registry.get(kind, namespace, name)
    raw = stored.raw
    spec = raw["spec"]

    def refuse(why: str) -> StatusError:
        return StatusError.conflict("pods/binding", "", name, why)

    uid = (body.get("metadata") or {}).get("uid")
    if uid and uid != raw["metadata"]["uid"]:
        raise refuse(
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: {raw['metadata']['uid']}"
        )
    if raw["metadata"].get("deletionTimestamp"):
        raise refuse(f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise refuse(f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise refuse(f"pod {name} has non-empty .spec.schedulingGates")
    now = registry.now()
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    status = dict(raw.get("status") or {})
    conditions = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
    status["conditions"] = [*conditions, scheduled]
    status.pop("nominatedNodeName", None)  # ClearingNominatedNodeNameAfterBinding
    metadata = dict(raw["metadata"])
    annotations = (body.get("metadata") or {}).get("annotations")
    if annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    if not options.dry_run:
        bound = {**raw, "metadata": metadata, "spec": {**spec, "nodeName": target["name"]}, "status": status}
        registry.collection(kind).put(stored.key, bound)
    return success(code=201)


def evict(registry: Registry, kind: Kind, namespace: str, name: str, body: Any) -> Raw:
    """Delete a pod; PodDisruptionBudgets are ignored."""
    given: Raw = (body.get("deleteOptions") if isinstance(body, dict) else None) or {}
    preconditions = given.get("preconditions") or {}
    registry.delete(
        kind,
        namespace,
        name,
        DeleteOptions(
            grace=given.get("gracePeriodSeconds"),
            uid=preconditions.get("uid") or "",
            dry_run=bool(given.get("dryRun")),
        ),
    )
    return success(code=201)
