"""The preview that kube-controller-manager writes into a new DeviceTaintRule of effect ``None``.

It is the only part of that controller here: such rules are made to read this condition.
"""

from __future__ import annotations

from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.writing.server_state import ServerState

__all__ = ["preview"]


def preview(registry: ServerState, rule: Raw) -> Raw:
    """Return the rule with the condition ``EvictionInProgress``: how many devices and pods it selects now."""
    selector: Raw | None = rule["spec"].get("deviceSelector")
    published = allocated = 0
    pods: set[tuple[str, str]] = set()
    for stored in registry.store.collection("resource.k8s.io", "resourceslices").list():
        spec = stored.raw["spec"]
        for device in spec.get("devices") or []:
            identity = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
            published += _selects(selector, identity)
    for stored in registry.store.collection("resource.k8s.io", "resourceclaims").list():
        status: Raw = stored.raw.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        count = sum(_selects(selector, r) for r in results)
        allocated += count
        if count:
            consumers = status.get("reservedFor") or []
            pods.update((stored.key.namespace, c["uid"]) for c in consumers if c.get("resource") == "pods")
    condition = {
        "type": "EvictionInProgress",
        "status": "False",
        "observedGeneration": rule["metadata"]["generation"],
        "lastTransitionTime": registry.now(),
        "reason": "NoEffect",
        "message": _text(published, allocated, len(pods), len({namespace for namespace, _ in pods})),
    }
    others = [c for c in (rule.get("status") or {}).get("conditions") or [] if c["type"] != condition["type"]]
    return {**rule, "metadata": dict(rule["metadata"]), "status": {"conditions": [*others, condition]}}


def _selects(selector: Raw | None, device: Raw) -> bool:
    """Return whether the selector matches: an empty one matches every device, an absent one none."""
    return selector is not None and all(
        selector.get(k, device[k]) == device[k] for k in ("driver", "pool", "device")
    )


def _text(published: int, allocated: int, pods: int, namespaces: int) -> str:
    def some(count: int, noun: str, several: str = "") -> str:
        return f"1 {noun}" if count == 1 else f"{count} {several or noun + 's'}"

    return (
        f"{some(published, 'published device')} selected. {some(allocated, 'allocated device')} selected. "
        f"{some(pods, 'pod')} would be evicted in {some(namespaces, 'namespace', 'different namespaces')} "
        "if the effect was NoExecute. This information will not be updated again. "
        "Recreate the DeviceTaintRule to trigger an update."
    )
