"""What the overview says of devices that are granted to kube-scheduler. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dra_driver.cli.display.report import Block, Line, Table
from dra_driver.cli.overview.rows import named
from dra_driver.fleet import GrantsShown

__all__ = ["grant_blocks", "of_namespace"]


def of_namespace(shown: GrantsShown | None, namespace: str) -> GrantsShown | None:
    """Return what is said of grants with the pods of one namespace; with all where it is empty."""
    if shown is None or not namespace:
        return shown
    own = tuple(one for one in shown.pods if one.pod.startswith(f"{namespace}/"))
    return msgspec.structs.replace(shown, pods=own)


def grant_blocks(shown: GrantsShown) -> Iterator[Block]:
    """Return whether devices are granted, why not, and for which pods; nothing where no pool is open."""
    if not shown.enabled:
        return
    yield Line(shown.sentence, "warning" if shown.obstacle else "strong")
    if shown.ungated:
        more = ("",) * shown.more_ungated  # counted, not named
        yield Line(f"namespaces without the gate: {named((*shown.ungated, *more))}", "warning")
    if shown.pods:
        rows = [(one.pod, one.node, one.state, one.since, ", ".join(one.devices)) for one in shown.pods]
        yield Table(("GRANTED TO POD", "NODE", "STATE", "SINCE", "DEVICES"), rows)
