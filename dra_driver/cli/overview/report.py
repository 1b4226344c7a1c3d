"""The overview as a report for people, and as data. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dra_driver.cli import common, shapes_argument
from dra_driver.cli.display.report import Block, Cell, Line, Report, Style, Table, plain
from dra_driver.cli.overview.devices import DeviceRow, device_blocks, device_data
from dra_driver.cli.overview.grants import grant_blocks
from dra_driver.cli.overview.problems import problem_blocks, problem_data
from dra_driver.cli.overview.rows import NamespaceRow, Row, activity, fold_waiting, named, utilisation
from dra_driver.fleet import STATES, GrantsShown, PreemptionRow, Problem, ShapeCount, WaitingClaim

__all__ = ["Overview", "SetAsideRow", "checked", "overview_data", "overview_report", "overview_text"]

# Namespaces that people are shown; -o json has all of them.
_MOST_NAMESPACES: Final = 10


@dataclass(frozen=True, slots=True)
class SetAsideRow:
    """Devices that are set aside for a pod.

    Attributes:
        pod: ``namespace/name``.
        since: RFC 3339.
        devices: which, and until when, for people.
    """

    pod: str
    since: str
    devices: str


@dataclass(frozen=True, slots=True)
class Overview:
    """All rows and claims that are shown; ``listed`` are the devices one by one, where that is asked for."""

    rows: tuple[Row, ...]
    waiting: tuple[WaitingClaim, ...]
    nodes: int
    nodes_with_devices: int
    notes: tuple[str, ...]
    shapes: tuple[ShapeCount, ...] = ()
    set_aside: tuple[SetAsideRow, ...] = ()
    preemptions: tuple[PreemptionRow, ...] = ()
    namespaces: tuple[NamespaceRow, ...] = ()
    grants: GrantsShown | None = None
    problems: tuple[Problem, ...] = ()
    listed: tuple[DeviceRow, ...] = ()
    now: float = 0.0


def overview_text(overview: Overview, form: str) -> str:
    """Return the overview as text in one of the forms of ``-o``."""
    return (
        plain(overview_report(overview))
        if form == "table"
        else common.format_data(overview_data(overview), form)
    )


def checked(overview: Overview) -> Report:
    """Return the problems alone."""
    if not overview.problems:
        return [[Line("no problems", "good")]]
    return [list(problem_blocks(overview.problems, overview.now))]


def overview_report(overview: Overview) -> Report:
    """Return the report."""
    report: list[Sequence[Block]] = [list(problem_blocks(overview.problems, overview.now))]
    if overview.listed:
        report.append(list(device_blocks(overview.listed)))
        report.append(_sums(overview))
    else:
        report += _devices(overview)
    if overview.shapes:
        report.append([shapes_argument.shapes_table(overview.shapes)])
    if len(overview.namespaces) > 1 or any(n.devices for n in overview.namespaces):
        report.append(list(_namespaces(overview.namespaces)))
    if overview.waiting:
        waits = [(named(w.claims), named(w.pods), w.reason) for w in fold_waiting(overview.waiting)]
        report.append([Table(("WAITING CLAIM", "PODS", "WHY"), waits)])
    if overview.set_aside:
        kept = [(s.pod, s.since, s.devices) for s in overview.set_aside]
        report.append([Table(("SET ASIDE FOR POD", "SINCE", "DEVICES"), kept)])
    if overview.preemptions:
        found = [(p.pod, p.state, p.since, p.whom) for p in overview.preemptions]
        report.append([Table(("PREEMPTOR", "STATE", "SINCE", "PODS"), found)])
    if overview.grants is not None:
        report.append(list(grant_blocks(overview.grants)))
    if overview.notes:
        report.append([Line(note, "warning") for note in overview.notes])
    return report


def _devices(overview: Overview) -> Iterator[Sequence[Block]]:
    rows = overview.rows
    if not rows:
        yield [Line(f"no devices on {overview.nodes} nodes", "bad")]
        return
    with_node = any(r.node for r in rows)
    # A state that no device is in takes no column, but for those that everybody looks for.
    states = [s for s in STATES if s in ("allocated", "free") or any(r.states[s] for r in rows)]
    with_activity = any(r.activity.known for r in rows)
    header = (
        *(["NODE"] if with_node else []),
        *("MODEL", "TYPE", "DEVICES", *map(str.upper, states)),
        *(["BUSY"] if with_activity else []),
        "MEMORY",
    )
    cells = [
        (
            *([r.node] if with_node else []),
            r.model,
            r.type,
            r.total,
            *(_state(s, r.states[s]) for s in states),
            *([r.activity.busy if r.activity.known else "-"] if with_activity else []),
            r.memory,
        )
        for r in rows
    ]
    yield [Table(header, cells)]
    yield _sums(overview)


def _sums(overview: Overview) -> list[Block]:
    rows = overview.rows
    total = sum(r.total for r in rows)
    counts = ", ".join(f"{n} {s}" for s in STATES if (n := sum(r.states[s] for r in rows)))
    where = f"{overview.nodes_with_devices} of {overview.nodes} nodes"
    lines: list[Block] = [Line(f"{total} devices on {where}: {counts}", "strong"), Line(utilisation(rows))]
    return [*lines, *([Line(activity(rows))] if any(r.activity.known for r in rows) else [])]


def _state(state: str, number: int) -> Cell:
    styles: dict[str, Style] = {"unhealthy": "bad", "free": "good"}
    return Cell(number, styles.get(state, "") if number else "quiet")


def _waiting(number: int) -> Cell:
    return Cell(number, "warning" if number else "quiet")


def _namespaces(namespaces: Sequence[NamespaceRow]) -> Iterator[Block]:
    rows = [
        (
            n.namespace,
            n.devices,
            n.memory.held,
            len(n.claims),
            _waiting(n.waiting),
        )
        for n in namespaces[:_MOST_NAMESPACES]
    ]
    yield Table(("NAMESPACE", "DEVICES", "MEMORY", "CLAIMS", "WAITING"), rows)
    if len(namespaces) > _MOST_NAMESPACES:
        yield Line(f"{len(namespaces) - _MOST_NAMESPACES} more namespaces", "quiet")


def overview_data(overview: Overview) -> dict[str, Any]:
    """Return plain data."""
    return {
        "problems": problem_data(overview.problems),
        "devices": [r.data() for r in overview.rows],
        "namespaces": [n.data() for n in overview.namespaces],
        "waiting": [{"claim": w.claim, "pods": list(w.pods), "reason": w.reason} for w in overview.waiting],
        "setAside": [{"pod": s.pod, "since": s.since, "devices": s.devices} for s in overview.set_aside],
        "preemptions": [msgspec.to_builtins(p) for p in overview.preemptions],
        "grants": msgspec.to_builtins(overview.grants),
        "shapes": [s.data() for s in overview.shapes],
        **({"deviceList": device_data(overview.listed)} if overview.listed else {}),
        "nodes": overview.nodes,
        "notes": list(overview.notes),
    }
