"""What the demo prints about nodes and pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dra_driver.api.resource import ResourceSlice
from dra_driver.sim.cdi_reader import ContainerView
from dra_driver.sim.demo.checks import attribute
from dra_driver.sim.demo.examples import AllocatedDevice, Outcome

__all__ = ["inventory", "progress", "table"]

# Most devices, and most lines of a container, that are shown.
_SHOWN = 2


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


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table of pods, their devices, and what their containers see."""
    header = ("EXAMPLE", "POD", "NODE", "DEVICE", "WHAT THE CONTAINER SEES")
    rows: list[tuple[str, ...]] = []
    source = ""
    for outcome in outcomes:
        sees = _sees(outcome)
        devices = _shortened([_device(d) for d in outcome.devices], "devices") or ["-"]
        shown = outcome.example.source.removesuffix(".yaml")
        for i in range(max(len(devices), len(sees))):
            first = i == 0
            rows.append(
                (
                    shown if first and shown != source else "",
                    outcome.example.key.name if first else "",
                    (outcome.node or f"({outcome.phase})") if first else "",
                    devices[i] if i < len(devices) else "",
                    sees[i] if i < len(sees) else "",
                )
            )
        source = shown
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )


def _device(item: AllocatedDevice) -> str:
    share = item.result.consumed_capacity.get("memory") if item.result.share_id is not None else None
    memory = item.device.capacity.get("memory") if item.device is not None else None
    amount = f"  {memory.value}" if memory is not None else ""
    if share is not None:
        amount = f"  {share} of{amount[1:]}"
    looks = "  (looks on)" if item.result.admin_access else ""
    return f"{item.result.device}  {_model(item)}{amount}{looks}"


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
        devices = [f"{k}={v}" for k, v in sorted(view.env.items()) if k.startswith("DRA_") and _tells(k)]
        lines += _shortened(devices, "such")
        lines += [f"{k}={v}" for k, v in sorted(view.env.items()) if k in outcome.example.expect.env]
    return list(dict.fromkeys(lines)) or ["-"]


def _tells(name: str) -> bool:
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
