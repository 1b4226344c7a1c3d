"""What the overview says of devices that are lent to kube-scheduler. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.cli.display.report import Block, Line, Table
from dra_driver.cli.overview.rows import matches, named
from dra_driver.fleet import GRANTING, LENDING, LendingShown

__all__ = ["LentRow", "lending_blocks", "lent_rows", "lent_table", "of_namespace"]


@dataclass(frozen=True, slots=True)
class LentRow:
    """Devices that are noted to be lent to kube-scheduler, or not to be the controller's again yet.

    Attributes:
        node: of the devices.
        driver: likewise.
        unit: what is exclusive together with them.
        devices: their names.
    """

    node: str
    driver: str
    unit: str
    devices: tuple[str, ...]


def lent_rows(
    inventories: Iterable[DeviceInventory], drivers: Collection[str], patterns: Sequence[str]
) -> tuple[LentRow, ...]:
    """Return what is noted to be lent of these drivers, on nodes whose names match."""
    return tuple(
        LentRow(i.spec.node_name, i.spec.driver, one.unit, one.devices)
        for i in inventories
        if i.spec.driver in drivers and matches(i.spec.node_name, patterns)
        for one in i.status.publication.lent
    )


def lent_table(rows: Iterable[LentRow]) -> Table:
    """Return what is noted to be lent, for people."""
    cells = [(r.node, r.driver, r.unit, ", ".join(r.devices)) for r in rows]
    return Table(("LENT BY NODE", "DRIVER", "UNIT", "DEVICES"), cells)


def of_namespace(shown: LendingShown | None, namespace: str) -> LendingShown | None:
    """Return what is said of lending with the loans of one namespace; of all where it is empty."""
    if shown is None or not namespace:
        return shown
    own = tuple(one for one in shown.loans if one.pod.startswith(f"{namespace}/"))
    return msgspec.structs.replace(shown, loans=own)


def lending_blocks(shown: LendingShown) -> Iterator[Block]:
    """Return whether devices are granted, or lent, why not, and for which pods; nothing where that is off."""
    if shown.mode == "off":
        return
    yield Line(
        shown.sentence, "strong" if shown.mode in (LENDING, GRANTING) and not shown.obstacle else "warning"
    )
    if shown.ungated:
        more = ("",) * shown.more_ungated  # counted, not named
        yield Line(f"namespaces without the gate: {named((*shown.ungated, *more))}", "warning")
    if shown.loans:
        rows = [(one.pod, one.node, one.state, one.since, ", ".join(one.devices)) for one in shown.loans]
        what = "GRANTED TO POD" if shown.mode == GRANTING else "LENT FOR POD"
        yield Table((what, "NODE", "STATE", "SINCE", "DEVICES"), rows)
