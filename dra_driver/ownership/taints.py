"""Device taints and tolerations (KEP-5055)."""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.api.resource import DeviceTaint, DeviceToleration

__all__ = ["blocks", "tolerates"]


def blocks(taint: DeviceTaint) -> bool:
    """Whether the taint keeps new allocations away. Effect ``None`` informs only; unknown effects too."""
    return taint.effect in ("NoSchedule", "NoExecute")


def tolerates(tolerations: Iterable[DeviceToleration], taint: DeviceTaint) -> bool:
    """Whether one of the tolerations covers the taint."""
    return any(_covers(t, taint) for t in tolerations)


def _covers(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False
