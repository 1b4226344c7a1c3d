"""Domains of topology: the sets of nodes of which one must hold a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from dra_driver.structured import Level, Snapshot, attribute_text

__all__ = ["Domain", "attribute_values", "domains_of"]


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes that share the values of the required levels.

    Attributes:
        nodes: names in order.
        levels: that narrow down the devices of these nodes, with their values.
        values: of all required levels.
    """

    nodes: tuple[str, ...]
    levels: tuple[Level, ...] = ()
    values: tuple[str, ...] = ()


def attribute_values(snapshot: Snapshot, node: str, attribute: str) -> tuple[str | None, ...]:
    """Return the text that each device of the node's view has as an attribute, None for those without."""
    return tuple(
        attribute_text(entry, attribute) for pool in snapshot.view(node).pools for entry in pool.devices
    )


def domains_of(snapshot: Snapshot, levels: Sequence[Level]) -> list[Domain]:
    """Return the domains of the required levels, by their values; without levels, one of all nodes."""
    required = [level for level in levels if level.required]
    if not required:
        return [Domain(tuple(snapshot.nodes))]
    found: dict[tuple[str, ...], list[str]] = {}
    for name, node in snapshot.nodes.items():
        labels = node.metadata.labels or {}
        values: list[list[str]] = []
        for level in required:
            if level.label:
                values.append([labels[level.label]] if level.label in labels else [])
            else:
                of = attribute_values(snapshot, name, level.attribute)
                values.append(sorted({v for v in of if v is not None}))
        for one in product(*values):
            found.setdefault(one, []).append(name)
    return [
        Domain(
            tuple(nodes),
            tuple(replace(at, value=v) for at, v in zip(required, values, strict=True) if at.attribute),
            values,
        )
        for values, nodes in sorted(found.items())
    ]
