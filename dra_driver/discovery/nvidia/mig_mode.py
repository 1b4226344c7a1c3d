"""MIG mode as discovery reports it: the one place that knows its name, its condition and their texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.hardware import PartitioningMode

__all__ = ["described", "mig_mode"]

_NAME: Final = "MIG mode"
_REASON: Final = "MigEnabled"


def mig_mode(*, needs_reset: bool) -> PartitioningMode:
    """Return the mode of a GPU on which it is on.

    Args:
        needs_reset: whether the GPU has to be reset to leave it, as before Hopper. If not, the mode is
            switched as claims need it, and the condition is for information only.
    """
    return _mode(
        DeviceHealth(
            reason=_REASON,
            severity="degraded" if needs_reset else "info",
            message="MIG mode is on: the GPU cannot be used as a whole; nvidia-smi -mig 0 turns it off"
            if needs_reset
            else "MIG mode is on; for a claim of the whole GPU it is turned off",
            places=(),  # partitions need the mode
        )
    )


def described(health: Iterable[DeviceHealth]) -> PartitioningMode | None:
    """Return the mode of a GPU whose description lists the mode's condition; None where it does not."""
    return next((_mode(h) for h in health if h.reason == _REASON), None)


def _mode(condition: DeviceHealth) -> PartitioningMode:
    return PartitioningMode(_NAME, condition)
