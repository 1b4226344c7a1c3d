"""Checks of CPU and memory of a node that devices count as, or cost. Source: KEP-5517."""

from __future__ import annotations

from dra_driver.api.quantity import Quantity
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices

__all__ = ["check_claim_statuses", "check_node_resources"]

_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"


def check_node_resources(device: Raw, path: str, causes: Causes) -> None:
    """Check ``nodeAllocatableResources`` of a device."""
    for name, resource in (device.get("nodeAllocatableResources") or {}).items():
        here = f"{path}[{name}]"
        if name not in _RESOURCES and not name.startswith(_HUGE_PAGES):
            causes.invalid(here, name, "must be the name of a resource that nodes have")
        mapping, overhead = resource.get("mapping"), resource.get("overhead")
        if mapping is None and overhead is None:
            causes.required(here, "at least one of mapping or overhead must be set")
        if mapping is not None:
            _check_mapping(mapping, device.get("capacity") or {}, f"{here}.mapping", causes)
        if overhead is not None:
            _check_overhead(overhead, f"{here}.overhead", causes)


def _check_mapping(mapping: Raw, capacity: Raw, path: str, causes: Causes) -> None:
    key, per_device = mapping.get("capacityKey"), mapping.get("deviceMultiplier")
    if (key is None) == (per_device is None):
        causes.invalid(path, mapping, "must specify exactly one of: `capacityKey`, `deviceMultiplier`")
    if key == "":
        causes.invalid(f"{path}.capacityKey", key, "must not be empty")
    elif key is not None and key not in capacity:
        causes.not_found(f"{path}.capacityKey", key)
    for name, other in (("capacityKey", "capacityMultiplier"), ("capacityMultiplier", "capacityKey")):
        if mapping.get(name) is not None and mapping.get(other) is None:
            causes.required(f"{path}.{other}", f"{other} is required when {name} is set")
    for name in ("capacityMultiplier", "deviceMultiplier"):
        if mapping.get(name) is not None and Quantity.parse(mapping[name]).nano <= 0:
            causes.invalid(f"{path}.{name}", mapping[name], "must be positive")


def _check_overhead(overhead: Raw, path: str, causes: Causes) -> None:
    given = [name for name in ("perPod", "perContainer") if overhead.get(name) is not None]
    if not given:
        causes.invalid(path, "", "at least one of perPod or perContainer must be set")
    for name in given:
        if Quantity.parse(overhead[name]).nano < 0:
            causes.invalid(f"{path}.{name}", overhead[name], "must not be negative")


def check_claim_statuses(status: Raw, path: str, causes: Causes) -> None:
    """Check ``nodeAllocatableResourceClaimStatuses`` of a pod's status."""
    path += ".nodeAllocatableResourceClaimStatuses"
    for i, claim in enumerate(status.get("nodeAllocatableResourceClaimStatuses") or []):
        here = f"{path}[{i}]"
        if not claim.get("resourceClaimName"):
            causes.required(f"{here}.resourceClaimName")
        devices.check_unique(claim.get("containers") or [], f"{here}.containers", causes)
        for kind in ("mapping", "overhead"):
            items: list[Raw] = claim.get(kind) or []
            for j, item in enumerate(items):
                if not item.get("name"):
                    causes.required(f"{here}.{kind}[{j}].name")
                if kind == "mapping" and item.get("quantity") is None:
                    causes.required(f"{here}.{kind}[{j}].quantity")
                if kind == "overhead":
                    _check_overhead(item, f"{here}.{kind}[{j}]", causes)
            devices.check_unique((item.get("name") for item in items), f"{here}.{kind}", causes)
