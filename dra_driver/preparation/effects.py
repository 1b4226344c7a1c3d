"""What the backends of devices do for a claim, in its record.

Calls are made elsewhere. A plan is taken as text that the backend gets back, so that neither a restart nor
another version of this code changes what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dra_driver import cdi
from dra_driver.errors import PrepareError
from dra_driver.preparation.claim import EffectRecord, PreparedClaim, PreparedDevice
from dra_driver.preparation.node_device import NodeDevice
from dra_driver.preparation.renewal import renewed

__all__ = ["MAX_SETTINGS", "MOST_SECONDS", "PlannedEffect", "planned"]

# Bytes of one device's plan. It is in the checkpoint, and in the annotation of the claim's CDI document.
MAX_SETTINGS: Final = 8 * 1024
# That a backend may plan to need for one device.
MOST_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class PlannedEffect:
    """What a backend has planned for one device, as it gave it.

    Attributes:
        settings: what it gets back to prepare, and to unprepare.
        edits: what the container gets.
        seconds: that it may take to prepare the device; None if it did not say.
    """

    settings: Mapping[str, Any]
    edits: cdi.ContainerEdits
    seconds: object = None


def planned(
    driver: str,
    record: PreparedClaim,
    plans: Mapping[int, PlannedEffect | None],
    devices: Mapping[str, NodeDevice],
) -> PreparedClaim:
    """Return the record with what backends have planned, and its document.

    Args:
        driver: ours.
        record: of a claim that is planned.
        plans: by the position of the device in the record; None where nothing is done to it.
        devices: the node's devices by name.

    Raises:
        PrepareError: a plan cannot be written down, or the document would be invalid.
    """
    if not plans:
        return record
    changed = list(record.devices)
    for position, plan in plans.items():
        device = changed[position]
        assert device.effect is not None
        if plan is None:
            changed[position] = msgspec.structs.replace(device, effect=None)
            continue
        effect = EffectRecord(
            backend=device.effect.backend,
            settings=_text(device, plan.settings),
            seconds=_seconds(device, plan.seconds),
        )
        own = cdi.merge(device.own or cdi.ContainerEdits(), plan.edits)
        changed[position] = msgspec.structs.replace(device, effect=effect, own=own)
    return renewed(driver, msgspec.structs.replace(record, devices=tuple(changed)), devices)


def _seconds(device: PreparedDevice, seconds: object) -> float:
    assert device.effect is not None
    if seconds is None:
        return 0.0
    # True is an int for Python.
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 1 <= seconds <= MOST_SECONDS:
        return float(seconds)
    raise PrepareError(
        f"device {device.device}: the plan of backend {device.effect.backend} says seconds={seconds!r}; "
        f"allowed are numbers from 1 to {MOST_SECONDS}, or None"
    )


def _text(device: PreparedDevice, settings: Mapping[str, Any]) -> str:
    assert device.effect is not None
    what = f"device {device.device}: the plan of backend {device.effect.backend}"
    try:
        data = msgspec.json.encode(dict(settings))
        text = data.decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise PrepareError(f"{what} cannot be written down: {e}") from e
    if len(data) > MAX_SETTINGS:
        raise PrepareError(f"{what} has {len(data)} bytes; at most {MAX_SETTINGS} are written down")
    if not isinstance(msgspec.json.decode(data), dict):
        raise PrepareError(f"{what} is no object")
    return text
