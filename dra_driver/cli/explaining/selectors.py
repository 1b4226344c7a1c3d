"""A selector on devices: which it takes, what it saw of them, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver import cel
from dra_driver.api.resource import ResourceSlice
from dra_driver.cli.display.report import Block, Cell, Line, Report, Style, Table
from dra_driver.errors import InvalidInput
from dra_driver.ownership import newest_generation, pool_of_slice
from dra_driver.structured import DeviceID, seen_values

__all__ = ["Evaluated", "Evaluation", "evaluate", "evaluation_data", "evaluation_report"]

# Rows of equal devices that are shown; -o wide has every device.
_MOST_ROWS: Final = 20
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result on one device.

    Attributes:
        value: whether it is selected, or why the expression fails on it.
        cost: of this evaluation, in the units of ``max_cost``, with what Kubernetes does not count.
        seen: what the expression reads of it, and the values.
        key: equal for devices about which the expression can say nothing different.
    """

    device: DeviceID
    value: bool | str
    cost: int
    seen: str
    key: object

    @property
    def result(self) -> Cell:
        """The result in words."""
        if isinstance(self.value, str):
            return Cell(f"error: {self.value}", "bad")
        return Cell("selected", "good") if self.value else Cell("not selected")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A selector on all devices.

    Attributes:
        max_cost: the worst case that an API server estimates; it refuses more than 1,000,000.
        refused: why an API server would refuse the selector in a new object.
    """

    found: Sequence[Evaluated]
    max_cost: int
    refused: Sequence[str]

    @property
    def selected(self) -> int:
        """The number of devices that are selected."""
        return sum(e.value is True for e in self.found)


def evaluate(expression: str, slices: Iterable[ResourceSlice]) -> Evaluation:
    """Evaluate a selector on the devices of the newest generation of each pool.

    Raises:
        InvalidInput: the expression is not a selector; says where it is wrong.
    """
    try:
        selector = cel.compile_selector(expression)
    except cel.CelCompileError as e:
        raise InvalidInput(f"not a selector: {e}") from e
    pools: dict[object, list[ResourceSlice]] = {}
    for slice_ in slices:
        pools.setdefault(pool_of_slice(slice_), []).append(slice_)
    found = []
    for of_pool in pools.values():
        for slice_ in newest_generation(of_pool):
            for device in slice_.spec.devices:
                view = cel.DeviceView(slice_.spec.driver, device)
                value, cost = selector.evaluate(view)
                identity = DeviceID(slice_.spec.driver, slice_.spec.pool.name, device.name)
                seen = seen_values(selector, [view])
                found.append(Evaluated(identity, value, cost, seen, selector.projection_key(view)))
    refused = [f.message for f in cel.validate_selector(expression)]
    if refused and not cel.validate_selector(expression, environment=cel.NEW_WITH_LISTS):
        refused = [f"{why} (it accepts it with the feature gate DRAListTypeAttributes)" for why in refused]
    return Evaluation(sorted(found, key=lambda e: e.device), selector.max_cost, refused)


def evaluation_report(evaluation: Evaluation, *, wide: bool = False) -> Report:
    """Return the results as a report: equal devices in one row, or each in its own."""
    found = evaluation.found
    style: Style = "good" if evaluation.selected else "bad"
    costs = f"estimated cost {evaluation.max_cost:,} of {cel.COST_LIMIT:,}"
    if found:
        costs += f", {max(e.cost for e in found):,} at most on these devices"
    first: list[Block] = [Line(f"selects {evaluation.selected} of {len(found)} devices; {costs}", style)]
    first += [Line(f"an API server refuses it in a new object: {why}", "bad") for why in evaluation.refused]
    if not found:
        return [first]
    if wide:
        rows = [(e.device, e.result, e.seen or "-", e.cost) for e in found]
        return [first, [Table(("DEVICE", "RESULT", "SAW", "COST"), rows)]]
    same: dict[object, list[Evaluated]] = {}
    for e in found:
        same.setdefault((e.value, e.key), []).append(e)
    groups = sorted(same.values(), key=lambda g: (g[0].value is not True, -len(g)))
    folded = [
        (g[0].result, len(g), g[0].seen or "-", max(e.cost for e in g), _pools(g))
        for g in groups[:_MOST_ROWS]
    ]
    paragraph: list[Block] = [Table(("RESULT", "DEVICES", "SAW", "COST", "POOLS"), folded)]
    if len(groups) > _MOST_ROWS:
        paragraph.append(Line(f"{len(groups) - _MOST_ROWS} more kinds of devices; -o wide has each", "quiet"))
    return [first, paragraph]


def _pools(group: Sequence[Evaluated]) -> str:
    names = list(dict.fromkeys(str(e.device.pool) for e in group))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def evaluation_data(evaluation: Evaluation) -> dict[str, Any]:
    """Return the results as plain data."""
    return {
        "selected": evaluation.selected,
        "maxCost": evaluation.max_cost,
        "costLimit": cel.COST_LIMIT,
        "refused": list(evaluation.refused),
        "devices": [
            {
                "device": str(e.device),
                "selected": e.value is True,
                "error": e.value if isinstance(e.value, str) else "",
                "saw": e.seen,
                "cost": e.cost,
            }
            for e in evaluation.found
        ],
    }
