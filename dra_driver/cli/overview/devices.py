"""Devices one by one: which is sick, why, who holds it, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.cli.display.report import Block, Cell, Line, Style, Table
from dra_driver.fleet import Holder, PoolView, Problem, duration, seconds_since

__all__ = ["DeviceRow", "device_blocks", "device_data", "device_list", "device_paragraph"]

_NOT_PUBLISHED: Final = "not published"


class DeviceRow(msgspec.Struct, frozen=True, rename="camel"):
    """One device of a node.

    Attributes:
        state: as in ``STATES``, or that it is not published: its node agent is gone, or a policy hides it.
        problem: what is wrong with it; empty if nothing is known to be.
        action: what to do about that.
        since: of the problem, RFC 3339.
    """

    node: str
    device: str
    model: str
    memory: str
    state: str
    holders: tuple[Holder, ...] = ()
    problem: str = ""
    action: str = ""
    since: str = ""

    @property
    def held_by(self) -> str:
        """The claims that hold it, with their pods, for people."""
        return ", ".join(h.claim + (f" ({', '.join(h.pods)})" if h.pods else "") for h in self.holders)


def device_list(
    view: PoolView,
    inventory: DeviceInventory | None,
    holders: dict[str, list[Holder]],
    problems: Iterable[Problem],
) -> Iterator[DeviceRow]:
    """Yield the devices of a pool: those that are published, and those that only the node knows."""
    wrong = {p.subject.rpartition("/")[2]: p for p in problems if p.kind == "DeviceUnhealthy"}

    def row(name: str, model: str, memory: str, state: str, by: Iterable[Holder], said: str) -> DeviceRow:
        problem = wrong.get(name)
        text, action, since = (problem.message, problem.action, problem.since) if problem else (said, "", "")
        return DeviceRow(view.node, name, model, memory, state, tuple(by), text, action, since)

    for d in view.devices:
        # What is harmless is no problem, and severity says so.
        said = "; ".join(d.problems) if d.severity not in ("", "info") else ""
        yield row(d.name, d.model, d.memory, d.state, d.holders, said)
    published = {d.name for d in view.devices}
    for device in inventory.spec.devices if inventory is not None else ():
        if device.name not in published:
            model, memory = device.attributes.get("model"), device.capacity.get("memory")
            named = (model.string_value if model is not None else "") or "-"
            size = str(memory.value) if memory is not None else ""
            yield row(device.name, named, size, _NOT_PUBLISHED, holders.get(device.name, ()), "")


def device_blocks(rows: Sequence[DeviceRow]) -> Iterator[Block]:
    """Yield a table with a row for each device."""
    styles: dict[str, Style] = {"unhealthy": "bad", "free": "good", _NOT_PUBLISHED: "warning"}
    cells = [
        (r.node, r.device, r.model, Cell(r.state, styles.get(r.state, "")), r.held_by or "-", _wrong(r))
        for r in rows
    ]
    yield Table(("NODE", "DEVICE", "MODEL", "STATE", "HELD BY", "PROBLEM, AND WHAT TO DO"), cells)


def device_paragraph(row: DeviceRow, now: float) -> Iterator[Block]:
    """Yield what is known of one device."""
    kind = ", ".join(text for text in (row.model, row.memory) if text not in ("", "-"))
    style: Style = "bad" if row.problem else "strong"
    yield Line(f"device {row.node}/{row.device}{f' ({kind})' if kind else ''}: {row.state}", style)
    if row.problem:
        ago = seconds_since(row.since, now)
        yield Line(f"  {row.problem}" + (f" (for {duration(ago)})" if ago is not None else ""), "warning")
    yield Line(f"  held by {row.held_by}" if row.holders else "  held by no claim")
    if row.action:
        yield Line(f"  what to do: {row.action}")


def _wrong(row: DeviceRow) -> str:
    return f"{row.problem}: {row.action}" if row.action else row.problem or "-"


def device_data(rows: Iterable[DeviceRow]) -> list[Any]:
    """Return devices as plain data."""
    return [msgspec.to_builtins(r) for r in rows]
