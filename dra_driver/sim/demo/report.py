"""What the demo prints about nodes and pods."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from dra_driver.api.resource import ResourceSlice
from dra_driver.sim.cdi_reader import ContainerView
from dra_driver.sim.demo.checks import attribute
from dra_driver.sim.demo.examples import AllocatedDevice, Outcome

__all__ = ["WIDTH", "data", "inventory", "progress", "table"]

# Most devices, and most lines of a container, that are shown.
_SHOWN = 2
WIDTH: Final = 100
"""Columns of the table where it is not said otherwise."""
_LEAST: Final = 40
_GAP: Final = "  "


def inventory(slices: Sequence[ResourceSlice]) -> str:
    """Return what a node publishes, for example ``8 devices (8 × A100-SXM4-40GB)``."""
    devices = [d for s in slices for d in s.spec.devices]
    kinds: Counter[str] = Counter()
    for device in devices:
        profile = attribute(device, "profile")
        kinds[f"{attribute(device, 'model') or 'unknown model'}{f' {profile}' if profile else ''}"] += 1
    shown = ", ".join(f"{n} × {kind}" for kind, n in sorted(kinds.items()))
    return f"{len(devices)} devices published ({shown})"


def progress(outcome: Outcome) -> str:
    """Return the line about a pod that has reached its final state."""
    if outcome.phase == "Pending":
        return f"{outcome.example.key}: Pending, cannot be satisfied"
    devices = ", ".join(f"{d.result.device} ({_model(d)})" for d in outcome.devices[:_SHOWN])
    more = len(outcome.devices) - _SHOWN
    devices += f" and {more} more" if more > 0 else ""
    return f"{outcome.example.key}: {outcome.phase} on {outcome.node} with {devices or 'no device'}"


def table(outcomes: Sequence[Outcome], width: int = WIDTH) -> str:
    """Return a table of pods, their devices, and what their containers see, in lines of bounded length.

    Args:
        outcomes: what became of the examples.
        width: most columns of a line, as far as names of pods and nodes leave room for the rest.
    """
    header = ("EXAMPLE AND POD", "NODE", "DEVICE", "WHAT THE CONTAINER SEES")
    named = [(_name(o), o.node or f"({o.phase})") for o in outcomes]
    first, second = (max(len(n[i]) for n in (header, *named)) for i in (0, 1))
    # Names of devices are shorter than what containers see.
    room = max(_LEAST, width - first - second - 3 * len(_GAP))
    third = min(room * 9 // 20, max((len(d) for o in outcomes for d in _devices(o)), default=0))
    widths = (first, second, max(third, len(header[2])), room - third)
    rows = [header]
    for (name, node), outcome in zip(named, outcomes, strict=True):
        devices = [part for line in _devices(outcome) for part in _wrapped(line, widths[2])]
        sees = [part for line in _sees(outcome) for part in _wrapped(line, widths[3])]
        rows += zip_longest([name], [node], devices, sees, fillvalue="")
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def data(outcome: Outcome) -> dict[str, Any]:
    """Return what became of a pod as plain data; ``reasons`` are those for which it waits."""
    return {
        "namespace": outcome.example.key.namespace,
        "name": outcome.example.key.name,
        "example": outcome.example.source,
        "phase": outcome.phase,
        "node": outcome.node,
        "devices": [
            {
                "driver": item.result.driver,
                "pool": item.result.pool,
                "device": item.result.device,
                "model": _model(item),
                "adminAccess": bool(item.result.admin_access),
                "capacity": {
                    k: str(v.value) for k, v in (item.device.capacity if item.device else {}).items()
                },
                "consumedCapacity": {k: str(v) for k, v in item.result.consumed_capacity.items()},
            }
            for item in outcome.devices
        ],
        "containers": {
            name: {"deviceNodes": sorted(d.path for d in view.devices), "env": dict(view.env)}
            for name, view in (outcome.containers or {}).items()
        },
        "reasons": list(outcome.reasons),
    }


def _name(outcome: Outcome) -> str:
    """Return the number of the example, if it has one, and the name of the pod."""
    number = outcome.example.source.partition("-")[0]
    return f"{number} {outcome.example.key.name}" if number.isdecimal() else outcome.example.key.name


def _devices(outcome: Outcome) -> list[str]:
    return _shortened([_device(d) for d in outcome.devices], "devices") or ["-"]


def _wrapped(line: str, width: int) -> list[str]:
    """Return a line in parts that fit a column: the value of a variable goes into a part of its own."""
    name, is_variable, value = line.partition("=")
    if is_variable and len(line) > width and len(name) < width:
        return [
            f"{name}=",
            *(f"  {part}" for part in textwrap.wrap(value, width - 2, break_on_hyphens=False)),
        ]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]


def _device(item: AllocatedDevice) -> str:
    share = item.result.consumed_capacity.get("memory") if item.result.share_id is not None else None
    memory = item.device.capacity.get("memory") if item.device is not None else None
    amount = f"  {memory.value}" if memory is not None else ""
    if share is not None:
        amount = f"  {share} of{amount[1:]}"
    admin = "  (admin access)" if item.result.admin_access else ""
    return f"{item.result.device}  {_model(item)}{amount}{admin}"


def _model(item: AllocatedDevice) -> str:
    if item.device is None:
        return "gone"
    return str(attribute(item.device, "model") or "unknown model")


def _sees(outcome: Outcome) -> list[str]:
    lines: list[str] = []
    for view in _different(outcome.containers or {}):
        nodes = sorted(d.path for d in view.devices)
        if nodes:
            more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
            lines.append(" ".join(nodes[:3]) + more)
        devices = [f"{k}={v}" for k, v in sorted(view.env.items()) if k.startswith("DRA_") and _is_device(k)]
        lines += _shortened(devices, "such")
        lines += [f"{k}={v}" for k, v in sorted(view.env.items()) if k in outcome.example.expect.env]
    return list(dict.fromkeys(lines)) or ["-"]


def _is_device(name: str) -> bool:
    return name.endswith("_DEVICE")


def _different(containers: Mapping[str, ContainerView]) -> list[ContainerView]:
    """Return the containers without those that see the same as an earlier one."""
    found: list[ContainerView] = []
    for view in containers.values():
        if all(view.env != other.env for other in found):
            found.append(view)
    return found


def _shortened(lines: Sequence[str], what: str) -> list[str]:
    if len(lines) <= _SHOWN + 1:
        return list(lines)
    return [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more {what}"]
