"""Nodes and devices, explained: what is wrong, who holds the devices, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dra_driver.cli.display.report import Block, Line
from dra_driver.cli.explaining.targets import DEVICE, Target
from dra_driver.cli.overview.devices import DeviceRow, device_blocks, device_data, device_paragraph
from dra_driver.cli.overview.problems import problem_blocks, problem_data
from dra_driver.cli.overview.report import Overview
from dra_driver.errors import InvalidInput
from dra_driver.fleet import Problem
from dra_driver.suggestions import did_you_mean

__all__ = ["of_target", "part_blocks", "part_data"]


def of_target(target: Target, overview: Overview) -> tuple[list[DeviceRow], list[Problem]]:
    """Return the devices of a target, and its problems: those of its node concern a device as well.

    Raises:
        InvalidInput: there is no such node, or no such device.
    """
    node, _, device = target.name.partition("/")
    rows = [row for row in overview.listed if row.node == node]
    problems = [p for p in overview.problems if p.node == node]
    if not rows and not problems:
        names = {row.node for row in overview.listed}
        raise InvalidInput(f"there are no devices on a node {node}{did_you_mean(node, names)}")
    if target.kind != DEVICE:
        return rows, problems
    found = [row for row in rows if row.device == device]
    if not found:
        text = f"there is no device {device} on node {node}"
        raise InvalidInput(text + did_you_mean(device, {row.device for row in rows}))
    return found, [p for p in problems if p.kind != "DeviceUnhealthy" or p.subject == f"device/{target.name}"]


def part_blocks(
    target: Target, rows: Sequence[DeviceRow], problems: Sequence[Problem], now: float
) -> Iterator[Block]:
    """Yield what is said of a target."""
    if target.kind == DEVICE:
        of_node = [p for p in problems if p.kind != "DeviceUnhealthy"]
        yield from problem_blocks(of_node, now)
        for row in rows:
            yield from device_paragraph(row, now)
        return
    yield from problem_blocks(problems, now)
    if not problems:
        yield Line(f"node {target.name}: no problems", "good")
    if rows:
        yield from device_blocks(rows)


def part_data(target: Target, rows: Sequence[DeviceRow], problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        target.kind.lower(): target.name,
        "problems": problem_data(problems),
        "devices": device_data(rows),
    }
