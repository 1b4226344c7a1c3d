"""Devices that are not published because something else on their node hands them out, for people."""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.api.own.inventory import DeviceInventory

__all__ = ["withheld_notes"]

# Nodes, and notes, that are named.
_NODES = 3
_NOTES = 8


def withheld_notes(inventories: Iterable[DeviceInventory]) -> tuple[str, ...]:
    """Return a sentence for each device plugin and each other DRA driver for which devices are withheld."""
    plugins: dict[str, list[str]] = {}
    drivers: dict[str, list[tuple[str, int]]] = {}
    for inventory in inventories:
        node, publication = inventory.spec.node_name, inventory.status.publication
        for resource in publication.withheld_for:
            plugins.setdefault(resource, []).append(node)
        for note in publication.other_drivers:
            drivers.setdefault(note.driver, []).append((node, len(note.devices)))
    notes = [
        f"devices of {_named(nodes)} are not published: a device plugin hands out {resource} there"
        for resource, nodes in sorted(plugins.items())
    ]
    for driver, found in sorted(drivers.items()):
        number = sum(devices for _, devices in found)
        notes.append(
            f"{number} device{'s' * (number != 1)} of {_named([node for node, _ in found])} "
            f"{'are' if number != 1 else 'is'} not published: DRA driver {driver} has the same"
        )
    more = len(notes) - _NOTES
    return (*notes[:_NOTES], *((f"devices are withheld for {more} more reasons",) if more > 0 else ()))


def _named(nodes: list[str]) -> str:
    distinct = sorted(set(nodes))
    more = len(distinct) - _NODES
    return f"node{'s' * (len(distinct) > 1)} {', '.join(distinct[:_NODES])}" + (
        f" and {more} more" if more > 0 else ""
    )
