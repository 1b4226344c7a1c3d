"""What to do about an unhealthy device, by the reason of its condition."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["remedy"]

_RESET: Final = "reset the {device}"
_RESTART: Final = "reset the {device}, or restart the node if that does not help"
_REMEDIES: Final = {
    "ClaimGoneInUse": "end the processes that the condition names, or restart the node",
    "DeviceNodeUnknown": "load the kernel driver again; the node's kernel log says more",
    "DoubleBitEcc": _RESET,
    "DramRetirement": _RESET,
    "DramRetirementFailed": "replace the {device}",
    "DriverAbsent": "load the driver again; the condition Discovered of the DeviceInventory says more",
    "DriverHanging": _RESTART,
    "DriverNotBound": "bind the {device} to its kernel driver",
    "FatalPoisonError": _RESTART,
    "GpuLost": "restart the node; if the {device} does not come back, replace it",
    "GpuUnavailable": _RESTART,
    "IdentityUnconfirmed": _RESET,
    "NotAnswering": _RESTART,
    "NotConfirmed": "see the log of the node agent: it has not found the {device} since it started",
    "NotFound": "see the node's kernel log; restart the node if the {device} was not removed on purpose",
    "PageRetirementPending": _RESET,
    "PoisonError": _RESET,
    "PortDown": "check the cable and the switch",
    "RowRemapFailed": "replace the {device}",
    "RowRemapPending": _RESET,
    "SurvivabilityMode": "update the firmware of the {device}",
    "UncorrectableErrors": "reset the {device}; if the errors come back, replace it",
    "UnmanagedPartitions": "remove the partitions that the condition names",
}
_XID: Final = re.compile(r"Xid\d+")
_UNKNOWN: Final = "see the condition, and the node's kernel log"


def remedy(reason: str, device: str = "GPU") -> str:
    """Return what to do about a device.

    Args:
        reason: of its condition; reasons of third parties get a general answer.
        device: what it is called, such as ``GPU``.
    """
    text = _REMEDIES.get(reason) or (_RESTART if _XID.fullmatch(reason) else _UNKNOWN)
    return text.format(device=device)
