"""Binding and eviction of pods."""

from __future__ import annotations

from typing import Any

from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Cause, Raw, StatusError, success
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.sim.apiserver.writing.deletion import check_preconditions
from dra_driver.sim.apiserver.writing.registry import DeleteOptions, Options, Registry
from dra_driver.structured.model.nodeselection import label_holds

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
    """Delete a pod if its PodDisruptionBudget allows it, of which this takes one disruption.

    The condition DisruptionTarget is written first, as by a real server. What counts the disruptions that are
    allowed is missing here: they are what the status of the budget says.

    Raises:
        StatusError: 404, 409 (preconditions), 429 (the budget does not allow it), 500 (several budgets).
    """
    given: Raw = (body.get("deleteOptions") if isinstance(body, dict) else None) or {}
    preconditions = given.get("preconditions") or {}
    options = DeleteOptions(
        grace=given.get("gracePeriodSeconds"),
        uid=preconditions.get("uid") or "",
        version=preconditions.get("resourceVersion") or "",
        dry_run=bool(given.get("dryRun")),
    )
    check_preconditions(kind, registry.get(kind, namespace, name).raw["metadata"], options)
    raw = registry.get(kind, namespace, name).raw
    runs = raw.get("status", {}).get("phase", "Pending") == "Running"
    if runs and "deletionTimestamp" not in raw["metadata"] and not options.dry_run:
        _take_disruption(registry, namespace, raw)
        marked = _disrupted(raw, registry.now())
        written = registry.collection(kind).put(Key(namespace, name), marked)
        options.version = written.raw["metadata"]["resourceVersion"] if options.version else ""
    registry.delete(kind, namespace, name, options)
    return success(code=201)


def _take_disruption(registry: Registry, namespace: str, pod: Raw) -> None:
    """Take a disruption of the budget that is for a pod, if there is one."""
    budgets = registry.store.collection("policy", "poddisruptionbudgets")
    mine = [b for b in budgets.list() if b.key.namespace == namespace and _is_for(b.raw, pod)]
    if len(mine) > 1:
        raise StatusError.internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    for budget in mine:
        status = dict(budget.raw.get("status") or {})
        if status.get("disruptionsAllowed", 0) <= 0:
            cause = Cause(
                "DisruptionBudget", f"The disruption budget {budget.key.name} does not allow it.", ""
            )
            raise StatusError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                causes=(cause,),
            )
        status["disruptionsAllowed"] -= 1
        disrupted = status.get("disruptedPods") or {}
        status["disruptedPods"] = {**disrupted, pod["metadata"]["name"]: registry.now()}
        budgets.put(budget.key, {**budget.raw, "status": status})


def _is_for(budget: Raw, pod: Raw) -> bool:
    selector = budget["spec"].get("selector")
    labels = pod["metadata"].get("labels") or {}
    if selector is None:
        return False
    return all(labels.get(k) == v for k, v in (selector.get("matchLabels") or {}).items()) and all(
        label_holds(r["operator"], r.get("values") or (), labels.get(r["key"]))
        for r in selector.get("matchExpressions") or ()
    )


def _disrupted(pod: Raw, now: str) -> Raw:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    status = dict(pod.get("status") or {})
    others = [c for c in status.get("conditions") or [] if c.get("type") != "DisruptionTarget"]
    return {
        **pod,
        "metadata": dict(pod["metadata"]),
        "status": {**status, "conditions": [*others, condition]},
    }
